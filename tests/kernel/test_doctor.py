"""The doctor on real nodes: what others did is named, its command mends it, and looking changes nothing."""

import ctypes
import http.server
import json
import os
import platform
import re
import shutil
import signal
import socket
import struct
import subprocess
import sysconfig
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from podwire.cni.install import configure, install, native_plugin
from podwire.config import read_config
from podwire.dataplane import netlink
from podwire.dataplane.messages import CREATE, EXCL, Message, nest, text, u32
from podwire.doctor.catalogue import examine
from podwire.doctor.findings import Finding, State
from podwire.doctor.read import bpf, node
from podwire.doctor.read.kernel import read as read_kernel
from tests.kernel.process import AgentProcess, agent_process
from tests.kernel.rig import Space, by_hand, sh

BASE = "{ type filter hook forward priority 0; policy %s; }"
OK, NOTE, WARNING, WRONG = State.OK, State.NOTE, State.WARNING, State.WRONG


class Place:
    """A node's namespace with an uplink, and where its plugin and configurations would be."""

    def __init__(self, root: Path) -> None:
        self.root, self.bin, self.conf = root, root / "bin", root / "net.d"
        self.config: Path | None = None
        by_hand(
            "ip link set lo up; ip link add eth0 type veth peer name far0; ip link set far0 up; ip link set eth0 up;"
            "ip addr add 192.0.2.1/24 dev eth0; ip route add default via 192.0.2.254"
        )

    def findings(self) -> tuple[Finding, ...]:
        facts = node.read(self.config, self.root / "state", self.bin, self.conf, {})
        return examine(facts).findings

    def bad(self) -> list[Finding]:
        return [it for it in self.findings() if it.state in (WARNING, WRONG)]

    def named(self, name: str, state: State) -> Finding:
        """The one finding of that name and state."""
        found = [it for it in self.findings() if it.name == name]
        (fit,) = [it for it in found if it.state is state] or [found]
        assert isinstance(fit, Finding), found
        return fit

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [str(Path(sysconfig.get_path("scripts"), "podwire")), "doctor", *arguments]
        command += ["--bin-dir", str(self.bin), "--conf-dir", str(self.conf)]
        env = {"PATH": os.environ["PATH"], "PODWIRE_STATE_DIR": str(self.root / "state")}
        return subprocess.run(command, capture_output=True, text=True, env=env)


