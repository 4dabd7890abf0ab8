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
from msgspec.structs import replace

from podwire.cni import portmappings, requested
from podwire.cni.cni_pb2 import CniReply, CniRequest
from podwire.cni.delegation import IpamResult
from podwire.cni.errors import CniError, ErrorCode, encode_error
from podwire.cni.request import LARGEST, Request, asked_version, parse_request
from podwire.cni.result import (
    DNS,
    NO_DNS,
    encode,
    encode_versions,
)
from podwire.controller.difference import Difference
from podwire.controller.events import AddPod, CollectPods, DeletePod, Event, Refusal
from podwire.controller.transaction import Result
from podwire.model.objects import AttachmentKey
from podwire.model.snapshot import Snapshot, Touched
from podwire.pods.readiness import obstacle, obstacle_beside_addresses
from podwire.sources import cni_check, cni_collect, cni_ipam
from podwire.sources.cni_calls import CallServer
from podwire.sources.cni_check import result_of
from podwire.sources.cni_spool import replay, spooled, sweep
from podwire.sources.ipam_leases import Leases
from podwire.sources.pod_wishes import Wished, nothing_wished

log = logging.getLogger(__name__)

STORE = "store"
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
    leases: Leases
    replaying: asyncio.Lock
    adding: list[AttachmentKey]
    """Whose ADD is under way."""
    wished: Wished = nothing_wished


def calls(controller: Controller, spool: Path, leases: Leases, wished: Wished = nothing_wished) -> Cni:
    return Cni(controller, spool, leases, asyncio.Lock(), [], wished)


async def serve(
    socket: Path, spool: Path, controller: Controller, leases: Leases, wished: Wished = nothing_wished
) -> CallServer:
    """Serves on a unix socket that only root can open. The caller holds the state directory's lock: a socket that is
    there already is a dead agent's. Raises OSError where socket or spool can't be made."""
    cni = calls(controller, spool, leases, wished)
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
            return await _add(cni, request)
        case "DEL":
            await _delete_whole(cni, request)
            return b""
        case "CHECK":
            check_namespace(request.netns)
            await cni_check.check(cni.controller, request)
            if request.delegation is not None:
                await cni_ipam.check(request.delegation)
            return b""
        case "GC":
            await _collect(cni, request)
            return b""
        case "STATUS":
            why = status(cni.controller, delegated=request.delegation is not None)
            if why is not None:
                raise why
            if request.delegation is not None:
                await cni_ipam.status(request.delegation, request.version)
            return b""
    return encode_versions(request.version)


def status(controller: Controller, delegated: bool = False) -> CniError | None:
    """Why an ADD would not be served (CNI spec, section 4, "STATUS"), or None. Code 51: pods that live may have lost
    something too, since none of what they need could be made. `delegated`: addresses are given by another plugin."""
    if controller.unsynced:
        text = f"not yet in sync: {', '.join(sorted(controller.unsynced))}"
        return CniError(ErrorCode.LIMITED_CONNECTIVITY, text)
    now = controller.snapshot
    why = obstacle_beside_addresses(now) if delegated else obstacle(now)
    return None if why is None else CniError(ErrorCode.NOT_AVAILABLE, why.text)


async def _add(cni: Cni, request: Request) -> bytes:
    cni.adding.append(request.key)
    try:
        dns = request.dns
        there = check_namespace(request.netns)
        try:
            if spooled(cni.spool):
                await _replay(cni)
        except OSError as error:  # there may be a DEL in it that has to go before
            raise CniError(ErrorCode.TRY_AGAIN_LATER, f"{cni.spool}: can't be listed: {error.strerror}") from None
        if request.delegation is None:
            return await _attach(cni, request, there, dns)
        async with cni.leases.alone(request.key):
            held = cni.controller.snapshot.attachments.get(request.key)
            if held is not None:  # a repeated ADD
                return await _attach(cni, request, there, dns, cni_ipam.given_before(cni.leases, request.key, held))
            given = await cni_ipam.obtain(cni.leases, request.key, request.delegation)
            try:
                return await _attach(cni, request, there, dns, given)
            except Exception:
                if request.key not in cni.controller.snapshot.attachments:
                    await cni_ipam.undo(cni.leases, request.key)
                raise
    finally:
        cni.adding.remove(request.key)


