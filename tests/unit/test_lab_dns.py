"""The cluster DNS: what its records are, and what it answers on the wire."""

import json
from collections.abc import Iterable
from textwrap import dedent

import dns.edns
import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.lab.dns import answer
from podwire.lab.expand import expand, objects
from podwire.lab.names import Records, Zone, resolv_conf, zone
from podwire.lab.system import SYSTEM
from tests.unit.lab_manifests import bare, manifests, running, service, workload

CLUSTER = (
    service(
        "web",
        "clusterIPs: [10.96.1.1, 'fd00:96::11'], ipFamilyPolicy: PreferDualStack",
        ports="[{name: http, port: 80}]",
    ),
    service("plain", "clusterIP: 10.96.1.2"),
    service("db", "clusterIP: None", "app: db", "[{name: sql, port: 5432, targetPort: 15432}]"),
    service("loose", "clusterIP: None, ipFamilyPolicy: PreferDualStack", "app: web", "[{name: http, port: 80}]"),
    service("early", "clusterIP: None, publishNotReadyAddresses: true", "app: sick"),
    service("late", "clusterIP: None", "app: sick"),
    service("empty", "clusterIP: None", "app: nobody"),
    service("away", "type: ExternalName, externalName: www.example.org", ports="[]"),
    service("alias", "type: ExternalName, externalName: web.default.svc.cluster.local", ports="[]"),
    service("loop", "type: ExternalName, externalName: loop.default.svc.cluster.local", ports="[]"),
    workload("StatefulSet", "db", "replicas: 2\n          serviceName: db", labels="app: db"),
    bare("web-a"),
    bare("sick", "app: sick"),
)


def cluster(texts: Iterable[str] = CLUSTER) -> Zone:
    """Its pods by name: db-0 at .2, db-1 at .3, sick, which is not ready, at .4, and web-a at .5."""
    plan = expand(manifests(*texts), 1, system=SYSTEM)
    pods = {key: it._replace(ready=key.name != "sick") for key, it in running(plan).items()}
    return zone(objects(plan, pods))


ZONE = cluster()


def ask(name: str, kind: str, held: Zone = ZONE) -> dns.message.Message:
    message = answer(held, dns.message.make_query(name, kind).to_wire(), stream=False, identity=b"")
    assert message is not None
    return dns.message.from_wire(message)


def said(response: dns.message.Message) -> set[str]:
    return {f"{rrset.name} {data.rdtype.name} {data}" for rrset in response.answer for data in rrset}


# --- the specification -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind", "data"),
    [
        pytest.param("dns-version.cluster.local", "TXT", {'"1.1.0"'}, id="the schema's version"),
        pytest.param("web.default.svc.cluster.local", "A", {"10.96.1.1"}, id="a Service, IPv4"),
        pytest.param("web.default.svc.cluster.local", "AAAA", {"fd00:96::11"}, id="a Service, IPv6"),
        pytest.param("WEB.Default.svc.Cluster.local", "A", {"10.96.1.1"}, id="in any case of letters"),
        pytest.param(
            "_http._tcp.web.default.svc.cluster.local",
            "SRV",
            {"0 100 80 web.default.svc.cluster.local."},
            id="a Service's named port",
        ),
        pytest.param("1.1.96.10.in-addr.arpa", "PTR", {"web.default.svc.cluster.local."}, id="a Service, by IPv4"),
        pytest.param(
            f"1.1.{'0.' * 22}6.9.0.0.0.0.d.f.ip6.arpa",
            "PTR",
            {"web.default.svc.cluster.local."},
            id="a Service, by IPv6",
        ),
        pytest.param("db.default.svc.cluster.local", "A", {"10.244.1.2", "10.244.1.3"}, id="a headless one: its pods"),
        pytest.param("db-1.db.default.svc.cluster.local", "A", {"10.244.1.3"}, id="a pod of a StatefulSet"),
        pytest.param(
            "_sql._tcp.db.default.svc.cluster.local",
            "SRV",
            {f"0 100 15432 db-{n}.db.default.svc.cluster.local." for n in (0, 1)},
            id="a headless one's named port, as its pods have it",
        ),
        pytest.param("2.1.244.10.in-addr.arpa", "PTR", {"db-0.db.default.svc.cluster.local."}, id="a pod, by address"),
        pytest.param(
            "loose.default.svc.cluster.local", "AAAA", {"fd00:244:0:1::5"}, id="a headless one of both families"
        ),
        pytest.param("10-244-1-5.loose.default.svc.cluster.local", "A", {"10.244.1.5"}, id="a pod without a hostname"),
        pytest.param("early.default.svc.cluster.local", "A", {"10.244.1.4"}, id="published before it is ready"),
        pytest.param("10-244-1-4.default.pod.cluster.local", "A", {"10.244.1.4"}, id="a pod, by its dashed address"),
        pytest.param("away.default.svc.cluster.local", "CNAME", {"www.example.org."}, id="ExternalName"),
        pytest.param("kube-dns.kube-system.svc.cluster.local", "A", {"10.96.0.10"}, id="the cluster DNS itself"),
    ],
)
def test_a_name_has(name: str, kind: str, data: set[str]) -> None:
    response = ask(name, kind)
    assert {text.split(" ", 2)[2] for text in said(response)} == data
    assert (response.rcode(), bool(response.flags & dns.flags.AA)) == (dns.rcode.NOERROR, True)
    assert {str(rrset.name).lower() for rrset in response.answer} == {f"{name.lower()}."}


