"""Traces by real packets: what is told is what became of them, and nothing of the trace stays behind.

Invariants: the node stands between its pods and another node (tests/kernel/outside.py); pod `c` has no routes.
"""

import asyncio
import json
import re
import select
import signal
import subprocess
import sysconfig
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import pytest_asyncio
from msgspec.structs import replace

from podwire.cli.traces import show_trace
from podwire.dataplane import netlink
from podwire.dataplane.nftables.layout import keyword, rules_of
from podwire.dataplane.nftables.wire import GETRULE, batch
from podwire.explain.packets import Verdict
from podwire.model.addresses import FAMILIES, Address, Family, parse_address, parse_prefix
from podwire.model.kinds import Object, ObjectKey
from podwire.model.objects import HostPort, Protocol, Service, ServiceKey
from podwire.trace import own, texts
from podwire.trace.asked import asked
from podwire.trace.driver import Busy, Tracer
from podwire.trace.views import TraceView
from tests.kernel.outside import FAR, NODES, connect, members
from tests.kernel.process import agent_process
from tests.kernel.rig import TARGET_PORT, MakeSpace, Rig, by_hand, entered, respond, service, sh, silence, spaces
from tests.unit.screen import lines

A, B = ("10.1.1.2", "fd01::2"), ("10.1.1.3", "fd01::3")
LEFT, STOPPED, UNSEEN = "left the node", "stopped by a rule", "not seen"
CONNECTED, ANSWERED, RESET, ICMP = "connected", "answered", "refused by a reset", "refused by ICMP"
SILENCE, NOT_PERMITTED, UNREACHABLE = "no answer", "not permitted", "no way there"
PATIENCE, SHORT = 20.0, 0.3
"""A limit against hanging, never a measure; and for what will not be answered."""


def made(
    name: str, number: int, *backends: str, protocol: Protocol = Protocol.TCP, node_port: int = 0, **more: object
) -> dict[ObjectKey, Object]:
    found = service(name, number, (), protocol)
    key = ServiceKey("default", name)
    it = found[key]
    assert isinstance(it, Service)
    port = replace(it.ports[0], node_port=node_port)
    return found | members(name, *backends, protocol=protocol) | {key: replace(it, ports=(port,), **more)}


