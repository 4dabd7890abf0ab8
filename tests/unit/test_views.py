"""What an agent shows of a snapshot, without a server."""

from collections.abc import Iterable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from immutables import Map

from podwire import views
from podwire.dataplane.nftables.layout import MOST_BACKENDS
from podwire.ipam.views import MANY as MOST
from podwire.model.addresses import parse_address, parse_prefix
from podwire.model.network import Backend, LinkKey, Serving, Slots
from podwire.model.objects import Attachment, Node, PodKey
from podwire.model.snapshot import UNKNOWN, Local, Snapshot
from podwire.views import BackendView, FrontendState, PodState
from tests.unit.served_agent import BACK, COPY, DNS, EMPTY, FRONT, RECORDS, WEB, node, slots

FACTS = views.Facts("0.1.0", None, 1.5, {"nftables": 9, "linux": 31})


def test_status_tells_the_node_its_ranges_and_counts() -> None:
    seen = views.status(node(), FACTS)
    assert (seen.node, seen.version, seen.ready, seen.not_ready, seen.mtu) == ("one", "0.1.0", True, None, 1450)
    # A /24 has 256 addresses less network, node and broadcast; a /120 of IPv6 has no broadcast.
    assert seen.pod_cidrs == (views.BlockView("10.1.1.0/24", 2, 251), views.BlockView("fd01::/120", 2, 252))
    assert seen.service_cidrs == ("10.96.0.0/16",)
    assert seen.counts == {
        "nodes": 1,
        "namespaces": 0,
        "pods": 0,
        "services": 4,
        "slices": 3,
        "frontends": 4,
        "attachments": 2,
    }
    assert list(seen.writes.items()) == [("linux", 31), ("nftables", 9)]
    assert seen.unknown == {"linux": 0, "nftables": 1}


def test_status_of_an_agent_that_knows_nothing_yet() -> None:
    seen = views.status(Snapshot(Local("one")), views.Facts("0.1.0", "no resync yet", 0.0, {}, ("manifests: gone",)))
    assert (seen.ready, seen.not_ready, seen.pod_cidrs) == (False, "no resync yet", ())
    assert seen.source_errors == ("manifests: gone",)


def test_a_range_too_large_for_json_is_told_all_the_same() -> None:
    block = parse_prefix("fd00::/48")
    now = msgspec.structs.replace(node(), nodes=Map({node().local.key: Node((block,))}))
    seen = views.status(now, FACTS)
    assert seen.pod_cidrs == (views.BlockView("fd00::/48", 0, MOST),)
    assert b'"free":1000000000' in msgspec.json.encode(seen)


def test_services_come_sorted_with_sorted_frontends_and_backends() -> None:
    now = node()
    assert views.service_keys(now) == [COPY, DNS, EMPTY, WEB]
    v4, v6 = views.service(now, WEB).frontends
    assert (v4.address, v4.protocol, v4.port, v4.state) == ("10.96.0.10", "TCP", 80, FrontendState.PROGRAMMED)
    assert v4.backends == (BackendView("10.1.1.2", 8080), BackendView("10.1.1.3", 8080))
    assert (v6.address, v6.state, v6.backends) == ("fd96::a", FrontendState.FAILED, (BackendView("fd01::2", 8080),))


@pytest.mark.parametrize(
    ("key", "state"),
    [
        pytest.param(EMPTY, FrontendState.REFUSED, id="no backend, and the clients are told"),
        pytest.param(DNS, FrontendState.PENDING, id="never reported"),
    ],
)
def test_a_frontend_has_the_state_that_was_reported(key: views.ServiceKey, state: FrontendState) -> None:
    (seen,) = views.service(node(), key).frontends
    assert seen.state is state


def test_both_claimants_of_a_frontend_are_told_who_has_it() -> None:
    now = node()
    conflict = views.ConflictView("10.96.0.10", "TCP", 80, "shop/web", ("shop/copy", "shop/web"))
    assert views.service(now, WEB).conflicts == (conflict,)
    loser = views.service(now, COPY)
    assert (loser.frontends, loser.conflicts) == ((), (conflict,))


def test_an_unknown_service_is_an_error() -> None:
    with pytest.raises(KeyError):
        views.service(node(), views.ServiceKey("shop", "none"))


A, B, C = (Backend(parse_address(text), 8080) for text in ("10.1.1.2", "10.1.1.3", "10.1.1.4"))
MANY = [Backend(parse_address(f"10.7.{n >> 8}.{n & 255}"), 80) for n in range(MOST_BACKENDS + 1)]


