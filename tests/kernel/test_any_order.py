"""Whatever happened in whatever order, the kernel holds what a fresh start from the last objects makes, and what an
independent model of the Services' rules says.

Invariants: the kernel is read through `nft`, not through our own driver; positions among slots are no part of what it
says. One node goes through all examples, from each state to the next.
"""

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, example, given, settings

from podwire.controller.events import KubeStateChange
from podwire.model.addresses import Address, parse_address, parse_prefix, show_address
from podwire.model.kinds import Object, ObjectKey
from podwire.model.network import Backend, Frontend
from podwire.model.objects import (
    BackendPort,
    BackendSlice,
    Member,
    NodeKey,
    Protocol,
    Service,
    ServiceKey,
    ServicePort,
    SliceKey,
)
from tests.kernel.conftest import Rig
from tests.kernel.rig import MakeSpace, Space, entered, sh, spaces
from tests.unit import world
from tests.unit.test_services_model import CLIENTS, DROPPED, NOT_OURS, REFUSED, model

INTERNAL = 65536
"""The first slot of a list for clients in the cluster."""


class Held(NamedTuple):
    """What the tables of both families hold. `maps`: by name, from element to chain or backend; `sets`: by name."""

    maps: dict[str, dict[tuple[Any, ...], Any]]
    sets: dict[str, frozenset[tuple[Any, ...]]]


def read() -> Held:
    """Through nft, in the namespace of this thread."""
    maps: dict[str, dict[tuple[Any, ...], Any]] = {}
    sets: dict[str, frozenset[tuple[Any, ...]]] = {}
    for thing in json.loads(sh("nft", "-j", "list", "ruleset"))["nftables"]:
        if "map" in thing:
            it = thing["map"]
            maps.setdefault(it["name"], {}).update((flat(key), verdict(value)) for key, value in it.get("elem", ()))
        elif "set" in thing and thing["set"]["name"] != "departed":  # noted until its flows are gone
            it = thing["set"]
            sets[it["name"]] = sets.get(it["name"], frozenset()) | set(map(flat, it.get("elem", ())))
    return Held(maps, sets)


def flat(element: Any) -> tuple[Any, ...]:
    match element:
        case {"concat": parts}:
            return tuple(part for each in parts for part in flat(each))
        case {"prefix": {"addr": address, "len": length}}:
            return (f"{address}/{length}",)
        case {"range": [first, last]}:
            return (f"{first}-{last}",)
        case {"elem": {"val": value}}:
            return flat(value)
    return (element,)


def verdict(value: Any) -> Any:
    match value:
        case {"goto": {"target": chain}} | {"jump": {"target": chain}}:
            return chain
        case {"concat": [address, port]}:
            return Backend(parse_address(address), port)
    return value


def without_positions(held: Held) -> dict[str, Any]:
    """Of lists of backends who is in them, however often. A map without an element may be there or not."""
    found: dict[str, Any] = {name: elements for name, elements in held.sets.items() if elements}
    for name, elements in held.maps.items():
        if name == "eps" or not elements:
            continue
        found[name] = {key: backends(held, key, chain) for key, chain in elements.items()}
    return found


def backends(held: Held, key: tuple[Any, ...], chain: Any) -> Any:
    """Whom a class draws from; any other chain by its name, and what leads to none as it is."""
    if not isinstance(chain, str):
        return chain
    kind, size = chain[0], chain[1:]
    if kind not in "ci" or not size.isdecimal():
        return chain
    first = INTERNAL if kind == "i" else 0
    slots = (held.maps["eps"].get((*key, first + number)) for number in range(int(size)))
    return frozenset(each for each in slots if each is not None)