OBJECTS = (
    NODES
    | made("web", 10, *B, node_port=30080)
    | made("far", 11, FAR[4], FAR[16])
    | made("self", 12, *A)
    | made("empty", 13)
    | made("dns", 14, *B, protocol=Protocol.UDP)
    | made("sticky", 15, *B, affinity=600)
    | made("inside", 16, FAR[4], FAR[16], internal_local=True)
    | made("none", 18, protocol=Protocol.UDP)
    | made(
        "guarded",
        17,
        *B,
        balancer_ips=(parse_address("203.0.113.80"), parse_address("2001:db8::80")),
        source_ranges=(parse_prefix("192.0.2.0/24"), parse_prefix("fd99::/64")),
    )
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def at_work(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    """One for all traces: they change nothing."""
    with spaces() as make:
        node = make("node")
        with entered(node):
            rig = Rig(tmp_path_factory.mktemp("node"), make)
            connect(rig)
            await rig.start_with_pods("a", "b", "c", objects=OBJECTS)
            mapped = (HostPort(Address(b""), Protocol.TCP, 8888, TARGET_PORT),)
            assert (await rig.add("b", host_ports=mapped)).error is None
            respond(node, "one")
            for family in ("-4", "-6"):
                sh("ip", family, "-n", rig.space("c").name, "route", "flush", "table", "main")
            yield rig
            await rig.stop()
            silence()


@contextmanager
def foreign(*commands: str) -> Iterator[None]:
    """Rules of somebody else's table."""
    for command in ("add table inet alien", *commands):
        by_hand(f"nft '{command}'")
    try:
        yield
    finally:
        by_hand("nft delete table inet alien")


async def traced(rig: Rig, source: str, to: str, patience: float = PATIENCE) -> TraceView:
    now = rig.running.controller.snapshot
    seen = await rig.running.tracer.trace(now, asked(now, source, to), patience)
    print("\n".join(lines(show_trace(seen, rules=True))))
    assert tables() == ["ip podwire", "ip6 podwire"]
    return seen


def tables() -> list[str]:
    return sorted(
        line.removeprefix("table ") for line in sh("nft", "list", "tables").splitlines() if "alien" not in line
    )


def words(seen: TraceView) -> list[str]:
    return [step.words for step in seen.way.steps if step.words]


def both(ipv4: str, ipv6: str, port: str) -> list[str]:
    return [f"{ipv4}:{port}", f"[{ipv6}]:{port}"]


WEB, HERE = both("10.96.0.10", "fd00:96::a", "80"), both("192.0.2.1", "fd99::1", "30080")
TO_B = "leaves by pw10a63b8f1f23 to pod default/b on this node"
GOOD = [
    *(("default/a", to, CONNECTED, "a frontend of Service default/web: its only slot is drawn") for to in WEB),
    *(("default/a", to, CONNECTED, TO_B) for to in WEB),
    *(("node", to, CONNECTED, "a frontend of Service default/web: its only slot is drawn") for to in WEB + HERE),
    *(("node", to, CONNECTED, TO_B) for to in HERE),
    *(("default/a", to, CONNECTED, TO_B) for to in both(*B, "8080")),
    *(
        ("default/a", to, CONNECTED, f"leaves by br0 to node two ({via}), for a pod: what happens there is not seen")
        for to, via in zip(both("10.96.0.11", "fd00:96::b", "80"), ("192.0.2.2", "fd99::2"), strict=True)
    ),
    *(
        ("default/a", to, CONNECTED, "masqueraded: a pod that reaches itself")
        for to in both("10.96.0.12", "fd00:96::c", "80")
    ),
    *(("default/a", to, ANSWERED, TO_B) for to in both("10.96.0.14", "fd00:96::e", "80/UDP")),
    *(("node", to, ANSWERED, TO_B) for to in both("10.96.0.14", "fd00:96::e", "80/UDP")),
    *(("default/a", to, RESET, TO_B) for to in both(*B, "99")),
    *(("default/a", to, ICMP, TO_B) for to in both(*B, "99/UDP")),
    *(
        ("default/a", to, CONNECTED, "given to the node itself, at port 8080")
        for to in both("192.0.2.1", "fd99::1", "8080")
    ),
    *(("node", to, CONNECTED, "given to the node itself, at port 8080") for to in both("192.0.2.1", "fd99::1", "8080")),
    *(
        (source, f"{to}:8888", CONNECTED, f"a pod's host port: {backend}, pod default/b on this node")
        for source in ("default/a", "node")
        for to, backend in (("192.0.2.1", "10.1.1.3:8080"), ("[fd99::1]", "[fd01::3]:8080"))
    ),
    *(
        ("default/b", to, CONNECTED, "masqueraded: a pod that reaches itself")
        for to in both("192.0.2.1", "fd99::1", "8888")
    ),
    ("node", "127.0.0.1:8888", CONNECTED, "masqueraded: to the node's loopback no answer would come back"),
    ("default/a", "192.0.2.9:99", RESET, "leaves by br0 to 192.0.2.9, outside of the cluster"),
]
STOPS = [
    *(
        (source, to, RESET, "refused: the frontend has no ready backend")
        for source in ("default/a", "node")
        for to in both("10.96.0.13", "fd00:96::d", "80")
    ),
    ("default/a", "10.96.0.18:80/UDP", ICMP, "refused: the frontend has no ready backend"),
    ("default/a", "[fd00:96::12]:80/UDP", ICMP, "refused: the frontend has no ready backend"),
    ("node", "10.96.0.18:80/UDP", NOT_PERMITTED, "refused: the frontend has no ready backend"),
    *(("default/a", to, RESET, "refused: no Service has this port") for to in both("10.96.0.10", "fd00:96::a", "81")),
    *(
        ("default/a", to, SILENCE, "dropped: this node has no backend of the frontend, others have")
        for to in both("10.96.0.16", "fd00:96::10", "80")
    ),
    *(
        ("default/a", to, SILENCE, "dropped: the client is in none of the source ranges")
        for to in both("203.0.113.80", "2001:db8::80", "80")
    ),
]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("source", "to", "outcome", "said"), GOOD)
async def test_the_way_of_a_packet_that_gets_there(at_work: Rig, source: str, to: str, outcome: str, said: str) -> None:
    seen = await traced(at_work, source, to)
    assert (seen.outcome, seen.differences) == (outcome, ())
    assert seen.way.fate in (LEFT, "delivered to the node itself")
    assert any(each.startswith(said) for each in words(seen)), words(seen)
    assert seen.stopped_by is None


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("source", "to", "outcome", "said"), STOPS)
async def test_which_of_our_rules_stopped_it(at_work: Rig, source: str, to: str, outcome: str, said: str) -> None:
    seen = await traced(at_work, source, to, SHORT if outcome == SILENCE else PATIENCE)
    assert (seen.outcome, seen.differences, seen.way.fate) == (outcome, (), STOPPED)
    assert words(seen)[-1].startswith(said)
    assert (seen.flow, seen.stopped_by) == (None, None)


