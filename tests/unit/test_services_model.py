"""Where packets to Services go, held against a second telling of the rules that shares no code with the first.

The model below is written from the API's words, over plain lists, without indexes, classes of backends or keys.
"""

import itertools
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from podwire.controller.events import Refused
from podwire.controller.snapshot import fold
from podwire.dataplane.nftables.slots import slots
from podwire.model.addresses import Address, parse_address, parse_prefix
from podwire.model.network import AllowedKey, Backend, Frontend, InternalKey, RestrictedKey, Slots
from podwire.model.objects import NO_HINTS, Hints, Member, Node, NodeKey, Protocol, Service
from podwire.model.snapshot import Snapshot
from podwire.services.frontends import allowed_sources, desired
from tests.unit import world

REFUSED, DROPPED, NOT_OURS = "refused", "dropped", "not ours"
CLIENTS = [None, *map(parse_address, ("10.1.1.2", "10.1.2.2", "203.0.113.5", "fd01::2", "2001:db8::5"))]


def model(now: Snapshot, client: Address | None, to: Frontend) -> str | dict[Backend, int]:
    """What becomes of a client's first packet, and how often each backend is drawn. `client` None: this node, which has
    the address itself: it may come where any of its addresses may."""
    claimants = [
        (it.created, key.namespace, key.name, it, port, external)
        for key, it in now.services.items()
        for port in it.ports
        for external in (True, False)
        if to in named(it, port, external, now)
    ]
    if not claimants:
        return NOT_OURS
    *_, first_name, service, _, _ = min(claimants, key=lambda claim: claim[:3])
    # Of two ports with one frontend the later counts, and its later kind of address.
    of_first = [claim for claim in claimants if claim[2] == first_name]
    port = max((claim[4] for claim in of_first), key=service.ports.index)
    external = to in named(service, port, True, now)
    if to.address in service.balancer_ips:
        ranges = [cidr for cidr in service.source_ranges if len(cidr.first) == len(to.address)]
        comes_as = (client,) if client is not None else (to.address, *now.node.addresses)
        if ranges and not any(address in cidr for cidr in ranges for address in comes_as):
            return DROPPED
    members = [
        (member, Backend(member.address, each.port))
        for key, part in now.slices.items()
        if part.service.name == first_name
        for each in part.ports
        for member in part.members
        if (each.name, each.protocol, len(member.address)) == (port.name, port.protocol, len(to.address))
    ]
    running = {backend for member, backend in members if not member.terminating}
    members = [(m, b) for m, b in members if m.ready or not m.terminating or b not in running]
    inside = client is None or any(client in block for node in now.nodes.values() for block in node.pod_cidrs)
    everywhere = choose(members, now)
    here = [(m, b) for m, b in members if m.node == "one"]
    local = choose([(replace(m, hints=NO_HINTS), b) for m, b in here], now)
    only_local = service.external_local and not inside if external else service.internal_local
    if only_local:
        if not local and everywhere:
            return DROPPED
        return dict.fromkeys(local, 1) or REFUSED
    ready_here = {b for m, b in here if m.ready} or {b for m, b in here if m.serving and m.terminating}
    return {b: now.local.local_weight if b in ready_here else 1 for b in everywhere} or REFUSED


def named(it: Service, port: Any, external: bool, now: Snapshot) -> set[Frontend]:
    node, addresses = now.node, (*it.external_ips, *it.balancer_ips) if external else it.cluster_ips
    found = {Frontend(address, port.protocol, port.port) for address in addresses if address not in others(it, now)}
    if not external:
        return found
    for size in {len(address) for address in it.cluster_ips} if port.node_port else ():
        first = next((address for address in node.addresses if len(address) == size), None)
        if first is not None:
            found.add(Frontend(first, port.protocol, port.node_port))
    return found


def others(it: Service, now: Snapshot) -> set[Address]:
    """What a Service names and can't have: what is in a block of pods; and a cluster IP that is this node's, which it
    has not for its load balancer's either."""
    blocks = [*(block for node in now.nodes.values() for block in node.pod_cidrs), *(key.cidr for key in now.blocks)]
    mine, cluster_ips = set(now.node.addresses), set(it.cluster_ips)
    all_ = {*it.cluster_ips, *it.external_ips, *it.balancer_ips}
    in_blocks = {address for address in all_ if any(address in block for block in blocks)}
    return (in_blocks - mine) | (cluster_ips & (mine | in_blocks))


def choose(members: list[tuple[Member, Backend]], now: Snapshot) -> set[Backend]:
    ready = [(m, b) for m, b in members if m.ready]
    if not ready:
        return {b for m, b in members if m.serving and m.terminating}
    mine = [(m, b) for m, b in ready if "one" in m.hints.nodes]
    if mine and all(m.hints.nodes for m, _ in ready):
        return {b for _, b in mine}
    zone = dict(now.node.labels).get("topology.kubernetes.io/zone")
    mine = [(m, b) for m, b in ready if zone in m.hints.zones]
    if mine and all(m.hints.zones for m, _ in ready):
        return {b for _, b in mine}
    return {b for _, b in ready}


def programmed(now: Snapshot, client: Address | None, to: Frontend) -> str | dict[Backend, int]:
    """What the maps and rules of nftables make of the same packet."""
    held = desired(now, None)["nftables"]
    if RestrictedKey(to) in held:
        source = client if client is not None else to.address
        ranges = [key.sources for key in held if isinstance(key, AllowedKey) and key.frontend == to]
        if not any(source in cidr for cidr in ranges):
            return DROPPED
    inside = client is None or any(client in block for node in now.nodes.values() for block in node.pod_cidrs)
    key = InternalKey(to) if inside and InternalKey(to) in held else to
    if key not in held:
        return NOT_OURS
    it = slots(held[key], None)
    if it.verdict is None and it.drawn is None:  # else: whom nobody remembers draws
        return {Slots(None, (), refused=True): REFUSED, Slots(None, (), dropped=True): DROPPED}[it]
    return dict(Counter(b for b in it.backends if b is not None))


