"""Others' hands are noticed and undone by themselves: nobody asks for a resync, and history names what it was."""

import asyncio

import pytest

from podwire.agent import readers
from podwire.controller.history import Record
from podwire.drift import drift
from podwire.sources import kernel_watch
from tests.kernel.rig import Rig, ask, by_hand, dump, service, sh

OBJECTS = service("web", 10, ("10.1.1.2", "10.1.1.3", "fd01::2", "fd01::3"))
LINK = "pw3a1773b046e7"
"""Of pod c."""
PATIENCE = 20.0
"""A limit against hanging, never a measure."""


@pytest.fixture
async def watched(rig: Rig) -> Rig:
    await rig.start_with_pods("a", "b", "c", objects=OBJECTS)
    rig.running.linux.collect()
    rig.watch()
    return rig


async def healed(rig: Rig, count: int = 1) -> list[Record]:
    """The records of what was undone, once nothing is left to undo."""
    controller = rig.running.controller
    async with asyncio.timeout(PATIENCE):
        while True:
            told = controller.next_record()
            found = [record for record in controller.history if record.event.startswith("Disturbed")]
            if len(found) >= count and await rig.drift() == []:
                return found
            await told


@pytest.mark.parametrize(
    ("hand", "named"),
    [
        pytest.param("nft flush ruleset", "rules of IPv4", id="ruleset flushed"),
        pytest.param("nft delete table ip6 podwire", "rules of IPv6", id="table deleted"),
        pytest.param("nft flush chain ip podwire pre", "rules of IPv4", id="rules deleted"),
        pytest.param("nft 'add table ip podwire { flags dormant; }'", "rules of IPv4", id="table put to sleep"),
        pytest.param(
            "nft delete element ip podwire svc { 10.96.0.10 . tcp . 80 }",
            "frontend 10.96.0.10:80/TCP",
            id="element deleted",
        ),
        pytest.param(
            "nft add element ip podwire svc { 10.96.0.99 . tcp . 80 : goto c1 }",
            "frontend 10.96.0.99:80/TCP",
            id="element added",
        ),
        pytest.param("ip route del 10.1.1.4/32", "route 10.1.1.4/32", id="route deleted"),
        pytest.param("ip -6 route del fd01::4/128", "route fd01::4/128", id="IPv6 route deleted"),
        pytest.param("ip route del 10.96.0.0/16", "route 10.96.0.0/16", id="service route deleted"),
        pytest.param("ip route flush table main", "route 10.1.1.4/32", id="routes flushed"),
        pytest.param("ip route add 10.9.9.9 dev lo proto 177", "route 10.9.9.9/32", id="route of our protocol added"),
        pytest.param("ip link del {link}", "link {link}", id="node's end deleted"),
        pytest.param("ip link set {link} down", "interface {index} up", id="node's end down"),
        pytest.param("ip link set {link} mtu 1400", "link {link}", id="node's end's MTU"),
        pytest.param("ip link set {link} name other", "link {link}", id="node's end renamed"),
        pytest.param(
            "sysctl -qw net.ipv4.conf.{link}.forwarding=0",
            "link {link} changed: put right net/ipv4/conf/{link}/forwarding",
            id="node's end not forwarding",
        ),
        pytest.param(
            "sysctl -qw net.ipv6.conf.{link}.forwarding=0",
            "link {link} changed: put right net/ipv6/conf/{link}/forwarding",
            id="nor for IPv6",
        ),
        pytest.param(
            "sysctl -qw net.ipv4.conf.{link}.rp_filter=0",
            "link {link} changed: put right net/ipv4/conf/{link}/rp_filter",
            id="its pod may send in another's name",
        ),
        pytest.param("ip link set {link} address 02:00:00:00:00:01", "link {link}", id="node's end's MAC"),
        pytest.param("ip link property del dev {link} altname sandbox-c.eth0", "link {link}", id="altname deleted"),
        pytest.param("ip address del 10.1.1.1/32 dev lo", "address 10.1.1.1 on interface 1", id="own address deleted"),
        pytest.param("ip link set lo down", "interface 1 up", id="loopback down"),
        pytest.param(
            "ip neigh del 10.1.1.4 dev {link}", "neighbour 10.1.1.4 on interface {index}", id="neighbour deleted"
        ),
        pytest.param(
            "ip neigh replace 10.1.1.4 dev {link} lladdr 02:00:00:00:00:01 nud stale",
            "neighbour 10.1.1.4 on interface {index}",
            id="neighbour changed",
        ),
        pytest.param("sysctl -qw net.ipv4.ip_forward=0", "sysctl net/ipv4/ip_forward", id="forwarding off"),
        pytest.param(
            "sysctl -qw net.ipv6.conf.all.forwarding=0", "sysctl net/ipv6/conf/all/forwarding", id="IPv6 forwarding off"
        ),
        pytest.param(
            "ip -n {pod} address del 10.1.1.4/32 dev eth0",
            "address 10.1.1.4 on interface {inner} in /run/netns/{pod}",
            id="pod's address deleted",
        ),
        pytest.param(
            "ip -n {pod} neigh del 169.254.1.1 dev eth0",
            "neighbour 169.254.1.1 on interface {inner} in /run/netns/{pod}",
            id="pod's gateway forgotten",
        ),
        pytest.param(
            "ip -n {pod} route del default", "route 0.0.0.0/0 in /run/netns/{pod}", id="pod's default route deleted"
        ),
        pytest.param(
            "ip -n {pod} link set eth0 address 02:00:00:00:00:99",
            "neighbour 10.1.1.4 on interface {index}",
            id="pod's end's MAC",
        ),
        pytest.param("ip -n {pod} link set eth0 down", "interface {inner} up in /run/netns/{pod}", id="pod's end down"),
    ],
)
async def test_it_is_noticed_named_and_undone(watched: Rig, hand: str, named: str) -> None:
    clean = sorted(dump().splitlines())
    index = watched.running.controller.snapshot.attachments[watched.key("c")].index
    names = {"link": LINK, "pod": watched.pods["c"].name, "index": index, "inner": index + 1}
    for name, value in names.items():
        hand = hand.replace(f"{{{name}}}", str(value))
    by_hand(hand)
    records = await healed(watched)
    told = [line for record in records for lines in record.changes.values() for line in lines]
    assert any(line.startswith(named.format(**names)) for line in told), told
    assert sorted(dump().splitlines()) == clean or "eth0 address" in hand  # a pod may choose its own
    assert {ask(watched.pods["c"], "10.96.0.10")[0] for _ in range(30)} == {"a", "b"}
    assert ask(None, "fd01::4", 8080).startswith("c ")


