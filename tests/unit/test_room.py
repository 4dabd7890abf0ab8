"""Who is left out where the data plane is full: the same whatever the way, the oldest first, no more than must be."""

from collections import Counter
from collections.abc import Iterable
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from podwire import views
from podwire.controller import events as e
from podwire.controller.snapshot import fold
from podwire.controller.transaction import merge
from podwire.dataplane.nftables.slots import slots
from podwire.explain.packets import Verdict, explain_packet
from podwire.explain.services import explain_service
from podwire.findings import findings
from podwire.model.addresses import FAMILIES, IPV4, IPV6, Family, parse_address
from podwire.model.network import Frontend, InternalKey, RememberKey, Serving
from podwire.model.objects import (
    BackendPort,
    BackendSlice,
    Member,
    Protocol,
    Service,
    ServiceKey,
    ServicePort,
    SliceKey,
)
from podwire.model.room import Capacity, Need, fits
from podwire.model.snapshot import EVERYTHING, Snapshot
from podwire.services import room
from tests.unit import world

weights = st.sampled_from((1, 1, 3))


def start(capacity: Capacity, weight: int = 1) -> Snapshot:
    now = world.start()
    return replace(now, local=replace(now.local, capacity=capacity, local_weight=weight))


def wanted(now: Snapshot) -> dict[Any, Any]:
    return merge((c.name, c.desired(now, EVERYTHING)) for c in world.CAPABILITIES)["nftables"]


def used(keys: dict[Any, Any], family: Family, most: int) -> Need:
    """What so many keys take up."""
    mine = [key for key in keys if getattr(getattr(key, "frontend", key), "family", None) == family]
    lists = [keys[key] for key in mine if isinstance(key, Frontend | InternalKey)]
    counts = [sum(b is not None for b in slots(it, None).backends) if most > 100 else _few(it, most) for it in lists]
    return sum(isinstance(key, Frontend) for key in mine), sum(counts), sum(isinstance(k, RememberKey) for k in mine)


def _few(it: Serving, most: int) -> int:
    count = len(it.backends) + len(it.heavy) * (it.weight - 1)
    return count if count <= most else min(len(it.backends), most)


def naively(now: Snapshot, capacity: Capacity) -> dict[ServiceKey, set[Family]]:
    """The oldest first, whoever fits."""
    found: dict[ServiceKey, set[Family]] = {}
    held: Counter[tuple[Family, int]] = Counter()
    for key in sorted(now.services, key=lambda key: (now.services[key].created, key.namespace, key.name)):
        need = room.need(now, key, capacity)
        for number, family in enumerate(FAMILIES):
            mine = need[number * 3 : number * 3 + 3]
            if all(held[family, n] + mine[n] <= capacity.units[n] for n in range(3)):
                held.update({(family, n): mine[n] for n in range(3)})
            else:
                found.setdefault(key, set()).add(family)
    return found


@settings(max_examples=300)
@given(st.lists(world.kube_changes, max_size=12), world.capacities, weights, st.randoms(use_true_random=False))
def test_any_order_gives_the_same_choice_and_it_fits(
    way: list[e.KubeStateChange], capacity: Capacity, weight: int, random: Random
) -> None:
    now = start(capacity, weight)
    last: dict[Any, Any] = {world.NODE: world.NODES[0]}
    for event in way:
        now, _ = fold(now, event)
        last |= dict(event.changes)
    shuffled = list(last.items())
    random.shuffle(shuffled)
    other, _ = fold(start(capacity, weight), e.KubeStateChange(tuple(shuffled)))
    listed, _ = fold(now, e.Resync(e.ResyncReason.STARTUP, {k: v for k, v in shuffled if v is not None}))
    assert now.room == other.room == listed.room
    assert dict(now.room.left_out) == naively(now, capacity)
    keys = wanted(now)
    assert all(fits(used(keys, family, capacity.backends), capacity.units) for family in FAMILIES)


@given(st.lists(world.kube_changes, max_size=12), weights)
def test_what_a_service_needs_at_most_is_never_less_than_what_it_needs(
    way: list[e.KubeStateChange], weight: int
) -> None:
    capacity = Capacity((0, 0, 0), 8192)
    now = start(capacity, weight)
    for event in way:
        now, _ = fold(now, event)
        assert all(fits(room.need(now, key, capacity), room.most(now, key, capacity)) for key in now.services)


