"""AddressPools and Services as the controller reads them, and the statuses that it writes."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from podwire.clustercontroller.writer import status_patch
from podwire.loadbalancer.allocation import Grant, allocate
from podwire.loadbalancer.pools import used
from podwire.loadbalancer.statuses import Status, due, news
from podwire.model.addresses import IPV4, IPV6, parse_address, parse_range
from podwire.model.balancers import AddressPool, AddressPoolKey, AnnouncedBy, Balanced, Leftover, Request
from podwire.model.objects import Operator, Protocol, Requirement, ServiceKey
from podwire.sources.address_pools import AddressPoolObject, read_pool
from podwire.sources.balancer_objects import CLASS, CONDITION, BalancedService, read_service
from podwire.sources.fields import Invalid

WEB = ServiceKey("shop", "web")
LABELS = (("kind", "x"), ("zone", "b"))
A, B, SIX = map(parse_address, ("192.0.2.1", "192.0.2.2", "2001:db8::1"))


def pool(**spec: Any) -> AddressPool:
    thing = {"metadata": {"name": "a", "labels": {"zone": "b", "kind": "x"}}, "spec": spec}
    key, value = read_pool(msgspec.convert(thing, AddressPoolObject))
    assert key == AddressPoolKey("a")
    return value


def balanced(
    *, unclassed: bool = True, annotations: Any = None, status: Any = None, **spec: Any
) -> Balanced | Leftover | None:
    about = {"name": "web", "namespace": "shop", "resourceVersion": "7", "uid": "u", "annotations": annotations or {}}
    ports = [{"port": 80}, {"port": 53, "protocol": "UDP"}]
    whole = {"type": "LoadBalancer", "clusterIPs": ["10.96.0.1", "fd96::1"], "ports": ports, **spec}
    thing = {"metadata": about, "spec": whole, "status": status or {}}
    key, value = read_service(msgspec.json.decode(msgspec.json.encode(thing), type=BalancedService), unclassed)
    assert key == WEB
    return value


def asked(**given: Any) -> Request:
    found = balanced(**given)
    assert isinstance(found, Balanced)
    return found.request


def test_a_pool_in_full() -> None:
    selector = {"matchLabels": {"b": "1"}, "matchExpressions": [{"key": "a", "operator": "Exists"}]}
    assert pool(
        addresses=["192.0.2.9-192.0.2.12", "2001:db8::/120"],
        autoAssign=False,
        avoidBuggyIPs=True,
        priority=7,
        namespaces=["b", "a", "a"],
        namespaceSelectors=[selector],
        serviceSelectors=[{}],
        announce=["L2", "L2"],
    ) == AddressPool(
        (parse_range("192.0.2.9-192.0.2.12"), parse_range("2001:db8::/120")),
        False,
        True,
        7,
        ("a", "b"),
        ((Requirement("a", Operator.EXISTS), Requirement("b", Operator.IN, ("1",))),),
        ((),),
        (AnnouncedBy.L2,),
        LABELS,
    )


def test_a_pool_is_announced_by_all_means_where_it_names_none() -> None:
    assert pool(addresses=["192.0.2.0/24"], announce=None).announce == (AnnouncedBy.BGP, AnnouncedBy.L2)
    assert pool(addresses=["192.0.2.0/24"], announce=["L2", "BGP"]).announce == (AnnouncedBy.BGP, AnnouncedBy.L2)


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        ({}, "spec.addresses: expected at least one address range"),
        (
            {"addresses": ["192.0.2.9-192.0.2.1"]},
            (
                "spec.addresses[0]: '192.0.2.9-192.0.2.1' is not an address range: "
                "expected two addresses of one family, the lower one first; "
                "such as 192.0.2.0/28 or 192.0.2.10-192.0.2.19"
            ),
        ),
        (
            {"addresses": ["192.0.2.0/24", "192.0.2.255-192.0.3.1"]},
            (
                "spec.addresses[1]: expected ranges that don't overlap; 192.0.2.255-192.0.3.1 does with "
                "192.0.2.0-192.0.2.255"
            ),
        ),
        (
            {"addresses": ["127.0.0.0/8"]},
            (
                "spec.addresses[0]: expected addresses that hosts can have; "
                "127.0.0.0-127.255.255.255 has loopback addresses (127.0.0.0/8)"
            ),
        ),
        (
            {"addresses": ["192.0.2.0/24", "169.0.0.0-170.0.0.0"]},
            (
                "spec.addresses[1]: expected addresses that hosts can have; "
                "169.0.0.0-170.0.0.0 has link-local addresses (169.254.0.0/16)"
            ),
        ),
        ({"addresses": ["192.0.2.0/24"], "priority": -1}, "spec.priority: expected a number from 0, not -1"),
        (
            {"addresses": ["192.0.2.0/24"], "announce": ["BGP", "OSPF"]},
            "spec.announce[1]: expected BGP or L2, not 'OSPF'",
        ),
        (
            {"addresses": ["192.0.2.0/24"], "announce": []},
            "spec.announce: expected at least one of BGP, L2, or no such field",
        ),
    ],
)
def test_a_wrong_pool_is_one_error(spec: Any, error: str) -> None:
    with pytest.raises(Invalid) as raised:
        pool(**spec)
    assert str(raised.value) == error


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"type": "NodePort"}, id="another type"),
        pytest.param({"loadBalancerClass": "example.com/other"}, id="another class"),
        pytest.param({"unclassed": False}, id="no class, where one is asked for"),
        pytest.param({"clusterIPs": []}, id="no cluster IP yet"),
        pytest.param({"clusterIPs": ["None"]}, id="headless"),
    ],
)
def test_a_service_that_is_not_ours(given: dict[str, Any]) -> None:
    """One that was so keeps a condition of ours, which is to be taken off."""
    assert balanced(**given) is None
    others = {"conditions": [{"type": "example.com/Other", "status": "True"}]}
    assert balanced(**given, status=others) is None
    once = {"conditions": [{"type": CONDITION, "status": "True"}]}
    assert balanced(**given, status=once) == Leftover("7")


def test_a_service_in_full() -> None:
    status = {
        "loadBalancer": {"ingress": [{"ip": "192.0.2.1", "ipMode": "VIP"}, {"hostname": "x"}]},
        "conditions": [{"type": CONDITION, "status": "True", "reason": "Assigned", "message": "m"}, {"type": "other"}],
    }
    annotations = {
        "podwire.io/load-balancer-ips": " 2001:db8::1 , 192.0.2.1",
        "podwire.io/address-pool": "a",
        "metallb.universe.tf/allow-shared-ip": "k",
        "podwire.io/give-up-ips": "192.0.2.2,what",
    }
    local = {"externalTrafficPolicy": "Local", "selector": {"b": "2", "a": "1"}}
    found = balanced(
        unclassed=False,
        annotations=annotations,
        status=status,
        loadBalancerClass=CLASS,
        ipFamilyPolicy="RequireDualStack",
        **local,
    )
    request = Request(
        (IPV4, IPV6),
        frozenset({(Protocol.TCP, 80), (Protocol.UDP, 53)}),
        True,
        (A, SIX),
        "a",
        "k",
        "a=1,b=2",
        holds=(A,),
        gives_up=(B,),
    )
    assert found == Balanced(request, "7", "u", 0, (("192.0.2.1", "VIP"), ("x", "VIP")), ("True", "Assigned", "m"))


@pytest.mark.parametrize(
    ("annotations", "more", "unclear"),
    [
        (
            {"podwire.io/load-balancer-ips": "192.0.2.1"},
            {"loadBalancerIP": "192.0.2.1"},
            "metadata.annotations[podwire.io/load-balancer-ips]: expected this or spec.loadBalancerIP, not both",
        ),
        (
            {"podwire.io/load-balancer-ips": "192.0.2.1,192.0.2.2"},
            {},
            (
                "metadata.annotations[podwire.io/load-balancer-ips]: expected one address of a family at most, "
                "not '192.0.2.1, 192.0.2.2'"
            ),
        ),
    ],
)
def test_what_cannot_be_understood_is_told_and_takes_nothing_away(annotations: Any, more: Any, unclear: str) -> None:
    held = {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}
    request = asked(annotations=annotations, status=held, **more)
    assert (request.unclear, request.asked, request.holds) == (unclear, (), (A,))


def test_an_address_that_is_none_is_named() -> None:
    assert asked(loadBalancerIP="nonsense").unclear.startswith("spec.loadBalancerIP: ")
    assert asked(annotations={"metallb.io/loadBalancerIPs": "1"}).unclear.startswith("metadata.annotations[")


def test_pods_of_a_local_service_without_a_selector_are_its_own() -> None:
    assert asked(externalTrafficPolicy="Local").backends == "service/shop/web"


def held(*ingress: str, condition: tuple[str, str, str] | None = None) -> Balanced:
    holds = tuple(parse_address(it) for it in ingress if it[0].isdigit())
    return Balanced(
        Request((IPV4,), frozenset(), holds=holds), "7", "u", 3, tuple((it, "VIP") for it in ingress), condition
    )


THEIRS = (("192.0.2.1", "Proxy"), ("name.example", "VIP"))
ASSIGNED = ("True", "Assigned", "192.0.2.1 of pool a")


@pytest.mark.parametrize(
    ("before", "grant", "status", "told"),
    [
        pytest.param(
            held(),
            Grant((A,), "a"),
            Status((("192.0.2.1", "VIP"),), ASSIGNED),
            [("Normal", "AddressAssigned", "192.0.2.1 of pool a")],
            id="the first one",
        ),
        pytest.param(held("192.0.2.1", condition=ASSIGNED), Grant((A,), "a"), None, [], id="as it was"),
        pytest.param(
            held("192.0.2.1"), Grant((A,), "a"), Status((("192.0.2.1", "VIP"),), ASSIGNED), [], id="from before us"
        ),
        pytest.param(
            held(),
            Grant(why="there is none"),
            Status((), ("False", "NoAddress", "there is none")),
            [("Warning", "NoAddress", "there is none")],
            id="none",
        ),
        pytest.param(
            held("name.example"),
            Grant(why="there is none"),
            Status((("name.example", "VIP"),), ("False", "NoAddress", "there is none")),
            [("Warning", "NoAddress", "there is none")],
            id="somebody else's name stays",
        ),
        pytest.param(
            replace(held("192.0.2.1", "name.example"), ingress=THEIRS),
            Grant((A,), "", stale=((A, "it is in no pool"),)),
            Status(THEIRS, ("True", "Stale", "192.0.2.1 is kept, though it is in no pool")),
            [("Warning", "AddressStale", "192.0.2.1 is kept, though it is in no pool")],
            id="somebody else's address stays, with its mode and its name",
        ),
        pytest.param(
            replace(held("192.0.2.1"), ingress=THEIRS[:1]),
            Grant((A,), "a"),
            Status((("192.0.2.1", "VIP"),), ASSIGNED),
            [],
            id="one of a pool is for the nodes",
        ),
        pytest.param(
            held("192.0.2.1", condition=ASSIGNED),
            Grant((B,), "a", lost=((A, "it asks for another"),)),
            Status((("192.0.2.2", "VIP"),), ("True", "Assigned", "192.0.2.2 of pool a")),
            [
                ("Warning", "AddressLost", "192.0.2.1: it asks for another"),
                ("Normal", "AddressAssigned", "192.0.2.2 of pool a"),
            ],
            id="another",
        ),
        pytest.param(
            held("192.0.2.1", condition=ASSIGNED),
            Grant((A,), "", stale=((A, "it is in no pool"),)),
            Status((("192.0.2.1", "VIP"),), ("True", "Stale", "192.0.2.1 is kept, though it is in no pool")),
            [("Warning", "AddressStale", "192.0.2.1 is kept, though it is in no pool")],
            id="stale",
        ),
        pytest.param(
            held("192.0.2.1", condition=ASSIGNED),
            Grant((A,), "a", "no IPv6 address"),
            Status((("192.0.2.1", "VIP"),), ("False", "Incomplete", "192.0.2.1 of pool a; no IPv6 address")),
            [("Warning", "AddressIncomplete", "192.0.2.1 of pool a; no IPv6 address")],
            id="of one family alone",
        ),
    ],
)
def test_what_is_written_and_told(
    before: Balanced, grant: Grant, status: Status | None, told: list[tuple[str, str, str]]
) -> None:
    assert due(before, grant) == status
    assert news(before, grant) == told
    if status is not None:
        patch = msgspec.json.decode(status_patch(before, status, "now"))
        assert patch["metadata"] == {"resourceVersion": "7"}
        assert patch["status"]["conditions"][0]["observedGeneration"] == 3
        assert ("loadBalancer" in patch["status"]) == (status.ingress != before.ingress)


LONG = "n" * 200_000


@pytest.mark.parametrize(
    ("known", "annotations"),
    [
        pytest.param(1, {"podwire.io/address-pool": LONG}, id="a pool's name"),
        pytest.param(1, {"metallb.io/address-pool": "\0\U0001f409\u0308\u2028" * 20_000}, id="odd characters"),
        pytest.param(1, {"podwire.io/load-balancer-ips": LONG}, id="addresses"),
        pytest.param(1, {"podwire.io/load-balancer-ips": "10.0.0.1," * 20_000}, id="many addresses"),
        pytest.param(1, {"podwire.io/allow-shared-ip": LONG}, id="a key"),
        pytest.param(1, {"podwire.io/give-up-ips": LONG}, id="what it gives up"),
        pytest.param(2000, {}, id="many pools, none of them free"),
    ],
)
def test_whatever_is_to_be_said_is_written_once(known: int, annotations: Any) -> None:
    """A status that the API has taken is as it should be: otherwise it would be written for ever."""
    pools = {
        AddressPoolKey(f"{'p' * 60}{n}"): AddressPool((parse_range("192.0.2.255-192.0.2.255"),), avoid_buggy=True)
        if n == 0
        else AddressPool((parse_range(f"2001:db8::{n:x}-2001:db8::{n:x}"),))
        for n in range(known)
    }
    before = balanced(annotations=annotations, clusterIPs=["10.96.0.1"])
    assert isinstance(before, Balanced)
    grant = allocate(used(pools), {}, {WEB: before.request})[WEB]
    status = due(before, grant)
    assert status is not None
    written = msgspec.json.decode(status_patch(before, status, "now"))["status"]
    assert len(written["conditions"][0]["message"]) <= 32768
    after = balanced(annotations=annotations, clusterIPs=["10.96.0.1"], status=written)
    assert isinstance(after, Balanced)
    assert due(after, allocate(used(pools), {}, {WEB: after.request})[WEB]) is None


@pytest.mark.parametrize(
    ("before", "changes"),
    [(None, True), (("False", "NoAddress", "why"), True), (("True", "Stale", "why"), False), (ASSIGNED, False)],
)
def test_the_time_of_a_condition_is_of_its_last_change(before: tuple[str, str, str] | None, changes: bool) -> None:
    status = Status((("192.0.2.1", "VIP"),), ASSIGNED)
    (condition,) = msgspec.json.decode(status_patch(held(condition=before), status, "now"))["status"]["conditions"]
    assert ("lastTransitionTime" in condition) == changes