def says(held: Held, client: Address | None, to: Frontend, own: tuple[Address, ...]) -> str | frozenset[Backend]:
    """What becomes of a client's first packet. `client` None: this node, whose addresses are `own`; to an address that
    it has itself it comes from that."""
    key = (show_address(to.address), to.protocol.name.lower(), to.port)
    inside = client is None or within(client, (cidr for (cidr,) in held.sets.get("cluster", ())))
    if key in held.sets.get("restricted", ()):
        ranges = [cidr for *frontend, cidr in held.sets.get("allowed", ()) if tuple(frontend) == key]
        if not any(within(source, ranges) for source in ((client,) if client is not None else (to.address, *own))):
            return DROPPED
    for name in ("svc", "svc_internal", "svc_outside") if inside else ("svc", "svc_outside"):
        chain = held.maps.get(name, {}).get(key)
        if chain is not None and chain.startswith("affine"):  # nobody is remembered here
            chain = held.maps["drawn_internal" if name == "svc_internal" else "drawn"][key]
        if chain is not None:
            found: frozenset[Backend] = backends(held, key, chain)
            return found
    if key in held.sets.get("dropped", ()):
        return DROPPED
    return REFUSED if key in held.sets.get("refused", ()) else NOT_OURS


def within(client: Address, ranges: Iterable[str]) -> bool:
    for text in ranges:
        if "-" in text:
            first, last = map(parse_address, text.split("-"))
            if len(first) == len(client) and first <= client <= last:
                return True
        elif client in parse_prefix(text) if "/" in text else client == parse_address(text):
            return True
    return False


# --- one node, through all states ----------------------------------------------------------------


class Course:
    """A node at work, and all objects that it was told."""

    def __init__(self, rig: Rig, make_space: MakeSpace) -> None:
        self.rig, self.make_space = rig, make_space
        self.objects: dict[ObjectKey, Object] = {NodeKey("one"): world.NODES[0]}

    async def change(self, changes: tuple[tuple[ObjectKey, Object | None], ...]) -> None:
        # The other nodes are on no link of this one: routes to them fail.
        assert (await self.rig.change(*changes)).error_without("linux") is None
        for key, value in changes:
            if value is None:
                self.objects.pop(key, None)
            else:
                self.objects[key] = value

    async def fresh(self) -> Held:
        """What another node makes of the same objects, from nothing."""
        space = self.make_space("fresh")
        with entered(space):
            rig = Rig(self.rig.directory / space.name, self.make_space)
            rig.directory.mkdir()
            try:
                assert (await rig.start(self.objects)).error_without("linux") is None
                return read()
            finally:
                await rig.stop()
                sh("nft", "flush", "ruleset")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def course(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with spaces() as make:
        home: Space = make("node")
        with entered(home):
            rig = Rig(tmp_path_factory.mktemp("node"), make)
            it = Course(rig, make)
            try:
                assert (await rig.start(it.objects)).error is None
                yield it
            finally:
                await rig.stop()


def _two_lists(affinity: int) -> tuple[Any, ...]:
    """What it takes until clients from outside have a list of their own: chance seldom has it."""
    key, port = ServiceKey("default", "a"), ServicePort("p", Protocol.TCP, 80, 30080)
    members = tuple(Member(parse_address(f"10.1.{n}.2"), node=name) for n, name in ((1, "one"), (2, "two")))
    service = Service(
        (port,), (parse_address("10.96.0.1"),), balancer_ips=world.BALANCER[:1], affinity=affinity, external_local=True
    )
    part = BackendSlice(key, (BackendPort("p", Protocol.TCP, 8080),), members)
    return (NodeKey("one"), world.NODES[0]), (key, service), (SliceKey("default", "x"), part)


@pytest.mark.asyncio(loop_scope="module")
@example([KubeStateChange(_two_lists(0))])
@example([KubeStateChange(_two_lists(60))])
@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(world.st.lists(world.kube_changes, min_size=1, max_size=5))
async def test_the_kernel_holds_what_a_fresh_start_makes_and_what_the_model_says(
    course: Course, events: list[Any]
) -> None:
    for event in events:
        await course.change(event.changes)
    held = read()
    assert without_positions(held) == without_positions(await course.fresh())
    now = course.rig.running.controller.snapshot
    for frontend in (claim for claim in now.claims if isinstance(claim, Frontend)):
        for client in CLIENTS:
            if client is None or len(client) == len(frontend.address):
                wanted = model(now, client, frontend)
                found = says(held, client, frontend, now.node.addresses)
                assert found == (frozenset(wanted) if isinstance(wanted, dict) else wanted)
    assert "nftables" not in await course.rig.running.controller.verify()
