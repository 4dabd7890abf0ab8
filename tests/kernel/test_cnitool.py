"""The reference runtime of CNI executes the plugin against a real agent: cnitool, a new one and an old one.

Invariants: what cnitool accepts, libcni's users (container runtimes) accept: it decodes each answer in its version.
"""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from podwire.controller.mending import DELAYS
from tests.kernel.hands import await_links, pods_links
from tests.kernel.rig import MakeSpace, Space, ask, respond, sh
from tests.kernel.runtime import NETWORK, NEW, OLD, RESULTS, VERSIONS, Runtime, runtime_of
from tests.unit.shims import KINDS, NATIVE, PYTHON


@pytest.fixture(params=[(NEW, PYTHON), (NEW, NATIVE), (OLD, NATIVE)], ids="-".join)
def runtime(cnitool: None, node: Space, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Runtime]:
    """Each version of cnitool, and each of our plugins."""
    with runtime_of(*request.param, tmp_path) as it:
        yield it


@pytest.fixture(params=KINDS)
def new_runtime(cnitool: None, node: Space, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Runtime]:
    """That knows all verbs."""
    with runtime_of(NEW, request.param, tmp_path) as it:
        yield it


@pytest.fixture(params=KINDS)
def old_runtime(cnitool: None, node: Space, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Runtime]:
    with runtime_of(OLD, request.param, tmp_path) as it:
        yield it


@pytest.fixture
def pod(make_space: MakeSpace) -> Space:
    return make_space("pod")


def interfaces(space: Space | None = None) -> dict[str, Any]:
    """By name; `space` None: the node's."""
    command = ("ip", "-j", "addr") if space is None else ("ip", "-n", space.name, "-j", "addr")
    return {link["ifname"]: link for link in json.loads(sh(*command))}


@pytest.mark.parametrize("version", VERSIONS[:2])
def test_a_runtime_that_knows_no_list_of_versions_takes_the_one_that_is_given(
    old_runtime: Runtime, pod: Space, version: str
) -> None:
    runtime = old_runtime
    runtime.configure(cniVersion=version, cniVersions=VERSIONS)
    result = runtime.add(pod)
    assert (result["cniVersion"], [ip["address"] for ip in result["ips"]]) == (version, ["10.1.1.2/32", "fd01::2/128"])
    respond(pod, "web")
    assert ask(None, "10.1.1.2", 8080) == "web 10.1.1.1"
    runtime.good("check", pod)
    assert "10.1.1.2" in seen_before_it_is_mended(runtime, pod)
    assert runtime.agent.say("resync").returncode == 0
    for _ in range(2):
        runtime.good("del", pod)
    await_links(0)
    assert runtime.agent.say("verify").returncode == 0


def test_a_pod_with_two_interfaces(runtime: Runtime, pod: Space) -> None:
    """As it is delegated: the same sandbox, another name."""
    arguments = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0;K8S_POD_UID=1"
    results = {name: runtime.add(pod, arguments, name) for name in ("eth0", "net1")}
    respond(pod, "web")
    for result in results.values():
        for ip in result["ips"]:
            assert ask(None, ip["address"].partition("/")[0], 8080).startswith("web ")
    for name, result in results.items():
        runtime.good("check", pod, arguments, name)
        told = runtime.agent.say("interface", "shop/web-0", "--interface", name, "-o", "json")
        assert json.loads(told.stdout)["name"] == result["interfaces"][0]["name"]
    runtime.agent.stop(signal.SIGKILL)
    runtime.agent.start()
    told = runtime.agent.say("interface", "shop/web-0", "-o", "json")
    assert [it["interface"] for it in json.loads(told.stdout)["interfaces"]] == ["eth0", "net1"]
    runtime.good("del", pod, arguments, "eth0")
    assert ask(None, results["net1"]["ips"][0]["address"].partition("/")[0], 8080).startswith("web ")
    runtime.good("check", pod, arguments, "net1")
    runtime.good("del", pod, arguments, "net1")
    await_links(0)


ANOTHER = """#!{python}
import json, os, pathlib, sys
given = json.load(sys.stdin)
pathlib.Path(__file__).with_suffix("." + os.environ["CNI_COMMAND"]).write_text(json.dumps(given.get("runtimeConfig")))
print(json.dumps(given.get("prevResult", {{}})))
"""


