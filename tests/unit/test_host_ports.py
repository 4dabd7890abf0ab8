"""Whose a port of the node is: the same for the same pods, whatever the order in which they came."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from immutables import Map
from msgspec.structs import replace

from podwire.controller import events as e
from podwire.controller.snapshot import fold
from podwire.dataplane.linux import rebuild
from podwire.dataplane.nftables.layout import LOOKS, rules_of
from podwire.model.addresses import FAMILIES, Address, Family, parse_address
from podwire.model.network import Backend, Frontend, HostPortKey, LinkKey
from podwire.model.objects import AttachmentKey, HostPort, PodKey, Protocol
from podwire.model.snapshot import EVERYTHING, Snapshot
from podwire.pods import hostports, wiring
from tests.unit import world

ALL, ALL4, ALL6 = Address(b""), Address(bytes(4)), Address(bytes(16))
HERE = parse_address("192.168.0.1")


def add(sandbox: str, *ports: HostPort, pod: str = "", uid: str = "") -> e.AddPod:
    key = AttachmentKey(sandbox, "eth0")
    return e.AddPod(key, PodKey("default", pod or sandbox), f"/run/netns/{sandbox}", uid=uid, host_ports=ports)


def after(*events: e.Event) -> Snapshot:
    now = world.start()
    for event in events:
        now, _ = fold(now, event)
    return now


def held(now: Snapshot) -> dict[Frontend, Backend]:
    wanted = wiring.desired(now, EVERYTHING)["nftables"]
    return {key.frontend: value for key, value in wanted.items() if isinstance(key, HostPortKey)}


events = st.lists(world.pod_events, max_size=10)


@settings(max_examples=300)
@given(events, st.randoms(use_true_random=False))
def test_the_same_pods_have_the_same_ports_whatever_the_order(way: list[e.Event], random: Random) -> None:
    now = world.start()
    for event in way:
        try:
            now, _ = fold(now, event)
        except e.Refused:
            continue
    restored = list(now.attachments.items())
    random.shuffle(restored)
    confirmed = {key: replace(it, confirmed=True) for key, it in restored}
    other, _ = fold(world.start(), e.Restored(confirmed, {}))
    assert held(other) == held(now)
    assert other.host_ports == now.host_ports
    owners = [hostports.owner(now, at) for at in held(now)]
    assert None not in owners
    # Each port that a pod was promised is its own, and nobody's else.
    promised = [at for it in now.attachments.values() for at in hostports.mapped(it)]
    assert sorted(promised) == sorted(held(now))


@given(events)
def test_the_index_says_what_the_pods_say(way: list[e.Event]) -> None:
    now = world.start()
    for event in way:
        try:
            now, _ = fold(now, event)
        except e.Refused:
            continue
    expected: dict[Frontend, frozenset[AttachmentKey]] = {}
    for key, it in now.attachments.items():
        for at in hostports.mapped(it):
            expected[at] = expected.get(at, frozenset()) | {key}
    assert now.host_ports == Map(expected)


WEB = (HostPort(ALL, Protocol.TCP, 80, 8080),)
AT_ALL = tuple(Frontend(Address(bytes(family.size)), Protocol.TCP, 80) for family in FAMILIES)


@pytest.mark.parametrize(
    ("second", "refusal"),
    [
        pytest.param(add("b", *WEB), e.Refusal.PORT_TAKEN, id="another pod"),
        pytest.param(add("b", HostPort(ALL4, Protocol.TCP, 80, 9)), e.Refusal.PORT_TAKEN, id="in one family"),
        pytest.param(add("a2", *WEB, pod="a", uid="2"), e.Refusal.PORT_TAKEN, id="the next pod of that name"),
        pytest.param(add("b", HostPort(HERE, Protocol.TCP, 80, 9)), None, id="at a named address"),
        pytest.param(add("b", HostPort(ALL, Protocol.UDP, 80, 9)), None, id="by another protocol"),
        pytest.param(add("b", HostPort(ALL, Protocol.TCP, 81, 9)), None, id="another port"),
        pytest.param(add("a2", *WEB, pod="a", uid="1"), None, id="a new sandbox of the pod"),
        pytest.param(add("a2", *WEB, pod="a"), None, id="one whose UID nobody tells"),
        pytest.param(add("a", *WEB, uid="1"), None, id="the same again"),
    ],
)
def test_whose_port_is_refused(second: e.AddPod, refusal: e.Refusal | None) -> None:
    now = after(add("a", *WEB, pod="a", uid="1"))
    if refusal is None:
        fold(now, second)
        return
    with pytest.raises(e.Refused, match=r"pod default/a \(sandbox a\) has host port 0.0.0.0:80/TCP") as raised:
        fold(now, second)
    assert raised.value.refusal is refusal


def test_a_new_sandbox_has_the_ports_from_its_add_on_and_the_old_ones_end_changes_nothing() -> None:
    old, new = add("a1", *WEB, pod="a", uid="1"), add("a2", *WEB, pod="a", uid="1")
    now, touched = fold(after(old), new)
    assert touched is not None
    assert touched.attachments == {old.key, new.key}
    addresses = now.attachments[new.key].addresses
    expected = {at: Backend(address, 8080) for at, address in zip(AT_ALL, addresses, strict=True)}
    assert held(now) == expected
    assert held(fold(now, e.DeletePod(old.key))[0]) == expected
    back, touched = fold(now, e.DeletePod(new.key))  # its ADD has failed: the old one has them again
    assert touched is not None
    assert touched.attachments == {old.key, new.key}
    assert {at: to.address for at, to in held(back).items()} == dict(
        zip(AT_ALL, now.attachments[old.key].addresses, strict=True)
    )


def test_a_pod_of_one_family_has_the_ports_of_that_one_and_none_that_is_named_in_the_other() -> None:
    now = world.start(world.NODES[1])
    only, _ = fold(now, add("a", *WEB))
    assert set(held(only)) == {AT_ALL[0]}
    for address in (ALL6, parse_address("fd00::1")):
        with pytest.raises(e.Refused, match="the pod has no IPv6 address") as raised:
            fold(now, add("a", HostPort(address, Protocol.TCP, 80, 8080)))
        assert raised.value.refusal is e.Refusal.PORT_UNFIT


@pytest.mark.parametrize(
    ("address", "open_"),
    [(ALL, True), (ALL4, True), (parse_address("127.0.0.1"), True), (HERE, False), (ALL6, False)],
    ids=["all", "all of IPv4", "loopback", "named", "all of IPv6"],
)
def test_only_the_link_of_a_pod_that_answers_at_the_nodes_loopback_carries_it(address: Address, open_: bool) -> None:
    now = after(add("a", HostPort(address, Protocol.TCP, 80, 8080)), add("b"))
    links = wiring.desired(now, EVERYTHING)["linux"]
    found = {value.alias: value.localnet for key, value in links.items() if isinstance(key, LinkKey)}
    assert found == {"default/a": open_, "default/b": False}


def test_lost_ports_are_those_that_lead_to_a_pod() -> None:
    named = HostPort(HERE, Protocol.UDP, 53, 5353)
    now = after(add("a", *WEB, named), add("b"))
    bare = {key: replace(it, host_ports=()) for key, it in now.attachments.items()}
    kernel = {HostPortKey(at): to for at, to in held(now).items()}
    strange = {HostPortKey(Frontend(HERE, Protocol.TCP, 1)): Backend(parse_address("10.9.9.9"), 1)}
    found = rebuild.with_host_ports(bare, kernel | strange)
    again, _ = fold(world.start(), e.Restored({k: replace(it, confirmed=True) for k, it in found.items()}, {}))
    assert held(again) == held(now)
    assert found[AttachmentKey("b", "eth0")].host_ports == ()


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_each_port_is_looked_up_as_often_as_the_layout_says_and_the_named_one_first(family: Family) -> None:
    asked = [rule for rule in rules_of(family)["host_port"] if "map @" in rule]
    assert [rule.rpartition("@")[2] for rule in asked] == ["host_ports_at"] * LOOKS + ["host_ports"] * LOOKS


def test_no_service_pays_for_a_host_port() -> None:
    """They are asked last, where nothing of a Service's has been found."""
    for family in FAMILIES:
        for chain in ("pre", "out"):
            rules = rules_of(family)[chain]
            at = next(n for n, rule in enumerate(rules) if "goto host_port" in rule)
            assert max(n for n, rule in enumerate(rules) if "vmap" in rule or rule == "jump refuse") == at - 1
