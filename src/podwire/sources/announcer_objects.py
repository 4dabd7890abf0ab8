"""BGPPeers, BGPAdvertisements and L2Advertisements to the model's values.

Invariants: as in `pod_pools.py`: pure, one direction, and what Podwire's users write is read strictly. Equal meaning
gives equal values: what has no order is sorted and free of duplicates, a community has one spelling.
"""

import re
from sys import intern

from msgspec import field

from podwire.model.addresses import (
    FAMILIES,
    IPV4,
    IPV6,
    Address,
    Family,
    Prefix,
    disjoint,
    family_of,
    parse_address,
    parse_prefix,
    special,
)
from podwire.model.announcements import (
    BFD,
    Attributes,
    BGPAdvertisement,
    BGPAdvertisementKey,
    BGPPeer,
    BGPPeerKey,
    Choice,
    Kind,
    L2Advertisement,
    L2AdvertisementKey,
    PasswordKey,
)
from podwire.sources.address_pools import read_selectors
from podwire.sources.communities import LARGEST_ASN, read_community
from podwire.sources.fields import Invalid, read_at, read_each, read_members, read_name, read_number, read_time, shown
from podwire.sources.kube_objects import LabelSelector, NameMeta, PeerMeta, Wire

MOST_COMMUNITIES = 64
"""Of one advertisement."""
LONGEST_RESTART = 4095
"""Seconds (RFC 4724, twelve bits)."""

# --- the API's forms ---------------------------------------------------------------------------


class PasswordSecret(Wire, frozen=True):
    name: str
    key: str | None = None


class BFDSpec(Wire, frozen=True):
    receive_interval_milliseconds: int | None = None
    transmit_interval_milliseconds: int | None = None
    detect_multiplier: int | None = None


class GracefulRestart(Wire, frozen=True):
    enabled: bool | None = None
    restart_time_seconds: int | None = None


class BGPPeerSpec(Wire, frozen=True):
    peer_address: str
    peer_asn: int = field(name="peerASN")
    my_asn: int = field(name="myASN")
    peer_port: int | None = None
    source_address: str | None = None
    router_id: str | None = field(default=None, name="routerID")
    hold_time_seconds: int | None = None
    keepalive_time_seconds: int | None = None
    connect_retry_time_seconds: int | None = None
    ebgp_multi_hop: bool | None = None
    password_secret: PasswordSecret | None = None
    bfd: BFDSpec | None = None
    graceful_restart: GracefulRestart | None = None
    families: list[str] | None = None
    receive: list[str] | None = None
    node_selectors: list[LabelSelector] | None = None


class BGPPeerObject(Wire, frozen=True):
    metadata: PeerMeta
    spec: BGPPeerSpec


class ChoiceSpec(Wire, frozen=True):
    address_pools: list[str] | None = None
    address_pool_selectors: list[LabelSelector] | None = None
    service_selectors: list[LabelSelector] | None = None
    node_selectors: list[LabelSelector] | None = None


class BGPAdvertisementSpec(ChoiceSpec, frozen=True):
    peers: list[str] | None = None
    communities: list[str] | None = None
    local_pref: int | None = None
    aggregation_length: int | None = None
    aggregation_length_v6: int | None = None
    advertise: list[str] | None = None


class BGPAdvertisementObject(Wire, frozen=True):
    metadata: NameMeta
    spec: BGPAdvertisementSpec | None = None


class L2AdvertisementSpec(ChoiceSpec, frozen=True):
    interfaces: list[str] | None = None


class L2AdvertisementObject(Wire, frozen=True):
    metadata: NameMeta
    spec: L2AdvertisementSpec | None = None


# --- BGPPeer -----------------------------------------------------------------------------------

_FAMILIES = {family.name: family for family in FAMILIES}


def peer_key(_: str, name: str) -> BGPPeerKey:
    """Raises Invalid."""
    return BGPPeerKey(intern(read_name(name, "metadata.name")))


