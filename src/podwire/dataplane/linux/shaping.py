"""What a pod receives and sends, kept to a rate: token buckets on the node's side, as messages and back. Pure.

Invariants: nothing of it lies in the pod's namespace, where a pod with rights of its own could remove it. What goes to
the pod waits in a bucket (tbf) at the root of its link's end on the node. What comes from it is led by a filter to a
device of its own (ifb), at whose root is the other bucket. That device is known by its kind, the form of its name and
its MAC address. The forms are those of linux/pkt_sched.h, linux/pkt_cls.h and linux/tc_act/tc_mirred.h.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from struct import pack, unpack_from
from typing import Any, NamedTuple

from podwire.controller.difference import Change
from podwire.dataplane.linux import links
from podwire.dataplane.linux import rtnetlink as rt
from podwire.dataplane.messages import CREATE, EXCL, REPLACE, Message, Notice, attr, attrs, nest, text, u32, walk
from podwire.model.network import EgressKey, IngressKey, Limit
from podwire.pods.names import SHAPER_PREFIX, shaped_by, shaper_of
from podwire.pods.wiring import NODE_MAC

Key = IngressKey | EgressKey
NEEDS = "sch_tbf, sch_ingress, cls_u32, act_mirred or ifb"
"""The kernel's modules."""
NEWQDISC, DELQDISC, GETQDISC, NEWFILTER, DELFILTER, GETFILTER = 36, 37, 38, 44, 45, 46
_ROOT, _INGRESS, _INGRESS_HANDLE, _TBF_HANDLE = 0xFFFF_FFFF, 0xFFFF_FFF1, 0xFFFF_0000, 0x7077_0000
"""The last is the mark of our buckets: what else is at the root of a pod's link is another's, as a chained plugin's."""
_INCOMING = (_INGRESS_HANDLE, 0xFFFF_FFF2)
"""What a filter of what comes in may name as its parent."""
_KIND, _OPTIONS = 1, 2
_TBF_PARMS, _TBF_RATE64 = 1, 4
_PARMS = "=B B H h H I 12x I I 4x"
"""struct tc_tbf_qopt: cell log, link layer, overhead, cell align, mpu and bytes per second of its rate; no peak rate;
limit in bytes, and how long the bucket takes to fill."""
_ETHERNET = 1
"""A rate's link layer: with an unknown one the kernel wants a table."""
_EVERYTHING = 1 << 16 | 0x0300
"""Of a filter: the first priority, and ETH_P_ALL in network order."""
_U32_SEL, _U32_ACT, _TERMINAL = 5, 7, 1
_ACT_KIND, _ACT_OPTIONS, _MIRRED_PARMS = 1, 2, 2
_STOLEN, _REDIRECT = 4, 1
_WORD = 0xFFFF_FFFF
_NAME = re.compile(rf"{SHAPER_PREFIX}[0-9a-f]{{12}}\Z")


def render(key: Key, change: Change, with_link: bool) -> list[Message]:
    """What was there, in whole or in part, goes first. `with_link`: the link goes, and takes along what lies on it;
    taken off it by itself the kernel would wait for that."""
    old: Limit | None = change.before
    new: Limit | None = change.after
    if isinstance(key, IngressKey):
        if new is not None:
            return [_bucket(new.index, new)]
        return [] if old is None or with_link else [Message(DELQDISC, 0, _tc(old.index, 0, _ROOT))]
    found: list[Message] = []
    if old is not None:
        doomed = Message(rt.NEWLINK, 0, links.header(old.through) + u32(rt.IFLA_GROUP, rt.DOOMED))
        found += [doomed] if new is None else links.delete_link(old.through)
        if "hook" not in old.lacks and not with_link:
            found.append(Message(DELQDISC, 0, _tc(old.index, _INGRESS_HANDLE, _INGRESS)))
    return found + (_device(key, new) if new is not None else [])


def _device(key: EgressKey, it: Limit) -> list[Message]:
    """Up only once its bucket is there: to change that of a device at work takes the kernel some time."""
    born = text(rt.IFLA_IFNAME, shaper_of(key.link)) + attr(rt.IFLA_ADDRESS, NODE_MAC) + u32(rt.IFLA_MTU, it.mtu)
    born += nest(rt.IFLA_LINKINFO, attr(1, b"ifb"))
    hook = _tc(it.index, _INGRESS_HANDLE, _INGRESS) + text(_KIND, "ingress")
    lead = _tc(it.index, 0, _INGRESS_HANDLE, _EVERYTHING) + _redirect(it.through)
    return [
        Message(rt.NEWLINK, CREATE | EXCL, links.header(it.through) + born),
        Message(rt.NEWLINK, 0, links.header(it.through) + links.quiet()),
        _bucket(it.through, it),
        Message(rt.NEWLINK, 0, links.header(it.through, up=True)),
        Message(NEWQDISC, CREATE | EXCL, hook),
        Message(NEWFILTER, CREATE | EXCL, lead),
    ]


def _tc(index: int, handle: int = 0, parent: int = 0, info: int = 0) -> bytes:
    return pack("=B3xiIII", 0, index, handle, parent, info)


def _bucket(index: int, it: Limit) -> Message:
    parms = pack(_PARMS, 0, _ETHERNET, 0, 0, 0, min(it.rate, _WORD), it.queue, it.fill)
    options = attr(_TBF_PARMS, parms) + (attr(_TBF_RATE64, pack("=Q", it.rate)) if it.rate >= _WORD else b"")
    body = _tc(index, _TBF_HANDLE, _ROOT) + text(_KIND, "tbf") + nest(_OPTIONS, options)
    return Message(NEWQDISC, CREATE | REPLACE, body)


