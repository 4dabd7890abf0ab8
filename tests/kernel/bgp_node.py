"""A node beside real routers: FRR in its namespace, and the driver that tells it."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from podwire.bgp.daemons import Daemons
from podwire.bgp.driver import Driver
from podwire.bgp.sessions import State
from podwire.config import BOOT_ID
from podwire.model.addresses import Prefix, parse_address, parse_prefix
from podwire.model.announcements import Attributes, Session, Speaker, Told
from tests.kernel.rig import MakeSpace, Space
from tests.kernel.routers import NODE_ASN, PATIENCE, ROUTER_ASN, Peering, Router, connect


@dataclass
class Node:
    """A node's FRR and driver, each of which can end and come again."""

    space: Space
    directory: Path
    boot: Path = BOOT_ID
    driver: Driver = field(init=False)
    _tasks: dict[str, "asyncio.Task[None]"] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True)
        self.log = self.directory / "frr.log"
        self.frr = self.directory / "frr"

    async def start(self) -> None:
        self.start_frr()
        await self.answering()
        self.start_driver()

    def start_frr(self) -> None:
        inside = ("ip", "netns", "exec", self.space.name)
        self.output = self.log.open("ab")
        self.daemons = Daemons(self.frr, output=self.output, inside=inside, boot_id=self.boot)
        self._tasks["frr"] = asyncio.create_task(self.daemons.run())

    async def answering(self) -> None:
        await asyncio.wait_for(self.daemons.started["bgpd"].wait(), PATIENCE)

    def start_driver(self) -> None:
        self.driver = Driver(self.frr, self.boot.read_text().strip())
        self._tasks["driver"] = asyncio.create_task(self.driver.run())

    async def end(self, what: str) -> None:
        task = self._tasks.pop(what, None)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def stop(self) -> None:
        await self.end("driver")
        await self.end("frr")
        self.output.close()

    async def session(self, name: str, holds: Callable[[State], bool], what: str, seconds: float = PATIENCE) -> State:
        """Waits until that is so of it."""
        try:
            async with asyncio.timeout(seconds):
                while (now := self.driver.sessions().get(name)) is None or not holds(now):
                    await self.driver.changed()
                return now
        except TimeoutError:
            told = (self.driver.sessions(), self.driver.troubles)
            raise AssertionError(f"{name}: {what} did not come true in {seconds:g} s: {told}") from None

    async def up(self, *names: str, seconds: float = PATIENCE) -> None:
        for name in names:
            await self.session(name, lambda it: it.state == "Established", "up", seconds)


class Pair:
    """Makes a node and a router on a link between them, not yet started."""

    def __init__(self, make_space: MakeSpace, path: Path) -> None:
        self._make_space, self._path = make_space, path

    def __call__(self, kind: type[Router], **peering: Any) -> tuple[Node, Router]:
        one, other = self._make_space("node"), self._make_space("router")
        connect(one, other, 1)
        return Node(one, self._path / "n"), kind(other, self._path / "r", Peering(**peering))


@asynccontextmanager
async def started(*parts: Node | Router) -> AsyncIterator[None]:
    """All stop, whatever fails."""
    begun: list[Node | Router] = []
    try:
        for part in parts:
            begun.append(part)
            await part.start()
        yield
    finally:
        for part in reversed(begun):
            await part.stop()
            shutil.rmtree(part.directory / "frr", ignore_errors=True)


def session(name: str = "tor", router: str = "10.99.1.254", **more: Any) -> Session:
    """The node's side of `Peering()`."""
    given = {"asn": ROUTER_ASN, "local_asn": NODE_ASN, "hold": 9, "keepalive": 3, "connect": 1, **more}
    return Session(name, parse_address(router), **given)


PLAIN = Attributes()


def told(*prefixes: str, attributes: Attributes = PLAIN, to: Sequence[str] = ("tor",)) -> dict[Prefix, Told]:
    return {parse_prefix(it): tuple((name, attributes) for name in to) for it in prefixes}


def speaker(sessions: Sequence[Session], routes: Mapping[Prefix, Told], number: int = 1, end: int = 1) -> Speaker:
    """Of the node at that end of that link."""
    own = tuple(map(parse_address, (f"10.99.{number}.{end}", f"fd99:{number}::{end:x}")))
    return Speaker(NODE_ASN, own[0], own, tuple(sessions), routes)