def read_peer(thing: BGPPeerObject) -> tuple[BGPPeerKey, BGPPeer]:
    """Raises Invalid."""
    spec = thing.spec
    address = read_at("spec.peerAddress", spec.peer_address, _address)
    asn = read_number(spec.peer_asn, "spec.peerASN", 1, LARGEST_ASN)
    my_asn = read_number(spec.my_asn, "spec.myASN", 1, LARGEST_ASN)
    if spec.ebgp_multi_hop and asn == my_asn:
        raise Invalid(
            "spec.ebgpMultiHop", "expected false, since spec.peerASN is spec.myASN: such peers may be far away"
        )
    hold, keepalive = _hold(spec)
    families = read_members("spec.families", spec.families, _FAMILIES)
    restart = spec.graceful_restart or GracefulRestart()
    peer = BGPPeer(
        address,
        asn,
        my_asn,
        _number(spec.peer_port, "spec.peerPort", 179, 1, 65535),
        _source(spec.source_address, address),
        _router_id(spec.router_id),
        hold,
        keepalive,
        _number(spec.connect_retry_time_seconds, "spec.connectRetryTimeSeconds", 10, 1, 65535),
        bool(spec.ebgp_multi_hop),
        _password(spec.password_secret),
        _bfd(spec.bfd),
        restart.enabled is not False,
        _number(restart.restart_time_seconds, "spec.gracefulRestart.restartTimeSeconds", 120, 1, LONGEST_RESTART),
        families,
        _receives(spec.receive, families),
        read_selectors("spec.nodeSelectors", spec.node_selectors),
        read_time(thing.metadata.creation_timestamp, "metadata.creationTimestamp"),
    )
    return peer_key("", thing.metadata.name), peer


def _number(value: int | None, path: str, default: int, least: int, most: int) -> int:
    return default if value is None else read_number(value, path, least, most)


def _address(text: str) -> Address:
    """Strictly read: no leading zeros, no IPv4-mapped one."""
    try:
        address = parse_address(text)
    except ValueError:
        raise Invalid("", f"expected an IP address, not {shown(text)}") from None
    if (kind := special(address)) is not None:
        raise Invalid("", f"expected an address that a host can have, not {shown(text)}, which is {kind}")
    return address


def _source(text: str | None, peer: Address) -> Address | None:
    if not text:
        return None
    address = read_at("spec.sourceAddress", text, _address)
    if family_of(address) != family_of(peer):
        raise Invalid(
            "spec.sourceAddress", f"expected an {family_of(peer)} address like spec.peerAddress, not {shown(text)}"
        )
    if address == peer:
        raise Invalid("spec.sourceAddress", f"expected an address of the node's, not spec.peerAddress, {shown(text)}")
    return address


def _router_id(text: str | None) -> Address | None:
    """Any number but 0, written as an IPv4 address (RFC 6286)."""
    if not text:
        return None
    try:
        found = parse_address(text)
    except ValueError:
        found = Address(b"")
    if len(found) != IPV4.size or not any(found):
        raise Invalid("spec.routerID", f"expected the form of an IPv4 address other than 0.0.0.0, not {shown(text)}")
    return found