@pytest.mark.parametrize("ours", [True, False], ids=["by podwire", "by the next plugin of a chain"])
def test_host_ports_are_mapped_by_whose_configuration_declares_them(runtime: Runtime, pod: Space, ours: bool) -> None:
    """In a chain with another plugin for them (portmap) ours isn't asked, so nothing is mapped twice."""
    another = runtime.plugin.with_name("another")
    another.write_text(ANOTHER.format(python=sys.executable))
    another.chmod(0o755)
    declared = {"capabilities": {"portMappings": True}}
    chain = [{"type": "podwire"} | (declared if ours else {}), {"type": "another"} | ({} if ours else declared)]
    runtime.configure(chain, cniVersion="1.0.0")
    mapping = {"hostPort": 8001, "containerPort": 8080, "protocol": "tcp", "hostIP": ""}
    runtime.asked = {"portMappings": [mapping]}
    runtime.add(pod)
    respond(pod, "web")
    told = json.loads(another.with_suffix(".ADD").read_text())
    assert told == (None if ours else runtime.asked)
    assert ask(None, "127.0.0.1", 8001) == ("web 10.1.1.1" if ours else "ConnectionRefusedError")
    runtime.good("check", pod)
    runtime.good("del", pod)
    assert "8001" not in sh("nft", "list", "map", "ip", "podwire", "host_ports")


def test_gc_without_a_list_collects_nothing(new_runtime: Runtime, pod: Space) -> None:
    """cnitool sends none. It has its own: of what it had attached, what is left in its cache."""
    runtime = new_runtime
    runtime.configure(cniVersion="1.1.0")
    runtime.add(pod)
    for left in RESULTS.glob(f"{NETWORK}-*"):
        left.unlink()
    runtime.good("gc", pod)
    assert len(pods_links()) == 1
    runtime.good("del", pod)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_pod_comes_answers_and_goes(runtime: Runtime, pod: Space, version: str) -> None:
    runtime.configure(cniVersion=version)
    if version == VERSIONS[-1] and runtime.version == OLD:  # it can't read an answer in a version that it doesn't know
        assert version in runtime.bad("add", pod)
        runtime.good("del", pod)
        await_links(0)
        return
    result = runtime.add(pod)
    assert result["cniVersion"] == version
    assert [ip["address"] for ip in result["ips"]] == ["10.1.1.2/32", "fd01::2/128"]

    host, inside = result["interfaces"]
    eth0 = interfaces(pod)["eth0"]
    assert (inside["name"], inside["mac"], inside["sandbox"]) == ("eth0", eth0["address"], pod.path)
    assert (host["mac"], pods_links()) == (interfaces()[host["name"]]["address"], [host["name"]])
    assert inside.get("mtu") == (eth0["mtu"] if version == "1.1.0" else None)

    respond(pod, "web")
    assert ask(None, "10.1.1.2", 8080) == "web 10.1.1.1"
    assert ask(None, "fd01::2", 8080) == "web fd01::1"
    runtime.good("check", pod)

    assert runtime.good("del", pod) == ""
    assert "10.1.1.2" not in sh("ip", "route")
    assert "fd01::2" not in sh("ip", "-6", "route")
    await_links(0)
    assert "eth0" not in interfaces(pod)
    assert runtime.agent.say("verify").returncode == 0
    runtime.good("del", pod)


def test_the_newest_of_the_versions_that_both_know_is_taken(new_runtime: Runtime, pod: Space) -> None:
    runtime = new_runtime
    runtime.configure(cniVersion="1.0.0", cniVersions=VERSIONS)
    assert runtime.add(pod)["cniVersion"] == "1.1.0"
    runtime.good("status", pod)
    runtime.good("del", pod)


def test_the_pod_is_known_by_its_name_in_kubernetes(runtime: Runtime, pod: Space) -> None:
    runtime.add(pod, "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0;K8S_POD_UID=1-2-3")
    told = runtime.agent.say("pods")
    assert (told.returncode, "shop" in told.stdout, "web-0" in told.stdout) == (0, True, True), told
    runtime.good("del", pod)


