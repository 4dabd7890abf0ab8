"""BGPPeers, advertisements and Secrets as they are written, what they mean, and which error each wrong field gives."""

from base64 import b64encode
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from podwire.model.addresses import IPV4, IPV6, parse_address, parse_prefix
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
from podwire.model.balancers import AddressPoolKey
from podwire.model.objects import Operator, Requirement
from podwire.sources.address_pools import AddressPoolObject, read_pool
from podwire.sources.announcer_objects import (
    BGPAdvertisementObject,
    BGPPeerObject,
    L2AdvertisementObject,
    read_bgp_advertisement,
    read_l2_advertisement,
    read_peer,
)
from podwire.sources.declared import OWN_KINDS, read_declared
from podwire.sources.fields import Invalid, invalid
from podwire.sources.passwords import SecretObject, read_secret

ABOUT = {"name": "a"}
LEAST = {"peerAddress": "192.0.2.1", "peerASN": 64512, "myASN": 64513}
PEER = BGPPeer(parse_address("192.0.2.1"), 64512, 64513)
OPTIONAL = """peerPort sourceAddress routerID holdTimeSeconds keepaliveTimeSeconds connectRetryTimeSeconds ebgpMultiHop
passwordSecret bfd gracefulRestart families receive nodeSelectors"""
SELECTOR = {"matchLabels": {"zone": "b"}}
SELECTED = (Requirement("zone", Operator.IN, ("b",)),)


def convert(spec: Any, form: Any) -> Any:
    """Raises Invalid."""
    try:
        return msgspec.convert({"metadata": ABOUT, "spec": spec}, form)
    except msgspec.ValidationError as error:
        raise invalid(error) from None


def peer(**spec: Any) -> BGPPeer:
    key, value = read_peer(convert({**LEAST, **spec}, BGPPeerObject))
    assert key == BGPPeerKey("a")
    return value


def bgp(**spec: Any) -> BGPAdvertisement:
    key, value = read_bgp_advertisement(convert(spec, BGPAdvertisementObject))
    assert key == BGPAdvertisementKey("a")
    return value


def l2(**spec: Any) -> L2Advertisement:
    key, value = read_l2_advertisement(convert(spec, L2AdvertisementObject))
    assert key == L2AdvertisementKey("a")
    return value


# --- BGPPeer -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "value"),
    [
        pytest.param({}, PEER, id="the least"),
        pytest.param(
            dict.fromkeys(OPTIONAL.split()),
            PEER,
            id="null",
        ),
        pytest.param(
            {"peerAddress": "2001:db8::1", "sourceAddress": "2001:db8::2", "routerID": "0.0.0.7", "peerPort": 1179},
            replace(
                PEER,
                address=parse_address("2001:db8::1"),
                source=parse_address("2001:db8::2"),
                router_id=parse_address("0.0.0.7"),
                port=1179,
            ),
            id="addresses",
        ),
        pytest.param({"holdTimeSeconds": 9}, replace(PEER, hold=9, keepalive=3), id="a third"),
        pytest.param({"holdTimeSeconds": 0}, replace(PEER, hold=0, keepalive=0), id="for ever"),
        pytest.param(
            {"keepaliveTimeSeconds": 10, "connectRetryTimeSeconds": 3},
            replace(PEER, keepalive=10, connect=3),
            id="times",
        ),
        pytest.param({"ebgpMultiHop": True}, replace(PEER, multihop=True), id="far away"),
        pytest.param(
            {"passwordSecret": {"name": "s"}}, replace(PEER, password=PasswordKey("s", "password")), id="a password"
        ),
        pytest.param(
            {"passwordSecret": {"name": "s", "key": "of.A_1"}},
            replace(PEER, password=PasswordKey("s", "of.A_1")),
            id="another item",
        ),
        pytest.param({"bfd": {}}, replace(PEER, bfd=BFD()), id="BFD"),
        pytest.param(
            {
                "bfd": {
                    "receiveIntervalMilliseconds": 50,
                    "transmitIntervalMilliseconds": 60,
                    "detectMultiplier": 4,
                }
            },
            replace(PEER, bfd=BFD(50, 60, 4)),
            id="a quick one",
        ),
        pytest.param(
            {"gracefulRestart": {"enabled": False, "restartTimeSeconds": 60}},
            replace(PEER, graceful_restart=False, restart=60),
            id="without graceful restart",
        ),
        pytest.param({"families": ["IPv6"]}, replace(PEER, families=(IPV6,)), id="one family"),
        pytest.param({"families": ["IPv6", "IPv4", "IPv6"]}, replace(PEER, families=(IPV4, IPV6)), id="both"),
        pytest.param(
            {"receive": ["::/0", "198.51.100.0/24", "198.51.0.0/16"]},
            replace(PEER, receives=(parse_prefix("198.51.0.0/16"), parse_prefix("::/0"))),
            id="routes",
        ),
        pytest.param(
            {"nodeSelectors": [SELECTOR, {}]}, replace(PEER, node_selectors=(SELECTED, ())), id="for some nodes"
        ),
    ],
)
def test_a_peer(spec: Any, value: BGPPeer) -> None:
    assert peer(**spec) == value


