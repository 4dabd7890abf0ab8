"""The agent's side of CNI: what the plugin forwards becomes an event, and its result CNI's answer.

Invariants: every call is answered with CNI's JSON and an exit code; no failure leaves as a gRPC error, since the plugin
would take it for an absent agent. DELs in the spool are replayed before any ADD, so that an ADD never meets what an
older DEL was to remove. A pod's namespace is looked at before anything is given to it.
"""

import asyncio
import fcntl
import logging
import os
import stat
import time
from pathlib import Path
from typing import NamedTuple, Protocol

from google.protobuf.message import DecodeError

from podwire.cni import bandwidth, portmappings
from podwire.cni.cni_pb2 import CniReply, CniRequest
from podwire.cni.errors import CniError, ErrorCode, encode_error
from podwire.cni.request import LARGEST, Request, asked_version, parse_request
from podwire.cni.result import (
    DNS,
    NO_DNS,
    AddResult,
    End,
    add_result,
    decode_previous,
    encode,
    encode_versions,
    missing,
)
from podwire.controller.difference import Difference
from podwire.controller.events import AddPod, CollectPods, DeletePod, Event, Refusal, Resync, ResyncReason
from podwire.controller.transaction import Result
from podwire.model.addresses import family_of
from podwire.model.network import CursorKey
from podwire.model.objects import NO_BANDWIDTH, Attachment, AttachmentKey
from podwire.model.snapshot import Snapshot, Touched
from podwire.pods import hostports, wiring
from podwire.pods.names import link_of, pod_mac
from podwire.pods.readiness import obstacle
from podwire.sources.cni_calls import CallServer
from podwire.sources.cni_spool import replay, spooled, sweep

log = logging.getLogger(__name__)

STORE, LINUX = "store", "linux"
NS_GET_NSTYPE, CLONE_NEWNET = 0xB703, 0x4000_0000
"""ioctl_ns(2): the kind of namespace that an open file is."""


class Controller(Protocol):
    """What is needed of the controller's loop."""

    @property
    def snapshot(self) -> Snapshot: ...

    @property
    def unsynced(self) -> frozenset[str]:
        """The drivers that no resync has brought to work."""

    def submit(self, event: Event) -> asyncio.Future[Result]: ...

    async def check(self, touched: Touched) -> dict[str, Difference]: ...


class Cni(NamedTuple):
    """What every call needs."""

    controller: Controller
    spool: Path
    replaying: asyncio.Lock
    adding: list[AttachmentKey]
    """Whose ADD is under way."""


async def serve(socket: Path, spool: Path, controller: Controller) -> CallServer:
    """Serves on a unix socket that only root can open. The caller holds the state directory's lock: a socket that is
    there already is a dead agent's. Raises OSError where socket or spool can't be made."""
    cni = Cni(controller, spool, asyncio.Lock(), [])
    _make_room(socket, spool)
    await _replay(cni)

    async def call(body: bytes) -> bytes:
        return (await answer(cni, body)).SerializeToString()

    server = CallServer(call, LARGEST)
    await server.listen(socket)
    await _replay(cni)  # what was left between the first time and now
    sweep(spool, time.time())
    return server


async def answer(cni: Cni, body: bytes) -> CniReply:
    """One call of the plugin, whatever it contains."""
    command, stdin = "", b""
    try:
        try:
            message = CniRequest.FromString(body)
        except DecodeError as error:
            raise CniError(ErrorCode.DECODING_FAILURE, f"the plugin's message can't be read: {error}") from None
        stdin = message.stdin
        command = next((line[12:] for line in message.environment if line.startswith("CNI_COMMAND=")), "")
        return CniReply(stdout=await _carry_out(cni, parse_request(message.environment, stdin)))
    except CniError as error:
        failure = error
        log.warning("CNI %s: code %d: %s %s", command, error.code, error.text, error.details)
    except Exception as error:
        failure = CniError(ErrorCode.INTERNAL, f"internal error of podwire's agent: {error!r}")
        log.exception("CNI %s", command)
    return CniReply(stdout=encode_error(failure, asked_version(stdin), command), exit_code=1)


