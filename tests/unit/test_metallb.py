"""What MetalLB is configured by, as Podwire's objects."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from podwire.cli.client import REFUSED, Failed
from podwire.cli.importing import metallb
from podwire.sources.fields import Invalid
from podwire.sources.loading import load
from podwire.sources.metallb import LABEL, Imported, convert
from podwire.sources.metallb_config import is_config, objects_of


def thing(kind: str, name: str = "a", version: str = "v1beta1", labels: Any = None, **spec: Any) -> dict[str, Any]:
    about = {"name": name, "namespace": "metallb-system", **({"labels": labels} if labels else {})}
    return {"apiVersion": f"metallb.io/{version}", "kind": kind, "metadata": about, "spec": spec}


def pool(**spec: Any) -> dict[str, Any]:
    return thing("IPAddressPool", **{"addresses": ["192.0.2.0/24"], **spec})


def peer(**spec: Any) -> dict[str, Any]:
    least = {"myASN": 64500, "peerASN": 64501, "peerAddress": "203.0.113.1"}
    return thing("BGPPeer", version="v1beta2", **{**least, **spec})


def secret(name: str = "s", **data: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name},
        "type": "kubernetes.io/basic-auth",
        **data,
    }


POOL: dict[str, Any] = {"addresses": ["192.0.2.0/24"]}
PEER: dict[str, Any] = {
    "peerAddress": "203.0.113.1",
    "peerASN": 64501,
    "myASN": 64500,
    "gracefulRestart": {"enabled": False},
}
BFD = {"receiveIntervalMilliseconds": 300, "transmitIntervalMilliseconds": 300, "detectMultiplier": 3}
SELECTORS = [{"matchLabels": {"a": "b"}}]

SPECS: dict[str, tuple[list[dict[str, Any]], list[tuple[str, str, dict[str, Any]]]]] = {
    "a pool": ([pool()], [("AddressPool", "a", POOL)]),
    "ranges": (
        [pool(addresses=["192.0.2.9 - 192.0.2.12", "198.51.100.7/24", "2001:db8::5/64"])],
        [("AddressPool", "a", {"addresses": ["192.0.2.9-192.0.2.12", "198.51.100.0/24", "2001:db8::/64"]})],
    ),
    "a pool for some": (
        [
            pool(
                autoAssign=False,
                avoidBuggyIPs=True,
                serviceAllocation={
                    "priority": 7,
                    "namespaces": ["n"],
                    "namespaceSelectors": SELECTORS,
                    "serviceSelectors": SELECTORS,
                },
            )
        ],
        [
            (
                "AddressPool",
                "a",
                {
                    **POOL,
                    "autoAssign": False,
                    "avoidBuggyIPs": True,
                    "priority": 7,
                    "namespaces": ["n"],
                    "namespaceSelectors": SELECTORS,
                    "serviceSelectors": SELECTORS,
                },
            )
        ],
    ),
    "a peer": ([peer()], [("BGPPeer", "a", PEER)]),
    "a peer of the older version": (
        [thing("BGPPeer", myASN=64500, peerASN=64501, peerAddress="203.0.113.1", nodeSelectors=SELECTORS)],
        [("BGPPeer", "a", {**PEER, "nodeSelectors": SELECTORS})],
    ),
    "a whole peer": (
        [
            peer(
                sourceAddress="203.0.113.9",
                peerPort=1179,
                routerID="203.0.113.9",
                holdTime="1m30s",
                keepaliveTime="20s",
                connectTime="5s",
                ebgpMultiHop=True,
                enableGracefulRestart=True,
            )
        ],
        [
            (
                "BGPPeer",
                "a",
                {
                    **PEER,
                    "sourceAddress": "203.0.113.9",
                    "peerPort": 1179,
                    "routerID": "203.0.113.9",
                    "holdTimeSeconds": 90,
                    "keepaliveTimeSeconds": 20,
                    "connectRetryTimeSeconds": 5,
                    "ebgpMultiHop": True,
                    "gracefulRestart": {"enabled": True},
                },
            )
        ],
    ),
    "no hold time": ([peer(holdTime="0s")], [("BGPPeer", "a", {**PEER, "holdTimeSeconds": 0})]),
    "one family, as newer versions have it": (
        [peer(disableMP=False, dualStackAddressFamily=False)],
        [("BGPPeer", "a", {**PEER, "families": ["IPv4"]})],
    ),
    "both families, as newer versions have it": (
        [peer(disableMP=False, dualStackAddressFamily=True)],
        [("BGPPeer", "a", PEER)],
    ),
    "one family, as older versions have it": (
        [peer(disableMP=True, peerAddress="2001:db8::1")],
        [("BGPPeer", "a", {**PEER, "peerAddress": "2001:db8::1", "families": ["IPv6"]})],
    ),
    "BFD": (
        [peer(bfdProfile="quick"), thing("BFDProfile", "quick", receiveInterval=50, transmitInterval=60)],
        [
            (
                "BGPPeer",
                "a",
                {**PEER, "bfd": {**BFD, "receiveIntervalMilliseconds": 50, "transmitIntervalMilliseconds": 60}},
            )
        ],
    ),
    "an advertisement by BGP": (
        [
            thing(
                "BGPAdvertisement",
                ipAddressPools=["a"],
                ipAddressPoolSelectors=SELECTORS,
                nodeSelectors=SELECTORS,
                peers=["a"],
                communities=["vpn", "large:1:2:3", "65535:65281", "both"],
                localPref=100,
                aggregationLength=24,
                aggregationLengthV6=64,
            ),
            thing(
                "Community", communities=[{"name": "vpn", "value": "64500:7"}, {"name": "both", "value": "large:4:5:6"}]
            ),
        ],
        [
            (
                "BGPAdvertisement",
                "a",
                {
                    "addressPools": ["a"],
                    "addressPoolSelectors": SELECTORS,
                    "nodeSelectors": SELECTORS,
                    "peers": ["a"],
                    "communities": ["64500:7", "1:2:3", "65535:65281", "4:5:6"],
                    "localPref": 100,
                    "aggregationLength": 24,
                    "aggregationLengthV6": 64,
                },
            )
        ],
    ),
    "an advertisement of some Services, with what the API adds": (
        [
            thing(
                "BGPAdvertisement",
                serviceSelectors=SELECTORS,
                aggregationLength=32,
                aggregationLengthV6=128,
                localPref=0,
            )
        ],
        [
            (
                "BGPAdvertisement",
                "a",
                {"serviceSelectors": SELECTORS, "aggregationLength": 32, "aggregationLengthV6": 128},
            )
        ],
    ),
    "an advertisement by ARP": (
        [thing("L2Advertisement", ipAddressPools=["a"], interfaces=["eth0"], nodeSelectors=SELECTORS)],
        [
            (
                "L2Advertisement",
                "a",
                {"nodeSelectors": SELECTORS, "addressPools": ["a"], "interfaces": ["eth0"]},
            )
        ],
    ),
    "an advertisement of all": (
        [{"apiVersion": "metallb.io/v1beta1", "kind": "L2Advertisement", "metadata": {"name": "a"}}],
        [("L2Advertisement", "a", {})],
    ),
    "what is not MetalLB's": (
        [
            {"apiVersion": "apps/v1", "kind": "BGPPeer", "metadata": {"name": "x"}},
            thing("ServiceL2Status"),
            secret("unnamed", data={"password": "YQ=="}),
        ],
        [],
    ),
}


def specs(found: Imported) -> list[tuple[str, str, dict[str, Any]]]:
    """Of all but Secrets, each of which has the mark."""
    assert all(it["metadata"]["labels"][LABEL] == "metallb" for it in found.objects)
    return [(it["kind"], it["metadata"]["name"], it["spec"]) for it in found.objects if it["kind"] != "Secret"]


@pytest.mark.parametrize(("things", "objects"), SPECS.values(), ids=SPECS)
def test_objects_come_over_with_all_that_they_say(
    things: list[dict[str, Any]], objects: list[tuple[str, str, dict[str, Any]]]
) -> None:
    found = convert(things)
    assert (specs(found), found.warnings, found.left_out) == (objects, (), ())


ANOTHER = "and without it the session would be another; it is left out"
PASSWORD = "expected a password of 1 to 80 printable ASCII characters without blanks"
FAR = "expected false, since spec.peerASN is spec.myASN: such peers may be far away"
UPSIDE_DOWN = (
    "'192.0.2.9-192.0.2.1' is not an address range: expected two addresses of one family, the lower one first; "
    "such as 192.0.2.0/28 or 192.0.2.10-192.0.2.19"
)
LOSSES: dict[str, tuple[list[dict[str, Any]], list[str], list[tuple[str, str]]]] = {
    "an unknown field": (
        [pool(colour="red", other=False)],
        ["ipaddresspool/a: spec.colour has no counterpart here, and is left out"],
        [],
    ),
    "a field of a part": (
        [pool(serviceAllocation={"colour": "red"})],
        ["ipaddresspool/a: spec.serviceAllocation: spec.colour has no counterpart here, and is left out"],
        [],
    ),
    "echoes": (
        [peer(bfdProfile="b"), thing("BFDProfile", "b", echoMode=True, passiveMode=True, minimumTtl=250)],
        [
            f"bgppeer/a: bfdprofile/b: spec.{field} has no counterpart here, and is left out"
            for field in ("echoMode", "minimumTtl", "passiveMode")
        ],
        [],
    ),
    "half a second": (
        [peer(connectTime="1500ms")],
        ["bgppeer/a: spec.connectTime: 1500ms is taken for 2 s: times are whole seconds here"],
        [],
    ),
    "a password elsewhere": (
        [peer(passwordSecret={"name": "s", "namespace": "metallb-system"})],
        ["bgppeer/a: spec.passwordSecret: Secret s is to be copied to namespace podwire"],
        [],
    ),
    "a Secret without a password": (
        [peer(passwordSecret={"name": "s"}), secret()],
        ["bgppeer/a: Secret s: data[password]: missing; there is no session with this password"],
        [],
    ),
    "a password that can't be one": (
        [peer(password="hush\nhush")],
        [f"bgppeer/a: Secret bgp-a: data[password]: {PASSWORD}; there is no session with this password"],
        [],
    ),
    "a peer without an address": (
        [peer(interface="eth0", peerAddress=None)],
        [f"bgppeer/a: spec.interface has no counterpart here, {ANOTHER}"],
        [("BGPPeer", "a")],
    ),
    "another VRF, with a password": (
        [peer(vrf="red", password="hush")],
        [f"bgppeer/a: spec.vrf has no counterpart here, {ANOTHER}"],
        [("BGPPeer", "a")],
    ),
    "any AS": (
        [peer(dynamicASN="external", peerASN=None)],
        [f"bgppeer/a: spec.dynamicASN has no counterpart here, {ANOTHER}"],
        [("BGPPeer", "a")],
    ),
    "no BFD profile": (
        [peer(bfdProfile="b")],
        ["bgppeer/a: spec.bfdProfile: there is no BFDProfile b; it is left out"],
        [("BGPPeer", "a")],
    ),
    "a wrong time": (
        [peer(holdTime="soon")],
        ["bgppeer/a: spec.holdTime: expected a time such as 90s, not 'soon'; it is left out"],
        [("BGPPeer", "a")],
    ),
    "what our rules refuse, with a password": (
        [peer(myASN=64501, ebgpMultiHop=True, password="hush")],
        [f"bgppeer/a: spec.ebgpMultiHop: {FAR}; it is left out"],
        [("BGPPeer", "a")],
    ),
    "a range upside down": (
        [pool(addresses=["192.0.2.9-192.0.2.1"])],
        [f"ipaddresspool/a: spec.addresses[0]: {UPSIDE_DOWN}; it is left out"],
        [("IPAddressPool", "a")],
    ),
    "text for a list": (
        [pool(addresses="192.0.2.0/24")],
        ["ipaddresspool/a: spec.addresses: expected a list of texts, not '192.0.2.0/24'; it is left out"],
        [("IPAddressPool", "a")],
    ),
    "twice": (
        [pool(addresses=["198.51.100.0/24"]), pool()],
        ["ipaddresspool/a: it is there twice; the last one counts"],
        [],
    ),
}


@pytest.mark.parametrize(("things", "warnings", "left_out"), LOSSES.values(), ids=LOSSES)
def test_nothing_is_lost_without_a_word(
    things: list[dict[str, Any]], warnings: list[str], left_out: list[tuple[str, str]]
) -> None:
    found = convert(things)
    assert list(found.warnings) == warnings
    assert list(found.left_out) == left_out
    assert bool(found.objects) != bool(left_out), "what is left out leaves no Secret behind"
    assert "hush" not in str(found.warnings)


@pytest.mark.parametrize(
    ("things", "name", "password"),
    [
        ([peer(password="hush")], "bgp-a", "aHVzaA=="),
        (
            [peer(passwordSecret={"name": "s"}), secret(data={"password": "aHVzaA==", "username": "eA=="})],
            "s",
            "aHVzaA==",
        ),
        ([peer(passwordSecret={"name": "s"}), secret(stringData={"password": "hush"})], "s", "aHVzaA=="),
    ],
)
def test_passwords_come_over_as_secrets_of_our_namespace(things: Any, name: str, password: str) -> None:
    made, its_peer = convert(things).objects
    assert (made["metadata"]["name"], made["metadata"]["namespace"]) == (name, "podwire")
    assert made["data"] == {"password": password}
    assert its_peer["spec"]["passwordSecret"] == {"name": name, "key": "password"}


def test_labels_are_kept_but_those_of_tools() -> None:
    labels = {"zone": "a", "app.kubernetes.io/instance": "x", "argocd.argoproj.io/instance": "y"}
    (made,) = convert([thing("IPAddressPool", labels=labels, addresses=["192.0.2.0/24"])]).objects
    assert made["metadata"]["labels"] == {"zone": "a", LABEL: "metallb"}


def test_names_that_are_taken_are_others_and_those_who_name_them_follow() -> None:
    things = [pool(), peer(password="hush"), thing("BGPAdvertisement", ipAddressPools=["a", "b"], peers=["a"])]
    taken = {("AddressPool", "a"), ("BGPPeer", "a"), ("Secret", "bgp-a")}
    found = convert(things, taken)
    names = [(it["kind"], it["metadata"]["name"]) for it in found.objects]
    assert names == [
        ("Secret", "metallb-bgp-a"),
        ("AddressPool", "metallb-a"),
        ("BGPPeer", "metallb-a"),
        ("BGPAdvertisement", "a"),
    ]
    assert found.objects[2]["spec"]["passwordSecret"]["name"] == "metallb-bgp-a"
    assert found.objects[3]["spec"] == {"addressPools": ["metallb-a", "b"], "peers": ["metallb-a"]}


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=5,
)
FIELDS = """addresses serviceAllocation peerAddress peerASN myASN holdTime password passwordSecret bfdProfile
nodeSelectors communities peers ipAddressPools ipAddressPoolSelectors localPref aggregationLength interfaces disableMP
vrf receiveInterval echoMode"""
KINDS = ("IPAddressPool", "BGPPeer", "BGPAdvertisement", "L2Advertisement", "BFDProfile", "Community")


@given(
    st.lists(st.tuples(st.sampled_from(KINDS), st.dictionaries(st.sampled_from(FIELDS.split()), junk)), max_size=4),
    junk,
)
def test_whatever_stands_there_comes_over_right_or_is_told(things: list[tuple[str, Any]], odd: Any) -> None:
    given_ = [thing(kind, f"n{number}", **spec) for number, (kind, spec) in enumerate(things)]
    found = convert([*given_, {"apiVersion": "metallb.io/v1beta1", "kind": "BGPPeer", "metadata": odd, "spec": odd}])
    text = "---\n".join(yaml.safe_dump(it) for it in found.objects if it["kind"] != "Secret")
    assert load({"all.yaml": text.encode() or b"\n"}).errors == ()


# --- the ConfigMap -----------------------------------------------------------------------------


def config_map(text: str) -> dict[str, Any]:
    about = {"name": "config", "namespace": "metallb-system"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": about, "data": {"config": text}}


CONFIG = """
address-pools:
- name: Web_Servers
  protocol: bgp
  addresses: [192.0.2.0/25]
  avoid-buggy-ips: true
  auto-assign: false
  bgp-advertisements:
  - aggregation-length: 32
    localpref: 150
    communities: [far, 64500:9]
  - aggregation-length: 25
    aggregation-length-v6: 64
