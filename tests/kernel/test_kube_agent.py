"""A whole agent whose objects come from an API server: its start without one, a lost one, and what it tells of that."""

import socket
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from msgspec import structs

from podwire import agent as agent_module
from podwire.agent import Agent, running
from podwire.cni import mark
from podwire.cni.errors import ErrorCode
from podwire.config import Config, Kubernetes
from podwire.controller.events import AddPod, DeletePod, Refusal
from podwire.controller.history import Record
from podwire.controller.transaction import Result
from podwire.model.addresses import parse_address, parse_prefix
from podwire.model.objects import AttachmentKey, PodKey
from podwire.preflight import CannotStart
from podwire.sources.cni_server import status
from tests.kernel.rig import MakeSpace, Space, ask, identity, respond, sh
from tests.unit.kube_fake import FakeApi, namespace, node, service, service_cidr, slice_

KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
contexts: [{name: c, context: {cluster: c}}]
current-context: c
"""


def cluster() -> FakeApi:
    """One Service with one backend, the pod that will be attached first."""
    fake = FakeApi()
    fake.put("nodes", node("one", "10.1.1.0/24"))
    fake.put("services", service("web", "10.96.0.10"))
    fake.put("endpointslices", slice_("web-1", "web", "10.1.1.2"))
    fake.put("servicecidrs", service_cidr("kubernetes", "10.96.0.0/16"))
    return fake


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class Place:
    """A node's namespace with its loopback up, and an agent's configuration in it."""

    def __init__(self, directory: Path, make_space: MakeSpace) -> None:
        sh("ip", "link", "set", "lo", "up")
        self.make_space, self.port = make_space, free_port()
        (directory / "kubeconfig").write_text(KUBECONFIG)
        kubernetes = Kubernetes(directory / "kubeconfig", None, (f"http://127.0.0.1:{self.port}",), True)
        self.config = Config("one", directory / "state", kubernetes=kubernetes, mtu=1500)

    async def add(self, agent: Agent, name: str, space: Space) -> Result:
        key = AttachmentKey(f"sandbox-{name}", "eth0")
        return await agent.controller.submit(AddPod(key, PodKey("default", name), space.path, *identity(space.path)))


@pytest.fixture
def place(node: Space, make_space: MakeSpace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(agent_module, "LISTING_SECONDS", 0.3)
    return Place(tmp_path, make_space)


async def ended(agent: Agent, event: str) -> Record:
    """The first record of such an event."""
    history = agent.controller.history
    while (found := next((record for record in history if record.event.startswith(event)), None)) is None:
        await agent.controller.next_record()
    return found


def writes(agent: Agent) -> int:
    return sum(driver.writes for driver in agent.drivers)


async def test_a_start_without_the_api_keeps_what_is_there_and_its_return_writes_nothing(place: Place) -> None:
    fake, pod, late = cluster(), place.make_space("a"), place.make_space("b")
    respond(pod, "a")
    async with fake.served(place.port), running(place.config) as agent:
        await agent.until_ready()
        assert (await place.add(agent, "a", pod)).error is None
        assert ask(pod, "10.96.0.10").startswith("a ")
        assert ask(pod, "10.96.0.11") == "ConnectionRefusedError"  # by the ServiceCIDR

    async with running(place.config) as agent:
        assert ask(pod, "10.96.0.10").startswith("a ")
        assert writes(agent) == 0
        reason = agent.not_ready() or ""
        assert reason.startswith("Kubernetes API not yet listed; Kubernetes API: http://127.0.0.1:")
        assert agent.facts().source_errors[0] in reason
        assert agent.controller.unsynced == frozenset()
        async with fake.served(place.port):
            await ended(agent, "Resync source reconnected")
            await agent.until_ready()
            assert writes(agent) == 0
            assert agent.facts().source_errors == ()
            assert (await place.add(agent, "b", late)).error is None
            assert ask(late, "10.96.0.10").startswith("a ")
            assert await agent.controller.verify() == {}


async def test_pods_come_and_go_while_no_api_answers(place: Place) -> None:
    """A start remembers its node's blocks, its MTU and the service ranges; what the API says later wins."""
    fake, pods = cluster(), {name: place.make_space(name) for name in "abc"}
    respond(pods["a"], "a")
    first = structs.replace(place.config, mtu=1400)
    async with fake.served(place.port), running(first) as agent:
        await agent.until_ready()
        assert (await place.add(agent, "a", pods["a"])).error is None
    async with running(structs.replace(first, mtu=None)) as agent:  # there is no default route to tell it
        assert agent.controller.snapshot.pod_mtu == 1400
        assert status(agent.controller) is None
        assert agent.not_ready() is not None  # for a rollout: the cluster is not followed
        assert (await place.add(agent, "b", pods["b"])).error is None
        assert ask(pods["b"], "10.96.0.10").startswith("a ")
        assert ask(pods["b"], "10.96.0.11") == "ConnectionRefusedError"
        deleted = await agent.controller.submit(DeletePod(AttachmentKey("sandbox-a", "eth0")))
        assert deleted.error is None
        assert await agent.controller.verify() == {}
        fake.put("nodes", node("one", "10.1.9.0/24"))
        async with fake.served(place.port):
            await ended(agent, "Resync source reconnected")
            await agent.until_ready()
            assert (await place.add(agent, "c", pods["c"])).error is None
            held = agent.controller.snapshot.attachments[AttachmentKey("sandbox-c", "eth0")]
            assert held.addresses == (parse_address("10.1.9.2"),)
            assert await agent.controller.verify() == {}
    async with running(first) as agent:
        assert agent.controller.snapshot.node.pod_cidrs == (parse_prefix("10.1.9.0/24"),)
        assert writes(agent) == 0


