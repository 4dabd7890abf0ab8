"""Host ports by real packets: who reaches a pod by a port of the node, and whom the pod sees then.

Invariants: a node with an uplink, a client outside, another node, and two pods: `web` answers, `other` asks. The node
has a second address on its uplink, which no Node object names.
"""

import re
import socket
import sqlite3
from collections.abc import AsyncIterator
from itertools import product
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
import pytest_asyncio

from podwire.cni import portmappings
from podwire.controller.events import Refusal
from podwire.dataplane.nftables.layout import keyword
from podwire.explain.packets import Verdict, explain_packet
from podwire.findings import findings
from podwire.model.addresses import FAMILIES, IPV4, IPV6, Family, family_of, parse_address
from podwire.model.network import Frontend
from podwire.model.objects import HostPort, Protocol, Service, ServiceKey, ServicePort
from podwire.views import FrontendState
from tests.kernel.hands import links_gone
from tests.kernel.outside import NODES, Outside, connect
from tests.kernel.rig import TARGET_PORT, Rig, Space, by_hand, entered, in_space, sh
from tests.kernel.test_verbs import LIST, Runtime
from tests.packets.answering import Answering, Question, ask

TCP, UDP, SCTP = Protocol.TCP, Protocol.UDP, Protocol.SCTP
WEB, OTHER = {IPV4: "10.1.1.2", IPV6: "fd01::2"}, {IPV4: "10.1.1.3", IPV6: "fd01::3"}
NODE, SECOND = {IPV4: "192.0.2.1", IPV6: "fd99::1"}, {IPV4: "198.51.100.7", IPV6: "fd98::7"}
OWN = {IPV4: "10.1.1.1", IPV6: "fd01::1"}
"""The node's addresses of its blocks, on lo."""
CLIENT, TWO = {IPV4: "192.0.2.9", IPV6: "fd99::9"}, {IPV4: "192.0.2.2", IPV6: "fd99::2"}
LOOPBACK = {IPV4: "127.0.0.1", IPV6: "::1"}
REFUSED = "ConnectionRefusedError"


class Pod(NamedTuple):
    """As `Answering` knows it."""

    name: str
    addresses: dict[Family, str]

    def address(self, family: Family) -> str:
        return self.addresses[family]


class AtWork(NamedTuple):
    rig: Rig
    node: Space
    outside: Outside
    answering: Answering

    def space(self, source: str) -> Space:
        spaces = {"outside": self.outside.client, "another node": self.outside.two, "the node": self.node}
        return spaces.get(source) or self.rig.space(source)

    async def attach(self, name: str, addresses: dict[Family, str], host_ports: tuple[HostPort, ...] = ()) -> None:
        assert (await self.rig.add(name, host_ports=host_ports)).error is None
        self.answering.add(Pod(name, addresses), self.rig.space(name))  # type: ignore[arg-type]

    def explained(self, source: str, to: str, port: int, protocol: Protocol) -> str:
        """What `podwire explain` says of it, in the words of an answer."""
        now, address = self.rig.running.controller.snapshot, parse_address(to)
        sender = WEB if source == "web" else SOURCES[source]
        client = parse_address(sender[family_of(address)]) if sender is not None else None
        why = explain_packet(now, client, Frontend(address, protocol, port))
        if why.verdict is Verdict.PASSED_ON:
            return REFUSED
        assert why.verdict is Verdict.HOST_PORT
        assert why.state is FrontendState.PROGRAMMED
        (choice,) = why.choices
        return f"{re.findall('pod default/([a-z]+)', choice.where)[0]} {choice.client}"

    def ask(self, source: str, to: str, port: int, protocol: Protocol = TCP, silent: bool = False) -> str:
        return ask(Question(self.space(source), protocol, to, port, silent))


@pytest_asyncio.fixture
async def at_work(rig: Rig, node: Space) -> AsyncIterator[AtWork]:
    outside = connect(rig)
    sh("ip", "addr", "add", f"{SECOND[IPV4]}/24", "dev", "br0")
    sh("ip", "addr", "add", f"{SECOND[IPV6]}/64", "dev", "br0", "nodad")
    assert (await rig.start(NODES)).error is None
    answering = Answering()
    try:
        yield AtWork(rig, node, outside, answering)
    finally:
        answering.close()


def ports(*told: tuple[int, str], protocols: tuple[Protocol, ...] = (TCP, UDP, SCTP)) -> tuple[HostPort, ...]:
    """Host port and hostIP of each, as a runtime tells them."""
    return portmappings.parse(
        [
            {"hostPort": port, "containerPort": TARGET_PORT, "protocol": it.name.lower(), "hostIP": address}
            for port, address in told
            for it in protocols
        ]
    )


