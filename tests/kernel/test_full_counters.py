"""Sets of counters that are full: nobody's connection suffers, and once what is gone is forgotten all count again."""

import re

import pytest

from podwire.dataplane import netlink
from podwire.dataplane.nftables import counters, layout, wire
from podwire.dataplane.nftables.render import frontend_key
from podwire.model.addresses import IPV4, Address
from podwire.model.network import Frontend
from podwire.model.objects import Protocol
from tests.kernel.outside import connect
from tests.kernel.rig import Rig, sh
from tests.kernel.test_statistics import counts, datagram, datagrams, frontend, objects

LIMITS = {counters.CONNECTIONS: 512, counters.TRAFFIC: 1024}
DNS = frontend("10.96.0.11", 53, Protocol.UDP)


@pytest.fixture
async def at_work(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Rig:
    """With sets of counters of these sizes; pods `a`, the client, and `b`, the backend."""
    sets = layout._counters

    def smaller(where: str, kind: str) -> list[str]:
        made = zip(LIMITS, sets(where, kind), strict=True)
        return [re.sub(r"size \d+", f"size {LIMITS[name]}", line) for name, line in made]

    monkeypatch.setattr(layout, "_counters", smaller)
    connect(rig)
    await rig.start_with_pods("a", "b", objects=objects(), service_traffic=True)
    return rig


def filled(which: str) -> None:
    """With the counters of frontends that there are no more, up to the set's limit. None of them ever answered."""
    there = netlink.Socket(netlink.NETFILTER)
    direction = b"\0\0\0\0" if which == counters.TRAFFIC else b""
    gone = [Frontend(Address((0x0A640000 + n).to_bytes(4, "big")), Protocol.UDP, 53) for n in range(LIMITS[which])]
    keys = [frontend_key(it) + direction for it in gone]
    assert there.send(wire.batch(wire.messages(IPV4, which, [wire.element(key) for key in keys]))) == {}
    one_more = wire.messages(IPV4, which, [wire.element(frontend_key(DNS) + direction)])
    assert there.send(wire.batch(one_more)) != {}
    there.close()


@pytest.mark.parametrize("full", [(counters.TRAFFIC,), (counters.CONNECTIONS,), tuple(LIMITS)], ids=" and ".join)
async def test_what_is_gone_is_forgotten_and_what_comes_counted_again(at_work: Rig, full: tuple[str, ...]) -> None:
    for which in full:
        filled(which)
    assert datagrams(at_work.pods["a"], "10.96.0.11", 53, 1, 33) > 0
    seen = (await counts(at_work)).get(DNS, ())
    assert seen != datagram(1)
    for which in full:
        assert "10.100." not in sh("nft", "list", "set", "ip", "podwire", which)
    before = seen or (0,) * 5
    datagrams(at_work.pods["a"], "10.96.0.11", 53, 1, 33)
    assert (await counts(at_work))[DNS] == tuple(a + b for a, b in zip(before, datagram(1), strict=True))
    assert await at_work.drift() == []