@pytest.fixture
def place(node: Space, tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def agent(place: Place) -> Iterator[AgentProcess]:
    """At work on that node, its plugin installed."""
    with agent_process(place.root) as running:
        place.config = running.config
        ready = read_config(running.config).ready_mark
        install(place.bin, running.socket, running.spool, ready, native=native_plugin())
        configure(place.conf)
        yield running


# --- a node on which all is well ---------------------------------------------------------------


def test_before_the_installation_nothing_is_wrong_and_looking_changes_nothing(place: Place) -> None:
    def looks() -> str:
        mine = re.compile(rf"(?![a-z]+\d+-)|pwt{os.getpid()}-")  # not those of tests that run beside this one
        spaces = sorted(name for name in os.listdir("/run/netns") if mine.match(name))
        # Whether a new link has its carrier the kernel finds out in its own time.
        links = re.sub(r"<[^>]*>| state \w+", "", sh("ip", "-d", "addr"))
        return sh("nft", "list", "ruleset") + links + sh("ip", "route") + str(spaces)

    before = looks()
    assert place.bad() == []
    assert looks() == before


def test_the_kernel_s_own_trial_is_whole(place: Place) -> None:
    kernel = read_kernel(False)
    assert kernel.capabilities == ()
    assert kernel.trial == type(kernel.trial)({"IPv4": "", "IPv6": ""})


def test_of_an_agent_at_work_nothing_is_wrong(place: Place, agent: AgentProcess) -> None:
    assert place.bad() == []
    states = {it.name: it.state for it in place.findings()}
    wanted = ("agent", "agent-ready", "agent-drift", "rules-layout", "cni-socket", "cni-plugin", "cni-configuration")
    assert {name: states[name] for name in wanted} == dict.fromkeys(wanted, OK)


def test_the_command_s_table_json_and_exit_code(place: Place, agent: AgentProcess) -> None:
    healthy = place.run("--config", str(agent.config), "-o", "json")
    report = json.loads(healthy.stdout)
    assert (healthy.returncode, healthy.stderr) == (0, "")
    assert (report["node"], report["counts"]["wrong"], report["counts"]["warning"]) == ("one", 0, 0)
    by_hand(
        "nft add table inet mine; nft add chain inet mine f '{ type filter hook forward priority 0; policy drop; }'"
    )
    ill = place.run("--config", str(agent.config))
    assert ill.returncode == 1
    assert "wrong  forward-firewall" in ill.stdout
    assert "    do:      nft insert rule inet mine f" in ill.stdout
    assert ill.stdout.rstrip().endswith("Podwire can't work as it should")


def test_warnings_alone_are_no_failure(place: Place) -> None:
    by_hand("ip link add cni0 type bridge")
    ran = place.run()
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "warning  other-bridge" in ran.stdout


def test_without_rights_it_says_what_it_could_not_look_into(place: Place) -> None:
    command = [str(Path(sysconfig.get_path("scripts"), "podwire")), "doctor", "-o", "json"]
    ran = subprocess.run(
        ["setpriv", "--bounding-set=-net_admin,-sys_admin", *command], capture_output=True, text=True, check=False
    )
    assert ran.stderr == ""
    states = {it["name"]: (it["state"], it["seen"]) for it in json.loads(ran.stdout)["findings"]}
    assert states["capabilities"][0] == "wrong"  # since it is root that lacks them
    for name in ("kernel-marks", "nftables-rules", "veth", "forward-firewall", "kube-proxy-rules"):
        assert states[name][0] == "note", name
        assert states[name][1].startswith("not looked into: "), name


# --- other hands -------------------------------------------------------------------------------

needs_iptables = pytest.mark.skipif(shutil.which("iptables-nft") is None, reason="needs the program iptables")
needs_legacy = pytest.mark.skipif(shutil.which("iptables-legacy") is None, reason="needs the program iptables-legacy")


HANDS = {
    "policy": [f"nft add table inet mine; nft add chain inet mine f '{BASE % 'drop'}'"],
    "a last reject": [
        f"nft add table ip6 mine; nft add chain ip6 mine f '{BASE % 'accept'}'",
        "nft add rule ip6 mine f counter reject",
    ],
    "Docker's kind": [
        f"nft add table ip mine; nft add chain ip mine f '{BASE % 'drop'}'",
        "nft add rule ip mine f ct state established accept",
        "nft add rule ip mine f iifname docker0 accept",
        "nft add rule ip mine f iifname != docker0 oifname docker0 accept",
    ],
    "iptables": ["iptables-nft -P FORWARD DROP"],
    "Docker": [
        "iptables-nft -P FORWARD DROP; iptables-nft -N DOCKER-USER; iptables-nft -A DOCKER-USER -j RETURN",
        "iptables-nft -A FORWARD -j DOCKER-USER",
        "iptables-nft -A FORWARD -o docker0 -m conntrack --ctstate ESTABLISHED -j ACCEPT",
        "iptables-nft -A FORWARD -i docker0 ! -o docker0 -j ACCEPT",
    ],
    "ip6tables with a REJECT": ["ip6tables-nft -A FORWARD -j REJECT"],
    "old iptables": ["iptables-legacy -P FORWARD DROP"],
}


def _needing(hands: list[str]) -> list[pytest.MarkDecorator]:
    return [needs_legacy] if "-legacy" in hands[0] else [needs_iptables] if "tables-nft" in hands[0] else []


@pytest.mark.parametrize("hands", [pytest.param(it, id=name, marks=_needing(it)) for name, it in HANDS.items()])
def test_a_filter_that_drops_pods_packets_is_named_and_its_command_opens_it(place: Place, hands: list[str]) -> None:
    for hand in hands:
        by_hand(hand)
    it = place.named("forward-firewall", WRONG)
    assert "drops what pods send or get" in it.seen
    by_hand(it.fix.replace("tables -I", "tables-nft -I"))  # the machine's own `iptables` may be the old one
    assert place.bad() == []


@pytest.mark.parametrize(
    "rules",
    [
        ['iifname "pw*" accept', 'oifname "pw*" accept'],
        ["ip saddr 10.1.0.0/16 accept", "ip daddr 10.1.1.0/24 accept", "ip6 saddr fd01::/16 accept",
         "ip6 daddr fd01::/60 accept"],
        ["jump more"],
    ],
    ids=["by interface", "by range", "in another chain"],
)  # fmt: skip
def test_a_filter_that_lets_pods_pass_is_left_alone(place: Place, agent: AgentProcess, rules: list[str]) -> None:
    by_hand(f"nft add table inet mine; nft add chain inet mine f '{BASE % 'drop'}'; nft add chain inet mine more")
    by_hand("nft add rule inet mine more tcp dport 1 drop; nft add rule inet mine more accept")
    for rule in rules:
        by_hand(f"nft add rule inet mine f '{rule}'")
    assert place.bad() == []


@pytest.mark.parametrize(
    "program", [pytest.param("iptables-nft", marks=needs_iptables), pytest.param("iptables-legacy", marks=needs_legacy)]
)
def test_what_kube_proxy_left_in_iptables(place: Place, program: str) -> None:
    by_hand(f"{program} -t mangle -N KUBE-KUBELET-CANARY; {program} -N KUBE-FIREWALL")
    assert place.bad() == [], "the kubelet's own"
    by_hand(f"{program} -t nat -N KUBE-SERVICES; {program} -t nat -N KUBE-SVC-ABCDEF")
    it = place.named("kube-proxy-rules", WRONG)
    assert "chains KUBE-SERVICES, KUBE-SVC-ABCDEF" in it.seen


def test_what_kube_proxy_left_in_nftables_goes_by_the_command(place: Place) -> None:
    by_hand("nft add table ip kube-proxy; nft add table ip6 kube-proxy")
    it = place.named("kube-proxy-rules", WRONG)
    assert "nftables table ip kube-proxy, ip6 kube-proxy" in it.seen
    by_hand(it.fix)
    assert place.bad() == []


def test_kube_proxy_at_work_is_known_by_its_process_and_its_health(place: Place, tmp_path: Path) -> None:
    program = shutil.copy(shutil.which("sleep") or "/bin/sleep", tmp_path / "kube-proxy")
    process = subprocess.Popen([program, "600"])
    try:
        assert place.named("kube-proxy", WRONG).seen.startswith("kube-proxy works on this node")
    finally:
        process.kill()
        process.wait()
    with health():
        assert "last updated 2026-11-29" in place.named("kube-proxy", WRONG).seen
    assert place.bad() == []


@contextmanager
def health() -> Iterator[None]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"lastUpdated": "2026-11-29 20:00:00 +0000 UTC", "currentTime": "x"}')

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 10256), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("hand", "name", "seen"),
    [
        ("ip link add flannel.1 type vxlan id 1 dstport 8472 local 192.0.2.1", "other-flannel", "interface flannel.1"),
        ("ip link add cni0 type bridge", "other-bridge", "interface cni0"),
        ("ip link add cali0123456789a type bridge", "other-calico", "interface cali0123456789a"),
        ("ip link add cilium_host type bridge", "other-cilium", "interface cilium_host"),
        ("ip link add weave type bridge", "other-weave", "interface weave"),
        ("nft add table inet flannel-ipv4", "other-flannel", "nftables table inet flannel-ipv4"),
        ("nft add table ip calico; nft add chain ip calico cali-INPUT", "other-calico", "chain cali-INPUT"),
    ],
)
def test_what_other_networks_left(place: Place, hand: str, name: str, seen: str) -> None:
    by_hand(hand)
    assert seen in place.named(name, WARNING).seen
    assert [it.name for it in place.bad()] == [name]