- name: near
  protocol: layer2
  addresses: [198.51.100.9-198.51.100.12]
- name: plain
  protocol: bgp
  addresses: [203.0.113.0/26]
peers:
- peer-address: 203.0.113.101
  peer-asn: 64501
  my-asn: 64500
  hold-time: 30s
  router-id: 203.0.113.102
  bfd-profile: quick
  node-selectors:
  - match-labels: {peer-asn: kept}
    match-expressions: [{key: rack, operator: In, values: [one]}]
bgp-communities: {far: 64500:10}
bfd-profiles:
- name: quick
  receive-interval: 50
"""


def test_the_config_map_of_old_versions_comes_over() -> None:
    found = convert(objects_of(config_map(CONFIG)))
    assert (found.warnings, found.left_out) == ((), ())
    selectors = [
        {
            "matchLabels": {"peer-asn": "kept"},
            "matchExpressions": [{"key": "rack", "operator": "In", "values": ["one"]}],
        }
    ]
    attributes = {"aggregationLength": 32, "communities": ["64500:10", "64500:9"], "localPref": 150}
    assert specs(found) == [
        ("AddressPool", "near", {"addresses": ["198.51.100.9-198.51.100.12"]}),
        ("AddressPool", "plain", {"addresses": ["203.0.113.0/26"]}),
        ("AddressPool", "web-servers", {"addresses": ["192.0.2.0/25"], "autoAssign": False, "avoidBuggyIPs": True}),
        (
            "BGPPeer",
            "peer-1",
            {
                "peerAddress": "203.0.113.101",
                "peerASN": 64501,
                "myASN": 64500,
                "routerID": "203.0.113.102",
                "nodeSelectors": selectors,
                "holdTimeSeconds": 30,
                "gracefulRestart": {"enabled": False},
                "bfd": {**BFD, "receiveIntervalMilliseconds": 50},
            },
        ),
        ("BGPAdvertisement", "plain", {"addressPools": ["plain"]}),
        ("BGPAdvertisement", "web-servers", {"addressPools": ["web-servers"], **attributes}),
        (
            "BGPAdvertisement",
            "web-servers-2",
            {"addressPools": ["web-servers"], "aggregationLength": 25, "aggregationLengthV6": 64},
        ),
        ("L2Advertisement", "near", {"addressPools": ["near"]}),
    ]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("a: [", "data[config]: line 1: "),
        ("- a", "data[config]: expected a mapping with address-pools, not ['a']"),
        ("pools: []", "data[config].pools: expected one of address-pools, peers, bfd-profiles, bgp-communities"),
        ("peers: 7", "data[config].peers: expected a list of mappings"),
        ("bgp-communities: [a]", "data[config].bgp-communities: expected a mapping"),
        (
            "address-pools: [{name: a, protocol: ospf}]",
            "data[config].address-pools[0].protocol: expected layer2 or bgp, not 'ospf'",
        ),
        (
            "address-pools: [{name: a, protocol: bgp, bgp-advertisements: {}}, {protocol: bgp, bgp-advertisements: 7}]",
            "data[config].address-pools[1].bgp-advertisements: expected a list of mappings",
        ),
    ],
)
def test_a_config_map_that_is_wrong_is_one_error(text: str, error: str) -> None:
    with pytest.raises(Invalid) as raised:
        objects_of(config_map(text))
    assert str(raised.value).startswith(error)


def test_other_config_maps_are_passed_over() -> None:
    assert not is_config({"apiVersion": "v1", "kind": "ConfigMap", "data": {"other": "a"}})
    assert not is_config({"apiVersion": "v1", "kind": "ConfigMap"})
    assert is_config(config_map(""))
    assert objects_of(config_map("")) == []


# --- the command -------------------------------------------------------------------------------


def written(directory: Path, *things: Any) -> Path:
    path = directory / "all.yaml"
    path.write_text(yaml.safe_dump_all(things), encoding="utf-8")
    return path


def test_what_is_printed_is_what_podwire_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metallb(written(tmp_path, config_map(CONFIG), pool(addresses=["10.9.0.0/24"], colour="red")))
    told = capsys.readouterr()
    assert told.err == "warning: ipaddresspool/a: spec.colour has no counterpart here, and is left out\n"
    loaded = load({"all.yaml": told.out.encode()})
    assert (loaded.errors, len(loaded.objects)) == ((), 9)


def test_an_object_that_is_left_out_is_named_and_the_others_are_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Failed, match=r"^left out: BGPPeer a$") as failed:
        metallb(written(tmp_path, pool(), peer(vrf="red")))
    assert failed.value.code == REFUSED
    assert "kind: AddressPool" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (b"a: [", ": document 1, line 1: "),
        (b"apiVersion: v1\nkind: Pod\n", "no object of MetalLB's is there"),
        (
            b"apiVersion: v1\nkind: ConfigMap\ndata:\n  config: |\n    peers: 7\n",
            "data[config].peers: expected a list of mappings",
        ),
        (None, "No such file or directory"),
    ],
)
def test_of_a_broken_file_nothing_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: bytes | None, error: str
) -> None:
    right, path = written(tmp_path, pool()), tmp_path / "broken.yaml"
    if text is not None:
        path.write_bytes(text)
    files = [path] if text is not None and b"Pod" in text else [right, path]
    with pytest.raises(Failed) as failed:
        metallb(*files)
    assert error in str(failed.value)
    assert capsys.readouterr().out == ""
