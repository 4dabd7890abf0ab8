"""Links, addresses and routes of this network namespace, by rtnetlink. Needs no right."""

from collections.abc import Iterator
from struct import unpack_from

from podwire.dataplane import netlink
from podwire.dataplane.linux import links, routes, vxlan
from podwire.dataplane.linux import rtnetlink as rt
from podwire.dataplane.messages import attrs
from podwire.doctor.facts import AddressFact, LinkFact, Network, RouteFact
from podwire.model.addresses import FAMILIES, Address, Family, Prefix, prefix_around

_LEARNED = 9  # RTPROT_RA
_DESTINATION, _LINK, _PRIORITY, _MULTIPATH = 1, 4, 6, 9


def read() -> Network:
    """Raises OSError."""
    there = netlink.Socket(netlink.ROUTE, reader=True)
    try:
        seen = links.by_index(there.dump(rt.GETLINK, links.get_links()))
        names = {index: links.name_of(one) for index, one in seen.items()}
        facts = [
            LinkFact(names[index], unpack_from("=I", one[rt.IFLA_MTU])[0], vxlan.numbers_of(one))
            for index, one in sorted(seen.items())
        ]
        addresses = [it for family in FAMILIES for it in _addresses(there, family, names)]
        ways = [it for family in FAMILIES for it in _routes(there, family, names)]
    finally:
        there.close()
    return Network(tuple(facts), tuple(addresses), tuple(ways))


def _addresses(there: netlink.Socket, family: Family, names: dict[int, str]) -> Iterator[AddressFact]:
    for body in there.dump(rt.GETADDR, bytes((family.number,)) + bytes(7)):
        seen = attrs(body, 8)
        local = Address(seen.get(2, seen.get(1, b"")))
        if len(local) == family.size:
            link = names.get(unpack_from("=I", body, 4)[0], "?")
            yield AddressFact(link, local, prefix_around(local, body[1]), routes.address_of("", body) is not None)


def _routes(there: netlink.Socket, family: Family, names: dict[int, str]) -> Iterator[RouteFact]:
    for body in there.dump(rt.GETROUTE, bytes((family.number,)) + bytes(11)):
        if body[4] != rt.MAIN_TABLE or body[7] != rt.UNICAST:
            continue
        seen = attrs(body, 12)
        index = unpack_from("=I", seen[_LINK])[0] if _LINK in seen else 0
        if _MULTIPATH in seen:
            index = unpack_from("=i", seen[_MULTIPATH], 4)[0]
        destination = Prefix(Address(seen.get(_DESTINATION, bytes(family.size))), body[1])
        metric = unpack_from("=I", seen[_PRIORITY])[0] if _PRIORITY in seen else 0
        yield RouteFact(destination, names.get(index, "?"), body[5] == rt.PROTOCOL, body[5] == _LEARNED, metric)
