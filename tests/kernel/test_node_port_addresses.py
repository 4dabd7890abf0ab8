"""Node ports at the addresses of the node's interfaces, by packets; and addresses that come and go."""

import pytest
from msgspec.structs import replace

from podwire.model.addresses import parse_address, parse_prefix
from podwire.model.objects import Protocol, Service, ServiceKey, ServicePort
from podwire.services.frontends import node_port_addresses
from tests.kernel.outside import NODES, Outside, connect, members
from tests.kernel.rig import Rig, ask, by_hand

WEB = ServiceKey("default", "web")
SERVICE = Service(
    (ServicePort("p", Protocol.TCP, 80, node_port=30080),), tuple(map(parse_address, ("10.96.0.10", "fd00:96::a")))
)
RANGES = tuple(map(parse_prefix, ("192.0.2.0/24", "198.51.100.0/24", "fd99::/64", "fd77::/64")))
REFUSED = "ConnectionRefusedError"


async def start(rig: Rig) -> Outside:
    outside = connect(rig)
    objects = NODES | {WEB: SERVICE} | members("web", "10.1.1.2", "fd01::2")
    by_hand("ip addr add 203.0.113.1/32 dev lo; ip addr add fd66::1/128 dev lo")
    await rig.start_with_pods("a", objects=objects, node_ports=RANGES)
    rig.watch()
    assert await rig.drift() == []
    return outside


async def told(rig: Rig, command: str) -> None:
    """Changes addresses by hand, and waits until that has been followed."""
    controller = rig.running.controller
    before = controller.snapshot.local.addresses
    by_hand(command)
    while controller.snapshot.local.addresses == before:
        await controller.next_record()
    assert await rig.drift() == []


@pytest.mark.parametrize(
    ("first", "second", "length", "client"),
    [("192.0.2.1", "198.51.100.7", 32, "192.0.2.9"), ("fd99::1", "fd77::7", 128, "fd99::9")],
    ids=["IPv4", "IPv6"],
)
async def test_node_ports_follow_the_addresses_of_the_node(
    rig: Rig, first: str, second: str, length: int, client: str
) -> None:
    outside = await start(rig)
    assert ask(outside.client, first, 30080) == f"a {client}"
    await told(rig, f"ip addr add {second}/{length} dev br0 {'nodad' if length == 128 else ''}")
    for _ in range(2):
        assert ask(outside.client, second, 30080) == f"a {client}"
        assert ask(outside.client, first, 30080) == f"a {client}"
        assert ask(None, second, 30080).startswith("a ")
        assert ask(rig.pods["a"], second, 30080).startswith("a ")
        before = rig.writes()
        await rig.resync()
        assert rig.writes() == before
    await told(rig, f"ip addr del {second}/{length} dev br0")
    assert ask(outside.client, first, 30080) == f"a {client}"
    assert not any(str(key).startswith(second) for key in rig.running.controller.snapshot.programmed["nftables"])


async def test_addresses_beyond_the_ranges_and_our_own_have_no_node_ports(rig: Rig) -> None:
    outside = await start(rig)
    for address in ("203.0.113.1", "fd66::1", "10.1.1.1", "fd01::1"):
        assert ask(outside.client, address, 30080) == REFUSED
    assert ask(None, "127.0.0.1", 30080) == REFUSED


async def test_of_two_services_at_one_place_the_older_has_it_wherever_the_address_came_from(rig: Rig) -> None:
    """One has the port as its node port, the other names the address that comes."""
    await start(rig)
    late = ServiceKey("default", "late")
    external = (parse_address("198.51.100.7"),)
    one = ServicePort("p", Protocol.TCP, 30080)
    other = Service((one,), (parse_address("10.96.0.11"),), external, created="2026-01-01T00:00:00Z")
    await rig.change((late, other), (WEB, replace(SERVICE, created="2025-01-01T00:00:00Z")))
    assert ask(None, "198.51.100.7", 30080) == REFUSED
    await told(rig, "ip addr add 198.51.100.7/32 dev br0")
    assert ask(None, "198.51.100.7", 30080).startswith("a ")
    await told(rig, "ip addr del 198.51.100.7/32 dev br0")
    assert ask(None, "198.51.100.7", 30080) == REFUSED


async def test_what_a_start_finds_is_what_there_is(rig: Rig) -> None:
    """Addresses that changed while no agent was there."""
    outside = await start(rig)
    await rig.stop()
    by_hand("ip addr add 198.51.100.7/32 dev br0; ip addr add 198.51.100.8/32 dev br0")
    objects = NODES | {WEB: SERVICE} | members("web", "10.1.1.2", "fd01::2")
    assert (await rig.start(objects, node_ports=RANGES)).error is None
    assert ask(outside.client, "198.51.100.8", 30080) == "a 192.0.2.9"
    assert await rig.drift() == []
    wanted = tuple(map(parse_address, ("192.0.2.1", "198.51.100.7", "198.51.100.8", "fd99::1")))
    assert node_port_addresses(rig.running.controller.snapshot) == wanted