@pytest.mark.parametrize(
    "theirs",
    ["fd01::4/128 dev lo metric 256", "fd01::4/128 dev lo", "fd01::4/128 dev lo metric 2 proto ra"],
    ids=["as for an address of the node", "as most are made", "as first as it can be"],
)
async def test_another_s_ipv6_route_to_a_pod_comes_after_ours(watched: Rig, theirs: str) -> None:
    """The kernel takes the least metric, and has ours in the place of none."""
    by_hand(f"ip -6 route add {theirs}")
    assert ask(None, "fd01::4", 8080).startswith("c ")
    assert await watched.drift() == []
    by_hand(f"ip -6 route del {theirs}")
    assert ask(None, "fd01::4", 8080).startswith("c ")


async def test_routes_of_another_metric_as_older_versions_made_give_way_to_ours(rig: Rig) -> None:
    await rig.start_with_pods("a", objects=OBJECTS)
    clean = sorted(dump().splitlines())
    await rig.stop()
    for line in sh("ip", "-6", "route", "show", "proto", "177").splitlines():
        by_hand(f"ip -6 route add {line.replace('metric 1 ', 'metric 1024 proto 177 ')}; ip -6 route del {line}")
    assert "metric 1 " not in sh("ip", "-6", "route", "show", "proto", "177")
    assert (await rig.start(OBJECTS)).error is None
    assert sorted(dump().splitlines()) == clean
    assert ask(None, "fd01::2", 8080).startswith("a ")


async def test_who_changed_a_table_is_named(watched: Rig) -> None:
    by_hand("nft flush chain ip podwire pre")
    (record,) = await healed(watched)
    assert record.event.startswith("Disturbed nftables by nft (process ")


async def test_our_own_work_and_what_is_not_ours_disturb_nothing(watched: Rig) -> None:
    """No read of all our tables for another's commit, no event for what a transaction has changed itself."""
    controller, linux, nftables = watched.running.controller, watched.running.linux, watched.running.nftables
    await watched.add("d")
    await watched.change(*service("late", 20, ("10.1.1.2", "fd01::2")).items())
    await watched.delete("d")
    linux.collect()
    await watched.resync()
    sh("nft", "add", "table", "ip", "foreign")
    sh("nft", "add", "chain", "ip", "foreign", "pre", "{ type filter hook prerouting priority 0; }")
    sh("ip", "link", "add", "foreign", "type", "veth", "peer", "name", "foreign2")
    sh("ip", "route", "add", "10.77.0.0/24", "dev", "lo")
    held = controller.snapshot.programmed
    for _ in range(3):
        assert nftables.changed(held["nftables"]) == frozenset()
    assert linux.changed(held["linux"]) == frozenset()
    assert not [record for record in controller.history if record.event.startswith("Disturbed")]