def objects(name: str, number: int, backends: int, created: str = "2026-01-01T00:00:00Z") -> e.KubeStateChange:
    key = ServiceKey("default", name)
    port, address = ServicePort("p", Protocol.TCP, 80), parse_address(f"10.96.0.{number}")
    members = tuple(Member(parse_address(f"10.1.9.{n}")) for n in range(1, backends + 1))
    part = BackendSlice(key, (BackendPort("p", Protocol.TCP, 80),), members)
    return e.KubeStateChange(((key, Service((port,), (address,), created=created)), (SliceKey("default", name), part)))


def after(now: Snapshot, events: Iterable[e.KubeStateChange]) -> Snapshot:
    for event in events:
        now, _ = fold(now, event)
    return now


OLD, YOUNG = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"


@pytest.mark.parametrize(
    ("events", "left_out"),
    [
        pytest.param([objects("b", 1, 3, OLD), objects("a", 2, 3, YOUNG)], {"a"}, id="the younger"),
        pytest.param([objects("b", 1, 3), objects("a", 2, 3)], {"b"}, id="of one age the later name"),
        pytest.param(
            [objects("a", 1, 3, OLD), objects("b", 2, 3), objects("c", 3, 2)], {"b"}, id="who still fits stays"
        ),
        pytest.param([objects("a", 1, 6, OLD), objects("b", 2, 5, YOUNG)], {"a"}, id="who fits never"),
        pytest.param([objects("a", 1, 3), objects("b", 2, 3), objects("a", 1, 2)], set(), id="another one shrinks"),
        pytest.param([objects("a", 1, 1), objects("b", 2, 4), objects("a", 1, 2)], {"b"}, id="an older one grows"),
        pytest.param([objects("a", 1, 5), objects("b", 2, 0)], set(), id="without backends it needs no slots"),
        pytest.param([objects(name, n, 1) for n, name in enumerate("abcd", 1)], {"d"}, id="too many frontends"),
    ],
)
def test_who_is_left_out(events: list[e.KubeStateChange], left_out: set[str]) -> None:
    now = after(start(Capacity((3, 5, 3), 8192)), events)
    assert {key.name for key in now.room.left_out} == left_out
    programmed = {key.address for key in wanted(now) if isinstance(key, Frontend)}
    names = {key.name for key, it in now.services.items() if it.cluster_ips[0] in programmed}
    assert names == {key.name for key in now.services} - left_out


def test_while_all_fit_none_is_looked_at_but_those_that_change(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[ServiceKey] = []
    real = room.most
    monkeypatch.setattr(room, "most", lambda now, key, capacity: (looked.append(key), real(now, key, capacity))[1])
    monkeypatch.setattr(room, "need", None)
    now = after(start(Capacity((100, 100, 100), 8192)), [objects(f"s{n}", n, 1) for n in range(1, 31)])
    looked.clear()
    fold(now, objects("s7", 7, 2))
    assert looked == [ServiceKey("default", "s7")]


def test_who_is_left_out_is_told_with_the_limit() -> None:
    now = after(start(Capacity((9, 5, 9), 8192)), [objects("a", 1, 3), objects("b", 2, 3)])
    key, to = ServiceKey("default", "b"), Frontend(parse_address("10.96.0.2"), Protocol.TCP, 80)
    why = (
        "there is no room for it in IPv4: nftables holds at most 5 backends of all frontends together, the oldest first"
    )
    assert findings(now) == (f"{key}: {why}",)
    assert explain_service(now, key).notes[0] == why
    assert explain_service(now, key).frontends[0].state is views.FrontendState.NO_ROOM
    assert views.service(now, key).frontends[0].state is views.FrontendState.NO_ROOM
    packet = explain_packet(now, None, to)
    assert (packet.verdict, packet.service, packet.state) == (
        Verdict.REFUSED,
        "default/b",
        views.FrontendState.NO_ROOM,
    )
    assert packet.way == f"{why}; answered by a reset"


def test_a_family_that_is_full_takes_nothing_from_the_other() -> None:
    both = (parse_address("10.96.0.1"), parse_address("fd96::1"))
    now = after(start(Capacity((1, 9, 9), 8192)), [objects("a", 2, 1, OLD)])
    key = ServiceKey("default", "b")
    now, _ = fold(now, e.KubeStateChange(((key, Service((ServicePort("p", Protocol.TCP, 80),), both, created=YOUNG)),)))
    assert dict(now.room.left_out) == {key: {IPV4}}
    assert {frontend.family for frontend in wanted(now) if isinstance(frontend, Frontend)} == {IPV4, IPV6}
    assert Frontend(both[0], Protocol.TCP, 80) not in wanted(now)