# --- who reaches what --------------------------------------------------------------------------

EVERYWHERE, EVERYWHERE4, EVERYWHERE6, NAMED, LOCAL = 8001, 8002, 8003, 8004, 8005
FORMS = {
    EVERYWHERE: ("",),
    EVERYWHERE4: ("0.0.0.0",),
    EVERYWHERE6: ("::",),
    NAMED: (NODE[IPV4], NODE[IPV6]),
    LOCAL: ("127.0.0.1",),
}
"""By host port: its hostIPs."""
SOURCES = {
    "outside": CLIENT,
    "another node": TWO,
    "the node": None,
    "other": OTHER,
    "web": OWN,
}
"""Whom the pod sees then. The node is seen by the address that it asks, which it also asks from; but by its loopback as
its first address of the block. A pod that reaches itself sees that, too."""
DESTINATIONS = {"first address": NODE, "second address": SECOND, "address of the block": OWN, "loopback": LOOPBACK}


def expected(source: str, family: Family, destination: str, port: int) -> str | None:
    """None: nobody is asked so."""
    if destination == "loopback" and source != "the node":  # each has one of its own
        return None
    if destination == "address of the block" and source in ("outside", "another node"):  # it is no address to them
        return None
    here = {EVERYWHERE4: family == IPV4, EVERYWHERE6: family == IPV6, NAMED: destination == "first address"}
    there = here.get(port, port == EVERYWHERE or (destination == "loopback" and family == IPV4))
    if not there or (destination == "loopback" and family == IPV6):
        return REFUSED
    seen = SOURCES[source]
    if seen is None:
        seen = OWN if destination == "loopback" else DESTINATIONS[destination]
    return f"web {seen[family]}"


@pytest.mark.parametrize("protocol", Protocol, ids=lambda it: it.name)
async def test_who_reaches_the_pod_and_whom_it_sees(at_work: AtWork, protocol: Protocol) -> None:
    told = ports(*((port, address) for port, addresses in FORMS.items() for address in addresses))
    await at_work.attach("web", WEB, told)
    await at_work.attach("other", OTHER)
    wrong = {}
    for source, family, (name, to), port in product(SOURCES, FAMILIES, DESTINATIONS.items(), FORMS):
        right = expected(source, family, name, port)
        if right is None or (right == REFUSED and protocol is not TCP):
            continue
        found = at_work.ask(source, to[family], port, protocol)
        told = at_work.explained(source, to[family], port, protocol)
        if (found, told) != (right, right):
            wrong[f"{source} to {to[family]}:{port}"] = found, told, right
    assert wrong == {}


# --- whose it is -------------------------------------------------------------------------------


async def test_the_port_of_another_pod_is_refused_and_nothing_is_half_made(at_work: AtWork) -> None:
    rig = at_work.rig
    await at_work.attach("web", WEB, ports((8001, "")))
    before = elements()
    refused = await rig.add("other", host_ports=ports((8000, ""), (8001, "::")))
    assert refused.refusal is Refusal.PORT_TAKEN
    assert refused.error is not None
    for named in ("pod default/web (sandbox sandbox-web) has host port [::]:8001/TCP", "host port [::]:8001/SCTP"):
        assert named in refused.error
    assert "8000" not in refused.error
    assert (elements(), rig.rows(), await rig.drift()) == (before, 1, [])
    assert (await rig.delete("web")).error is None
    assert (await rig.add("other", host_ports=ports((8000, ""), (8001, "::")))).error is None


async def test_another_protocol_or_address_is_no_conflict_and_the_named_address_goes_before(at_work: AtWork) -> None:
    await at_work.attach("web", WEB, ports((8001, ""), protocols=(TCP,)) + ports((8001, "127.0.0.1"), protocols=(UDP,)))
    other = ports((8001, NODE[IPV4]), protocols=(TCP,)) + ports((8001, "0.0.0.0"), protocols=(UDP,))
    await at_work.attach("other", OTHER, other)
    for to, port, protocol, answers in (
        (NODE[IPV4], 8001, TCP, "other"),
        (SECOND[IPV4], 8001, TCP, "web"),
        (NODE[IPV6], 8001, TCP, "web"),
        (LOOPBACK[IPV4], 8001, TCP, "web"),
        (NODE[IPV4], 8001, UDP, "other"),
        (LOOPBACK[IPV4], 8001, UDP, "web"),
    ):
        assert at_work.ask("the node", to, port, protocol).split()[0] == answers, (to, protocol)
    assert (await at_work.rig.delete("other")).error is None
    assert at_work.ask("outside", NODE[IPV4], 8001).split()[0] == "web"