@pytest.mark.parametrize(
    ("name", "kind", "rcode"),
    [
        pytest.param("plain.default.svc.cluster.local", "AAAA", dns.rcode.NOERROR, id="no data of this type"),
        pytest.param("default.svc.cluster.local", "A", dns.rcode.NOERROR, id="no data, but names below"),
        pytest.param("_tcp.web.default.svc.cluster.local", "A", dns.rcode.NOERROR, id="so between port and Service"),
        pytest.param("nobody.default.svc.cluster.local", "A", dns.rcode.NXDOMAIN, id="no such Service"),
        pytest.param("_http._udp.web.default.svc.cluster.local", "SRV", dns.rcode.NXDOMAIN, id="no such port"),
        pytest.param("empty.default.svc.cluster.local", "A", dns.rcode.NXDOMAIN, id="headless, without pods"),
        pytest.param("late.default.svc.cluster.local", "A", dns.rcode.NXDOMAIN, id="headless, none ready"),
        pytest.param("db-2.db.default.svc.cluster.local", "A", dns.rcode.NXDOMAIN, id="no such pod"),
        pytest.param("9.9.96.10.in-addr.arpa", "PTR", dns.rcode.NXDOMAIN, id="an address that nobody has"),
        pytest.param("www.example.org.default.svc.cluster.local", "A", dns.rcode.NXDOMAIN, id="a search's first try"),
    ],
)
def test_a_negative_answer_says_for_how_long(name: str, kind: str, rcode: dns.rcode.Rcode) -> None:
    response = ask(name, kind)
    assert (response.rcode(), response.answer) == (rcode, [])
    ((start,),) = response.authority
    assert (start.rdtype, start.minimum) == (dns.rdatatype.SOA, 5)


@pytest.mark.parametrize("name", ["www.example.org", "local", ".", "cluster.local.example.org", "mycluster.local"])
def test_what_is_not_of_the_cluster_is_refused(name: str) -> None:
    assert ask(name, "A").rcode() == dns.rcode.REFUSED


def test_a_cname_is_followed_as_far_as_the_cluster_goes() -> None:
    assert said(ask("alias.default.svc.cluster.local", "A")) == {
        "alias.default.svc.cluster.local. CNAME web.default.svc.cluster.local.",
        "web.default.svc.cluster.local. A 10.96.1.1",
    }
    assert said(ask("away.default.svc.cluster.local", "A")) == {
        "away.default.svc.cluster.local. CNAME www.example.org."
    }
    assert ask("loop.default.svc.cluster.local", "A").rcode() == dns.rcode.NOERROR


def test_where_a_port_is_comes_with_the_answer() -> None:
    response = ask("_sql._tcp.db.default.svc.cluster.local", "SRV")
    assert {f"{it.name} {data}" for it in response.additional for data in it} == {
        "db-0.db.default.svc.cluster.local. 10.244.1.2",
        "db-1.db.default.svc.cluster.local. 10.244.1.3",
    }


def test_every_name_s_ancestors_exist_up_to_its_zone() -> None:
    records: Records = ZONE.records
    for name in records:
        apex = next(it for it in ("cluster.local", "in-addr.arpa", "ip6.arpa") if name.endswith(it))
        while name != apex:
            name = name.partition(".")[2]
            assert name in ZONE.names