NAME = "expected at most 253 of a-z, 0-9, - and ., with a letter or digit at both ends of each part, not "
OTHERS = "since spec.serviceSelectors choose some Services: the range would have others' addresses too"
WRONG_PEERS: dict[str, tuple[Any, str]] = {
    "no address": ({"peerAddress": None}, "spec.peerAddress: expected text"),
    "a name": ({"peerAddress": "router"}, "spec.peerAddress: expected an IP address, not 'router'"),
    "leading zeros": ({"peerAddress": "192.0.2.01"}, "spec.peerAddress: expected an IP address, not '192.0.2.01'"),
    "loopback": (
        {"peerAddress": "127.0.0.1"},
        "spec.peerAddress: expected an address that a host can have, not '127.0.0.1', which is loopback",
    ),
    "link-local": (
        {"peerAddress": "fe80::1"},
        "spec.peerAddress: expected an address that a host can have, not 'fe80::1', which is link-local",
    ),
    "AS 0": ({"peerASN": 0}, "spec.peerASN: expected 1 to 4294967295, not 0"),
    "an AS of 33 bits": ({"myASN": 1 << 32}, "spec.myASN: expected 1 to 4294967295, not 4294967296"),
    "an AS as text": ({"myASN": "64512"}, "spec.myASN: expected a whole number, not text"),
    "port 0": ({"peerPort": 0}, "spec.peerPort: expected 1 to 65535, not 0"),
    "another family's source": (
        {"sourceAddress": "2001:db8::1"},
        "spec.sourceAddress: expected an IPv4 address like spec.peerAddress, not '2001:db8::1'",
    ),
    "the peer as source": (
        {"sourceAddress": "192.0.2.1"},
        "spec.sourceAddress: expected an address of the node's, not spec.peerAddress, '192.0.2.1'",
    ),
    "an IPv6 router ID": (
        {"routerID": "2001:db8::1"},
        "spec.routerID: expected the form of an IPv4 address other than 0.0.0.0, not '2001:db8::1'",
    ),
    "router ID 0": (
        {"routerID": "0.0.0.0"},
        "spec.routerID: expected the form of an IPv4 address other than 0.0.0.0, not '0.0.0.0'",
    ),
    "a short hold time": ({"holdTimeSeconds": 2}, "spec.holdTimeSeconds: expected 0 or 3 to 65535, not 2"),
    "a negative hold time": ({"holdTimeSeconds": -1}, "spec.holdTimeSeconds: expected 0 or 3 to 65535, not -1"),
    "keepalives and no hold time": (
        {"holdTimeSeconds": 0, "keepaliveTimeSeconds": 3},
        "spec.keepaliveTimeSeconds: expected 0 where spec.holdTimeSeconds is 0, not 3",
    ),
    "keepalives too late": (
        {"holdTimeSeconds": 9, "keepaliveTimeSeconds": 10},
        "spec.keepaliveTimeSeconds: expected 1 to 9, not 10",
    ),
    "no connect time": ({"connectRetryTimeSeconds": 0}, "spec.connectRetryTimeSeconds: expected 1 to 65535, not 0"),
    "far away in its own AS": (
        {"ebgpMultiHop": True, "myASN": 64512},
        "spec.ebgpMultiHop: expected false, since spec.peerASN is spec.myASN: such peers may be far away",
    ),
    "a Secret without a name": ({"passwordSecret": {"key": "a"}}, "spec.passwordSecret.name: missing"),
    "a Secret's odd name": (
        {"passwordSecret": {"name": "A b"}},
        f"spec.passwordSecret.name: {NAME}'A b'",
    ),
    "a Secret's odd item": (
        {"passwordSecret": {"name": "a", "key": "b/c"}},
        "spec.passwordSecret.key: expected at most 253 of a-z, A-Z, 0-9, -, _ and ., not 'b/c'",
    ),
    "BFD too quick": (
        {"bfd": {"receiveIntervalMilliseconds": 9}},
        "spec.bfd.receiveIntervalMilliseconds: expected 10 to 60000, not 9",
    ),
    "BFD too slow": (
        {"bfd": {"transmitIntervalMilliseconds": 60001}},
        "spec.bfd.transmitIntervalMilliseconds: expected 10 to 60000, not 60001",
    ),
    "BFD that misses none": ({"bfd": {"detectMultiplier": 1}}, "spec.bfd.detectMultiplier: expected 2 to 255, not 1"),
    "a long restart": (
        {"gracefulRestart": {"restartTimeSeconds": 4096}},
        "spec.gracefulRestart.restartTimeSeconds: expected 1 to 4095, not 4096",
    ),
    "an unknown family": ({"families": ["IPv4", "ipv6"]}, "spec.families[1]: expected IPv4 or IPv6, not 'ipv6'"),
    "no family": ({"families": []}, "spec.families: expected at least one of IPv4, IPv6, or no such field"),
    "host bits": (
        {"receive": ["192.0.2.1/24"]},
        "spec.receive[0]: '192.0.2.1/24' has host bits set: expected 192.0.2.0/24",
    ),
    "IPv4 addresses in IPv6's form": (
        {"receive": ["::ffff:0:0/96"]},
        "spec.receive[0]: expected addresses that hosts can have, not '::ffff:0:0/96', which are IPv4-mapped",
    ),
    "routes of a family that it does not carry": (
        {"families": ["IPv4"], "receive": ["0.0.0.0/0", "::/0"]},
        "spec.receive[1]: expected a range of a family in spec.families, not '::/0'",
    ),
    "a selector": (
        {"nodeSelectors": [{"matchExpressions": [{"key": "a", "operator": "In"}]}]},
        "spec.nodeSelectors[0].matchExpressions[0].values: expected at least one with operator In",
    ),
}


