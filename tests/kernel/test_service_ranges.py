"""Service ranges that come, go, grow and shrink: the kernel refuses overlaps, and no packet sees one in between."""

from itertools import pairwise

import pytest

from podwire.controller.difference import Change, difference, scope_of
from podwire.dataplane.nftables.driver import NFTables
from podwire.model.addresses import FAMILIES, parse_address, parse_prefix
from podwire.model.network import RulesKey, ServiceRangeKey
from podwire.model.objects import Protocol, Service, ServiceCIDR, ServiceCIDRKey, ServiceKey, ServicePort
from tests.kernel.rig import SERVICE_CIDRS, Rig, Space, ask, service, sh


@pytest.mark.parametrize(
    "way",
    [
        (["10.97.0.0/16", "fd97::/64"], ["10.96.0.0/15", "fd97::/48"], ["10.97.0.0/16", "fd97::/64"]),
        (["10.97.0.3/32", "10.97.0.4/32"], ["10.97.0.0/16"], ["10.97.0.3/32", "10.97.0.4/32"]),
        (["10.96.0.0/16", "10.97.0.0/16"], ["10.96.0.0/15"], ["10.97.0.0/24", "10.97.1.0/24"], []),
        (["0.0.0.0/0", "::/0"], ["255.0.0.0/8", "0.0.0.0/8", "ff00::/8"]),
    ],
    ids=["wider and back", "addresses and the range around them", "joined and split", "all there is"],
)
def test_one_batch_turns_ranges_into_others(node: Space, way: tuple[list[str], ...]) -> None:
    driver = NFTables()
    driver.apply({RulesKey(family): Change(None, True) for family in FAMILIES})
    for before, after in pairwise(([], *way)):
        old, new = (
            {ServiceRangeKey(prefix.first, prefix.last): True for prefix in map(parse_prefix, texts)}
            for texts in (before, after)
        )
        changes = difference(new, old, driver.place)
        assert [outcome.error for outcome in driver.apply(changes).values() if outcome.error] == []
        found = driver.read(scope_of((), everything=True))
        assert {key: value for key, value in found.items() if isinstance(key, ServiceRangeKey)} == new
    driver.close()


async def test_a_service_cidr_takes_the_addresses_within_and_gives_them_back(rig: Rig) -> None:
    far = Service((ServicePort("p", Protocol.TCP, 80),), (parse_address("10.123.0.9"),))
    await rig.start_with_pods("a", objects=service("far", 10, ("10.1.1.2",)) | {ServiceKey("default", "far"): far})
    more, pod = ServiceCIDRKey("more"), rig.pods["a"]

    async def looks(ranges: list[str], routed: bool, elsewhere: str) -> None:
        found = rig.running.nftables.read(scope_of((), everything=True))
        assert sorted(str(key) for key in found if isinstance(key, ServiceRangeKey) and len(key.first) == 4) == ranges
        assert ("10.123.0.0/16 dev lo" in sh("ip", "route")) == routed
        assert ask(pod, "10.123.0.9").startswith("a ")
        assert ask(pod, "10.123.0.10") == elsewhere
        assert await rig.drift() == []

    alone = ["service range 10.123.0.9", "service range 10.96.0.0 to 10.96.255.255"]
    around = ["service range 10.123.0.0 to 10.123.255.255", alone[1]]
    await looks(alone, False, "OSError")  # there is no route to a host
    assert (await rig.change((more, ServiceCIDR((parse_prefix("10.123.0.0/16"),))))).error is None
    await looks(around, True, "ConnectionRefusedError")
    assert (await rig.change((more, None))).error is None
    await looks(alone, False, "OSError")
    before = rig.writes()
    assert (await rig.change((more, ServiceCIDR(SERVICE_CIDRS)))).error is None
    assert rig.writes() == before | {"store": before["store"] + 1}  # the configuration has these already
