"""What the kernel tells of links, addresses, routes and neighbours, and which of it is not as it was left. Pure.

Invariants: of a key the last notice counts, so that what a transaction takes away and puts back is no disturbance:
judge only when no transaction is at work. A key that is named wrongly costs a read, one that is left out is found by
the periodic verify only: in doubt it is named. A key whose last change failed is read again anyway.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from struct import unpack_from
from typing import Any

from podwire.dataplane.linux import links, neighbours, render, routes, shaping, vxlan
from podwire.dataplane.linux import rtnetlink as rt
from podwire.dataplane.messages import Notice, attrs
from podwire.ipam.blocks import FIRST_INDEX
from podwire.model.network import LOOPBACK, EgressKey, Link, LinkKey, Route, RouteKey, SysctlKey, UpKey
from podwire.model.snapshot import UNKNOWN
from podwire.pods.names import shaped_by

GROUPS = (1, 3, 4, 5, 7, 8, 9, 11, 19, 24, 25)
"""Links, neighbours, queueing disciplines with their filters, IPv4 addresses, routes and rules, IPv6 addresses, routes
and rules, settings of both families (rtnetlink(7))."""
_TRAFFIC = (shaping.NEWQDISC, shaping.DELQDISC, shaping.NEWFILTER, shaping.DELFILTER)
_ALL = -1
_FORWARDING = {2: SysctlKey("net/ipv4/ip_forward"), 10: SysctlKey("net/ipv6/conf/all/forwarding")}
_CONF_INDEX, _CONF_FORWARDING, _CONF_RP_FILTER = 1, 2, 3

Held = Mapping[Any, Any]
"""What was last reported of each key."""
Judged = Iterator[tuple[Any, bool]]
"""Keys, and whether they are not as they were left."""
Ends = Callable[[], Mapping[tuple[str, int], Link]]
"""Gives the links that are held, by the pods' ends' namespaces and indexes: gone through only where one is asked for,
and once for all notices."""
Parse = Callable[[str, bytes], tuple[Any, Any] | None]

_OBJECTS: dict[int, Parse] = {
    rt.NEWADDR: routes.address_of,
    rt.NEWROUTE: routes.route_of,
    rt.NEWNEIGH: neighbours.neighbour_of,
    rt.NEWRULE: routes.rule_of,
}


def disturbed(notices: Iterable[Notice], held: Held, spaces: Mapping[int, str]) -> frozenset[Any]:
    """`spaces`: the pods' namespaces by the numbers that they have in the node's."""
    last: dict[Any, bool] = {}

    @cache
    def ends() -> dict[tuple[str, int], Link]:
        links_held = (v for k, v in held.items() if isinstance(k, LinkKey) and isinstance(v, Link))
        return {(it.space, it.inner): it for it in links_held}

    @cache
    def led_on() -> bool:
        return any(isinstance(k, RouteKey) and not k.space and _by_others(v) for k, v in held.items())

    for notice in latest(notices):
        space = "" if notice.nsid is None else spaces.get(notice.nsid)
        if space is not None:
            last.update(_judge(space, notice, held, ends, led_on))
    return frozenset(key.key if isinstance(key, shaping.Part) else key for key, wrong in last.items() if wrong)


def latest(notices: Iterable[Notice]) -> list[Notice]:
    """Without what is told of a link and told anew later, which is most of what is told of a new one. Nothing of it
    would count, and links have many attributes."""
    listed, known = list(notices), set[tuple[int | None, bytes]]()
    found = []
    for notice in reversed(listed):
        if notice.kind in (rt.NEWLINK, rt.DELLINK) and notice.body[0] == 0:
            link = notice.nsid, notice.body[4:8]
            if link in known:
                continue
            known.add(link)
        found.append(notice)
    return found[::-1]


def numbers(notices: Iterable[Notice], held: Held) -> dict[int, str]:
    """The numbers of pods' namespaces that notices of our links tell."""
    found: dict[int, str] = {}
    for notice in notices:
        if notice.kind == rt.NEWLINK and notice.nsid is None:
            seen = attrs(notice.body, 16)
            told = rt.IFLA_LINK_NETNSID in seen and rt.IFLA_IFNAME in seen
            link = held.get(LinkKey(links.name_of(seen))) if told else None
            if isinstance(link, Link) and link.space:
                found[links.number_of_space(seen)] = link.space
    return found