@pytest.mark.parametrize(("spec", "error"), WRONG_PEERS.values(), ids=WRONG_PEERS)
def test_a_wrong_peer_is_one_error(spec: Any, error: str) -> None:
    with pytest.raises(Invalid) as raised:
        peer(**spec)
    assert str(raised.value).removesuffix(", not null") == error


def test_names_are_those_of_objects() -> None:
    for read, form, spec in (
        (read_peer, BGPPeerObject, LEAST),
        (read_bgp_advertisement, BGPAdvertisementObject, {}),
        (read_l2_advertisement, L2AdvertisementObject, {}),
    ):
        with pytest.raises(Invalid, match=r"^metadata.name: expected at most 253"):
            read(msgspec.convert({"metadata": {"name": "A"}, "spec": spec}, form))  # type: ignore[operator]


# --- advertisements ----------------------------------------------------------------------------

CHOICE = {
    "addressPools": ["b", "a", "b"],
    "addressPoolSelectors": [SELECTOR],
    "serviceSelectors": [{}],
    "nodeSelectors": [SELECTOR, SELECTOR],
}
CHOSEN = Choice(("a", "b"), (SELECTED,), ((),), (SELECTED, SELECTED))


@pytest.mark.parametrize("spec", [None, {}, dict.fromkeys(("addressPools", "peers", "communities", "advertise"))])
def test_an_advertisement_is_for_all_that_it_does_not_restrict(spec: Any) -> None:
    assert read_bgp_advertisement(convert(spec, BGPAdvertisementObject))[1] == BGPAdvertisement()
    assert read_l2_advertisement(convert(spec, L2AdvertisementObject))[1] == L2Advertisement()