async def _attach(
    cni: Cni, request: Request, there: tuple[int, int], dns: DNS, given: IpamResult | None = None
) -> bytes:
    """`given`: what another IPAM plugin has given. Raises CniError."""
    key, pod, netns = request.key, request.pod, request.netns
    added = AddPod(
        key,
        pod,
        netns,
        *there,
        request.uid,
        request.config.name,
        request.host_ports,
        request.bandwidth,
        requested=request.addresses,
        mac=request.mac,
        delegated=given.addresses if given is not None else None,
        routes=given.routes if given is not None else None,
    )
    # What a repeated ADD has, it keeps, whatever is asked for meanwhile.
    settled = given is not None or key in cni.controller.snapshot.attachments
    async with (nothing_wished if settled else cni.wished)(pod, request.uid) as wish:
        result = await cni.controller.submit(replace(added, pool=wish.pool, fixed=wish.fixed))
        if result.error is not None:
            raise _refused(request, result)
    now = cni.controller.snapshot
    held = now.attachments.get(request.key)
    if held is None:
        raise CniError(ErrorCode.TRY_AGAIN_LATER, f"{request.key}: deleted while it was added")
    if given is not None and dns == NO_DNS:
        dns = given.dns
    return encode(result_of(request.version, request.key, held, now.pod_mtu, dns))


def _refused(request: Request, result: Result) -> CniError:
    """Whose fault it is that an ADD was not granted."""
    text, told = result.error or "", request.delegation
    match result.refusal:
        case Refusal.OCCUPIED:
            return _namespace(text)
        case Refusal.PORT_UNFIT:
            return CniError(ErrorCode.INVALID_CONFIG, f"network configuration: {portmappings.NAME}: {text}")
        case Refusal.MAC_UNFIT:
            return CniError(ErrorCode.INVALID_CONFIG, f"network configuration: {requested.MAC}: {text}")
        case Refusal.ADDRESS_UNFIT if told is None:
            return CniError(ErrorCode.INVALID_CONFIG, f"network configuration: {requested.IPS}: {text}")
        case Refusal.ADDRESS_UNFIT | Refusal.EXHAUSTED if told is not None:
            code = ErrorCode.TRY_AGAIN_LATER if result.refusal is Refusal.EXHAUSTED else ErrorCode.INVALID_CONFIG
            return CniError(code, f"IPAM plugin {told.plugin}: its result: ips: {text}")
    return CniError(ErrorCode.IO_FAILURE if result.refusal is None else ErrorCode.TRY_AGAIN_LATER, text)


async def _delete_whole(cni: Cni, request: Request) -> None:
    """First from the network, then from whoever has given addresses: they are nobody else's before. Raises CniError."""
    if request.delegation is None and request.key not in cni.leases.held:
        await _delete_or_raise(cni, request.key)
        return
    async with cni.leases.alone(request.key):
        await _delete_or_raise(cni, request.key)
        await cni_ipam.give_back(cni.leases, request.key, request.delegation, cni_ipam.DEL_SECONDS, request.netns)


async def _delete_or_raise(cni: Cni, key: AttachmentKey) -> None:
    error = await _delete(cni, key)
    if error is not None:
        raise CniError(ErrorCode.IO_FAILURE, f"{key}: {error}")


async def _delete(cni: Cni, key: AttachmentKey) -> str | None:
    """Why it is not detached. A row that can't be removed now (a full disk) is no reason: what the pod had is free, and
    healing removes the row; a DEL "should generally complete without error" (CNI spec 1.1.0, section 4, "DEL")."""
    return (await cni.controller.submit(DeletePod(key))).error_without(STORE)


async def _collect(cni: Cni, request: Request) -> None:
    """What comes while this goes on is no part of it. Raises CniError."""
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
    errors += await cni_collect.collect(cni.controller, asked)
    if request.delegation is not None:
        errors += await cni_ipam.collect(request.delegation, cni.adding)
    if errors:
        raise CniError(ErrorCode.IO_FAILURE, "not all could be collected: " + "; ".join(dict.fromkeys(errors)))


async def _replay(cni: Cni) -> None:
    async with cni.replaying:
        await replay(cni.spool, lambda request: _delete_now(cni, request))


async def _delete_now(cni: Cni, request: Request) -> str | None:
    """Of a spooled DEL: an IPAM plugin is told later, so that none holds up who waits for the spool."""
    error = await _delete(cni, request.key)
    if error is None and request.delegation is not None:
        try:
            await cni_ipam.owe(cni.leases, request.key, request.delegation)
        except CniError as failed:
            return failed.text
    return error


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