@pytest.mark.asyncio(loop_scope="module")
async def test_what_connection_tracking_says(at_work: Rig) -> None:
    kept = (await traced(at_work, "default/a", "10.96.0.10:80")).flow
    assert kept is not None
    assert (kept.server, kept.translated, kept.masqueraded) == ("10.1.1.3:8080", True, False)
    assert kept.client.startswith("10.1.1.2:")
    hairpin = (await traced(at_work, "default/a", "[fd00:96::c]:80")).flow
    assert hairpin is not None
    assert (hairpin.server, hairpin.masqueraded) == ("[fd01::2]:8080", True)
    assert hairpin.client.startswith("[fd01::1]:")
    direct = (await traced(at_work, "default/a", "10.1.1.3:8080")).flow
    assert direct is not None
    assert (direct.server, direct.translated) == ("10.1.1.3:8080", False)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("to", both("10.96.0.15", "fd00:96::f", "80"))
async def test_who_is_remembered(at_work: Rig, to: str) -> None:
    first, second = await traced(at_work, "default/a", to), await traced(at_work, "default/a", to)
    assert "the client is not remembered: its only slot is drawn" in words(first)
    assert "the client is remembered with this backend for 600 s" in words(first)
    assert any(each.startswith("the client is remembered: its backend is ") for each in words(second))
    assert first.agrees
    assert second.agrees


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("family", FAMILIES, ids=str)
async def test_our_own_rules_are_told_as_nft_lists_them(at_work: Rig, family: Family) -> None:
    there = netlink.Socket(netlink.NETFILTER)
    for chain in (*rules_of(family), "affine600", "affinein600", "learn600"):
        listed = texts.read(sh("nft", "-a", "list", "chain", keyword(family), "podwire", chain))
        told = own.listing(family, chain, own.handles(there.dump(GETRULE, own.request(family, chain))))
        assert told.rules.keys() == listed.rules.keys()
        assert told.hook == listed.hook
        for handle, rule in told.rules.items():
            assert alike(rule) == alike(listed.rules[handle])
    there.close()


def alike(rule: str) -> str:
    """nft writes some things in another way: which port of a protocol, what a reject is by default."""
    for said, same in LIKE:
        rule = re.sub(said, same, rule)
    return rule


LIKE = ((r"\b(tcp|udp|sctp|th) dport", "dport"), (r"meta l4proto (tcp|udp|sctp) ", ""), (r" addr \. port to", " to"))


