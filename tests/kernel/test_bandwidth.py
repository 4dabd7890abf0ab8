"""Pods' traffic kept to rates: measured as a ratio, and looked after like the rest of an attachment.

Invariants: of two pods only `a` has rates. A rate is told by what arrives after its burst, in a fixed number of bytes.
"""

import asyncio

import pytest

from podwire.model.objects import Bandwidth, Rate
from tests.kernel.hands import links_gone, pods_links
from tests.kernel.rates import measured
from tests.kernel.rig import Rig, by_hand, sh

MBIT = 1_000_000
SLOW, FAST = Rate(20 * MBIT, 256_000), Rate(60 * MBIT, 256_000)
PATIENCE = 20.0
"""Seconds against hanging, never a measure."""
A, B = ("10.1.1.2", "fd01::2"), ("10.1.1.3", "fd01::3")


async def attached(rig: Rig, **rates: Rate) -> None:
    assert (await rig.start()).error is None
    assert (await rig.add("a", bandwidth=Bandwidth(**rates))).error is None
    assert (await rig.add("b")).error is None


@pytest.mark.parametrize("addresses", [("10.1.1.2", "10.1.1.3"), ("fd01::2", "fd01::3")], ids=["IPv4", "IPv6"])
async def test_each_direction_has_its_rate(rig: Rig, addresses: tuple[str, str]) -> None:
    await attached(rig, ingress=SLOW, egress=FAST)
    a, b = rig.space("a"), rig.space("b")
    assert 0.6 < measured(b, a, addresses[0]) / SLOW.rate < 1.2
    assert 0.6 < measured(a, b, addresses[1]) / FAST.rate < 1.2


async def test_without_rates_nothing_is_kept_back(rig: Rig) -> None:
    await attached(rig)
    assert measured(rig.space("b"), rig.space("a"), "10.1.1.2") > 3 * FAST.rate
    assert "tbf" not in sh("tc", "qdisc")


def shaped() -> list[str]:
    """What other tools see of it."""
    lines = [*sh("tc", "qdisc").splitlines(), *sh("ip", "-o", "link", "show", "type", "ifb").splitlines()]
    marks = ("tbf", "ingress", " pi")
    return sorted(line.split(" state ")[0] for line in lines if any(mark in line for mark in marks))


def shaped_link() -> str:
    return next(line.split()[4] for line in shaped() if "tbf" in line and " dev pw" in line)


async def test_a_restart_writes_nothing_others_hands_are_undone_and_a_del_leaves_nothing(rig: Rig) -> None:
    await attached(rig, ingress=SLOW, egress=FAST)
    held = shaped()
    assert len(held) == 4
    await rig.stop()
    assert (await rig.start()).error is None
    assert set(rig.writes().values()) == {0}
    link = shaped_link()
    device = link.replace("pw", "pi")
    for hand in (
        f"tc qdisc del dev {link} root",
        f"tc qdisc replace dev {link} root tbf rate 1gbit burst 1mb latency 10ms",
        f"tc qdisc del dev {link} ingress",
        f"tc filter del dev {link} ingress",
        f"tc qdisc del dev {device} root",
        f"ip link set {device} down",
        f"ip link del {device}",
        f"ip link del {link}",
    ):
        by_hand(hand)
        assert await rig.drift() != [], hand
        assert (await rig.resync()).error is None
        rig.running.linux.collect()
        assert (shaped(), await rig.drift()) == (held, []), hand
    assert (await rig.delete("a")).error is None
    rig.running.linux.collect()
    assert (shaped(), await rig.drift()) == ([], [])


HANDS = {
    "the bucket of what comes to the pod deleted": "tc qdisc del dev {link} root",
    "another in its place": "tc qdisc replace dev {link} root tbf rate 1gbit burst 1mb latency 10ms",
    "its rate changed": "tc qdisc replace dev {link} root handle 7077: tbf rate 1gbit burst 1mb latency 10ms",
    "the hook deleted": "tc qdisc del dev {link} ingress",
    "its filter deleted": "tc filter del dev {link} ingress",
    "one more filter": "tc filter add dev {link} ingress prio 2 u32 match u32 0 0 action mirred egress redirect dev lo",
    "the bucket of what comes from it deleted": "tc qdisc del dev {device} root",
    "its rate changed too": "tc qdisc replace dev {device} root handle 7077: tbf rate 1gbit burst 1mb latency 10ms",
}


