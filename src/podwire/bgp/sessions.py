"""What became of a session, in words for people: from what bgpd says of its neighbours. Pure.

Invariants: an error names what is not as it should be, what was expected, and what to look at. bgpd is not told why a
TCP connection does not come about, so neither is anybody else: there the likely reasons are named.
"""

import re
from collections.abc import Mapping

from msgspec import Raw, Struct, field, json, structs

from podwire.model.addresses import show_address, show_host_port
from podwire.model.announcements import Session

ESTABLISHED, UNKNOWN = "Established", "Unknown"
_FAMILIES = {"ipv4Unicast": "IPv4", "ipv6Unicast": "IPv6"}
_SENT, _RECEIVED = "BGP Notification send", "BGP Notification received"
_NOT_LOST = ("No AFI/SAFI activated for peer", "Admin. shutdown", "")
"""Why FRR says that a session was reset that has never been."""
_WHOLE_SECONDS = 2.5
_DUMP = re.compile(r"Message received that caused BGP to send a NOTIFICATION:\s*((?:[0-9A-Fa-f]{2,8}\s+)+)")


class Prefixes(Struct, frozen=True):
    """How many of one family: taken from the router, and told to it."""

    received: int = 0
    sent: int = 0


class State(Struct, frozen=True):
    """`state`: as RFC 4271, section 8.2.2 names it, or `Unknown`. `since`: seconds of the epoch, of the last time that
    the session came up, or else was lost; None: never. `error`: why it is not up, or what it lacks; "": nothing.
    `lost`: why it was reset last. `bfd`: `Up`, `Down` …, "" where there is none."""

    name: str
    address: str
    state: str = UNKNOWN
    since: float | None = None
    error: str = ""
    lost: str = ""
    bfd: str = ""
    established: int = 0
    """How often."""
    messages_received: int = 0
    messages_sent: int = 0
    prefixes: Mapping[str, Prefixes] = {}


# --- bgpd's own form -----------------------------------------------------------------------------


class _Messages(Struct, rename="camel"):
    total_sent: int = 0
    total_recv: int = 0


class _Family(Struct, rename="camel"):
    accepted_prefix_counter: int = 0
    sent_prefix_counter: int = 0


class _BFD(Struct):
    status: str = ""


class Neighbor(Struct, rename="camel"):
    """Of `show bgp neighbors json`, what is looked at."""

    bgp_state: str = UNKNOWN
    bgp_timer_up_established_epoch: int = 0
    last_reset_timer_msecs: int | None = None
    last_reset_due_to: str = ""
    last_error_code_subcode: str = ""
    last_notification_reason: str = ""
    last_shutdown_description: str = ""
    connections_established: int = 0
    message_stats: _Messages = field(default_factory=_Messages)
    address_family_info: dict[str, _Family] = {}
    peer_bfd_info: _BFD = field(default_factory=_BFD)

    @property
    def is_wrong_asn(self) -> bool:
        """Of the router, as this node sees it: its OPEN says which one it is."""
        return (self.last_reset_due_to, self.last_error_code_subcode) == (_SENT, "0202")


def neighbors(text: str) -> dict[str, Neighbor]:
    """By address. Raises msgspec.MsgspecError."""
    found = json.decode(text or "{}", type=dict[str, Raw])
    return {who: json.decode(it, type=Neighbor) for who, it in found.items() if bytes(it).startswith(b"{")}


def asn_in_open(text: str) -> int | None:
    """The AS number of the router, from the OPEN message that `show bgp neighbors ADDRESS` shows where that was refused
    (RFC 4271, section 4.2; RFC 6793, section 3)."""
    found = _DUMP.search(text)
    message = bytes.fromhex("".join(found[1].split())) if found else b""
    if len(message) < 29 or message[18] != 1:
        return None
    rest = message[29 : 29 + message[28]]
    while len(rest) >= 2:
        kind, value, rest = rest[0], rest[2 : 2 + rest[1]], rest[2 + rest[1] :]
        while kind == 2 and len(value) >= 2:  # capabilities
            code, inner, value = value[0], value[2 : 2 + value[1]], value[2 + value[1] :]
            if code == 65 and len(inner) == 4:
                return int.from_bytes(inner, "big")
    return int.from_bytes(message[20:22], "big")