FORWARD, OUTPUT = (f"add chain inet alien {h} {{ type filter hook {h} priority 10; }}" for h in ("forward", "output"))


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("rules", "source", "to", "outcome", "said"),
    [
        pytest.param(
            (FORWARD, 'add rule inet alien forward tcp dport 8080 counter drop comment "reject all webs"'),
            "default/a",
            WEB[0],
            SILENCE,
            'dropped by table inet alien, chain forward: tcp dport 8080 counter drop comment "reject all webs"',
            id="dropped",
        ),
        pytest.param(
            (
                FORWARD,
                "add chain inet alien DOCKER-USER",
                "add rule inet alien forward jump DOCKER-USER",
                "add rule inet alien DOCKER-USER ip6 daddr fd01::3 reject with icmpx admin-prohibited",
            ),
            "default/a",
            WEB[1],
            ICMP,
            "rejected by table inet alien, chain DOCKER-USER: ip6 daddr fd01::3 reject with icmpx admin-prohibited",
            id="rejected in a chain that another leads to",
        ),
        pytest.param(
            ("add chain inet alien fw { type filter hook forward priority 10; policy drop; }",),
            "default/a",
            "10.1.1.3:8080",
            SILENCE,
            "dropped by the policy of table inet alien, chain fw",
            id="policy",
        ),
        pytest.param(
            (OUTPUT, "add rule inet alien output udp dport { 8080, 8081 } drop"),
            "node",
            "10.96.0.14:80/UDP",
            NOT_PERMITTED,
            "dropped by table inet alien, chain output: udp dport { 8080, 8081 } drop",
            id="what the node sends",
        ),
    ],
)
async def test_whose_rule_stopped_it(
    at_work: Rig, rules: tuple[str, ...], source: str, to: str, outcome: str, said: str
) -> None:
    with foreign(*rules):
        seen = await traced(at_work, source, to, SHORT if outcome == SILENCE else PATIENCE)
    assert (seen.outcome, seen.way.fate, seen.agrees) == (outcome, STOPPED, False)
    assert words(seen)[-1] == said
    assert seen.stopped_by is not None
    assert seen.stopped_by.table == "inet alien"
    assert said in seen.differences[0]
    assert (await traced(at_work, source, to)).agrees


@pytest.mark.asyncio(loop_scope="module")
async def test_whose_rule_stopped_the_answer(at_work: Rig) -> None:
    with foreign(FORWARD, "add rule inet alien forward tcp sport 8080 drop"):
        seen = await traced(at_work, "default/a", WEB[0], SHORT)
    assert (seen.outcome, seen.way.fate) == (SILENCE, LEFT)
    assert seen.answer_way is not None
    assert (seen.answer_way.fate, seen.agrees) == (STOPPED, False)
    assert seen.stopped_by is not None
    assert seen.stopped_by.rule == "tcp sport 8080 drop"


@pytest.mark.asyncio(loop_scope="module")
async def test_who_sent_it_elsewhere(at_work: Rig) -> None:
    nat = "add chain inet alien nat { type nat hook prerouting priority -150; }"
    with foreign(nat, "add rule inet alien nat tcp dport 80 dnat ip to 10.1.1.2:8080"):
        seen = await traced(at_work, "default/a", "10.1.1.3:80")
    assert any(each.startswith("sent to 10.1.1.2:8080 instead by table inet alien, chain nat") for each in words(seen))
    assert "it was sent to 10.1.1.2:8080 instead" in seen.differences[0]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("to", WEB)
async def test_a_pod_without_a_route(at_work: Rig, to: str) -> None:
    seen = await traced(at_work, "default/c", to)
    assert (seen.outcome, seen.way.fate, seen.agrees) == (UNREACHABLE, UNSEEN, False)
    assert seen.way.told == "no packet was sent"
    assert seen.predicted.verdict is Verdict.BALANCED


@pytest.mark.asyncio(loop_scope="module")
async def test_a_filter_in_the_pods_own_namespace(at_work: Rig) -> None:
    inside = ("ip", "netns", "exec", at_work.space("a").name, "nft")
    sh(*inside, "add table ip own; add chain ip own o { type filter hook output priority 0; policy drop; }")
    try:
        seen = await traced(at_work, "default/a", WEB[0], SHORT)
    finally:
        sh(*inside, "delete table ip own")
    assert (seen.way.fate, seen.agrees) == (UNSEEN, False)
    assert "look at routes and packet filters in the pod's own namespace" in seen.way.told


@pytest.mark.asyncio(loop_scope="module")
async def test_what_the_node_has_no_way_for_is_lost_from_sight(at_work: Rig) -> None:
    sh("ip", "route", "add", "blackhole", "198.51.100.0/24")
    try:
        seen = await traced(at_work, "default/a", "198.51.100.7:80", SHORT)
    finally:
        sh("ip", "route", "del", "blackhole", "198.51.100.0/24")
    assert (seen.way.fate, seen.agrees) == ("lost from sight", False)
    assert "where the node chooses a route for it: no route" in seen.way.told