@pytest.mark.parametrize(
    ("wanted", "held", "state"),
    [
        pytest.param({A, B}, slots("10.1.1.3", "10.1.1.2"), FrontendState.PROGRAMMED, id="the order of slots is free"),
        pytest.param({A, B, C}, Slots(4, (C, A, B, None)), FrontendState.PROGRAMMED, id="with an empty slot"),
        pytest.param({A}, Slots(2, (A, None)), FrontendState.PENDING, id="a class too large"),
        pytest.param(MANY, Slots(MOST_BACKENDS, tuple(MANY[:-1])), FrontendState.PROGRAMMED, id="all slots full"),
        pytest.param({A, B}, Slots(2, (A, None)), FrontendState.PENDING, id="a backend is missing"),
        pytest.param({A}, Slots(2, (A, B)), FrontendState.PENDING, id="a backend too many"),
        pytest.param({A}, Slots(None, (A,)), FrontendState.PENDING, id="slots without a verdict"),
        pytest.param({A}, Slots(None, (A,), True), FrontendState.PENDING, id="refused, though there is a backend"),
        pytest.param(set(), Slots(1, ()), FrontendState.PENDING, id="not refused, though there is none"),
        pytest.param(set(), Slots(None, (), True), FrontendState.REFUSED, id="refused"),
        pytest.param(set(), Slots(None, (), True, True), FrontendState.PENDING, id="refused and dropped"),
        pytest.param({A}, None, FrontendState.PENDING, id="nothing held"),
        pytest.param({A}, UNKNOWN, FrontendState.FAILED, id="the last change failed"),
    ],
)
def test_states_of_a_frontend(wanted: Iterable[Backend], held: object, state: FrontendState) -> None:
    assert views.frontend_state(Serving(tuple(sorted(wanted))), held) is state


def test_pods_come_sorted_with_their_state() -> None:
    now = node()
    assert views.attachment_keys(now) == [BACK, FRONT]
    back, front = (views.pod(now, key) for key in (BACK, FRONT))
    assert (front.namespace, front.name, front.addresses) == ("shop", "front", ("10.1.1.2", "fd01::2"))
    assert (front.sandbox, front.interface, front.netns) == ("sandbox-front", "eth0", "/run/netns/front")
    assert front.link.startswith("pw")
    assert (front.state, back.state) == (PodState.WIRED, PodState.PENDING)


def test_a_wired_pod_is_pending_until_its_row_is_confirmed() -> None:
    now = node()
    it = now.attachments[FRONT]
    unconfirmed = Attachment(PodKey("shop", "front"), it.netns, it.addresses, it.index, confirmed=False)
    assert views.pod_state(now, FRONT, unconfirmed) is PodState.PENDING


def test_a_pod_with_an_unknown_part_has_failed() -> None:
    now = node()
    link = LinkKey(views.pod(now, FRONT).link)
    linux = now.programmed["linux"].set(link, UNKNOWN)
    broken = msgspec.structs.replace(now, programmed=now.programmed.set("linux", linux))
    assert views.pod(broken, FRONT).state is PodState.FAILED


@pytest.mark.parametrize(
    ("since", "limit", "numbers"),
    [
        pytest.param(None, 2, [14, 15], id="without a since: the newest"),
        pytest.param(11, 2, [12, 13], id="after a number: the next ones"),
        pytest.param(0, 9, [11, 12, 13, 14, 15], id="from before the oldest: what there is"),
        pytest.param(15, 9, [], id="nothing new"),
    ],
)
def test_history_is_read_from_the_end_or_from_a_number_on(since: int | None, limit: int, numbers: list[int]) -> None:
    seen = views.history(RECORDS, since, limit)
    assert [record.number for record in seen.records] == numbers
    assert seen.oldest == 11


def test_an_empty_history() -> None:
    assert views.history((), None, 5) == views.HistoryView(0, ())


@given(st.integers(0, 30), st.integers(1, 7))
def test_reading_on_from_the_last_number_misses_nothing(start: int, limit: int) -> None:
    numbers: list[int] = []
    at = start
    while records := views.history(RECORDS, at, limit).records:
        at = records[-1].number
        numbers += [record.number for record in records]
    assert numbers == [record.number for record in RECORDS if record.number > start]


def test_every_view_survives_its_json() -> None:
    now = node()
    for value in (
        views.status(now, FACTS),
        views.ServiceList(tuple(views.service(now, key) for key in views.service_keys(now))),
        views.PodList(tuple(views.pod(now, key) for key in views.attachment_keys(now))),
        views.history(RECORDS, None, 9),
    ):
        assert msgspec.json.decode(msgspec.json.encode(value), type=type(value)) == value