@pytest.mark.skipif(platform.machine() not in bpf._CALL, reason="needs the number of bpf(2) on this machine")
def test_bpf_programs_of_others_are_seen_at_interfaces(place: Place) -> None:
    attach_bpf("eth0", "cil_from_netdev")
    it = place.named("other-cilium", WARNING)
    assert "BPF program at eth0 ingress: cil_from_netdev" in it.seen


def attach_bpf(link: str, name: str) -> None:
    """A program that does nothing, as `tc filter add dev LINK ingress bpf direct-action` makes it."""
    code = struct.pack("=BBhi", 0xB7, 0, 0, 0) + struct.pack("=BBhi", 0x95, 0, 0, 0)  # r0 = 0; exit
    held, licence = ctypes.create_string_buffer(code), ctypes.create_string_buffer(b"GPL")
    asked = bytearray(128)
    struct.pack_into("=IIQQ", asked, 0, 3, 2, ctypes.addressof(held), ctypes.addressof(licence))  # SCHED_CLS
    descriptor = bpf._call(bpf._CALL[platform.machine()], 5, asked)
    assert descriptor >= 0
    there = netlink.Socket(netlink.ROUTE)
    try:
        index = socket.if_nametoindex(link)
        clsact = struct.pack("=BxxxiIII", 0, index, 0xFFFF0000, 0xFFFFFFF1, 0) + text(1, "clsact")
        head = struct.pack("=BxxxiIII", 0, index, 0, 0xFFFFFFF2, 1 << 16 | socket.htons(3))
        options = nest(2, u32(6, descriptor), text(7, f"{name}.o:[x]"), u32(8, 1))
        assert there.send([Message(36, CREATE | EXCL, clsact)]) == {}
        assert there.send([Message(44, CREATE | EXCL, head + text(1, "bpf") + options)]) == {}
    finally:
        there.close()
        os.close(descriptor)


