"""PodPools and PodBlocks, the objects of Podwire's own kinds, to the model's values.

Invariants: pure. Both are written by Podwire's users and agents alone, so addresses are read strictly: no host bits, no
leading zeros. A PodBlock's name is made of its CIDR, so that the API server lets one node only make it; one by any
other name is refused.
"""

from collections.abc import Sequence
from sys import intern

from podwire.model import objects
from podwire.model.addresses import (
    FAMILIES,
    IPV4,
    AddressRange,
    Family,
    Prefix,
    joined,
    parse_prefix,
    parse_range,
    special_in,
)
from podwire.model.objects import Operator, PodBlockKey, Requirement
from podwire.sources.fields import Invalid, check_apart, read_at, read_each, read_name, shown
from podwire.sources.kube_objects import BlockSizes, LabelRequirement, LabelSelector, PodBlock, PodPool

LONGEST_BLOCK: dict[Family, int] = {family: family.bits - 2 for family in FAMILIES}
"""The prefix of a block is no longer: the network, the node and a pod have an address each."""


def read_pool(thing: PodPool) -> objects.PodPool:
    """Raises Invalid."""
    spec = thing.spec
    cidrs = tuple(read_each("spec.cidrs", spec.cidrs, _cidr))
    if not cidrs:
        raise Invalid("spec.cidrs", "expected at least one address range")
    check_apart("spec.cidrs", cidrs)
    reserved = read_each("spec.reserved", spec.reserved, lambda text: _reserved(text, cidrs))
    return objects.PodPool(
        cidrs,
        _sizes(spec.block_sizes or BlockSizes(), cidrs),
        joined(reserved),
        spec.auto_assign is not False,
        read_selector("spec.nodeSelector", spec.node_selector or LabelSelector()),
    )


def read_block(thing: PodBlock) -> objects.PodBlock:
    """Raises Invalid."""
    spec = thing.spec
    cidr = read_at("spec.cidr", spec.cidr, _cidr)
    if block_name(cidr) != thing.metadata.name:
        raise Invalid(
            "metadata.name", f"expected that of spec.cidr, {block_name(cidr)}, not {shown(thing.metadata.name)}"
        )
    owners = (it.uid for it in thing.metadata.owner_references or () if it.kind == "Node" and it.uid)
    node, pool = read_name(spec.node, "spec.node"), read_name(spec.pool, "spec.pool")
    return objects.PodBlock(intern(node), intern(pool), intern(next(owners, "")))


def block_key(name: str) -> PodBlockKey:
    """By an object's name. Raises Invalid."""
    cidr = _named(name)
    if cidr is None or block_name(cidr) != name:
        form = "one made of a CIDR, such as 10.1.0.64-26 or fd00-0010-0000-0000-0000-0000-0000-0040-122"
        raise Invalid("metadata.name", f"expected {form}, not {shown(name)}")
    return PodBlockKey(cidr)


def block_name(cidr: Prefix) -> str:
    """`10.1.0.64-26`, `fd00-0010-0000-0000-0000-0000-0000-0040-122`."""
    if cidr.family == IPV4:
        return f"{'.'.join(map(str, cidr.first))}-{cidr.length}"
    return "-".join((*(cidr.first[at : at + 2].hex() for at in range(0, 16, 2)), str(cidr.length)))


def _named(name: str) -> Prefix | None:
    head, _, length = name.rpartition("-")
    try:
        return parse_prefix(f"{head.replace('-', ':')}/{length}")
    except ValueError:
        return None


def _cidr(text: str) -> Prefix:
    try:
        prefix = parse_prefix(text)
    except ValueError as error:
        raise Invalid("", str(error)) from None
    if (others := special_in(prefix)) is not None:
        raise Invalid("", f"expected a range without {others}, not {shown(text)}")
    return prefix


def _reserved(text: str, cidrs: Sequence[Prefix]) -> AddressRange:
    try:
        found = parse_range(text)
    except ValueError as error:
        raise Invalid("", f"{error}; such as 10.1.3.0/28 or 10.1.3.0-10.1.3.9") from None
    if not any(found.first in cidr and found.last in cidr for cidr in cidrs):
        raise Invalid("", f"expected a range within one of spec.cidrs, not {shown(text)}")
    return found


def _sizes(given: BlockSizes, cidrs: Sequence[Prefix]) -> tuple[int, int]:
    default = objects.PodPool(()).block_sizes
    found = []
    for family, size, usual in zip(FAMILIES, (given.ipv4, given.ipv6), default, strict=True):
        least = max((cidr.length for cidr in cidrs if cidr.family == family), default=0)
        size = usual if size is None else size
        if not least <= size <= LONGEST_BLOCK[family]:
            of = f"the length of a range in spec.cidrs, {least}," if least else "0"
            path = f"spec.blockSizes.{family.name.lower()}"
            raise Invalid(path, f"expected from {of} to {LONGEST_BLOCK[family]}, not {shown(size)}")
        found.append(size)
    return found[0], found[1]


def read_selector(path: str, given: LabelSelector) -> tuple[Requirement, ...]:
    """The rules: Kubernetes API, LabelSelector. Raises Invalid."""
    labels = [Requirement(key, Operator.IN, (value,)) for key, value in (given.match_labels or {}).items()]
    expressions = read_each(f"{path}.matchExpressions", given.match_expressions, _requirement)
    return tuple(sorted({*labels, *expressions}))


def _requirement(given: LabelRequirement) -> Requirement:
    try:
        operator = Operator(given.operator)
    except ValueError:
        raise Invalid("operator", f"expected one of {', '.join(Operator)}, not {shown(given.operator)}") from None
    several = operator in (Operator.IN, Operator.NOT_IN)
    if several != bool(given.values):
        raise Invalid("values", f"expected {'at least one' if several else 'none'} with operator {operator.value}")
    return Requirement(given.key, operator, tuple(sorted(set(given.values or ()))))