async def test_a_first_start_without_an_api_knows_nothing(place: Place) -> None:
    async with running(place.config) as agent:
        why = status(agent.controller)
        assert why is not None
        assert (why.code, why.text) == (ErrorCode.NOT_AVAILABLE, "node one has no spec.podCIDRs yet")
        refused = await place.add(agent, "a", place.make_space("a"))
        assert (refused.error, refused.refusal) == (why.text, Refusal.NOT_READY)
        assert not place.config.ready_mark.exists()
        async with cluster().served(place.port):
            await ended(agent, "Resync source reconnected")
        # The last event woke whoever leaves the mark, before this.
        assert place.config.ready_mark.read_bytes() == mark.present(place.config.boot_id)


async def test_what_went_while_the_api_was_away_is_swept_once_all_is_listed(place: Place) -> None:
    fake, pod = cluster(), place.make_space("a")
    respond(pod, "a")
    async with fake.served(place.port), running(place.config) as agent:
        await agent.until_ready()
        assert (await place.add(agent, "a", pod)).error is None
    fake.remove("services", ("default", "web"))
    async with running(place.config) as agent:
        assert ask(pod, "10.96.0.10").startswith("a ")
        gone = await agent.controller.submit(DeletePod(AttachmentKey("sandbox-a", "eth0")))  # a pod may go meanwhile
        assert gone.error is None
        async with fake.served(place.port):
            await ended(agent, "Resync source reconnected")
            for kind, name in (("map", "svc"), ("map", "eps"), ("set", "refused")):  # what was counted is kept a while
                assert "10.96.0.10" not in sh("nft", "list", kind, "ip", "podwire", name)
            assert await agent.controller.verify() == {}


async def test_a_lost_api_changes_nothing_and_its_return_only_what_differs(place: Place) -> None:
    fake, pod = cluster(), place.make_space("a")
    respond(pod, "a")
    async with AsyncExitStack() as rest:
        async with fake.served(place.port):
            agent = await rest.enter_async_context(running(place.config))
            await agent.until_ready()
            assert (await place.add(agent, "a", pod)).error is None
            await fake.all_watched()
        assert ask(pod, "10.96.0.10").startswith("a ")
        assert agent.not_ready() is None
        before = writes(agent), len(agent.controller.history)
        async with fake.served(place.port):
            await fake.all_watched()
            fake.put("namespaces", namespace("sign"))
            await ended(agent, "KubeStateChange namespace/sign")
            assert (writes(agent), len(agent.controller.history)) == (before[0], before[1] + 1)


async def test_the_node_s_condition_is_set_once_pods_can_be_attached(place: Place) -> None:
    fake = FakeApi()
    async with fake.served(place.port), running(place.config) as agent:
        await fake.all_watched()
        assert agent.not_ready() == "node one has no spec.podCIDRs yet"
        assert fake.conditions == []
        fake.put("nodes", node("one", "10.1.1.0/24"))
        await fake.until(lambda: bool(fake.conditions))
        assert agent.not_ready() is None
        assert (fake.conditions[0]["type"], fake.conditions[0]["status"]) == ("NetworkUnavailable", "False")


async def test_a_configuration_that_can_not_be_is_said_at_once(place: Place) -> None:
    assert place.config.kubernetes is not None
    assert place.config.kubernetes.kubeconfig is not None
    place.config.kubernetes.kubeconfig.write_text(KUBECONFIG.replace("current-context: c", "current-context: d"))
    with pytest.raises(CannotStart, match=r"kubeconfig: document 1, line \d+: current-context: expected one of 'c'"):
        async with running(place.config):
            pass
