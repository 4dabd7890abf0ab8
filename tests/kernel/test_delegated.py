"""Addresses that others decide: IPAM plugins as they are in use (host-local, static), and what a runtime asks for.

Invariants: cnitool executes both of our plugins, these find the real IPAM plugins beside them, and the agent is a
process of its own. The node's ranges are 10.1.1.0/24 and fd01::/64.
"""

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from podwire.cni.install import CAPABILITIES
from tests.cluster.parts import programs
from tests.kernel.hands import await_links
from tests.kernel.process import until
from tests.kernel.rig import MakeSpace, Space, ask, respond, sh
from tests.kernel.runtime import NEW, Runtime, runtime_of
from tests.kernel.test_cnitool import interfaces
from tests.kernel.test_cnitool import pod as pod
from tests.unit.shims import KINDS

MAC = "02:00:5e:00:00:0a"
HERE = [[{"subnet": "10.1.1.0/24", "rangeStart": "10.1.1.100", "rangeEnd": "10.1.1.101"}], [{"subnet": "fd01::/64"}]]
"""Ranges in those of the node."""


@pytest.fixture(params=KINDS)
def runtime(cnitool: None, node: Space, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Runtime]:
    with runtime_of(NEW, request.param, tmp_path) as it:
        yield it


@pytest.fixture
def plugins(runtime: Runtime) -> Runtime:
    for name in ("host-local", "static"):
        built = programs.path(name)
        if not built.exists():
            pytest.skip(f"{name} is not built (make cluster-build)")
        (runtime.plugin.parent / name).symlink_to(built)
    return runtime


def host_local(runtime: Runtime, **more: Any) -> dict[str, Any]:
    ipam = {"type": "host-local", "ranges": HERE, "dataDir": str(runtime.directory / "data")}
    plugin = {"type": "podwire", "ipam": ipam | more}
    runtime.configure([plugin], cniVersion="1.1.0")
    return plugin


def data(runtime: Runtime) -> list[str]:
    """The addresses that host-local holds to be in use."""
    found = (runtime.directory / "data").rglob("*")
    return sorted(it.name for it in found if it.is_file() and it.name != "lock" and not it.name.startswith("last_"))


def leases(runtime: Runtime) -> list[Path]:
    return sorted((runtime.agent.state / "leases").glob("*.lease"))


def addresses(result: Any) -> list[str]:
    return [ip["address"] for ip in result["ips"]]


@pytest.mark.parametrize("version", ["0.4.0", "1.0.0", "1.1.0"])
def test_host_local_gives_addresses_and_has_them_back(plugins: Runtime, pod: Space, version: str) -> None:
    plugins.configure([host_local(plugins, routes=[{"dst": "0.0.0.0/0"}, {"dst": "::/0"}])], cniVersion=version)
    result = plugins.add(pod)
    assert addresses(result) == ["10.1.1.100/32", "fd01::2/128"]
    assert [route["gw"] for route in result["routes"]] == ["169.254.1.1", "fe80::1"]
    respond(pod, "web")
    assert ask(None, "10.1.1.100", 8080) == "web 10.1.1.1"
    assert ask(None, "fd01::2", 8080) == "web fd01::1"
    plugins.good("check", pod)
    assert plugins.agent.say("verify").returncode == 0
    assert len(data(plugins)) == 2
    for _ in range(2):
        plugins.good("del", pod)
    assert (data(plugins), leases(plugins)) == ([], [])
    await_links(0)


def test_host_local_is_asked_for_status_and_gc(plugins: Runtime, pod: Space, make_space: MakeSpace) -> None:
    host_local(plugins)
    plugins.good("status", pod)
    plugins.add(pod)
    assert "no IP addresses available in range set" in full(plugins, make_space)
    plugins.good("check", pod)
    plugins.good("del", pod)


def full(runtime: Runtime, make_space: MakeSpace) -> str:
    """What the third pod of two addresses is told; it has left nothing."""
    runtime.add(make_space("second"))
    before = data(runtime)
    third = make_space("third")
    said = runtime.bad("add", third)
    assert (data(runtime), len(leases(runtime))) == (before, 2)
    return said