# --- for people ----------------------------------------------------------------------------------


def state(session: Session, told: Neighbor, now: float, asn: int | None = None, unsigned: str = "") -> State:
    """`now`: seconds of the epoch. `asn`: the router's own, where it is another than expected and known. `unsigned`:
    what the kernel says of segments that were not signed as they should be."""
    address = show_address(session.address)
    up = told.bgp_state == ESTABLISHED
    since = float(told.bgp_timer_up_established_epoch) if up else None
    lost = _lost(session, told, asn)
    if not up and lost and told.last_reset_timer_msecs is not None:
        since = now - told.last_reset_timer_msecs / 1000
    return State(
        session.name,
        address,
        told.bgp_state,
        since,
        "" if up else lost if _says_enough(told) else _unconnected(session, lost, unsigned),
        lost,
        told.peer_bfd_info.status,
        told.connections_established,
        told.message_stats.total_recv,
        told.message_stats.total_sent,
        {
            _FAMILIES[name]: Prefixes(it.accepted_prefix_counter, it.sent_prefix_counter)
            for name, it in sorted(told.address_family_info.items())
            if name in _FAMILIES
        },
    )


def steady(before: State | None, now: State) -> State:
    """bgpd tells how long ago something was, in whole seconds: the same moment stays the same."""
    if before is None or before.since is None or now.since is None or before.established != now.established:
        return now
    alike = (before.state == ESTABLISHED) == (now.state == ESTABLISHED)
    same = alike and abs(before.since - now.since) < _WHOLE_SECONDS
    return structs.replace(now, since=before.since) if same else now


def _says_enough(told: Neighbor) -> bool:
    """A refused OPEN: a TCP connection does come about."""
    return told.last_reset_due_to in (_SENT, _RECEIVED) and told.last_error_code_subcode[:2] == "02"


def _lost(session: Session, told: Neighbor, asn: int | None) -> str:
    """Why it was reset last."""
    why, code = told.last_reset_due_to, told.last_error_code_subcode
    if why in _NOT_LOST:
        return ""
    if why not in (_SENT, _RECEIVED):
        return f"{why[0].lower()}{why[1:]}" if why[1:2].islower() else why
    by_us = why == _SENT
    special = _known(session, code, by_us, asn)
    if special:
        return special
    number = "/".join(str(it) for it in bytes.fromhex(code)) if re.fullmatch("[0-9A-Fa-f]{4}", code) else "?"
    said = f": {told.last_shutdown_description!r}" if told.last_shutdown_description else ""
    reason = f"{told.last_notification_reason or 'unknown'} ({number}){said}"
    return f"{'this node' if by_us else 'the router'} ended it with NOTIFICATION {reason}"


def _known(session: Session, code: str, by_us: bool, asn: int | None) -> str:
    if code == "0202" and by_us and asn == session.asn:
        return f"the router says AS {asn}, which was not expected then, and is now"
    if code == "0202" and by_us:
        says = f"says AS {asn}" if asn is not None else "is in another AS"
        return f"the router {says}, expected {session.asn} (peerASN)"
    if code == "0202":
        return f"the router refuses AS {session.local_asn} for this node (myASN), it has another one configured"
    if code == "0206" and not by_us:
        return f"the router refuses a hold time of {session.hold} s (holdTimeSeconds)"
    if code[:2] == "04":
        whom = (
            f"nothing was heard of the router for {session.hold} s" if by_us else "the router heard nothing of the node"
        )
        return f"hold timer expired: {whom}"
    if code == "060A":
        return "BFD: the router was not heard in time" if by_us else "BFD: the router has not heard this node in time"
    return ""


def _unconnected(session: Session, lost: str, unsigned: str) -> str:
    where = f"no TCP connection with {show_host_port(session.address, session.port)}"
    if unsigned:
        where += f"; {unsigned}"
    elif session.password:
        where += (
            "; where the router can be reached, it has most likely another password or none: neither side answers what"
            " is not signed with its own. Check its password, its address and port, and that it has this node as a"
            " neighbour"
        )
    else:
        where += "; check that it can be reached, has this node's address as a neighbour, and asks for no password"
    if not session.multihop and session.asn != session.local_asn:
        where += "; if it is not on a link of the node, ebgpMultiHop is needed"
    return f"{where} (last: {lost})" if lost else where