def _redirect(through: int) -> bytes:
    """Whatever comes."""
    selector = pack("=BBBxHHhhI", _TERMINAL, 0, 1, 0, 0, 0, 0, 0) + pack("=IIii", 0, 0, 0, 0)
    parms = pack("=IIiiiiI", 0, 0, _STOLEN, 0, 0, _REDIRECT, through)
    action = text(_ACT_KIND, "mirred") + nest(_ACT_OPTIONS, attr(_MIRRED_PARMS, parms))
    return text(_KIND, "u32") + nest(_OPTIONS, attr(_U32_SEL, selector), nest(_U32_ACT, nest(1, action)))


# --- and back ----------------------------------------------------------------------------------


def get_qdiscs() -> bytes:
    return _tc(0)


def get_filters(index: int) -> bytes:
    return _tc(index, 0, _INGRESS_HANDLE)


def is_shaper(seen: rt.Seen) -> bool:
    """Whether a link is the device of a pod's bucket."""
    return (
        links.kind_of(seen) == b"ifb"
        and bool(_NAME.match(links.name_of(seen)))
        and seen.get(rt.IFLA_ADDRESS) == NODE_MAC
    )


def is_doomed(seen: rt.Seen) -> bool:
    return is_shaper(seen) and links.in_group(seen, rt.DOOMED)


class Bucket(NamedTuple):
    """As of a Limit."""

    rate: int = 0
    queue: int = 0
    fill: int = 0


class Buckets:
    """What a dump of all queueing disciplines says: the bucket at an interface's root, and who has a hook for what
    comes in."""

    def __init__(self, bodies: Iterable[bytes]) -> None:
        self.roots: dict[int, Bucket] = {}
        self.hooked: set[int] = set()
        for body in bodies:
            index, _, parent = unpack_from("=iII", body, 4)
            bucket = _bucket_of(body)
            if bucket is not None:
                self.roots[index] = bucket
            elif parent == _INGRESS:
                self.hooked.add(index)


def _bucket_of(body: bytes) -> Bucket | None:
    """None: it is none of ours."""
    handle, parent = unpack_from("=II", body, 8)
    seen = attrs(body, 20)
    if seen.get(_KIND, b"").rstrip(b"\0") != b"tbf" or (handle, parent) != (_TBF_HANDLE, _ROOT):
        return None
    told = attrs(seen.get(_OPTIONS, b""))
    *_, rate, queue, fill = unpack_from(_PARMS, told[_TBF_PARMS])
    if _TBF_RATE64 in told:
        rate = unpack_from("=Q", told[_TBF_RATE64])[0]
    return Bucket(rate, queue, fill)


def limits(living: Mapping[int, rt.Seen], buckets: Buckets, leads: Mapping[int, int]) -> Iterator[tuple[Key, Limit]]:
    """`living`: the node's links. `leads`: by link with a hook, the interface to which its filter leads, 0: none."""
    names = {name: index for index, seen in living.items() if (name := links.our_name(seen)) is not None}
    for name, index in names.items():
        if index in buckets.roots:
            yield IngressKey(name), Limit(index, *buckets.roots[index])
    for index, seen in living.items():
        if is_shaper(seen):
            link = shaped_by(links.name_of(seen))
            end, mtu = names.get(link, 0), unpack_from("=I", seen[rt.IFLA_MTU])[0]
            lacks = ["hook"] * (end not in buckets.hooked) + ["filter"] * (leads.get(end) != index)
            lacks += ["bucket"] * (index not in buckets.roots) + ["up"] * (not links.is_up(seen))
            held = buckets.roots.get(index, Bucket())
            yield EgressKey(link), Limit(end, *held, through=index, mtu=mtu, lacks=tuple(lacks))


class Part(NamedTuple):
    """Of a limit: a change of each is told by itself."""

    key: Key
    name: str


def judged(notice: Notice, held: Mapping[Any, Any]) -> Iterator[tuple[Part, bool]]:
    """Which parts of limits a notice of the node's queueing disciplines or filters is of, and whether they are not as
    they were left. `held`: what was last reported of each key."""
    index, _, parent = unpack_from("=iII", notice.body, 4)
    there = notice.kind in (NEWQDISC, NEWFILTER)
    for key, it in held.items():
        if not isinstance(it, Limit):
            continue
        if notice.kind in (NEWQDISC, DELQDISC):
            if parent == _ROOT and index == (it.through or it.index):
                yield Part(key, "bucket"), not there or _bucket_of(notice.body) != (it.rate, it.queue, it.fill)
            elif parent == _INGRESS and it.through and index == it.index:
                yield Part(key, "hook"), not there
        elif it.through and index == it.index and parent in _INCOMING:
            yield Part(key, "filter"), not there or lead([notice.body]) != it.through


def lead(bodies: Iterable[bytes]) -> int:
    """The interface to which the filters of a link lead what comes in; 0: to none, or to several."""
    found = set()
    for body in bodies:
        options = attrs(attrs(body, 20).get(_OPTIONS, b""))
        for _, action in walk(options.get(_U32_ACT, b"")):
            parms = attrs(attrs(action).get(_ACT_OPTIONS, b"")).get(_MIRRED_PARMS, b"")
            if len(parms) >= 28:
                found.add(unpack_from("=I", parms, 24)[0])
    return found.pop() if len(found) == 1 else 0
