"""What the kernel can do: what it says of itself, and what is tried in an empty network namespace.

Invariants: the namespace has no name, and goes with the last socket in it; nothing outside of it is touched.
"""

import os
import re
from pathlib import Path
from struct import pack

from podwire.cni.install import NoPython, find_python, native_plugin
from podwire.controller.difference import Change
from podwire.dataplane import netlink
from podwire.dataplane.linux import links, neighbours, render, routes
from podwire.dataplane.linux import rtnetlink as rt
from podwire.dataplane.messages import CREATE, EXCL, Message, attr, nest, text, u32
from podwire.dataplane.nftables import libnftables
from podwire.dataplane.nftables.layout import keyword, layout
from podwire.doctor.facts import NATIVE, Kernel, Trial
from podwire.doctor.findings import Unseen
from podwire.model.addresses import FAMILIES, IPV6, Family, Prefix, parse_address
from podwire.model.network import AddressKey, Link, LinkKey, NeighbourKey, Route, RouteKey
from podwire.pods.names import LINK_PREFIX
from podwire.pods.wiring import NODE_MAC

CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}
"""By number (linux/capability.h)."""
_PROGRAMS = Path("/usr/bin")
_NAME = f"{LINK_PREFIX}{'0' * 12}"
_INDEX, _INNER = 1000, 1001
_MAC = bytes.fromhex("020000000001")
_ADDRESSES = dict(zip(FAMILIES, map(parse_address, ("192.0.2.9", "2001:db8::9")), strict=True))
_OTHERS = dict(zip(FAMILIES, map(parse_address, ("192.0.2.10", "2001:db8::a")), strict=True))
_SIZES = re.compile(r"\bsize \d+")
"""Of maps: large ones would only take time."""
_HERE = "/proc/thread-self/ns/net"


def read(container: bool) -> Kernel:
    error = _library_error()
    return Kernel(
        release=os.uname().release,
        capabilities=_missing_capabilities(),
        libnftables=error,
        python=_python(container),
        trial=_trial() if not error else Unseen("libnftables.so.1 is not there"),
    )


def _missing_capabilities() -> tuple[str, ...]:
    lines = Path("/proc/thread-self/status").read_text().splitlines()
    effective = int(next(line.split()[1] for line in lines if line.startswith("CapEff:")), 16)
    return tuple(name for name, number in CAPABILITIES.items() if not effective >> number & 1)


def _library_error() -> str:
    try:
        libnftables.load()
    except libnftables.NftablesMissing as error:
        return str(error)
    return ""


def _python(container: bool) -> str | Unseen:
    if native_plugin() is not None:
        return NATIVE
    if container:
        return Unseen("the node's /usr/bin is not seen from this container; the plugin's installation looks there")
    try:
        return find_python(_PROGRAMS, _PROGRAMS)
    except NoPython:
        return ""


# --- the trial ---------------------------------------------------------------------------------


def _trial() -> Trial | Unseen:
    try:
        with netlink.inside(None):
            return _tried()
    except OSError as error:
        return Unseen(f"no empty network namespace can be made: {os.strerror(error.errno or 0)}")


def _tried() -> Trial:
    rules = {family.name: _said(_SIZES.sub("size 1024", layout(family))) for family in FAMILIES}
    nat = [_said(_nat(keyword(family))) for family in FAMILIES if not rules[family.name]]
    there = netlink.Socket(netlink.ROUTE)
    try:
        there.send([Message(rt.NEWLINK, 0, _up(1))])
        veth, lost = _link(there)
        lost += _addresses(there) if not veth else []
        errors = there.send([Message(rt.NEWLINK, CREATE | EXCL, _vxlan())])
    finally:
        there.close()
    vxlan = os.strerror(errors[0]) if errors else ""
    return Trial(rules, next((error for error in nat if error), ""), veth, tuple(lost), vxlan)


def _said(commands: str) -> str:
    """nft's first line."""
    return next(iter(libnftables.run(commands).strip().splitlines()), "")