# --- settings and the node's network -----------------------------------------------------------


def test_a_setting_that_others_undid_is_named_and_its_command_mends_it(place: Place, agent: AgentProcess) -> None:
    """One that the kernel tells nobody of; forwarding is mended by the agent itself."""
    by_hand("sysctl -qw net.ipv4.conf.all.send_redirects=1")
    it = place.named("send-redirects", WARNING)
    assert it.seen.startswith("net.ipv4.conf.all.send_redirects = 1, and the agent had made it 0")
    assert "sysctl net/ipv4/conf/all/send_redirects is 1" in place.named("agent-drift", WARNING).seen
    assert agent.say("resync").returncode == 0
    assert place.bad() == []


def test_forwarding_that_is_off_at_one_interface_is_named_and_its_command_mends_it(
    place: Place, agent: AgentProcess
) -> None:
    by_hand("sysctl -qw net.ipv4.conf.eth0.forwarding=0")
    it = place.named("forwarding", WRONG)
    assert it.seen == "forwarding is on, but off at eth0"
    by_hand(it.fix)
    assert place.bad() == []


def test_settings_that_the_agent_will_make_are_only_told(place: Place) -> None:
    by_hand("sysctl -qw net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=1")
    assert place.named("forwarding", NOTE).seen == "net.ipv4.ip_forward = 0; the agent makes it 1 when it starts"


def test_loose_reverse_path_filters_are_named(place: Place, agent: AgentProcess) -> None:
    by_hand("sysctl -qw net.ipv4.conf.all.rp_filter=2")
    it = place.named("reverse-path-filter", WARNING)
    by_hand(it.fix.partition("#")[0])
    assert place.bad() == []