async def test_a_service_goes_before_a_host_port_with_or_without_backends(at_work: AtWork) -> None:
    """At the addresses where its node port is, and no others."""
    rig, key = at_work.rig, ServiceKey("default", "web")
    await at_work.attach("web", WEB, ports((30080, "")))
    service = Service((ServicePort("p", TCP, 80, 30080),), (parse_address("10.96.0.10"),))
    assert (await rig.change((key, service))).error is None
    assert at_work.ask("outside", NODE[IPV4], 30080) == REFUSED
    assert at_work.ask("the node", NODE[IPV4], 30080) == REFUSED
    assert f"pod/default/web: host port 0.0.0.0:30080/TCP: at {NODE[IPV4]} {key} answers instead" in findings(
        rig.running.controller.snapshot
    )
    assert at_work.ask("outside", SECOND[IPV4], 30080) == "web 192.0.2.9"
    assert at_work.ask("outside", NODE[IPV6], 30080) == "web fd99::9"
    assert (await rig.change((key, None))).error is None
    assert at_work.ask("outside", NODE[IPV4], 30080) == "web 192.0.2.9"


async def test_a_new_sandbox_has_the_ports_at_once_and_the_late_del_of_the_old_one_changes_nothing(
    at_work: AtWork,
) -> None:
    rig = at_work.rig
    await at_work.attach("web", WEB, ports((8001, "")))
    at_work.answering.remove(Pod("web", WEB))  # type: ignore[arg-type]
    new = rig.make_space("again")
    assert (await rig.add("web", new.path, "sandbox-again", ports((8001, "")))).error is None
    at_work.answering.add(Pod("web", OTHER), new)  # type: ignore[arg-type]
    held = elements()
    assert "10.1.1.3 . 8080" in held
    assert "10.1.1.2 . 8080" not in held
    assert (await rig.delete("web")).error is None
    assert (elements(), await rig.drift()) == (held, [])
    assert at_work.ask("outside", NODE[IPV4], 8001) == "web 192.0.2.9"


async def test_the_port_of_a_dead_sandbox_is_free_for_whoever_asks(at_work: AtWork) -> None:
    """Its namespace went without a DEL, and nobody has noticed yet."""
    rig = at_work.rig
    await rig.add("web", host_ports=ports((8001, "")))
    sh("ip", "netns", "del", rig.space("web").name)
    links_gone(rig, "web")
    await at_work.attach("other", OTHER, ports((8001, "")))
    assert at_work.ask("outside", NODE[IPV4], 8001) == "other 192.0.2.9"
    assert (rig.rows(), await rig.drift()) == (1, [])


# --- how long it lasts -------------------------------------------------------------------------


def elements() -> str:
    """What nftables holds of host ports, in all."""
    listed = (sh("nft", "list", "map", keyword(it), "podwire", name) for it in FAMILIES for name in MAPS)
    return "\n".join(listed)


MAPS = ("host_ports", "host_ports_at")


def localnet() -> dict[str, str]:
    """By pods' links: what the kernel says of route_localnet."""
    return {it.parent.name: it.read_text().strip() for it in Path("/proc/sys/net/ipv4/conf").glob("pw*/route_localnet")}


async def test_a_restart_writes_nothing_and_a_del_leaves_nothing(at_work: AtWork) -> None:
    rig = at_work.rig
    empty = elements()
    await at_work.attach("web", WEB, ports((8001, ""), (8004, NODE[IPV4]), (8005, "127.0.0.1")))
    held = elements()
    await rig.stop()
    assert at_work.ask("outside", NODE[IPV6], 8001) == "web fd99::9"
    assert (await rig.start(NODES)).error is None
    assert set(rig.writes().values()) == {0}
    assert elements() == held
    assert (await rig.delete("web")).error is None
    assert (elements(), await rig.drift()) == (empty, [])


async def test_killed_before_the_answer_the_port_is_free_again(at_work: AtWork) -> None:
    """The row is there and not confirmed: nobody was told of it."""
    rig = at_work.rig
    empty = elements()
    await at_work.attach("web", WEB, ports((8001, "")))
    ((value,),) = rig.sql("SELECT value FROM attachment")
    row = msgspec.msgpack.decode(value) | {"confirmed": False}
    with rig.running.store.database.used() as db:
        db.execute("UPDATE attachment SET value=?", (msgspec.msgpack.encode(row),))
    await rig.stop()
    assert (await rig.start(NODES)).error is None
    assert (elements(), rig.rows()) == (empty, 0)
    assert (await rig.add("other", host_ports=ports((8001, "")))).error is None


