"""CNI's verbs against a node at work: GC leaves nothing behind, and STATUS never waits for a transaction."""

import asyncio
import json
import threading
from typing import Any

import pytest

from podwire.cni.cni_pb2 import CniReply, CniRequest
from podwire.controller.difference import Scope
from podwire.controller.events import Resync, ResyncReason
from podwire.pods.wiring import NODE_MAC
from podwire.sources import cni_server
from podwire.sources.ipam_leases import Leases
from tests.bench.late import listed
from tests.kernel.rig import Rig, Space, ask, dump, respond, service, sh

OBJECTS = service("web", 10, ("10.1.1.2", "fd01::2"))
LIST = "cni.dev/valid-attachments"


class Runtime:
    def __init__(self, rig: Rig) -> None:
        self.rig = rig

    async def start(self, **objects: Any) -> None:
        assert (await self.rig.start(**objects)).error is None
        running = self.rig.running.controller
        self.cni = cni_server.calls(running, self.rig.directory / "spool", Leases(self.rig.directory / "leases"))

    async def call(self, verb: str, space: Space | None = None, interface: str = "eth0", **config: Any) -> Any:
        """What is answered; the sandbox is called as its namespace."""
        environment = [f"CNI_COMMAND={verb}"]
        if space is not None:
            pod = f"K8S_POD_NAMESPACE=default;K8S_POD_NAME={space.name};K8S_POD_UID={space.name}"
            names = {"CONTAINERID": space.name, "NETNS": space.path, "IFNAME": interface, "ARGS": pod}
            environment += [f"CNI_{name}={value}" for name, value in names.items()]
        stdin = json.dumps({"cniVersion": "1.1.0", "name": "podwire", **config}).encode()
        body = CniRequest(environment=environment, stdin=stdin).SerializeToString()
        reply: CniReply = await cni_server.answer(self.cni, body)
        return json.loads(reply.stdout) if reply.stdout else None


@pytest.fixture
async def runtime(rig: Rig) -> Runtime:
    return Runtime(rig)


def valid(*spaces: Space) -> list[dict[str, str]]:
    return [{"containerID": space.name, "ifname": "eth0"} for space in spaces]


def leave_a_link() -> None:
    """Of ours by its marks, and nobody's."""
    mac = NODE_MAC.hex(":")
    sh("ip", "link", "add", "pw0123456789ab", "address", mac, "type", "veth", "peer", "name", "nobodys")


async def test_gc_leaves_what_is_listed_and_nothing_else(runtime: Runtime) -> None:
    """Pods, links without a pod, and a pod whose namespace is gone; of another network nothing."""
    rig = runtime.rig
    await runtime.start(objects=OBJECTS)
    kept, other = rig.space("kept"), rig.space("other")
    assert "ips" in await runtime.call("ADD", kept)
    assert "ips" in await runtime.call("ADD", other, name="other")
    respond(kept, "web")
    clean = dump()
    lost, dead = rig.space("lost"), rig.space("dead")
    for space in (lost, dead):
        assert "ips" in await runtime.call("ADD", space)
    leave_a_link()
    sh("ip", "netns", "del", dead.name)
    assert await runtime.call("GC") is None
    assert "pw0123456789ab" in sh("ip", "link")
    assert await runtime.call("GC", **{LIST: valid(kept, lost)}) is None
    rig.running.linux.collect()
    assert "nobodys" not in sh("ip", "link")
    assert await runtime.call("GC", **{LIST: valid(kept)}) is None
    rig.running.linux.collect()
    assert dump() == clean
    assert rig.rows() == 2
    assert ask(other, "10.96.0.10") == "web 10.1.1.3"
    assert await rig.drift() == []
    assert await runtime.call("GC", name="other", **{LIST: None}) is None
    assert rig.rows() == 1


async def test_status_is_answered_while_a_resync_of_ten_thousand_services_goes_on(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks the snapshot alone, on a loop that a resync leaves free: what is read is read in a thread."""
    await runtime.start(objects=listed(10_000))
    begun, goes_on = threading.Event(), threading.Event()
    read = runtime.rig.running.nftables.read

    def slowly(scope: Scope) -> dict[Any, Any]:
        found = read(scope)
        begun.set()
        goes_on.wait()
        return found

    monkeypatch.setattr(runtime.rig.running.nftables, "read", slowly)
    resync = runtime.rig.running.controller.submit(Resync(ResyncReason.ON_DEMAND))
    assert await asyncio.to_thread(begun.wait, 60)
    adding = asyncio.create_task(runtime.call("ADD", runtime.rig.space("new")))
    for _ in range(3):
        assert await runtime.call("STATUS") is None
        assert await runtime.call("VERSION") is not None
    assert not resync.done()
    assert not adding.done()  # it has to wait for the transaction
    goes_on.set()
    assert (await resync).error is None
    assert "ips" in await adding


async def test_status_is_answered_while_a_resync_applies(runtime: Runtime) -> None:
    """In slices: the loop turns in between."""
    await runtime.start(objects=listed(10_000))
    sh("nft", "flush", "map", "ip", "podwire", "svc")
    resync = runtime.rig.running.controller.submit(Resync(ResyncReason.ON_DEMAND))
    answered = 0
    while not resync.done():
        assert await runtime.call("STATUS") is None
        answered += 1
        await asyncio.sleep(0)
    assert answered > 10
    assert (await resync).error is None