def _hold(spec: BGPPeerSpec) -> tuple[int, int]:
    """The hold time and the keepalive time (RFC 4271, 4.2, 4.4, 10): without the first there is no second."""
    hold = 90 if spec.hold_time_seconds is None else spec.hold_time_seconds
    if hold and not 3 <= hold <= 65535:
        raise Invalid("spec.holdTimeSeconds", f"expected 0 or 3 to 65535, not {shown(hold)}")
    if not hold:
        if spec.keepalive_time_seconds:
            given = shown(spec.keepalive_time_seconds)
            raise Invalid("spec.keepaliveTimeSeconds", f"expected 0 where spec.holdTimeSeconds is 0, not {given}")
        return 0, 0
    return hold, _number(spec.keepalive_time_seconds, "spec.keepaliveTimeSeconds", hold // 3, 1, hold)


_ITEM = re.compile(r"[-._a-zA-Z0-9]{1,253}")


def _password(given: PasswordSecret | None) -> PasswordKey | None:
    if given is None:
        return None
    item = given.key or "password"
    if not _ITEM.fullmatch(item):
        raise Invalid(
            "spec.passwordSecret.key", f"expected at most 253 of a-z, A-Z, 0-9, -, _ and ., not {shown(item)}"
        )
    return PasswordKey(read_name(given.name, "spec.passwordSecret.name"), item)


def _bfd(given: BFDSpec | None) -> BFD | None:
    """The numbers that FRR takes in all of its versions."""
    if given is None:
        return None
    return BFD(
        _number(given.receive_interval_milliseconds, "spec.bfd.receiveIntervalMilliseconds", BFD().receive, 10, 60_000),
        _number(
            given.transmit_interval_milliseconds, "spec.bfd.transmitIntervalMilliseconds", BFD().transmit, 10, 60_000
        ),
        _number(given.detect_multiplier, "spec.bfd.detectMultiplier", BFD().multiplier, 2, 255),
    )


def _receives(given: list[str] | None, families: tuple[Family, ...]) -> tuple[Prefix, ...]:
    return disjoint(read_each("spec.receive", given, lambda text: _received(text, families)))


def _received(text: str, families: tuple[Family, ...]) -> Prefix:
    """Also all addresses: the default route is what a node most often learns."""
    try:
        prefix = parse_prefix(text)
    except ValueError as error:
        raise Invalid("", str(error)) from None
    if (kind := special(prefix.first)) is not None and kind == special(prefix.last):
        raise Invalid("", f"expected addresses that hosts can have, not {shown(text)}, which are {kind}")
    if prefix.family not in families:
        raise Invalid("", f"expected a range of a family in spec.families, not {shown(text)}")
    return prefix


# --- advertisements ----------------------------------------------------------------------------


def bgp_advertisement_key(_: str, name: str) -> BGPAdvertisementKey:
    """Raises Invalid."""
    return BGPAdvertisementKey(intern(read_name(name, "metadata.name")))


def l2_advertisement_key(_: str, name: str) -> L2AdvertisementKey:
    """Raises Invalid."""
    return L2AdvertisementKey(intern(read_name(name, "metadata.name")))


def read_bgp_advertisement(thing: BGPAdvertisementObject) -> tuple[BGPAdvertisementKey, BGPAdvertisement]:
    """Raises Invalid."""
    spec = thing.spec or BGPAdvertisementSpec()
    choice = _choice(spec)
    lengths = (
        _length(spec.aggregation_length, "spec.aggregationLength", IPV4, choice),
        _length(spec.aggregation_length_v6, "spec.aggregationLengthV6", IPV6, choice),
    )
    if len(spec.communities or ()) > MOST_COMMUNITIES:
        raise Invalid("spec.communities", f"expected at most {MOST_COMMUNITIES}, not {len(spec.communities or ())}")
    communities = read_each("spec.communities", spec.communities, read_community)
    attributes = Attributes(
        tuple(sorted({it for it in communities if it.count(":") < 2})),
        tuple(sorted({it for it in communities if it.count(":") == 2})),
        None if spec.local_pref is None else read_number(spec.local_pref, "spec.localPref", 0, LARGEST_ASN),
    )
    kinds = (
        (Kind.LOAD_BALANCER_IP,)
        if spec.advertise is None
        else read_members("spec.advertise", spec.advertise, {it.value: it for it in Kind})
    )
    found = BGPAdvertisement(choice, _names("spec.peers", spec.peers), attributes, lengths, kinds)
    return bgp_advertisement_key("", thing.metadata.name), found


def read_l2_advertisement(thing: L2AdvertisementObject) -> tuple[L2AdvertisementKey, L2Advertisement]:
    """Raises Invalid."""
    spec = thing.spec or L2AdvertisementSpec()
    interfaces = sorted(set(read_each("spec.interfaces", spec.interfaces, _interface)))
    return l2_advertisement_key("", thing.metadata.name), L2Advertisement(_choice(spec), tuple(interfaces))


def _choice(spec: ChoiceSpec) -> Choice:
    return Choice(
        _names("spec.addressPools", spec.address_pools),
        read_selectors("spec.addressPoolSelectors", spec.address_pool_selectors),
        read_selectors("spec.serviceSelectors", spec.service_selectors),
        read_selectors("spec.nodeSelectors", spec.node_selectors),
    )


def _names(path: str, given: list[str] | None) -> tuple[str, ...]:
    return tuple(sorted({intern(read_name(text, f"{path}[{number}]")) for number, text in enumerate(given or ())}))


def _length(value: int | None, path: str, family: Family, choice: Choice) -> int:
    length = _number(value, path, family.bits, 1, family.bits)
    if length < family.bits and choice.service_selectors:
        of = "since spec.serviceSelectors choose some Services: the range would have others' addresses too"
        raise Invalid(path, f"expected {family.bits}, {of}; not {shown(length)}")
    return length


_INTERFACE = re.compile(r"[^/:\s]+")


def _interface(text: str) -> str:
    """As the kernel names them (dev_valid_name)."""
    if not _INTERFACE.fullmatch(text) or text in (".", "..") or len(text.encode()) > 15:
        raise Invalid("", f"expected an interface's name of at most 15 bytes, such as eth0, not {shown(text)}")
    return text