def _judge(space: str, notice: Notice, held: Held, ends: Ends, led_on: Callable[[], bool]) -> Judged:
    """`led_on`: whether routes go by way of others' interfaces."""
    kind, body, _ = notice
    if kind in (rt.NEWLINK, rt.DELLINK) and body[0] == 0:  # not what a bridge says of its ports
        index = int(unpack_from("=i", body, 4)[0])
        seen = attrs(body, 16) | {rt.FLAGS: body[8:12]}
        if not space and shaping.is_shaper(seen):
            device = EgressKey(shaped_by(links.name_of(seen)))
            yield device, device in held and (kind == rt.DELLINK or not links.is_up(seen))
            return
        now = None if kind == rt.DELLINK else seen
        yield from _pods_end(space, index, now, held, ends) if space else _nodes_end(index, now, held, led_on)
    elif kind in _TRAFFIC:
        if not space:
            yield from shaping.judged(notice, held)
    elif kind == rt.NEWNETCONF and not space:
        yield from _setting(body, held)
    elif kind in (rt.NEWNEIGH, rt.DELNEIGH) and body[0] == rt.BRIDGE:
        if not space:
            yield from _forward(kind == rt.DELNEIGH, body, held)
    elif kind in _OBJECTS:
        item = _OBJECTS[kind](space, body)
        if item is not None:
            key, value = item
            was, marked = held.get(key), rt.is_marked(kind, body)
            altered = marked if was is None else not marked or render.place(was, value) != value
            yield key, was is not UNKNOWN and altered
    elif kind - 1 in _OBJECTS:
        item = _OBJECTS[kind - 1](space, body)
        if item is not None:
            yield item[0], held.get(item[0], UNKNOWN) is not UNKNOWN


def _forward(gone: bool, body: bytes, held: Held) -> Judged:
    """All entries of a VXLAN device of ours are ours."""
    item = neighbours.forward_of(body)
    if item is not None and vxlan.key_by(item[0].index) in held:
        key, value = item
        yield key, held.get(key) is not UNKNOWN and (held.get(key) is not None if gone else held.get(key) != value)


def _nodes_end(index: int, seen: rt.Seen | None, held: Held, led_on: Callable[[], bool]) -> Judged:
    key = UpKey("", index)
    if index == LOOPBACK:
        yield key, seen is None or not links.is_up(seen)
    elif held.get(key, UNKNOWN) is UNKNOWN:
        # Somebody else's: routes by way of it come and go with it, and nothing is told of them.
        yield key, led_on()
    elif seen is None:
        yield key, True
    elif (tunnel := vxlan.key_by(index)) is not None:
        as_left = vxlan.key_of(seen) == tunnel and held.get(tunnel) == vxlan.device_of(index, seen, tunnel)[1]
        yield key, held.get(tunnel) is not UNKNOWN and not (as_left and links.is_up(seen))
    else:
        link = held.get(LinkKey(links.name_of(seen)))
        if link is not UNKNOWN:
            yield key, not (isinstance(link, Link) and links.is_up(seen) and _alike(index, seen, link))


def _by_others(route: Any) -> bool:
    return route is UNKNOWN or (isinstance(route, Route) and route.via is not None)


def _alike(index: int, seen: rt.Seen, link: Link) -> bool:
    """Whether the node's end is as it was left; the pod's end tells of itself."""
    _, now = links.link_of(index, seen, {links.other_end(seen): (link.space, link.inner, link.interface, link.mac)})
    return now == link and not links.is_doomed(seen)


def _pods_end(space: str, index: int, seen: rt.Seen | None, held: Held, ends: Ends) -> Judged:
    key = UpKey(space, index)
    was = held.get(key, UNKNOWN)
    if was is UNKNOWN:
        return
    if seen is None or links.up(space, {index: seen}, {index}).get(key) != was:
        yield key, True
    else:
        link = ends().get((space, index))
        now = seen.get(rt.IFLA_ADDRESS, b""), links.name_of(seen)
        yield key, link is not None and now != (link.mac, link.interface)


def _setting(body: bytes, held: Held) -> Judged:
    told = {kind: int(unpack_from("=i", value)[0]) for kind, value in attrs(body, 4).items() if len(value) == 4}
    index, off = told.get(_CONF_INDEX, 0), told.get(_CONF_FORWARDING) == 0
    if index == _ALL and body[0] in _FORWARDING:
        yield _FORWARDING[body[0]], off
    elif index >= FIRST_INDEX and UpKey("", index) in held:
        born = (links if vxlan.key_by(index) is None else vxlan).WANTED_SETTINGS["rp_filter"]
        if off or told.get(_CONF_RP_FILTER, born) != born:
            yield UpKey("", index), True