@pytest.mark.parametrize(
    ("spec", "value"),
    [
        pytest.param(CHOICE, BGPAdvertisement(CHOSEN), id="for some"),
        pytest.param({"peers": ["b", "a", "a"]}, BGPAdvertisement(peers=("a", "b")), id="peers"),
        pytest.param(
            {
                "communities": ["no-export", "64512:100", "064512:0100", "64512:4294967295:0", "65535:65281"],
                "localPref": 0,
            },
            BGPAdvertisement(attributes=Attributes(("64512:100", "no-export"), ("64512:4294967295:0",), 0)),
            id="attributes",
        ),
        pytest.param(
            {"communities": ["LOCAL-as", "65535:666", "65535:0", "65535:65284", "65535:65282", "no-export"]},
            BGPAdvertisement(
                attributes=Attributes(
                    ("blackhole", "graceful-shutdown", "local-AS", "no-advertise", "no-export", "no-peer")
                )
            ),
            id="well-known ones",
        ),
        pytest.param(
            {"aggregationLength": 24, "aggregationLengthV6": 64}, BGPAdvertisement(lengths=(24, 64)), id="lengths"
        ),
        pytest.param(
            {"aggregationLength": 32, "serviceSelectors": [{}]},
            BGPAdvertisement(Choice(service_selectors=((),))),
            id="no range of some Services",
        ),
        pytest.param(
            {"advertise": ["PodCIDR", "ExternalIP"]},
            BGPAdvertisement(kinds=(Kind.EXTERNAL_IP, Kind.POD_CIDR)),
            id="kinds",
        ),
    ],
)
def test_a_bgp_advertisement(spec: Any, value: BGPAdvertisement) -> None:
    assert bgp(**spec) == value


def test_an_l2_advertisement() -> None:
    assert l2(**CHOICE, interfaces=["eth1", "eth0", "br-ü", "eth0"]) == L2Advertisement(
        CHOSEN, ("br-ü", "eth0", "eth1")
    )


FORMS = (
    "expected 64512:100 with numbers to 65535, 64512:1:2 with numbers to 4294967295, or one of graceful-shutdown, "
    "accept-own, llgr-stale, no-llgr, blackhole, no-export, no-advertise, local-AS, no-peer; not "
)
WRONG_ADVERTISEMENTS: dict[str, tuple[Any, str]] = {
    "a pool's odd name": (
        {"addressPools": ["a", "B"]},
        f"spec.addressPools[1]: {NAME}'B'",
    ),
    "a peer's odd name": (
        {"peers": [""]},
        f"spec.peers[0]: {NAME}''",
    ),
    "very many communities": (
        {"communities": [f"1:{number}" for number in range(65)]},
        "spec.communities: expected at most 64, not 65",
    ),
    "a wide community": ({"communities": ["65536:1"]}, f"spec.communities[0]: {FORMS}'65536:1'"),
    "a wide large community": ({"communities": ["1:1:4294967296"]}, f"spec.communities[0]: {FORMS}'1:1:4294967296'"),
    "a number alone": ({"communities": ["64512:1", "7"]}, f"spec.communities[1]: {FORMS}'7'"),
    "four numbers": ({"communities": ["1:2:3:4"]}, f"spec.communities[0]: {FORMS}'1:2:3:4'"),
    "an unknown name": ({"communities": ["no-way"]}, f"spec.communities[0]: {FORMS}'no-way'"),
    "a sign": ({"communities": ["1:-2"]}, f"spec.communities[0]: {FORMS}'1:-2'"),
    "other digits": ({"communities": ["1:\u0662"]}, f"spec.communities[0]: {FORMS}'1:\u0662'"),
    "a line's end": ({"communities": ["1:2\n"]}, f"spec.communities[0]: {FORMS}'1:2\\n'"),
    "a negative preference": ({"localPref": -1}, "spec.localPref: expected 0 to 4294967295, not -1"),
    "length 0": ({"aggregationLength": 0}, "spec.aggregationLength: expected 1 to 32, not 0"),
    "length 33": ({"aggregationLength": 33}, "spec.aggregationLength: expected 1 to 32, not 33"),
    "length 129": ({"aggregationLengthV6": 129}, "spec.aggregationLengthV6: expected 1 to 128, not 129"),
    "a range of some Services": (
        {"aggregationLength": 24, "serviceSelectors": [SELECTOR]},
        f"spec.aggregationLength: expected 32, {OTHERS}; not 24",
    ),
    "an IPv6 range of some Services": (
        {"aggregationLengthV6": 64, "serviceSelectors": [{}]},
        f"spec.aggregationLengthV6: expected 128, {OTHERS}; not 64",
    ),
    "an unknown kind": (
        {"advertise": ["NodeIP"]},
        "spec.advertise[0]: expected LoadBalancerIP or ExternalIP or ClusterIP or PodCIDR, not 'NodeIP'",
    ),
    "no kind": (
        {"advertise": []},
        "spec.advertise: expected at least one of LoadBalancerIP, ExternalIP, ClusterIP, PodCIDR, or no such field",
    ),
}