@given(
    st.lists(world.kube_changes, max_size=10),
    st.sampled_from(CLIENTS),
    st.integers(1, 4),
)
def test_packets_go_where_the_rules_say(events: list[Any], client: Address | None, weight: int) -> None:
    now = replace(world.start(), local=replace(world.LOCAL, local_weight=weight))
    for event in events:
        with suppress(Refused):
            now, _ = fold(now, event)
    for frontend in (claim for claim in now.claims if isinstance(claim, Frontend)):
        if client is None or len(client) == len(frontend.address):
            assert programmed(now, client, frontend) == model(now, client, frontend)


@pytest.mark.parametrize(
    ("members", "zone", "expected"),
    [
        pytest.param("ready:a ready:b", "a", "a b", id="no hints: all"),
        pytest.param("ready:a:zone=a ready:b:zone=b", "a", "a", id="hints of the node's zone"),
        pytest.param("ready:a:zone=a ready:b", "a", "a b", id="one without a hint: none count"),
        pytest.param("ready:a:zone=b ready:b:zone=b", "a", "a b", id="no hint for the zone: none count"),
        pytest.param("ready:a:zone=a ready:b:zone=b", "", "a b", id="a node without a zone"),
        pytest.param("ready:a:node=one ready:b:node=two", "a", "a", id="hints of the node"),
        pytest.param("ready:a:node=two:zone=a ready:b:node=two:zone=b", "a", "a", id="the zone, where no node is"),
        pytest.param("ready:a leaving:b", "a", "a", id="who leaves is left alone"),
        pytest.param("unready:a leaving:b", "a", "b", id="who leaves serves where nobody else does"),
        pytest.param("leaving:a:zone=b leaving:b:zone=a", "a", "a b", id="hints of those who leave don't count"),
        pytest.param("unready:a", "a", "", id="nobody"),
    ],
)
def test_who_serves(members: str, zone: str, expected: str) -> None:
    states = {"ready": (True, True, False), "unready": (False, False, False), "leaving": (False, True, True)}
    addresses = {"a": parse_address("10.1.1.2"), "b": parse_address("10.1.2.2")}
    made = []
    for text in members.split():
        state, name, *hints = text.split(":")
        told = dict(hint.split("=") for hint in hints)
        zones, nodes = ((told[kind],) if kind in told else () for kind in ("zone", "node"))
        made.append(Member(addresses[name], *states[state], node="two", hints=Hints(zones, nodes)))
    node = Node(world.NODES[0].pod_cidrs, world.NODES[0].addresses, ((world.backends.ZONE, zone),) if zone else ())
    port = world.BackendPort("", Protocol.TCP, 8080)
    key = world.ServiceKey("default", "web")
    it = Service((world.ServicePort("", Protocol.TCP, 80),), (parse_address("10.96.0.1"),))
    changes = (
        (NodeKey("one"), node),
        (key, it),
        (world.SliceKey("default", "web-1"), world.BackendSlice(key, (port,), tuple(made))),
    )
    now, _ = fold(world.start(), world.e.KubeStateChange(changes))
    found = programmed(now, None, Frontend(parse_address("10.96.0.1"), Protocol.TCP, 80))
    wanted = {Backend(addresses[name], 8080): 1 for name in expected.split()}
    assert found == (wanted or REFUSED)


@pytest.mark.parametrize(
    ("family", "ranges", "expected"),
    [
        pytest.param(4, "", "", id="no ranges"),
        pytest.param(4, "198.51.100.0/24", "198.51.100.0/24", id="without the node"),
        pytest.param(4, "192.168.0.0/24", "192.168.0.0/24 203.0.113.80/32", id="with the node"),
        pytest.param(4, "192.168.0.1/32 fd99::/64", "192.168.0.1/32 203.0.113.80/32", id="one address of the node"),
        pytest.param(4, "203.0.113.0/24 192.168.0.1/32", "192.168.0.1/32 203.0.113.0/24", id="with the address too"),
        pytest.param(4, "0.0.0.0/0", "0.0.0.0/0", id="everybody"),
        pytest.param(4, "192.168.0.2/32", "192.168.0.2/32", id="another node only"),
        pytest.param(6, "fd99::/64", "2001:db8::80/128 fd99::/64", id="IPv6 with the node"),
        pytest.param(6, "fd98::/64 192.168.0.1/32", "fd98::/64", id="the node in the other family's only"),
    ],
)
def test_who_may_come_where_this_node_may(family: int, ranges: str, expected: str) -> None:
    to = Frontend(world.BALANCER[family == 6], Protocol.TCP, 80)
    it = Service(
        (world.ServicePort("", Protocol.TCP, 80),),
        (parse_address("10.96.0.1"), parse_address("fd96::1")),
        balancer_ips=world.BALANCER,
        source_ranges=tuple(map(parse_prefix, ranges.split())),
    )
    key = world.ServiceKey("default", "web")
    wanted = set(map(parse_prefix, expected.split()))
    for changes in itertools.permutations(((key, it), (NodeKey("one"), world.NODES[0]))):
        now, _ = fold(Snapshot(world.LOCAL, whole=True), world.e.KubeStateChange(changes))
        assert set(allowed_sources(now, it, to)) == wanted
        held = desired(now, None)["nftables"]
        assert {k.sources for k in held if isinstance(k, AllowedKey) and k.frontend == to} == wanted