@pytest.mark.asyncio(loop_scope="module")
async def test_one_at_a_time_and_what_a_killed_agent_left_is_removed(at_work: Rig) -> None:
    tracer = at_work.running.tracer
    now = at_work.running.controller.snapshot
    by_hand("nft add table ip podwire_trace")
    by_hand("nft add table ip6 podwire_trace")
    going = asyncio.create_task(tracer.trace(now, asked(now, "default/a", "192.0.2.77:80"), PATIENCE))
    await asyncio.sleep(0)
    with pytest.raises(Busy):
        await tracer.trace(now, asked(now, "default/a", WEB[0]), PATIENCE)
    assert "chain leaving" in sh("nft", "list", "table", "ip", "podwire_trace")
    going.cancel()
    await asyncio.wait([going])
    assert tables() == ["ip podwire", "ip6 podwire"]
    assert (await traced(at_work, "default/a", WEB[0])).outcome == CONNECTED


@pytest.mark.asyncio(loop_scope="module")
async def test_the_kernel_removes_the_table_with_its_maker(at_work: Rig) -> None:
    other = netlink.Socket(netlink.NETFILTER)
    tracer = Tracer(lambda messages: other.send(batch(messages)))
    now = at_work.running.controller.snapshot
    going = asyncio.create_task(tracer.trace(now, asked(now, "default/a", "192.0.2.77:80"), PATIENCE))
    await asyncio.sleep(0)
    assert "ip podwire_trace" in tables()
    other.close()  # as a killed process
    while "ip podwire_trace" in tables():
        pass  # the kernel tells nobody of this one
    going.cancel()
    await asyncio.wait([going])
    tracer.close()


async def test_a_trace_is_nobody_elses_hand(rig: Rig) -> None:
    connect(rig)
    await rig.start_with_pods("a", "b", objects=OBJECTS)
    rig.watch()
    for to in WEB:
        assert (await traced(rig, "default/a", to)).outcome == CONNECTED
    assert [rig.running.nftables.changed({}) for _ in range(2)] == [frozenset(), frozenset()]
    assert not [it for it in rig.running.controller.history if it.event == "Disturbed nftables"]
    assert await rig.drift() == []


# --- a running agent ---------------------------------------------------------------------------


def command(state: Path, *arguments: str) -> list[str]:
    program = str(Path(sysconfig.get_path("scripts"), "podwire"))
    return [program, "trace", *arguments, "--state-dir", str(state)]


def until(listener: netlink.Listener, there: bool) -> None:
    """Waits for the table to come or go, told by the kernel."""
    while ("ip podwire_trace" in tables()) is not there:
        assert select.select([listener], [], [], PATIENCE)[0]
        listener.drain()


def test_the_command_and_a_client_that_goes(make_space: MakeSpace, tmp_path: Path) -> None:
    with entered(make_space("node")):
        sh("ip", "link", "set", "lo", "up")
        sh("ip", "link", "add", "void", "up", "type", "veth", "peer", "name", "beyond")
        sh("ip", "link", "set", "beyond", "up")
        sh("ip", "address", "add", "192.0.2.1/24", "dev", "void")
        sh("ip", "neigh", "add", "192.0.2.7", "lladdr", "02:00:00:00:00:07", "dev", "void")
        by_hand("nft add table ip6 podwire_trace")
        with agent_process(tmp_path) as agent:
            assert tables() == ["ip podwire", "ip6 podwire"]
            refused = agent.say("trace", "node", "10.96.0.99:80", "-o", "json")
            assert refused.returncode == 0
            assert json.loads(refused.stdout)["outcome"] == RESET
            told = agent.say("trace", "node", "10.96.0.99:80", "--rules")
            assert "reject with tcp reset" in told.stdout
            assert "as `podwire explain` says: refused" in told.stdout
            listener = netlink.Listener(netlink.NETFILTER, (7,))
            going = subprocess.Popen(command(agent.state, "node", "192.0.2.7:80", "--timeout", "30"))
            until(listener, there=True)
            busy = agent.say("trace", "node", "10.96.0.99:80")
            assert (busy.returncode, busy.stderr) == (1, "podwire: another trace is under way: one at a time\n")
            going.send_signal(signal.SIGKILL)
            going.wait()
            until(listener, there=False)
            listener.close()
            assert agent.say("verify").returncode == 0
        by_hand("nft add table ip podwire_trace")
        program = command(agent.state)[0]
        directories = ("--bin-dir", str(tmp_path / "bin"), "--conf-dir", str(tmp_path / "conf"))
        sh(program, "uninstall", "--config", str(agent.config), *directories)
        assert tables() == []