@pytest.mark.parametrize(("spec", "error"), WRONG_ADVERTISEMENTS.values(), ids=WRONG_ADVERTISEMENTS)
def test_a_wrong_bgp_advertisement_is_one_error(spec: Any, error: str) -> None:
    with pytest.raises(Invalid) as raised:
        bgp(**spec)
    assert str(raised.value) == error


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "a:b", "sixteen-of-bytes", "üüüüüüüü"])
def test_an_interface_has_a_name_of_the_kernel_s_form(name: str) -> None:
    with pytest.raises(Invalid) as raised:
        l2(interfaces=["eth0", name])
    form = "expected an interface's name of at most 15 bytes, such as eth0"
    assert str(raised.value) == f"spec.interfaces[1]: {form}, not {name!r}"


# --- Secret ------------------------------------------------------------------------------------


def encoded(content: bytes) -> str:
    return b64encode(content).decode()


def test_the_passwords_of_a_secret() -> None:
    given = {"a": encoded(b"one"), "b": encoded(b"two\n"), "c": encoded(b"x" * 80), "d": encoded(b"old")}
    secret = msgspec.convert(
        {"metadata": {"name": "s", "namespace": "podwire"}, "data": given, "stringData": {"d": "new"}}, SecretObject
    )
    assert read_secret(secret) == {
        PasswordKey("s", "a"): "one",
        PasswordKey("s", "b"): "two",
        PasswordKey("s", "c"): "x" * 80,
        PasswordKey("s", "d"): "new",
    }
    assert read_secret(SecretObject(secret.metadata)) == {}


FORM = "expected a password of 1 to 80 printable ASCII characters without blanks"


@pytest.mark.parametrize(
    ("item", "error"),
    [
        ("c2VjcmV0!", "data[b]: expected a password in base64"),
        (encoded(b"secret\xff"), "data[b]: expected a password in base64"),
        ("", f"data[b]: {FORM}"),
        (encoded(b"se cret"), f"data[b]: {FORM}"),
        (encoded("sécret".encode()), f"data[b]: {FORM}"),
        (encoded(b"secret\nneighbor 192.0.2.9 shutdown"), f"data[b]: {FORM}"),
        (encoded(b"secret" * 20), f"data[b]: {FORM}"),
    ],
)
def test_an_item_that_is_no_password_is_left_out_and_not_repeated(item: str, error: str) -> None:
    secret = SecretObject(convert({}, L2AdvertisementObject).metadata, {"a": encoded(b"one"), "b": item})
    left_out: list[Invalid] = []
    assert read_secret(secret, left_out) == {PasswordKey("a", "a"): "one"}
    assert [str(it) for it in left_out] == [error]
    with pytest.raises(Invalid) as raised:
        read_secret(secret)
    assert str(raised.value) == error


@pytest.mark.parametrize(
    ("key", "spec", "form", "read"),
    [
        (AddressPoolKey("a"), {"addresses": ["192.0.2.0/28"]}, AddressPoolObject, read_pool),
        (BGPPeerKey("a"), LEAST, BGPPeerObject, read_peer),
        (BGPAdvertisementKey("a"), {"peers": ["b"]}, BGPAdvertisementObject, read_bgp_advertisement),
        (L2AdvertisementKey("a"), {"interfaces": ["b"]}, L2AdvertisementObject, read_l2_advertisement),
    ],
    ids=["AddressPool", "BGPPeer", "BGPAdvertisement", "L2Advertisement"],
)
def test_the_controller_reads_an_object_as_the_agents_do(key: Any, spec: Any, form: Any, read: Any) -> None:
    """Its age, too, which decides of two that fight: or a status would tell another story than the sessions."""
    about = {"name": "a", "labels": {"zone": "b"}, "creationTimestamp": "2026-01-01T00:00:00Z"}
    thing = {"metadata": about, "spec": spec}
    ours = read(msgspec.convert(thing, form))
    kind = OWN_KINDS[type(key)]
    name, theirs = read_declared(kind, msgspec.convert(thing, kind.form))
    assert (name, theirs.value, theirs.wrong) == (*ours, "")
    assert getattr(theirs.value, "created", "2026-01-01T00:00:00Z") == "2026-01-01T00:00:00Z"