async def test_after_the_stores_loss_ports_are_known_again_from_the_kernel(at_work: AtWork) -> None:
    rig = at_work.rig
    await at_work.attach("web", WEB, ports((8001, ""), (8004, NODE[IPV6])))
    held = elements()
    await rig.stop()
    for part in rig.directory.glob("podwire.db*"):
        part.unlink()
    assert (await rig.start(NODES)).error is None
    assert (elements(), rig.writes()["nftables"], await rig.drift()) == (held, 0, [])
    assert (await rig.add("other", host_ports=ports((8004, NODE[IPV6])))).refusal is Refusal.PORT_TAKEN
    assert (await rig.delete("web")).error is None
    assert (await rig.add("other", host_ports=ports((8004, NODE[IPV6])))).error is None


async def test_what_others_change_is_put_right(at_work: AtWork) -> None:
    rig = at_work.rig
    await at_work.attach("web", WEB, ports((8001, ""), (8004, NODE[IPV4])))
    await at_work.attach("other", OTHER)
    held, links = elements(), localnet()
    assert sorted(links.values()) == ["0", "1"]  # of the pod that answers at 127.0.0.1 only
    at = "ip podwire host_ports_at { 192.0.2.1 . udp . 8004"
    for hand in (
        "nft delete element ip podwire host_ports { tcp . 8001 }",
        "nft flush map ip6 podwire host_ports",
        "nft add element ip podwire host_ports { tcp . 22 : 10.1.1.3 . 22 }",
        "nft add element ip podwire host_ports_at { 0.0.0.0 . tcp . 22 : 10.1.1.3 . 22 }",
        f"nft 'delete element {at} }}; add element {at} : 10.1.1.3 . 22 }}'",
        "nft flush chain ip podwire host_port",
        "for it in /proc/sys/net/ipv4/conf/pw*/route_localnet; do echo 0 > $it; done",
    ):
        by_hand(hand)
        assert await rig.drift() != [], hand
        assert (await rig.resync()).error is None
        assert (elements(), localnet(), await rig.drift()) == (held, links, []), hand
    assert at_work.ask("the node", LOOPBACK[IPV4], 8001) == "web 10.1.1.1"


async def test_what_another_plugin_of_the_chain_needs_of_a_link_is_left_to_it(at_work: AtWork) -> None:
    """portmap leads 127.0.0.1 to pods too. Nobody gets to the node's loopback by that: what comes there is dropped."""
    rig = at_work.rig
    await at_work.attach("web", WEB)
    by_hand("for it in /proc/sys/net/ipv4/conf/pw*/route_localnet; do echo 1 > $it; done")
    assert await rig.drift() == []
    assert (await rig.resync()).error is None
    await rig.stop()
    assert (await rig.start(NODES)).error is None
    assert (set(rig.writes().values()), set(localnet().values())) == ({0}, {"1"})


async def test_a_repeated_add_may_ask_for_other_ports(at_work: AtWork) -> None:
    rig = at_work.rig
    await at_work.attach("web", WEB, ports((8001, "")))
    assert (await rig.add("web", host_ports=ports((8002, NODE[IPV4])))).error is None
    assert at_work.ask("outside", NODE[IPV4], 8001) == REFUSED
    assert at_work.ask("outside", NODE[IPV4], 8002) == "web 192.0.2.9"
    assert await rig.drift() == []


# --- as a runtime asks -------------------------------------------------------------------------


