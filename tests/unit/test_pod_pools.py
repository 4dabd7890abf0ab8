"""PodPools and PodBlocks as they are written, what they mean, and which error each wrong field gives."""

from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.model.addresses import FAMILIES, Address, AddressRange, Prefix, joined, parse_prefix, prefix_around
from podwire.model.addresses import parse_range as ranged
from podwire.model.objects import Operator, PodBlock, PodBlockKey, PodPool, PodPoolKey, Requirement
from podwire.sources.fields import Invalid
from podwire.sources.kinds import KINDS
from podwire.sources.kubernetes import key_of, translate
from podwire.sources.pod_pools import block_key, block_name


def pool(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "podwire.io/v1alpha1",
        "kind": "PodPool",
        "metadata": {"name": "web"},
        "spec": {"cidrs": ["10.1.0.0/16", "fd00:10::/56"], **spec},
    }


def block(name: str = "10.1.0.64-26", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "podwire.io/v1alpha1",
        "kind": "PodBlock",
        "metadata": {"name": name},
        "spec": {"cidr": "10.1.0.64/26", "pool": "web", "node": "one", **spec},
    }


CIDRS = (parse_prefix("10.1.0.0/16"), parse_prefix("fd00:10::/56"))


@pytest.mark.parametrize(
    ("spec", "value"),
    [
        pytest.param({}, PodPool(CIDRS), id="what is not said"),
        pytest.param(
            {"blockSizes": None, "reserved": None, "autoAssign": None, "nodeSelector": None}, PodPool(CIDRS), id="null"
        ),
        pytest.param({"blockSizes": {"ipv4": 28}}, PodPool(CIDRS, (28, 122)), id="one block size"),
        pytest.param({"autoAssign": False}, PodPool(CIDRS, auto_assign=False), id="only for who asks"),
        pytest.param(
            {"reserved": ["10.1.4.0/24", "fd00:10::-fd00:10::f", "10.1.3.0-10.1.3.255"]},
            PodPool(CIDRS, reserved=(ranged("10.1.3.0-10.1.4.255"), ranged("fd00:10::/124"))),
            id="reserved, sorted and joined",
        ),
        pytest.param(
            {
                "nodeSelector": {
                    "matchLabels": {"zone": "a"},
                    "matchExpressions": [
                        {"key": "zone", "operator": "In", "values": ["a"]},
                        {"key": "arch", "operator": "NotIn", "values": ["x", "b", "x"]},
                        {"key": "edge", "operator": "Exists"},
                        {"key": "core", "operator": "DoesNotExist", "values": []},
                    ],
                }
            },
            PodPool(
                CIDRS,
                node_selector=(
                    Requirement("arch", Operator.NOT_IN, ("b", "x")),
                    Requirement("core", Operator.DOES_NOT_EXIST),
                    Requirement("edge", Operator.EXISTS),
                    Requirement("zone", Operator.IN, ("a",)),
                ),
            ),
            id="a selector",
        ),
    ],
)
def test_pool(spec: dict[str, Any], value: PodPool) -> None:
    assert translate(pool(**spec)) == (PodPoolKey("web"), value, "")


@pytest.mark.parametrize(
    ("requirement", "labels", "met"),
    [
        (Requirement("a", Operator.IN, ("1", "2")), {"a": "2"}, True),
        (Requirement("a", Operator.IN, ("1",)), {"a": "2"}, False),
        (Requirement("a", Operator.IN, ("1",)), {}, False),
        (Requirement("a", Operator.NOT_IN, ("1",)), {"a": "1"}, False),
        (Requirement("a", Operator.NOT_IN, ("1",)), {}, True),
        (Requirement("a", Operator.EXISTS), {"a": ""}, True),
        (Requirement("a", Operator.EXISTS), {"b": ""}, False),
        (Requirement("a", Operator.DOES_NOT_EXIST), {"a": ""}, False),
        (Requirement("a", Operator.DOES_NOT_EXIST), {}, True),
    ],
)
def test_requirements_are_met_as_the_api_says(requirement: Requirement, labels: dict[str, str], met: bool) -> None:
    assert requirement.is_met(tuple(labels.items())) is met


def test_block() -> None:
    key, value = PodBlockKey(parse_prefix("10.1.0.64/26")), PodBlock("one", "web")
    assert translate(block()) == (key, value, "")
    name = "fd00-0010-0244-0000-0000-0000-0000-0040-122"
    assert translate(block(name, cidr="fd00:10:244::40/122")).key == PodBlockKey(parse_prefix("fd00:10:244::40/122"))


def test_a_block_s_owner_is_the_node_that_it_goes_with() -> None:
    metadata = {
        "name": "10.1.0.64-26",
        "ownerReferences": [{"kind": "ConfigMap", "uid": "x"}, {"kind": "Node", "name": "one", "uid": "u"}],
    }
    thing = block() | {"metadata": metadata}
    assert translate(thing).value == PodBlock("one", "web", "u")


