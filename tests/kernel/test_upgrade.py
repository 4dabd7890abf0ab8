"""An older layout of the tables, moved to this version's while clients go on making new connections: none is lost."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from msgspec.structs import replace

from podwire.controller.events import Resync, ResyncReason
from podwire.dataplane import netlink
from podwire.dataplane.messages import Message, nest, text
from podwire.dataplane.nftables import expressions as e
from podwire.dataplane.nftables import libnftables, rules, wire
from podwire.dataplane.nftables.layout import PROTOCOLS, layout
from podwire.model.addresses import FAMILIES, Family
from podwire.model.objects import Protocol, Service, ServiceKey
from tests.kernel.rig import Rig, Space, ask, by_hand, service, sh

STICKY = ServiceKey("default", "sticky")
KINDS = (wire.GETCHAIN, wire.GETRULE, wire.GETSET)
BACKENDS = ("10.1.1.2", "10.1.1.3", "10.1.1.4", "fd01::2", "fd01::3", "fd01::4")
PLAIN_AT, STICKY_AT = ("10.96.0.10", "fd00:96::a"), ("10.96.0.11", "fd00:96::b")


def objects() -> dict[object, object]:
    made = service("web", 10, BACKENDS) | service("sticky", 11, BACKENDS)
    it = made[STICKY]
    assert isinstance(it, Service)
    return made | {STICKY: replace(it, affinity=600)}


def before_serving() -> None:
    """As it was before anybody asked who still answers: without these sets, and with a set and a chain that have gone
    since."""
    kernel = netlink.Socket(netlink.NETFILTER)
    for family in FAMILIES:
        whole = wire.table(family)
        for chain, drawn in (("affine600", "drawn"), ("affinein600", "drawn_internal")):
            rules = [*(_known(family, protocol) for protocol in Protocol), _unknown(family, drawn)]
            messages = [Message(wire.DELRULE, 0, whole + text(2, chain))]
            messages += [Message(wire.NEWRULE, 0xC00, whole + text(2, chain) + nest(4, rule)) for rule in rules]
            assert kernel.send(wire.batch(messages)) == {}
    kernel.close()
    for ip in ("ip", "ip6"):
        by_hand(f"nft delete set {ip} podwire serving; nft delete set {ip} podwire serving_internal")
        by_hand(f"nft add chain {ip} podwire former; nft add set {ip} podwire old '{{ type inet_service; }}'")
        by_hand(f"nft add rule {ip} podwire former tcp dport @old drop; nft delete chain {ip} podwire sealed600")


def _known(family: Family, protocol: Protocol) -> bytes:
    words, at, fields = family.size // 4, e.REGISTER, e.FIELDS[family.size]
    key = (
        e.header(at, fields.source, family),
        e.header(at + words, fields.destination, family),
        e.l4proto(at + 2 * words),
        e.dport(at + 2 * words + 1),
    )
    found = e.lookup("affinity600", at, at) + e.dnat(family, at, at + words)
    return e.l4proto(at) + e.equal(at, protocol) + b"".join(key) + found


def _unknown(family: Family, drawn: str) -> bytes:
    words, at = family.size // 4, e.REGISTER
    frontend = e.header(at, e.FIELDS[family.size].destination, family) + e.l4proto(at + words) + e.dport(at + words + 1)
    return frontend + wire.expression("lookup", text(1, drawn), wire.u32(2, at), wire.u32(3, 0))


def looking_once() -> None:
    """As it was before lookups were repeated."""
    for ip in ("ip", "ip6"):
        by_hand(f"nft delete chain {ip} podwire sealed600")
        for chain in ("pre", "out", "c1", "i1", "affine600", "affinein600"):
            lines = sh("nft", "-a", "list", "chain", ip, "podwire", chain).splitlines()
            rules = [line.strip().rpartition(" # handle ") for line in lines if "map @" in line or "jump draw" in line]
            again = [handle for n, (rule, _, handle) in enumerate(rules) if rule in {it[0] for it in rules[:n]}]
            assert len(again) == {"pre": 3, "out": 3}.get(chain, 1)
            for handle in again:
                sh("nft", "delete", "rule", ip, "podwire", chain, "handle", handle)


def each_class_drew_by_itself() -> None:
    """As it was when a class held its draws, one rule for each protocol, and no chain of its own for them."""
    for family in FAMILIES:
        lines = layout(family).splitlines()
        draws = {line.split()[4]: line.partition(" dnat ")[2] for line in lines if " dnat ip" in line}
        text_ = []
        for line in lines:
            head, _, target = line.partition(" jump ")
            if target in draws:
                text_ += [f"{head} meta l4proto {protocol} dnat {draws[target]}" for protocol in PROTOCOLS]
            elif draws.keys().isdisjoint(line.split()):
                text_.append(line)
        become(family, "\n".join(text_))


def become(family: Family, commands: str) -> None:
    """The table's rules are what these make of an empty one; its elements stay."""
    with netlink.inside(None):
        assert libnftables.run(commands) == ""
        there = netlink.Socket(netlink.NETFILTER)
    here = netlink.Socket(netlink.NETFILTER)
    read = [
        rules.Rules.read(of.dump(wire.GETTABLE, whole, 0), *(of.dump(kind, whole) for kind in KINDS))
        for of, whole in ((there, wire.table(family)), (here, wire.table(family)))
    ]
    assert here.send(wire.batch(rules.swap(family, read[0], read[1].constant()))) == {}
    there.close()
    here.close()