async def _carry_out(cni: Cni, request: Request) -> bytes:
    """What to print. Raises CniError."""
    match request.command:
        case "ADD":
            cni.adding.append(request.key)
            try:
                return await _add(cni, request)
            finally:
                cni.adding.remove(request.key)
        case "DEL":
            error = await _delete(cni, request.key)
            if error is not None:
                raise CniError(ErrorCode.IO_FAILURE, f"{request.key}: {error}")
            return b""
        case "CHECK":
            await _check(cni.controller, request)
            return b""
        case "GC":
            await _collect(cni, request)
            return b""
        case "STATUS":
            why = status(cni.controller)
            if why is not None:
                raise why
            return b""
    return encode_versions(request.version)


def status(controller: Controller) -> CniError | None:
    """Why an ADD would not be served (CNI spec, section 4, "STATUS"), or None. Code 51: pods that live may have lost
    something too, since none of what they need could be made."""
    if controller.unsynced:
        text = f"not yet in sync: {', '.join(sorted(controller.unsynced))}"
        return CniError(ErrorCode.LIMITED_CONNECTIVITY, text)
    why = obstacle(controller.snapshot)
    return None if why is None else CniError(ErrorCode.NOT_AVAILABLE, why.text)


async def _add(cni: Cni, request: Request) -> bytes:
    dns = request.dns
    device, inode = check_namespace(request.netns)
    try:
        if spooled(cni.spool):
            await _replay(cni)
    except OSError as error:  # there may be a DEL in it that has to go before
        raise CniError(ErrorCode.TRY_AGAIN_LATER, f"{cni.spool}: can't be listed: {error.strerror}") from None
    key, pod, netns = request.key, request.pod, request.netns
    added = AddPod(
        key, pod, netns, device, inode, request.uid, request.config.name, request.host_ports, request.bandwidth
    )
    result = await cni.controller.submit(added)
    if result.error is not None:
        if result.refusal is Refusal.OCCUPIED:
            raise _namespace(result.error)
        if result.refusal is Refusal.PORT_UNFIT:
            raise CniError(ErrorCode.INVALID_CONFIG, f"network configuration: {portmappings.NAME}: {result.error}")
        code = ErrorCode.IO_FAILURE if result.refusal is None else ErrorCode.TRY_AGAIN_LATER
        raise CniError(code, result.error)
    now = cni.controller.snapshot
    held = now.attachments.get(request.key)
    if held is None:
        raise CniError(ErrorCode.TRY_AGAIN_LATER, f"{request.key}: deleted while it was added")
    return encode(_result(request.version, request.key, held, now.pod_mtu, dns))


async def _delete(cni: Cni, key: AttachmentKey) -> str | None:
    """Why it is not detached. A row that can't be removed now (a full disk) is no reason: what the pod had is free, and
    healing removes the row; a DEL "should generally complete without error" (CNI spec 1.1.0, section 4, "DEL")."""
    return (await cni.controller.submit(DeletePod(key))).error_without(STORE)


async def _collect(cni: Cni, request: Request) -> None:
    """What nobody has any more: the runtime's DELs in the spool, the attachments that it does not list, and links of
    ours without one. What comes while this goes on is no part of it. Goes on past errors, and raises CniError with all
    of them at the end (CNI spec 1.1.0, section 4, "GC")."""
    if request.valid is None:
        return
    valid = request.valid | frozenset(cni.adding)  # no runtime lists what it has no answer for yet
    asked = CollectPods(request.config.name, valid, cni.controller.snapshot.serial)
    errors: list[str] = []
    try:
        await _replay(cni)
    except OSError as error:
        errors.append(f"{cni.spool}: can't be listed: {error.strerror}")
    sweep(cni.spool, time.time())
    errors += (await cni.controller.submit(asked)).errors_without(STORE)
    swept = await cni.controller.submit(Resync(ResyncReason.COLLECTION, drivers=frozenset((STORE, LINUX))))
    errors += _not_swept(swept)
    if errors:
        raise CniError(ErrorCode.IO_FAILURE, "not all could be collected: " + "; ".join(dict.fromkeys(errors)))