def _nat(family: str) -> str:
    table = f"{family} doctor"
    hooks = (("in", "prerouting", -100, "dnat to"), ("out", "postrouting", 100, "snat to"))
    address = "192.0.2.1" if family == "ip" else "2001:db8::1"
    lines = [f"add table {table}"]
    for name, hook, priority, verdict in hooks:
        lines.append(f"add chain {table} {name} {{ type nat hook {hook} priority {priority}; }}")
        lines.append(f"add rule {table} {name} ct state new meta l4proto tcp {verdict} {address}")
    return "\n".join([*lines, f"add rule {table} out masquerade"])


def _up(index: int) -> bytes:
    return pack("=BxHiII", 0, 0, index, rt.UP, rt.UP)


def _link(there: netlink.Socket) -> tuple[str, list[str]]:
    """The error of the veth pair, and what its names have lost. Both ends lie in this namespace."""
    link = Link(_INDEX, NODE_MAC, _HERE, _INNER, "doctor", _MAC, 1400, (f"{_NAME}.s00.trial",), "doctor/trial")
    descriptor = os.open(_HERE, os.O_RDONLY | os.O_CLOEXEC)
    try:
        messages = render.render(LinkKey(_NAME), Change(None, link), descriptor)
        errors = there.send([*messages, Message(rt.NEWLINK, 0, _up(_INNER)), Message(rt.NEWLINK, 0, _up(_INDEX))])
    finally:
        os.close(descriptor)
    if 0 in errors:
        return os.strerror(errors[0]), []
    found = links.by_index(there.dump(rt.GETLINK, links.get_links())).get(_INDEX)
    if found is None or not links.is_ours(found):
        return "it is not what was made", []
    _, seen = links.link_of(_INDEX, found, {})
    return "", [] if (seen.altnames, seen.alias) == (link.altnames, link.alias) else ["other names of links"]


def _addresses(there: netlink.Socket) -> list[str]:
    """What does not come back as it was written."""
    lost: list[str] = []
    for family in FAMILIES:
        if family == IPV6 and not os.path.exists("/proc/sys/net/ipv6/conf/all"):
            continue
        wanted = _wanted(family)
        there.send([it for key, value in wanted.items() for it in render.render(key, Change(None, value), -1)])
        seen = _seen(there, family)
        lost += [f"{family} {_word(key)}" for key, value in wanted.items() if seen.get(key) != value]
    return lost


def _wanted(family: Family) -> dict[AddressKey | NeighbourKey | RouteKey, bool | bytes | Route]:
    address = _ADDRESSES[family]
    return {
        AddressKey("", 1, address): True,
        NeighbourKey("", _INDEX, address): _MAC,
        RouteKey("", Prefix(_OTHERS[family], family.bits)): Route(_INDEX),
    }


def _seen(there: netlink.Socket, family: Family) -> dict[object, object]:
    whole = bytes((family.number,)) + bytes(11)
    parts = [
        *(routes.address_of("", body) for body in there.dump(rt.GETADDR, whole[:8])),
        *(neighbours.neighbour_of("", body) for body in there.dump(rt.GETNEIGH, whole)),
        *(routes.route_of("", body) for body in there.dump(rt.GETROUTE, routes.request(family))),
    ]
    return {part[0]: part[1] for part in parts if part is not None}


def _word(key: object) -> str:
    words: dict[type, str] = {AddressKey: "addresses", NeighbourKey: "neighbours", RouteKey: "routes"}
    return words[type(key)]


def _vxlan() -> bytes:
    # IFLA_VXLAN_ID 1, IFLA_VXLAN_PORT 15 (if_link.h).
    data = nest(2, u32(1, 4096) + attr(15, (4789).to_bytes(2, "big")))
    return bytes(16) + text(rt.IFLA_IFNAME, "doctorvx") + nest(rt.IFLA_LINKINFO, text(1, "vxlan") + data)