def before_host_ports() -> None:
    """As it was before pods could have ports of the node: without their maps, rules and chain."""
    for ip in ("ip", "ip6"):
        for chain in ("pre", "out", "guard", "post"):
            lines = sh("nft", "-a", "list", "chain", ip, "podwire", chain).splitlines()
            for line in lines:
                rule, _, handle = line.strip().rpartition(" # handle ")
                if "host_port" in rule or "127.0.0.0/8" in rule:
                    sh("nft", "delete", "rule", ip, "podwire", chain, "handle", handle)
        by_hand(f"nft flush chain {ip} podwire host_port; nft delete chain {ip} podwire host_port")
        by_hand(f"nft delete map {ip} podwire host_ports; nft delete map {ip} podwire host_ports_at")


def before_tunnels_were_guarded() -> None:
    """As it was when VXLAN's port was open to all: without its sets, rules and chain."""
    for ip in ("ip", "ip6"):
        for chain in ("guard", "guardout", "pre", "out", "in", "post"):
            for line in sh("nft", "-a", "list", "chain", ip, "podwire", chain).splitlines():
                rule, _, handle = line.strip().rpartition(" # handle ")
                if "@tunnel" in rule:
                    sh("nft", "delete", "rule", ip, "podwire", chain, "handle", handle)
        by_hand(f"nft flush chain {ip} podwire tunnelled; nft delete chain {ip} podwire tunnelled")
        by_hand(f"nft delete set {ip} podwire tunnels; nft delete set {ip} podwire tunnel_ports")


def another_form() -> None:
    """A set of another size: no rule that names it can stay while it is made anew."""
    for ip in ("ip", "ip6"):
        by_hand(f"nft flush chain {ip} podwire guard; nft flush chain {ip} podwire guardout")
        by_hand(f"nft delete set {ip} podwire restricted")
        kind = "ipv4_addr" if ip == "ip" else "ipv6_addr"
        by_hand(f"nft add set {ip} podwire restricted '{{ type {kind} . inet_proto . inet_service; size 100; }}'")


class Stream:
    """New connections, one after the other, and who answered them."""

    def __init__(self, space: Space | None, to: str) -> None:
        self.answers: Counter[str] = Counter()
        self._space, self._to = space, to
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Stream":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.is_set():
            self.answers[ask(self._space, self._to, patience=0.9).split()[0]] += 1


@contextmanager
def streams(rig: Rig) -> Iterator[tuple[list[Stream], list[Stream]]]:
    """To the Service without affinity, and to that with it."""
    plain = [Stream(rig.pods["c"], to) for to in PLAIN_AT]
    sticky = [Stream(rig.pods["c"], to) for to in STICKY_AT]
    with plain[0], plain[1], sticky[0], sticky[1]:
        yield plain, sticky


def right(streams: tuple[list[Stream], list[Stream]], kept: list[str] | None) -> None:
    """`kept` None: who is remembered is drawn for once more."""
    for each in streams[0] + streams[1]:
        assert each.answers.keys() <= {"a", "b", "c"}
        assert each.answers
    if kept is not None:
        assert [set(each.answers) for each in streams[1]] == [{name} for name in kept]


@pytest.mark.parametrize(
    "older",
    [
        before_serving,
        looking_once,
        each_class_drew_by_itself,
        before_host_ports,
        before_tunnels_were_guarded,
        another_form,
    ],
    ids=[
        "maps are new",
        "lookups were not repeated",
        "classes held their draws",
        "no pod had a port",
        "VXLAN's port was open",
        "a map has another form",
    ],
)
async def test_no_new_connection_is_lost_by_an_upgrade(rig: Rig, older: Callable[[], None]) -> None:
    await rig.start_with_pods("a", "b", "c", objects=objects())
    kept = [ask(rig.pods["c"], to).split()[0] for to in STICKY_AT]
    await rig.stop()
    older()
    with streams(rig) as asking:
        assert (await rig.start(objects())).error is None
        await rig.resync()
    right(asking, kept if older is not another_form else None)
    assert await rig.drift() == []
    assert "former" not in sh("nft", "list", "ruleset")


async def test_an_older_layout_works_until_the_cluster_is_known(rig: Rig) -> None:
    """Its rules ask for nothing that only the cluster's objects could tell."""
    await rig.start_with_pods("a", "b", "c", objects=objects())
    kept = [ask(rig.pods["c"], to).split()[0] for to in STICKY_AT]
    await rig.stop()
    before_serving()
    with streams(rig) as asking:
        await rig.start_alone()
        assert "former" in sh("nft", "list", "ruleset")
        await rig.running.controller.submit(Resync(ResyncReason.STARTUP, rig.listed(objects())))
    right(asking, kept)
    assert await rig.drift() == []
    assert "former" not in sh("nft", "list", "ruleset")