async def test_a_runtime_is_told_by_codes_and_check_sees_what_is_missing(rig: Rig) -> None:
    """7: the configuration is wrong for ever; 11: another pod may go; 100: what was made is not there."""
    runtime = Runtime(rig)
    await runtime.start()
    web, other = rig.space("web"), rig.space("other")
    mapped = {"portMappings": [{"HostPort": 8001, "ContainerPort": 8080, "Protocol": "tcp", "HostIP": ""}]}
    added = await runtime.call("ADD", web, runtimeConfig=mapped)
    assert "ips" in added
    taken = await runtime.call("ADD", other, runtimeConfig=mapped)
    assert taken["code"] == 11
    assert f"pod default/{web.name}" in taken["msg"]
    assert "host port 0.0.0.0:8001/TCP" in taken["msg"]
    wrong = await runtime.call("ADD", other, runtimeConfig={"portMappings": [{"hostPort": 1, "containerPort": 0}]})
    assert (wrong["code"], rig.rows()) == (7, 1)
    check = {"prevResult": added, "runtimeConfig": mapped}
    assert await runtime.call("CHECK", web, **check) is None
    another = {"portMappings": [{"hostPort": 8002, "containerPort": 8080}]}
    assert (await runtime.call("CHECK", web, prevResult=added, runtimeConfig=another))["code"] == 100
    by_hand("nft flush map ip podwire host_ports")
    said = await runtime.call("CHECK", web, **check)
    assert said["code"] == 100
    assert "host port 0.0.0.0:8001/TCP" in said["msg"]
    assert (await rig.resync()).error is None
    by_hand("for it in /proc/sys/net/ipv4/conf/pw*/route_localnet; do echo 0 > $it; done")
    assert (await runtime.call("CHECK", web, **check))["code"] == 100
    empty = [{"containerID": "nobody", "ifname": "eth0"}]
    assert await runtime.call("GC", **{LIST: empty}) is None
    assert (rig.rows(), "8001" in elements()) == (0, False)
    assert "ips" in await runtime.call("ADD", other, runtimeConfig=mapped)


# --- flows that outlive it ---------------------------------------------------------------------


async def say(at_work: AtWork, client: socket.socket) -> str:
    """Who answers the next datagram, once stale flows are gone."""
    await at_work.rig.running.flows.until_quiet()
    client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)  # what the last refusal left
    try:
        client.send(b"?")
        return client.recv(100).decode().split()[0]
    except OSError as error:
        return type(error).__name__


@pytest.mark.parametrize("source", ["outside", "the node"])
@pytest.mark.parametrize("hostip", ["", NODE[IPV4]])
async def test_a_client_that_keeps_its_socket_follows_the_port(at_work: AtWork, source: str, hostip: str) -> None:
    """From nobody to a pod, to the next one, and to nobody again."""
    rig = at_work.rig
    with in_space(at_work.space(source), socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(3)
        client.connect((NODE[IPV4], 8053))
        assert await say(at_work, client) == REFUSED
        await at_work.attach("web", WEB, ports((8053, hostip), protocols=(UDP,)))
        assert await say(at_work, client) == "web"
        assert (await rig.delete("web")).error is None
        assert await say(at_work, client) == REFUSED
        await at_work.attach("other", OTHER, ports((8053, hostip), protocols=(UDP,)))
        assert await say(at_work, client) == "other"
        await rig.stop()
        with sqlite3.connect(rig.directory / "podwire.db") as db:  # as a DEL of which only the store has heard
            db.execute("DELETE FROM attachment")
        db.close()
        assert (await rig.start(NODES)).error is None
        assert await say(at_work, client) == REFUSED


# --- the node's loopback -----------------------------------------------------------------------


async def test_nobody_but_the_node_reaches_its_loopback(at_work: AtWork) -> None:
    """Neither pods, over whose links the node's loopback sends, nor machines outside, where others have opened the
    node for them (CVE-2020-8558). Without our rule they would be answered."""
    await at_work.attach("web", WEB, ports((8001, "")))
    with entered(at_work.node):
        sh("sysctl", "-qw", "net.ipv4.conf.all.route_localnet=1")
        listener = socket.create_server((LOOPBACK[IPV4], 8100))
    for source, gateway, address in (("web", "169.254.1.1", WEB[IPV4]), ("outside", NODE[IPV4], CLIENT[IPV4])):
        with entered(at_work.space(source)):
            sh("sysctl", "-qw", "net.ipv4.conf.all.route_localnet=1")
            sh("ip", "address", "del", "127.0.0.1/8", "dev", "lo")
            sh("ip", "route", "add", "127.0.0.0/8", "via", gateway, "src", address)

    def reached(source: str, port: int) -> bool:
        with in_space(at_work.space(source), socket.AF_INET, socket.SOCK_STREAM) as client:
            client.settimeout(1)
            try:
                client.connect((LOOPBACK[IPV4], port))
            except TimeoutError:
                return False
            return True

    with listener:
        for source, port in product(("web", "outside"), (8001, 8100)):
            assert not reached(source, port), (source, port)
        by_hand(
            "nft -a list chain ip podwire guard | grep 127.0.0.0/8 | sed 's/.*# handle //' "
            "| xargs nft delete rule ip podwire guard handle"
        )
        assert reached("outside", 8100)
        assert reached("web", 8100)