def seen_before_it_is_mended(runtime: Runtime, pod: Space) -> str:
    """What CHECK says while the pod's route is away.

    The agent mends what others take away; the more often in a row, the later: so CHECK comes first in the end.
    """
    for _ in DELAYS:
        if sh("ip", "route", "show", "10.1.1.2/32"):
            sh("ip", "route", "del", "10.1.1.2/32")
        done = runtime.run("check", pod)
        if done.returncode:
            return done.stdout + done.stderr
    raise AssertionError("mended each time before CHECK came")


def test_check_sees_what_someone_else_took_away(runtime: Runtime, pod: Space) -> None:
    runtime.add(pod)
    assert "route 10.1.1.2/32" in seen_before_it_is_mended(runtime, pod)
    assert runtime.agent.say("resync").returncode == 0
    runtime.good("check", pod)
    runtime.good("del", pod)


def others(space: Space) -> dict[str, Any]:
    """Of what is not ours in a pod's namespace: MAC, whether it is up, and addresses."""
    return {
        name: (link["address"], "UP" in link["flags"], link["addr_info"])
        for name, link in interfaces(space).items()
        if name != "lo"
    }


def test_an_interface_that_is_there_already_is_left_alone(runtime: Runtime, pod: Space) -> None:
    sh("ip", "-n", pod.name, "link", "add", "eth0", "type", "veth", "peer", "name", "other")
    before = others(pod)
    runtime.bad("add", pod)
    assert others(pod) == before
    assert pods_links() == []
    runtime.good("del", pod)
    assert others(pod) == before


def test_a_pod_gets_on_with_what_the_kernel_puts_into_each_namespace(runtime: Runtime, pod: Space) -> None:
    """Where the module is loaded, tunl0 or sit0 is born with a namespace, and has index 2."""
    sh("ip", "-n", pod.name, "link", "add", "tunl0", "type", "veth", "peer", "name", "sit0")
    before = others(pod)
    runtime.add(pod)
    assert interfaces(pod).keys() == {"lo", "tunl0", "sit0", "eth0"}
    runtime.good("del", pod)
    await_links(0)
    assert others(pod) == before


def test_a_namespace_that_does_not_exist(runtime: Runtime) -> None:
    nowhere = Space(f"pwt{os.getpid()}-nowhere")
    assert "CNI_NETNS: " in runtime.bad("add", nowhere)
    runtime.good("del", nowhere)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_del_without_an_agent_is_carried_out_by_the_next(
    runtime: Runtime, make_space: MakeSpace, pod: Space, number: signal.Signals
) -> None:
    other = make_space("other")
    runtime.add(pod)
    runtime.add(other)
    assert len(pods_links()) == 2
    runtime.agent.stop(number)

    assert "try again later" in runtime.bad("add", make_space("third"))
    runtime.good_status(pod)
    runtime.good("del", pod)
    assert len(pods_links()) == 2
    assert len(list(runtime.agent.spool.iterdir())) == 1

    runtime.agent.start()
    assert list(runtime.agent.spool.iterdir()) == []
    await_links(1)
    assert "eth0" not in interfaces(pod)
    assert "eth0" in interfaces(other)
    runtime.good("check", other)
    runtime.good("del", other)
    await_links(0)
    assert runtime.agent.say("verify").returncode == 0


def test_an_agent_that_hangs_gets_its_dels_from_the_spool(runtime: Runtime, pod: Space) -> None:
    with (runtime.plugin.parent / "podwire.conf").open("a") as settings:
        settings.write("del_seconds=0.5\nstatus_seconds=0.5\n")
    runtime.add(pod)
    runtime.agent.signal(signal.SIGSTOP)
    runtime.good_status(pod)  # it was ready since the boot
    runtime.good("del", pod)
    runtime.agent.signal(signal.SIGCONT)
    assert len(list(runtime.agent.spool.iterdir())) == 1
    again = runtime.add(pod)  # the same container: its old DEL must not come after this
    assert list(runtime.agent.spool.iterdir()) == []
    assert pods_links() == [again["interfaces"][0]["name"]]
    runtime.good("check", pod)
    runtime.good("del", pod)