def test_ipv6_that_is_off_is_wrong_where_the_cluster_has_it(place: Place, agent: AgentProcess) -> None:
    by_hand("sysctl -qw net.ipv6.conf.default.disable_ipv6=1")
    it = place.named("ipv6", WRONG)
    assert "net.ipv6.conf.default.disable_ipv6 = 1" in it.seen
    by_hand(it.fix)
    assert place.bad() == []


def test_an_mtu_that_is_too_small_is_named(place: Place, agent: AgentProcess) -> None:
    by_hand("ip link set eth0 mtu 1400")
    assert "eth0 has an MTU of 1400, and pods have 1500" in place.named("mtu", WARNING).seen


def test_a_route_into_the_pods_range_is_named_and_its_command_removes_it(place: Place, agent: AgentProcess) -> None:
    by_hand("ip route add 10.1.1.128/25 dev eth0")
    it = place.named("range-overlap", WRONG)
    by_hand(it.fix.partition("#")[0])
    assert place.bad() == []


# --- CNI and the agent -------------------------------------------------------------------------


def test_a_dead_agent_is_named(place: Place, agent: AgentProcess) -> None:
    agent.stop(signal.SIGKILL)
    assert [it.name for it in place.bad()] == ["agent"]
    assert "No such file or directory" not in place.named("cni-socket", NOTE).seen
    agent.start()
    assert place.bad() == []


def test_rules_that_were_altered_while_no_agent_looked_are_named(place: Place, agent: AgentProcess) -> None:
    agent.stop(signal.SIGKILL)
    by_hand("nft insert rule ip podwire post accept")
    assert "the IPv4 table has another layout" in place.named("rules-layout", NOTE).seen
    agent.start()
    assert place.bad() == []


def test_a_broken_configuration_file_is_the_finding(place: Place, agent: AgentProcess) -> None:
    agent.config.write_text(agent.config.read_text().replace("mtu = 1500", "mtu = 15"))
    it = place.named("configuration", WRONG)
    assert f"{agent.config}: mtu: expected a whole number from 1280" in it.seen


class Kubernetes(Place):
    """With an agent's configuration for an API that does not answer."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        (root / "kubeconfig").write_text(
            "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\n"
            "contexts: [{name: c, context: {cluster: c}}]\ncurrent-context: c\n"
        )
        self.config = root / "agent.toml"
        self.config.write_text(
            f'node_name = "one"\nstate_dir = "{root}/state"\n[kubernetes]\nkubeconfig = "{root}/kubeconfig"\n'
        )


@pytest.fixture
def kubernetes(node: Space, tmp_path: Path) -> Kubernetes:
    return Kubernetes(tmp_path)


def test_an_api_that_does_not_answer_is_named(kubernetes: Kubernetes) -> None:
    it = kubernetes.named("api-servers", WRONG)
    assert it.seen == "http://127.0.0.1:1: Connection refused"
    assert it.fix.startswith("curl -k http://127.0.0.1:1/livez")


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("{", "05-other.conflist, no JSON (line 1"),
        ('{"name": "o", "plugins": [{"type": "flannel"}]}', "05-other.conflist, of flannel, is in force instead of"),
    ],
    ids=["broken", "another network's"],
)
def test_a_configuration_before_ours_is_named_and_its_command_moves_it(
    kubernetes: Kubernetes, text: str, seen: str
) -> None:
    state = kubernetes.root / "state"
    install(kubernetes.bin, state / "cni.sock", state / "spool", state / "ready", native=native_plugin())
    configure(kubernetes.conf)
    (kubernetes.conf / "05-other.conflist").write_text(text)
    it = kubernetes.named("cni-configuration", WRONG)
    assert seen in it.seen
    by_hand(it.fix)
    assert kubernetes.named("cni-configuration", OK).seen.endswith("10-podwire.conflist is in force")