@pytest.mark.parametrize(
    ("kind", "addresses", "expected"),
    [
        pytest.param("IPv4", ["10.9.0.010"], {"10.9.0.10"}, id="leading zeros"),
        pytest.param("FQDN", ["a.example"], set(), id="names"),
        pytest.param("IPv4", ["x", "10.9.0.1"], {"10.9.0.1"}, id="one that is none"),
    ],
)
@pytest.mark.parametrize("owner", ["kubernetes.io/service-name", None], ids=["of a Service", "nobody's"])
def test_a_slice_by_hand_that_no_proxy_serves(
    owner: str | None, kind: str, addresses: list[str], expected: set[str]
) -> None:
    labels = {"service.kubernetes.io/headless": ""} | ({owner: "hand"} if owner else {})
    slice_ = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "hand-1", "labels": labels},
        "addressType": kind,
        "endpoints": [{"addresses": addresses}],
    }
    texts = [service("hand", "clusterIP: None", "app: nobody"), json.dumps(slice_)]
    held = cluster([*CLUSTER, *texts]).records.get("hand.default.svc.cluster.local", {})
    assert set(held.get("A", ())) == (expected if owner else set())


def test_a_pod_is_told_of_its_own_namespace_first() -> None:
    plan = expand(manifests(*CLUSTER), 1, system=SYSTEM)
    assert resolv_conf(objects(plan, {}), "shop") == dedent("""\
        search shop.svc.cluster.local svc.cluster.local cluster.local
        nameserver 10.96.0.10
        options ndots:5
        """)


# --- the wire ----------------------------------------------------------------------------------


def many(count: int) -> Zone:
    pods = workload("StatefulSet", "db", f"replicas: {count}\n          serviceName: db", labels="app: db")
    return cluster((service("db", "clusterIP: None", "app: db"), pods))


@pytest.mark.parametrize(
    ("payload", "stream", "longest"),
    [
        pytest.param(-1, False, 512, id="a datagram without EDNS"),
        pytest.param(4096, False, 1232, id="a datagram with it: no fragments"),
        pytest.param(-1, True, 65535, id="a stream"),
    ],
)
def test_a_long_answer_is_cut_where_it_must_be(payload: int, stream: bool, longest: int) -> None:
    edns = payload >= 0
    query = dns.message.make_query(
        "db.default.svc.cluster.local", "A", use_edns=edns, payload=payload if edns else None
    )
    message = answer(many(100), query.to_wire(), stream, b"")
    assert message is not None
    assert len(message) <= longest
    response = dns.message.from_wire(message)
    assert bool(response.flags & dns.flags.TC) is not stream
    assert stream is (len(said(response)) == 100)


def test_who_asks_is_told_who_answers() -> None:
    query = dns.message.make_query("web.default.svc.cluster.local", "A", use_edns=0)
    for asked, told in ((True, [b"me"]), (False, [])):
        query.use_edns(0, options=[dns.edns.GenericOption(dns.edns.OptionType.NSID, b"")] if asked else [])
        message = answer(ZONE, query.to_wire(), stream=False, identity=b"me")
        assert message is not None
        assert [option.to_wire() for option in dns.message.from_wire(message).options] == told


def test_requests_that_are_no_questions() -> None:
    query = dns.message.make_query("web.default.svc.cluster.local", "A")
    update, later, transfer, chaos, none = (dns.message.from_wire(query.to_wire()) for _ in range(5))
    update.set_opcode(dns.opcode.NOTIFY)
    later.use_edns(1)
    transfer.question[0] = dns.message.make_query("cluster.local", "AXFR").question[0]
    chaos.question[0] = dns.message.make_query("id.server", "TXT", "CH").question[0]
    none.question.clear()
    wanted = {
        "NOTIMP": update,
        "BADVERS": later,
        "REFUSED": transfer,
        "FORMERR": none,
    }
    for rcode, asked in [*wanted.items(), ("REFUSED", chaos)]:
        message = answer(ZONE, asked.to_wire(), stream=False, identity=b"")
        assert message is not None
        assert dns.rcode.to_text(dns.message.from_wire(message).rcode()) == rcode


def test_responses_get_none() -> None:
    response = dns.message.make_response(dns.message.make_query("web.default.svc.cluster.local", "A"))
    assert answer(ZONE, response.to_wire(), stream=False, identity=b"") is None


QUERY = dns.message.make_query("_sql._tcp.db.default.svc.cluster.local", "SRV", use_edns=0).to_wire()
BROKEN = st.builds(
    lambda at, byte: QUERY[:at] + bytes([byte]) + QUERY[at + 1 :], st.integers(0, 255), st.integers(0, 255)
)


@given(st.binary(max_size=80) | BROKEN, st.booleans())
def test_whatever_comes_is_answered_to_its_number_or_not_at_all(asked: bytes, stream: bool) -> None:
    message = answer(ZONE, asked, stream, b"me")
    if message is not None:
        assert message[:2] == asked[:2]
        assert message[2] & 0x80
        dns.message.from_wire(message)
