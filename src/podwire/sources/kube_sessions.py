"""The node's BGP sessions as objects of the API, for `kubectl get bgpsessions`.

Invariants: a task of its own, which holds up nobody. There is one object for each session of the node, its own and no
other's; it goes with its Node. What came up or went down is written at once, what is only counted twice a minute. What
fails is tried again with growing delay, and told once.
"""

import logging
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from podwire.model.announcements import SessionReport
from podwire.sources.kube_api import APPLY, Api, ApiError
from podwire.sources.kube_objects import POOLS
from podwire.sources.kube_position import backoff
from podwire.sources.kube_time import time_of
from podwire.sources.kube_watch import CHANCE, Chance

log = logging.getLogger(__name__)

PATH = f"/apis/{POOLS}/bgpsessions"
LOOK_SECONDS, COUNTS_SECONDS, ABSENT_SECONDS = 1.0, 30.0, 60.0
"""Between two looks; until counts alone are worth a write; before a kind that the API hasn't is asked for again."""
OFF_SECONDS = 2.0
_LONGEST = 253
"""Characters of a name (RFC 1123 subdomain, as Kubernetes narrows it)."""
Reports = Mapping[str, SessionReport]
"""By the peer's name."""


class _Spec(Struct, frozen=True):
    node: str = ""
    peer: str = ""


class _Object(Struct, frozen=True):
    spec: _Spec = _Spec()


class _List(Struct, frozen=True):
    items: list[_Object] = []


def name_of(node: str, peer: str) -> str:
    """Of the object; one that would be too long is cut, and made unique by a digest."""
    name = f"{node}.{peer}"
    digest = sha256(name.encode()).hexdigest()[:10]
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 11].rstrip('.-')}-{digest}"


def body(node: str, uid: str, peer: str, it: SessionReport) -> bytes:
    """`uid`: of the Node, "": not known."""
    owners = [{"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}] if uid else []
    status: dict[str, Any] = {"state": it.state}
    if it.since is not None:
        status["since"] = time_of(it.since)
    if it.error:
        status["lastError"] = it.error
    status |= {"received": dict(it.received), "sent": dict(it.sent)}
    return msgspec.json.encode(
        {
            "apiVersion": POOLS,
            "kind": "BGPSession",
            "metadata": {"name": name_of(node, peer), **({"ownerReferences": owners} if owners else {})},
            "spec": {"node": node, "peer": peer},
            "status": status,
        }
    )


class Sessions:
    """`uid`: of the node's object, as it is known now."""

    def __init__(
        self, api: Api, node: str, uid: Callable[[], str], reports: Callable[[], Reports], chance: Chance = CHANCE
    ) -> None:
        self._api, self._node, self._uid, self._reports, self._chance = api, node, uid, reports, chance
        self._written: dict[str, tuple[str, SessionReport]] | None = None
        """By peer, with the Node's uid; None: not known."""
        self._counted = 0.0

    async def run(self) -> None:
        """Never returns."""
        failures = 0
        while True:
            delay = LOOK_SECONDS
            try:
                await self.once()
                failures = 0
            except (ApiError, msgspec.DecodeError) as error:
                self._written = None
                if isinstance(error, ApiError) and error.status in (403, 404):
                    delay = ABSENT_SECONDS
                else:
                    delay = backoff(failures, self._chance.luck())
                if failures == 0:
                    log.warning("BGPSessions can't be written, and are tried again: %s", error)
                failures += 1
            await self._chance.pause(delay)

    async def once(self) -> None:
        """Raises ApiError, DecodeError."""
        wanted = dict(self._reports())
        if self._written is None:
            self._written = await self._left_before()
        now, uid = self._chance.clock(), self._uid()
        counts = now - self._counted >= COUNTS_SECONDS
        for peer, it in sorted(wanted.items()):
            held = self._written.get(peer)
            if held is None or held[0] != uid or _is_news(held[1], it) or (counts and _same(held[1]) != _same(it)):
                path = f"{PATH}/{name_of(self._node, peer)}?fieldManager=podwire-agent&force=true"
                await self._api.patch(path, body(self._node, uid, peer, it), APPLY)
                self._written[peer] = uid, it
        if counts:
            self._counted = now
        for peer in sorted(self._written.keys() - wanted.keys()):
            await self._delete(peer)
            del self._written[peer]

    async def _left_before(self) -> dict[str, tuple[str, SessionReport]]:
        """What an earlier agent has written: all of it is written anew, or deleted."""
        found = msgspec.json.decode(await self._api.get(PATH), type=_List)
        return {it.spec.peer: ("", SessionReport("")) for it in found.items if it.spec.node == self._node}

    async def _delete(self, peer: str) -> None:
        try:
            await self._api.delete(f"{PATH}/{name_of(self._node, peer)}", b"{}")
        except ApiError as error:
            if error.status != 404:
                raise


def _is_news(held: SessionReport, it: SessionReport) -> bool:
    """Beside what is only counted. When a session came up is told in whole seconds, by which it may be off."""
    moved = abs((held.since or 0.0) - (it.since or 0.0)) > OFF_SECONDS
    return (held.state, held.error) != (it.state, it.error) or moved


def _same(it: SessionReport) -> SessionReport:
    """What twice a minute is compared."""
    return replace(it, since=None)