def test_many_at_a_time_have_addresses_of_their_own_and_nothing_is_left(
    plugins: Runtime, make_space: MakeSpace
) -> None:
    """Though half of their DELs come while the other half is being added."""
    host_local(plugins, ranges=[[{"subnet": "10.1.1.0/24", "rangeStart": "10.1.1.100"}]])
    pods = [make_space("pod") for _ in range(16)]
    with ThreadPoolExecutor(8) as callers:
        given = [address for result in callers.map(plugins.add, pods[:8]) for address in addresses(result)]
        gone = [callers.submit(plugins.good, "del", pod) for pod in pods[:8]]
        given += [address for result in callers.map(plugins.add, pods[8:]) for address in addresses(result)]
        assert [each.result() for each in gone] == [""] * 8
    assert len(set(given)) == 16
    assert data(plugins) == sorted(address.removesuffix("/32") for address in given[8:])
    with ThreadPoolExecutor(8) as callers:
        assert list(callers.map(lambda pod: plugins.good("del", pod), pods[8:])) == [""] * 8
    assert (data(plugins), leases(plugins)) == ([], [])
    await_links(0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_pod_and_its_lease_outlive_the_agent_and_a_spooled_del_reaches_the_plugin(
    plugins: Runtime,
    pod: Space,
    number: signal.Signals,
) -> None:
    host_local(plugins)
    plugins.add(pod)
    respond(pod, "web")
    plugins.agent.stop(number)
    plugins.agent.start()
    assert ask(None, "10.1.1.100", 8080) == "web 10.1.1.1"
    plugins.good("check", pod)
    plugins.agent.stop(number)
    plugins.good("del", pod)
    assert len(data(plugins)) == 2
    plugins.agent.start()
    until(lambda: (data(plugins), leases(plugins)) == ([], []))
    await_links(0)


LATE = """#!/bin/sh
{real}
echo $$ >{directory}/giving
mv {directory}/giving {directory}/given
exec sleep 1000
"""


def test_killed_between_the_plugins_answer_and_the_store_the_next_agent_gives_back(
    plugins: Runtime,
    pod: Space,
) -> None:
    """Though no DEL ever comes."""
    host_local(plugins)
    real = plugins.plugin.parent / "host-local"
    target = real.resolve()
    real.unlink()
    real.write_text(LATE.format(real=target, directory=plugins.directory))
    real.chmod(0o755)
    adding = threading.Thread(target=lambda: plugins.bad("add", pod))
    adding.start()
    until((plugins.directory / "given").exists)
    plugins.agent.stop(signal.SIGKILL)
    adding.join()
    assert (len(data(plugins)), len(leases(plugins))) == (2, 1)
    os.killpg(int((plugins.directory / "given").read_text()), signal.SIGKILL)  # a plugin is a group of its own
    real.unlink()
    real.symlink_to(target)
    plugins.agent.start()
    until(lambda: (data(plugins), leases(plugins)) == ([], []))


@pytest.mark.parametrize("power", [True, False], ids=["alone", "with the agent, as by a loss of power"])
def test_a_namespace_that_goes_without_a_del_frees_its_address(
    plugins: Runtime, make_space: MakeSpace, power: bool
) -> None:
    """host-local alone would hold it for ever."""
    host_local(plugins)
    gone = make_space("gone")
    plugins.add(gone)
    if not power:
        plugins.agent.stop(signal.SIGKILL)
    sh("ip", "netns", "del", gone.name)
    await_links(0)
    if power:
        assert plugins.agent.say("resync").returncode == 0
    else:
        plugins.agent.start()
    until(lambda: (data(plugins), leases(plugins)) == ([], []))


def test_a_hanging_plugin_holds_up_nobody(plugins: Runtime, pod: Space, make_space: MakeSpace) -> None:
    hanging = plugins.plugin.with_name("hanging")
    hanging.write_text(f"#!/bin/sh\necho $$ >{hanging}.$CNI_COMMAND\n[ $CNI_COMMAND = DEL ] || exec sleep 1000\n")
    hanging.chmod(0o755)
    plugins.configure([{"type": "podwire", "ipam": {"type": "hanging"}}], cniVersion="1.1.0")
    assert "STATUS did not end within 1.5 s" in plugins.bad("status", pod)
    said: list[str] = []
    adding = threading.Thread(target=lambda: said.append(plugins.bad("add", pod)))
    adding.start()
    until(lambda: Path(f"{hanging}.ADD").exists() and Path(f"{hanging}.ADD").read_text())
    plugins.configure(cniVersion="1.0.0")
    other = make_space("other")
    assert addresses(plugins.add(other)) == ["10.1.1.2/32", "fd01::2/128"]
    plugins.good("del", other)
    assert adding.is_alive()
    os.kill(int(Path(f"{hanging}.ADD").read_text()), signal.SIGKILL)
    adding.join()
    assert "IPAM plugin hanging: was ended by signal 9 and printed nothing" in said[0]
    assert Path(f"{hanging}.DEL").exists()
    assert leases(plugins) == []


def test_addresses_beyond_the_nodes_ranges_reach_what_is_on_the_node(
    plugins: Runtime,
    pod: Space,
    make_space: MakeSpace,
) -> None:
    other = make_space("other")
    plugins.configure(cniVersion="1.1.0")
    plugins.add(other)
    respond(other, "other")
    ipam = {"type": "static", "addresses": [{"address": "10.9.9.9/24"}, {"address": "fd09::9/64"}]}
    plugins.configure([{"type": "podwire", "ipam": ipam}], cniVersion="1.1.0")
    assert addresses(plugins.add(pod)) == ["10.9.9.9/32", "fd09::9/128"]
    respond(pod, "web")
    assert ask(pod, "10.1.1.2", 8080) == "other 10.9.9.9"
    assert ask(pod, "fd01::2", 8080) == "other fd09::9"
    assert ask(other, "10.9.9.9", 8080) == "web 10.1.1.2"
    plugins.good("check", pod)
    assert plugins.agent.say("verify").returncode == 0
    assert "10.9.9.9 is given to pod" in plugins.bad("add", make_space("third"))
    plugins.good("del", pod)


# --- what a runtime asks of us -----------------------------------------------------------------


def asking(runtime: Runtime, **asked: Any) -> None:
    runtime.configure([{"type": "podwire", "capabilities": dict.fromkeys(CAPABILITIES, True)}], cniVersion="1.1.0")
    runtime.asked = asked


def test_addresses_and_a_mac_address_that_a_runtime_asks_for(
    runtime: Runtime,
    pod: Space,
    make_space: MakeSpace,
) -> None:
    asking(runtime, ips=["10.1.1.77/24", "fd01::77"], mac=MAC)
    result = runtime.add(pod)
    assert addresses(result) == ["10.1.1.77/32", "fd01::77/128"]
    assert result["interfaces"][1]["mac"] == MAC == interfaces(pod)["eth0"]["address"]
    assert runtime.add(pod) == result
    respond(pod, "web")

    def works() -> None:
        assert ask(None, "10.1.1.77", 8080) == "web 10.1.1.1"
        assert ask(None, "fd01::77", 8080) == "web fd01::1"
        runtime.good("check", pod)
        assert runtime.agent.say("verify").returncode == 0

    works()
    assert [it["scope"] for it in interfaces(pod)["eth0"]["addr_info"]] == ["global", "global"]
    second = make_space("second")
    said = runtime.bad("add", second)
    assert "10.1.1.77 is given to pod /" in said
    runtime.good("del", second)
    for lost in (False, True):
        runtime.agent.stop(signal.SIGKILL)
        for part in runtime.agent.state.glob("podwire.db*") if lost else ():
            part.unlink()
        runtime.agent.start()
        assert runtime.add(pod) == result  # which names its namespace, of which a lost store knows nothing
        works()
    asking(runtime, ips=["10.1.1.78"])
    assert "runtimeConfig.ips: 10.1.1.78 can't be had any more" in runtime.bad("add", pod)
    asking(runtime, mac="02:00:5e:00:00:0b")
    assert "runtimeConfig.mac: 02:00:5e:00:00:0b can't be had any more" in runtime.bad("add", pod)
    runtime.good("del", pod)
    await_links(0)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (
            {"ips": ["10.2.0.9"]},
            "runtimeConfig.ips: 10.2.0.9 is in none of the ranges that this node gives addresses of",
        ),
        ({"ips": ["10.1.1.1"]}, "runtimeConfig.ips: 10.1.1.1 is an address of this node"),
        ({"ips": ["10.1.1.256"]}, "runtimeConfig.ips[0]: expected an IP address"),
        ({"mac": "01:00:5e:00:00:01"}, "runtimeConfig.mac: expected the MAC address of one interface"),
    ],
)
def test_what_can_not_be_had(runtime: Runtime, pod: Space, asked: Any, says: str) -> None:
    asking(runtime, **asked)
    assert says in runtime.bad("add", pod)
    assert "eth0" not in interfaces(pod)