def _not_swept(swept: Result) -> list[str]:
    """What else a resync could not do is no concern of a GC."""
    if not swept.steps:
        return [] if swept.error is None else [swept.error]
    errors = [step.error for step in swept.steps if step.error is not None]
    for step in swept.steps:
        gone = (outcome for key, outcome in step.outcomes.items() if (it := step.difference.get(key)) and not it.after)
        errors += [outcome.error for outcome in gone if outcome.error is not None]
    return errors


async def _replay(cni: Cni) -> None:
    async with cni.replaying:
        await replay(cni.spool, lambda key: _delete(cni, key))


async def _check(controller: Controller, request: Request) -> None:
    """That the attachment is as its result said (CNI spec, section 4, "CHECK"); repairs nothing. Raises CniError."""
    now, key = controller.snapshot, request.key
    previous = request.config.prev_result
    if previous is None:
        raise CniError(ErrorCode.INVALID_CONFIG, "network configuration: prevResult: missing; CHECK needs it")
    check_namespace(request.netns)
    held = now.attachments.get(key)
    if held is None:
        raise CniError(ErrorCode.UNKNOWN_CONTAINER, f"{key}: this node's agent has not attached it")
    wrong = missing(decode_previous(previous), _result(request.version, key, held, now.pod_mtu), request.netns)
    if wrong:
        raise CniError(ErrorCode.DIFFERS, f"{key}: prevResult lacks {', '.join(wrong)}")
    families = set(map(family_of, held.addresses))
    asked, given = (hostports.places(ports, families) for ports in (request.host_ports, held.host_ports))
    if asked and asked != given:
        raise CniError(ErrorCode.DIFFERS, f"{key}: {portmappings.NAME} are not those of its ADD")
    if request.bandwidth not in (NO_BANDWIDTH, held.bandwidth):
        raise CniError(ErrorCode.DIFFERS, f"{key}: {bandwidth.NAME} is not that of its ADD")
    try:
        drift = await controller.check(Touched(attachments=frozenset((key,))))
    except OSError as error:
        raise CniError(ErrorCode.IO_FAILURE, f"{key}: the network can't be read: {error}") from None
    desired = wiring.desired(now, Touched(attachments=frozenset((key,))))
    off = [
        str(item)
        for driver, keys in desired.items()
        for item in keys
        if item in drift.get(driver, ()) and not isinstance(item, CursorKey)
    ]
    if off:
        raise CniError(ErrorCode.DIFFERS, f"{key}: not as it should be: {', '.join(off)}")


def _result(version: str, key: AttachmentKey, held: Attachment, mtu: int, dns: DNS = NO_DNS) -> AddResult:
    link = link_of(key, held)
    return add_result(
        version,
        End(link, wiring.NODE_MAC),
        End(key.interface, pod_mac(link)),
        held.netns,
        mtu,
        [(address, wiring.GATEWAY[family_of(address)]) for address in held.addresses],
        dns,
    )


def check_namespace(path: str) -> tuple[int, int]:
    """That the path is of a network namespace, and not the agent's own: its device and inode. Raises CniError."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise _namespace(f"{path} does not exist") from None
    except OSError as error:
        raise _namespace(f"{path} can't be opened: {error.strerror}") from None
    try:
        if fcntl.ioctl(file, NS_GET_NSTYPE) != CLONE_NEWNET:
            raise _namespace(f"{path} is a namespace, but not of a network")
        found, own = os.fstat(file), os.stat("/proc/thread-self/ns/net")
        if (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino):
            raise _namespace(f"{path} is the node's own network namespace")
        return found.st_dev, found.st_ino
    except OSError:
        raise _namespace(f"{path} is no network namespace") from None
    finally:
        os.close(file)


def _namespace(text: str) -> CniError:
    return CniError(ErrorCode.INVALID_ENVIRONMENT, f"CNI_NETNS: {text}")


def _make_room(socket: Path, spool: Path) -> None:
    spool.mkdir(mode=0o700, exist_ok=True)
    try:
        if not stat.S_ISSOCK(socket.lstat().st_mode):
            raise FileExistsError(f"{socket}: is in the way: expected a socket, or nothing")
        socket.unlink()
    except FileNotFoundError:
        pass