WRONG: list[tuple[dict[str, Any], str, str]] = [
    (pool(cidrs=[]), "spec.cidrs", "expected at least one address range"),
    (pool(cidrs=None), "spec.cidrs", "expected at least one address range"),
    (pool(cidrs=["10.1.0.0"]), "spec.cidrs[0]", "expected ADDRESS/LENGTH"),
    (pool(cidrs=["10.1.0.1/16"]), "spec.cidrs[0]", "has host bits set: expected 10.1.0.0/16"),
    (pool(cidrs=["10.01.0.0/16"]), "spec.cidrs[0]", "is not an IP address"),
    (pool(cidrs=["169.254.0.0/16"]), "spec.cidrs[0]", "expected a range without link-local addresses"),
    (pool(cidrs=["10.1.0.0/16", "10.1.4.0/24"]), "spec.cidrs[1]", "10.1.4.0/24 does with 10.1.0.0/16"),
    (
        pool(cidrs=["10.1.0.0/27"]),
        "spec.blockSizes.ipv4",
        "expected from the length of a range in spec.cidrs, 27, to 30",
    ),
    (pool(blockSizes={"ipv4": 31}), "spec.blockSizes.ipv4", "to 30, not 31"),
    (pool(blockSizes={"ipv6": 127}), "spec.blockSizes.ipv6", "to 126, not 127"),
    (pool(blockSizes={"ipv4": 12}), "spec.blockSizes.ipv4", "16, to 30, not 12"),
    (pool(blockSizes={"ipv4": "26"}), "spec.blockSizes.ipv4", "expected a whole number, not text"),
    (pool(reserved=["10.2.0.0/24"]), "spec.reserved[0]", "expected a range within one of spec.cidrs"),
    (pool(reserved=["10.1.0.9-10.1.0.1"]), "spec.reserved[0]", "the lower one first"),
    (pool(reserved=["10.1.0.9-fd00::1"]), "spec.reserved[0]", "two addresses of one family"),
    (pool(reserved=["10.1.0.9"]), "spec.reserved[0]", "such as 10.1.3.0/28 or 10.1.3.0-10.1.3.9"),
    (pool(autoAssign="yes"), "spec.autoAssign", "expected true or false, not text"),
    (
        pool(nodeSelector={"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}),
        "spec.nodeSelector.matchExpressions[0].operator",
        "expected one of In, NotIn, Exists, DoesNotExist, not 'Gt'",
    ),
    (
        pool(nodeSelector={"matchExpressions": [{"key": "a", "operator": "In"}]}),
        "spec.nodeSelector.matchExpressions[0].values",
        "expected at least one with operator In",
    ),
    (
        pool(nodeSelector={"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["1"]}]}),
        "spec.nodeSelector.matchExpressions[0].values",
        "expected none with operator Exists",
    ),
    (block(name="b"), "metadata.name", "expected one made of a CIDR, such as 10.1.0.64-26"),
    (block(name="10.1.0.65-26"), "metadata.name", "expected one made of a CIDR"),
    (block(name="10.1.0.128-26"), "metadata.name", "expected that of spec.cidr, 10.1.0.64-26, not '10.1.0.128-26'"),
    (block(name="fd00--40-122"), "metadata.name", "expected one made of a CIDR"),
    (block(cidr="10.1.0.65/26"), "spec.cidr", "has host bits set: expected 10.1.0.64/26"),
    (block(node=""), "spec.node", "expected at most 253"),
    (block(pool="A"), "spec.pool", "expected at most 253"),
    ({**block(), "spec": {"cidr": "10.1.0.64/26", "pool": "web"}}, "spec.node", "missing"),
]


@pytest.mark.parametrize(("thing", "field", "message"), WRONG, ids=[f"{it[1]} {it[2][:30]}" for it in WRONG])
def test_wrong(thing: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(Invalid) as caught:
        translate(thing)
    assert caught.value.field == field
    assert message in caught.value.message


@pytest.mark.parametrize("thing", [pool(reserved=["10.1.3.0/24"]), block()])
def test_the_api_s_json_means_the_same_as_the_mapping(thing: dict[str, Any]) -> None:
    form = KINDS[thing["apiVersion"], thing["kind"]]
    decoded = msgspec.json.decode(msgspec.json.encode(thing), type=form)
    assert translate(decoded) == translate(thing)
    assert key_of(decoded) == translate(thing).key


addresses = st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16)


@given(addresses, st.integers(0, 128))
def test_a_block_s_name_says_its_cidr_and_no_two_have_one(address: bytes, length: int) -> None:
    cidr = prefix_around(Address(address), min(length, len(address) * 8))
    assert block_key(block_name(cidr)) == PodBlockKey(cidr)


@given(st.text(st.sampled_from("0123456789abcdef.-"), max_size=50))
def test_no_other_name_is_a_block_s(name: str) -> None:
    try:
        key = block_key(name)
    except Invalid:
        return
    assert block_name(key.cidr) == name


numbers = st.integers(0, 40)
few = st.builds(
    lambda family, one, other: AddressRange(
        *(Address(number.to_bytes(family.size, "big")) for number in sorted((one, other)))
    ),
    st.sampled_from(FAMILIES),
    numbers,
    numbers,
)


@given(st.lists(few, max_size=6))
def test_joined_ranges_hold_the_same_addresses_apart_from_each_other(ranges: list[AddressRange]) -> None:
    found = joined(ranges)
    for family in FAMILIES:
        for number in range(42):
            address = Address(number.to_bytes(family.size, "big"))
            assert any(address in it for it in found) == any(address in it for it in ranges)
    for before, after in pairwise(found):
        if len(before.first) == len(after.first):
            end = Prefix(before.last, len(before.last) * 8)
            assert end.nth(1) < after.first
