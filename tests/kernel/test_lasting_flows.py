"""UDP flows whose backend gets no new ones but serves on: a client that keeps its socket stays, until it ends."""

import pytest
from msgspec.structs import replace

from podwire.model.addresses import parse_address
from podwire.model.kinds import ObjectKey
from podwire.model.objects import BackendSlice, Hints, Protocol, SliceKey
from tests.kernel.rig import Rig, service
from tests.kernel.test_policy_flows import Clients

SLICE = SliceKey("default", "web-1")
A, B = ("10.1.1.2", "fd01::2"), ("10.1.1.3", "fd01::3")
CLUSTER_IPS = ("10.96.0.10", "fd00:96::a")


def web(**of_a: object) -> dict[ObjectKey, object]:
    """Backends A, of which that is said, and, ready, B."""
    made = dict(service("web", 10, A + B, Protocol.UDP))
    it = made[SLICE]
    assert isinstance(it, BackendSlice)
    ours = set(map(parse_address, A))
    made[SLICE] = replace(it, members=tuple(replace(m, **of_a) if m.address in ours else m for m in it.members))
    return {**made}


@pytest.mark.parametrize("to", CLUSTER_IPS, ids=["IPv4", "IPv6"])
@pytest.mark.parametrize("restarts", [False, True], ids=["one agent", "another agent meanwhile"])
async def test_a_flow_stays_with_a_backend_on_its_way_out_until_that_serves_no_more(
    rig: Rig, to: str, restarts: bool
) -> None:
    await rig.start_with_pods("a", "b", "c", objects=service("web", 10, A, Protocol.UDP))
    with Clients(to, rig.pods["c"], None) as clients:
        assert clients.who() == ["a"] * 2
        await rig.change(*web(ready=False, terminating=True).items())
        await rig.running.flows.until_quiet()
        with Clients(to, rig.pods["c"], None) as others:
            assert others.who() == ["b"] * 2
            assert clients.who() == ["a"] * 2
            if restarts:
                await rig.stop()
                await rig.start(web(ready=False, terminating=True))
                await rig.running.flows.until_quiet()
                assert clients.who() == ["a"] * 2
            await rig.change(*web(ready=False, serving=False, terminating=True).items())
            await rig.running.flows.until_quiet()
            assert (clients.who(), others.who()) == (["b"] * 2, ["b"] * 2)
    assert await rig.drift() == []


@pytest.mark.parametrize("to", CLUSTER_IPS, ids=["IPv4", "IPv6"])
async def test_a_flow_stays_with_a_backend_that_hints_leave_to_others(rig: Rig, to: str) -> None:
    await rig.start_with_pods("a", "b", "c", objects=service("web", 10, A, Protocol.UDP))
    with Clients(to, rig.pods["c"], None) as clients:
        assert clients.who() == ["a"] * 2
        of_a = web(hints=Hints(nodes=("two",)))[SLICE]
        assert isinstance(of_a, BackendSlice)
        of_b = tuple(m if m.hints.nodes else replace(m, hints=Hints(nodes=("one",))) for m in of_a.members)
        await rig.change((SLICE, replace(of_a, members=of_b)))
        await rig.running.flows.until_quiet()
        with Clients(to, rig.pods["c"], None) as others:
            assert others.who() == ["b"] * 2
        assert clients.who() == ["a"] * 2
        await rig.change((SLICE, replace(of_a, members=tuple(m for m in of_b if m.hints.nodes == ("one",)))))
        await rig.running.flows.until_quiet()
        assert clients.who() == ["b"] * 2