FOREIGN = "nft 'add table {0} foreign; add chain {0} foreign {1} {{ type nat hook postrouting priority 99; }}'"


@pytest.mark.parametrize("chain", ["theirs", "pre", "post"])
async def test_others_tables_are_no_part_of_ours(watched: Rig, chain: str) -> None:
    """With chains of any names, in the same families: the kernel lists all of a family together."""
    for family in ("ip", "ip6", "inet"):
        by_hand(FOREIGN.format(family, chain))
        by_hand(f"nft add rule {family} foreign {chain} counter; nft 'add set {family} foreign svc {{ type mark; }}'")
    assert await watched.drift() == []
    assert (await watched.resync()).error is None
    await watched.stop()
    assert (await watched.start(OBJECTS)).error is None
    assert set(watched.writes().values()) == {0}
    assert {ask(watched.pods["c"], "10.96.0.10")[0] for _ in range(30)} == {"a", "b"}


async def test_a_change_that_nothing_told_is_found_by_the_generation(watched: Rig) -> None:
    """As between our leaving the kernel's group and our commit."""
    with watched.running.nftables._watch.own() as told:
        sh("nft", "flush", "chain", "ip", "podwire", "pre")
        told(False)
    await healed(watched)
    assert ask(None, "10.96.0.10")[0] in "ab"


async def test_more_changes_than_the_kernel_keeps_for_us_are_a_whole_look(rig: Rig) -> None:
    await rig.start_with_pods("a", objects=OBJECTS)
    batch = rig.directory / "routes"
    sh("ip", "route", "del", "10.1.1.2/32")
    for _ in range(4):
        for verb in ("add", "del"):
            batch.write_text("".join(f"route {verb} 10.{n >> 8 & 63 | 64}.{n & 255}.1 dev lo\n" for n in range(16000)))
            sh("ip", "-batch", str(batch))
    linux, held = rig.running.linux, rig.running.controller.snapshot.programmed["linux"]
    assert linux.changed(held) == frozenset()  # a bounded part of it is thrown away
    assert linux.behind
    while linux.behind:
        whole = linux.changed(held)
    assert whole is None
    sh("ip", "route", "add", "10.1.1.2/32", "dev", "lo")
    rig.watch()
    sh("ip", "route", "del", "10.1.1.2/32")
    await healed(rig)
    assert ask(None, "10.1.1.2", 8080).startswith("a ")


async def test_with_somebody_who_does_it_again_and_again_we_grow_slower(watched: Rig) -> None:
    """The first times at once; nobody's fight keeps the node busy."""
    for count in (1, 2, 3):
        sh("ip", "route", "del", "10.1.1.4/32")
        assert len(await healed(watched, count)) == count
    sh("ip", "route", "del", "10.1.1.4/32")
    assert (await watched.resync()).error is None  # asked for, it comes at once
    assert ask(None, "10.1.1.4", 8080).startswith("c ")


@pytest.mark.parametrize(
    ("hand", "named"),
    [
        pytest.param(
            "sysctl -qw net.ipv4.conf.all.send_redirects=1", "sysctl net/ipv4/conf/all/send_redirects", id="a setting"
        ),
        pytest.param(
            "sysctl -qw net.ipv4.conf.{link}.send_redirects=1",
            "link {link} changed: put right net/ipv4/conf/{link}/send_redirects",
            id="a setting of a link",
        ),
        pytest.param("ip route del 10.1.1.4/32", "route 10.1.1.4/32", id="a route"),
        pytest.param("ip -n {pod} route del default", "route 0.0.0.0/0 in /run/netns/{pod}", id="in a pod"),
        pytest.param("nft flush map ip podwire svc", "frontend 10.96.0.10:80/TCP", id="elements"),
    ],
)
async def test_what_nothing_told_is_found_by_the_periodic_verify(rig: Rig, hand: str, named: str) -> None:
    await rig.start_with_pods("a", "b", "c", objects=OBJECTS)
    pod = rig.pods["c"].name
    by_hand(hand.replace("{pod}", pod).replace("{link}", LINK))
    if LINK in (named := named.format(pod=pod, link=LINK)):
        (seen,) = drift(await rig.running.controller.verify())
        assert (named.rpartition(" net/")[2] in (seen.found or "")) is True
    verifying = asyncio.create_task(kernel_watch.verify(rig.running.controller, 0.05, readers))
    records = await healed(rig)
    assert any(line.startswith(named) for record in records for line in sum(record.changes.values(), ()))
    await rig.add("d")
    await rig.delete("d")
    verifying.cancel()
    await asyncio.wait([verifying])
    assert {ask(rig.pods["c"], "10.96.0.10")[0] for _ in range(30)} == {"a", "b"}