@pytest.mark.parametrize("hand", HANDS.values(), ids=HANDS)
async def test_what_others_do_to_buckets_is_told_by_the_kernel_and_undone(rig: Rig, hand: str) -> None:
    """Without a verify, nor anybody who asks."""
    await attached(rig, ingress=SLOW, egress=FAST)
    held, controller, link = shaped(), rig.running.controller, shaped_link()
    rig.watch()
    by_hand(hand.format(link=link, device=link.replace("pw", "pi")))
    async with asyncio.timeout(PATIENCE):
        while not any(record.event.startswith("Disturbed") for record in controller.history):
            await controller.next_record()
    assert (shaped(), await rig.drift()) == (held, [])


async def test_our_own_work_on_buckets_disturbs_nothing(rig: Rig) -> None:
    await attached(rig, ingress=SLOW, egress=FAST)
    linux, controller = rig.running.linux, rig.running.controller
    assert (await rig.add("a", bandwidth=Bandwidth(FAST, SLOW))).error is None
    assert (await rig.add("b", bandwidth=Bandwidth(egress=SLOW))).error is None
    assert linux.changed(controller.snapshot.programmed["linux"]) == frozenset()
    assert (await rig.delete("a")).error is None
    linux.collect()
    assert linux.changed(controller.snapshot.programmed["linux"]) == frozenset()


async def test_another_s_bucket_on_a_pod_s_link_is_left_alone(rig: Rig) -> None:
    """As a chained plugin makes it."""
    assert (await rig.start()).error is None
    assert (await rig.add("a")).error is None
    rig.watch()
    (link,) = pods_links()
    by_hand(f"tc qdisc add dev {link} root handle 1: tbf rate 1gbit burst 1mb latency 10ms")
    assert rig.running.linux.changed(rig.running.controller.snapshot.programmed["linux"]) == frozenset()
    assert await rig.drift() == []
    assert (await rig.resync()).error is None
    assert f"qdisc tbf 1: dev {link} root" in sh("tc", "qdisc")


async def test_of_a_sandbox_that_is_gone_nothing_is_left(rig: Rig) -> None:
    await attached(rig, ingress=SLOW, egress=FAST)
    sh("ip", "netns", "del", rig.space("a").name)
    links_gone(rig, "a")
    for _ in range(2):
        await rig.resync()
    rig.running.linux.collect()
    assert (shaped(), rig.rows(), await rig.drift()) == ([], 1, [])


async def test_a_repeated_add_may_ask_for_other_rates(rig: Rig) -> None:
    await attached(rig, egress=SLOW)
    for rates in (Bandwidth(ingress=SLOW), Bandwidth(), Bandwidth(FAST, FAST), Bandwidth(egress=FAST)):
        assert (await rig.add("a", bandwidth=rates)).error is None
        assert await rig.drift() == []
    assert 0.6 < measured(rig.space("a"), rig.space("b"), "10.1.1.3") / FAST.rate < 1.2


async def test_after_the_stores_loss_rates_are_known_again_from_the_kernel(rig: Rig) -> None:
    await attached(rig, ingress=SLOW, egress=FAST)
    held = shaped()
    await rig.stop()
    for part in rig.directory.glob("podwire.db*"):
        part.unlink()
    assert (await rig.start()).error is None
    assert await rig.drift() == []
    assert [line.split(" burst ")[0] for line in shaped()] == [line.split(" burst ")[0] for line in held]
    assert (await rig.delete("a")).error is None
    rig.running.linux.collect()
    assert shaped() == []


async def test_half_a_gigabyte_of_burst_as_containerd_tells_it(rig: Rig) -> None:
    huge = 0xFFFF_FFFF
    await attached(rig, ingress=Rate(MBIT, huge), egress=Rate(10**15, huge))
    assert await rig.drift() == []
    assert len(shaped()) == 4
