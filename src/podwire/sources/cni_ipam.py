"""Addresses by an IPAM plugin in place of our own: ADD, DEL, CHECK, GC and STATUS are handed on to it (CNI spec 1.1.0,
section 4), and what it has given is given back.

Invariants: a lease is on disk before its plugin is asked. Where an ADD fails, the plugin is told DEL before the answer;
what can't be given back at once is given back later, again and again, with growing delay: after a restart, a boot, and
where a sandbox goes without a DEL. A plugin that hangs holds up nobody but its own caller, and him for a bounded time.
"""

import asyncio
import json
import logging
from collections.abc import Iterable
from typing import Any, Protocol

from podwire.cni.delegation import Delegation, IpamResult, given
from podwire.cni.errors import CniError, ErrorCode
from podwire.cni.result import NO_DNS
from podwire.model.objects import Attachment, AttachmentKey
from podwire.model.snapshot import Snapshot
from podwire.sources.ipam_leases import Lease, Leases
from podwire.sources.ipam_plugin import ask, is_there

ADD_SECONDS, UNDO_SECONDS = 32.0, 5.0
"""An ADD, a DEL before and after it, and one for which it waits are less than the 50 seconds that our own plugin does
(cni/shim.py)."""
DEL_SECONDS, STATUS_SECONDS = 2.0, 1.5
"""It waits for 3 and 2."""
CHECK_SECONDS = GC_SECONDS = 30.0
LATER_SECONDS = 5.0
"""For a DEL that nobody waits for."""
AGAIN_SECONDS = (1.0, 5.0, 30.0, 300.0)
"""Before each try in a row to give a lease back; the last one repeats."""
AT_ONCE = 4
"""So many are given back at a time."""
STATUS_SINCE = "1.1.0"
"""The version of the specification that has STATUS."""
log = logging.getLogger(__name__)


class Controller(Protocol):
    """What is needed of the controller's loop."""

    @property
    def snapshot(self) -> Snapshot: ...

    def next_of_pods(self) -> asyncio.Future[Any]: ...


async def obtain(leases: Leases, key: AttachmentKey, told: Delegation) -> IpamResult:
    """What the plugin gives to a new attachment. The caller is alone with its lease. Raises CniError; the plugin has
    been told DEL then, or will be."""
    if key in leases.held:  # what an ADD that came to nothing may have got
        await give_back(leases, key, None, UNDO_SECONDS)
    await _keep(leases, Lease(key, told))
    try:
        answer = await ask(told, "ADD", ADD_SECONDS)
        found = given(told.plugin, answer)
    except CniError:
        await undo(leases, key)
        raise
    leases.note(key, answer)
    return found


def given_before(leases: Leases, key: AttachmentKey, held: Attachment) -> IpamResult:
    """What a repeated ADD answers: the attachment's own, and what its plugin has told beside it, as far as that is
    known."""
    try:
        asked = given("", leases.noted(key)).dns
    except CniError:
        asked = NO_DNS
    return IpamResult(held.addresses, held.routes, asked)


async def undo(leases: Leases, key: AttachmentKey) -> None:
    """After a failed ADD, whose own error is what is answered."""
    try:
        await give_back(leases, key, None, UNDO_SECONDS)
    except CniError as error:
        log.warning("%s: %s; its lease is given back later", key, error.text)


async def give_back(
    leases: Leases, key: AttachmentKey, told: Delegation | None, seconds: float, netns: str = ""
) -> None:
    """A DEL to whichever plugin has given something, else to the one that a runtime's DEL names (`told`). The caller is
    alone with the lease. Raises CniError; the lease is given back later then."""
    lease = leases.held.get(key)
    # The runtime's own DEL knows more, its prevResult, and may have come by another configuration since.
    if lease is not None and (told is None or ipam_of(told) != ipam_of(lease.told)):
        told = lease.told
    if told is None or (lease is None and not is_there(told)):  # it has given nothing that we know of
        return
    try:
        await ask(told, "DEL", seconds, CNI_NETNS=netns)
        leases.drop(key)
    except OSError as error:
        raise CniError(ErrorCode.IO_FAILURE, f"{leases.directory}: {error.strerror}") from None
    finally:
        leases.due.set()


async def owe(leases: Leases, key: AttachmentKey, told: Delegation) -> None:
    """A DEL that the plugin is told later. Raises CniError where that can't be written down."""
    if key not in leases.held:
        await _keep(leases, Lease(key, told))
    leases.due.set()


def ipam_of(told: Delegation) -> object:
    return json.loads(told.stdin).get("ipam")


async def _keep(leases: Leases, lease: Lease) -> None:
    """Raises CniError."""
    try:
        await leases.keep(lease)
    except OSError as error:
        text = f"{leases.directory}: {lease.key}: its lease can't be written: {error.strerror}"
        raise CniError(ErrorCode.IO_FAILURE, text) from None


async def check(told: Delegation) -> None:
    """Raises CniError."""
    await ask(told, "CHECK", CHECK_SECONDS)


async def status(told: Delegation, version: str) -> None:
    """Raises CniError: with code 50 where the plugin gives no answer, since pods can't be attached then."""
    if version != STATUS_SINCE:
        return
    try:
        await ask(told, "STATUS", STATUS_SECONDS)
    except CniError as error:
        own = error.code not in (ErrorCode.TRY_AGAIN_LATER, ErrorCode.INVALID_ENVIRONMENT, ErrorCode.IO_FAILURE)
        raise error if own else CniError(ErrorCode.NOT_AVAILABLE, error.text, error.details) from None


async def collect(told: Delegation, adding: Iterable[AttachmentKey]) -> list[str]:
    """What went wrong. `adding`: what no runtime can list yet."""
    try:
        await ask(told, "GC", GC_SECONDS, stdin=told.listing(adding))
    except CniError as error:
        return [error.text]
    return []


# --- what nobody asks to be given back ---------------------------------------------------------


async def keep_giving_back(leases: Leases, controller: Controller) -> None:
    """Never returns. A lease is due where its attachment is gone, and no ADD or DEL of it is under way."""
    clock = asyncio.get_running_loop().time
    failures: dict[AttachmentKey, int] = {}
    after: dict[AttachmentKey, float] = {}
    while True:
        leases.due.clear()
        due = [key for key in sorted(leases.held) if key not in controller.snapshot.attachments]
        now = [key for key in due if not leases.busy(key) and after.get(key, 0.0) <= clock()][:AT_ONCE]
        for key, done in zip(now, await asyncio.gather(*(_later(leases, it, controller) for it in now)), strict=True):
            failures[key] = 0 if done else failures.get(key, 0) + 1
            after[key] = clock() + AGAIN_SECONDS[min(failures[key], len(AGAIN_SECONDS)) - 1]
        for known in (failures, after):
            for key in known.keys() - leases.held.keys():
                del known[key]
        if not now:
            await _any(leases, controller, min((after[key] - clock() for key in due if key in after), default=None))


async def _any(leases: Leases, controller: Controller, seconds: float | None) -> None:
    """Until something may be due."""
    due, news = asyncio.create_task(leases.due.wait()), controller.next_of_pods()
    try:
        await asyncio.wait((due, news), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        due.cancel()
        news.cancel()


async def _later(leases: Leases, key: AttachmentKey, controller: Controller) -> bool:
    async with leases.alone(key):
        if key in controller.snapshot.attachments:
            return True
        try:
            await give_back(leases, key, None, LATER_SECONDS)
        except CniError as error:
            log.warning("%s: %s; its lease is given back later", key, error.text)
            leases.owed[key] = error.text
            return False
    log.info("%s: its lease is given back", key)
    return True