def test_by_cni_args(runtime: Runtime, pod: Space) -> None:
    result = runtime.add(pod, f"IgnoreUnknown=1;IP=10.1.1.9/24;MAC={MAC}")
    assert addresses(result) == ["10.1.1.9/32", "fd01::2/128"]
    assert interfaces(pod)["eth0"]["address"] == MAC
    runtime.good("del", pod)


def test_one_mac_address_twice_harms_nobody(runtime: Runtime, make_space: MakeSpace) -> None:
    asking(runtime, mac=MAC)
    one, two = make_space("one"), make_space("two")
    for space, name in ((one, "one"), (two, "two")):
        runtime.add(space)
        respond(space, name)
        assert interfaces(space)["eth0"]["address"] == MAC
    assert ask(one, "10.1.1.3", 8080) == "two 10.1.1.2"
    assert ask(two, "fd01::2", 8080) == "one fd01::3"
    assert runtime.agent.say("verify").returncode == 0
    for space in (one, two):
        runtime.good("del", space)


def test_check_sees_an_asked_mac_address_that_somebody_has_changed(runtime: Runtime, pod: Space) -> None:
    """It is the pod's to change, and stays reachable; but it is not what the runtime has asked for."""
    asking(runtime, mac=MAC)
    runtime.add(pod)
    respond(pod, "web")
    sh("ip", "-n", pod.name, "link", "set", "eth0", "address", "02:00:5e:00:00:0b")
    until(lambda: ask(None, "10.1.1.2", 8080, patience=0.5) == "web 10.1.1.1")
    assert "02:00:5e:00:00:0b by now" in runtime.bad("check", pod)
    runtime.asked = {}
    runtime.good("check", pod)
    runtime.good("del", pod)
