"""Nodes on two links, with a router between them that knows nobody's pods: every way, and what becomes of it."""

import json
import os
import re
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from podwire.lab import control, lifecycle
from podwire.lab.layout import Lab
from podwire.lab.views import LabView, PodView
from tests.kernel import labs
from tests.kernel.hands import overhearing
from tests.kernel.labs import PODWIRE, all_right, directory
from tests.kernel.rig import Space, in_space, sh

NAME = f"o{os.getpid()}"
OVERHEAD, PORT = 50, 4789
MANIFESTS = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: main, ports: [{containerPort: 8080}, {containerPort: 8125, protocol: UDP}]}]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: NodePort
  ipFamilyPolicy: PreferDualStack
  externalIPs: [203.0.113.80]
  selector: {app: web}
  ports:
  - {name: tcp, port: 80, targetPort: 8080, nodePort: 30080}
  - {name: udp, port: 8125, targetPort: 8125, protocol: UDP, nodePort: 30125}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: each}
spec:
  selector: {matchLabels: {app: each}}
  template:
    metadata: {labels: {app: each}}
    spec: {containers: [{name: main, ports: [{containerPort: 6379}]}]}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: monitor}
spec:
  selector: {matchLabels: {app: monitor}}
  template:
    metadata: {labels: {app: monitor}}
    spec:
      hostNetwork: true
      containers: [{name: main, ports: [{containerPort: 9100}]}]
---
apiVersion: v1
kind: Service
metadata: {name: monitor}
spec:
  ipFamilyPolicy: PreferDualStack
  selector: {app: monitor}
  ports: [{name: tcp, port: 9100}]
"""


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    with directory() as found:
        try:
            yield found
        finally:
            lifecycle.down(found, NAME)


@pytest.fixture(scope="module")
def manifests(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("manifests")
    (found / "all.yaml").write_text(MANIFESTS)
    return found


@pytest.fixture(scope="module")
def lab(root: Path, manifests: Path) -> Iterator[Lab]:
    """Nodes one and three share a link, with a client."""
    with labs.lab(root, NAME, manifests, 3, links=2) as found:
        control.ask(found, control.MakeClient())
        yield found


def pod_on(seen: LabView, node: int, workload: str = "each") -> PodView:
    return next(it for it in seen.pods if it.node == f"node{node}" and it.name.startswith(workload))


def space_of(seen: LabView, node: int) -> Space:
    return Space(next(it.space for it in seen.nodes if it.name == f"node{node}"))


def writes(lab: Lab, node: int) -> dict[str, int]:
    told = sh(PODWIRE, "status", "--state-dir", str(lab.node(f"node{node}").state), "-o", "json")
    return {name: count for name, count in json.loads(told)["writes"].items() if name != "conntrack"}


def drift(lab: Lab) -> list[str]:
    found = []
    for station in lab.stations:
        told = sh(PODWIRE, "verify", "--state-dir", str(lab.node(station.name).state), "-o", "json")
        found += json.loads(told)["drift"]
    return found


def test_every_way_of_every_pair_of_nodes(lab: Lab) -> None:
    seen = control.view(lab)
    assert not seen.problems
    all_right(seen)
    assert drift(lab) == []


def test_every_way_where_all_goes_by_vxlan(root: Path, manifests: Path) -> None:
    with labs.lab(root, f"{NAME}v", manifests, 2, transport="vxlan") as found:
        control.ask(found, control.MakeClient())
        seen = control.view(found)
        assert not seen.problems
        all_right(seen)


# --- what is on the wire -----------------------------------------------------------------------


@contextmanager
def sink(pod: PodView, family: int, port: int) -> Iterator[tuple[socket.socket, tuple[str, int]]]:
    """A UDP socket in a pod, and where it is."""
    with in_space(Space(pod.space), _family(family), socket.SOCK_DGRAM) as found:
        found.settimeout(5)
        found.bind((pod.addresses[family], port))
        yield found, (pod.addresses[family], port)


def _family(number: int) -> socket.AddressFamily:
    return (socket.AF_INET, socket.AF_INET6)[number]


@pytest.mark.parametrize("family", [0, 1], ids=["IPv4", "IPv6"])
@pytest.mark.parametrize(("other", "by_vxlan"), [(2, True), (3, False)], ids=["another link", "the same link"])
def test_only_what_goes_to_another_link_is_wrapped(lab: Lab, family: int, other: int, by_vxlan: bool) -> None:
    seen = control.view(lab)
    mark, far = os.urandom(16), pod_on(seen, other)
    with (
        overhearing(space_of(seen, 1), "eth0") as wire,
        sink(far, family, 5000) as (there, place),
        in_space(Space(pod_on(seen, 1).space), _family(family), socket.SOCK_DGRAM) as here,
    ):
        here.sendto(mark, place)
        data, client = there.recvfrom(100)
        assert (data, client[0]) == (mark, pod_on(seen, 1).addresses[family])
        frames = [frame for frame in _frames(wire) if mark in frame]
    assert len(frames) == 1
    kind, protocol, port = frames[0][12:14], frames[0][23], struct.unpack_from(">H", frames[0], 36)[0]
    wrapped = kind == b"\x08\x00" and protocol == socket.IPPROTO_UDP and port == PORT
    assert wrapped == by_vxlan
    if wrapped:
        ends = [socket.inet_ntop(socket.AF_INET, frames[0][at : at + 4]) for at in (26, 30)]
        assert ends == [seen.nodes[0].addresses[0], seen.nodes[other - 1].addresses[0]]


def _frames(wire: socket.socket) -> Iterator[bytes]:
    while True:
        try:
            yield wire.recv(65536)
        except BlockingIOError:
            return


@pytest.mark.parametrize("family", [0, 1], ids=["IPv4", "IPv6"])
@pytest.mark.parametrize("other", [2, 3])
def test_the_largest_packet_of_a_pod_arrives_whole(lab: Lab, family: int, other: int) -> None:
    """Not in pieces, and nothing larger leaves the pod."""
    seen = control.view(lab)
    most = 1500 - OVERHEAD - (28, 48)[family]
    with (
        sink(pod_on(seen, other), family, 5001) as (there, place),
        in_space(Space(pod_on(seen, 1).space), _family(family), socket.SOCK_DGRAM) as here,
        overhearing(space_of(seen, other), "eth0") as wire,
    ):
        here.setsockopt(*_dont_fragment(family))
        data = os.urandom(most)
        here.sendto(data, place)
        assert there.recv(2000) == data
        assert any(data in frame for frame in _frames(wire))
        with pytest.raises(OSError, match="Message too long"):
            here.sendto(data + b"x", place)


def _dont_fragment(family: int) -> tuple[int, int, int]:
    return ((socket.IPPROTO_IP, 10, 2), (socket.IPPROTO_IPV6, 23, 2))[family]  # IP_MTU_DISCOVER, IP_PMTUDISC_DO


@pytest.mark.parametrize("family", [0, 1], ids=["IPv4", "IPv6"])
def test_what_is_too_large_for_the_way_is_answered_with_the_right_size(lab: Lab, family: int) -> None:
    """A client whose own link takes more sends by way of a node into VXLAN."""
    seen = control.view(lab)
    with (
        sink(pod_on(seen, 2), family, 5002) as (there, place),
        in_space(Space(seen.clients[0].space), _family(family), socket.SOCK_DGRAM) as here,
    ):
        here.setsockopt(*_dont_fragment(family))
        here.settimeout(5)
        here.connect(place)
        here.send(os.urandom(1400 - (28, 48)[family]))  # the first one waits for neighbours; no error says so
        assert len(there.recv(2000)) == 1400 - (28, 48)[family]
        here.send(os.urandom(1500 - (28, 48)[family]))
        with pytest.raises(OSError, match="Message too long"):
            here.recv(10)  # the answer is the socket's error
        number = ((socket.IPPROTO_IP, 14), (socket.IPPROTO_IPV6, 24))[family]  # IP_MTU, IPV6_MTU
        assert here.getsockopt(*number) == 1500 - OVERHEAD


@pytest.mark.parametrize("family", [0, 1], ids=["IPv4", "IPv6"])
@pytest.mark.parametrize("source", ["pod", "node", "client"])
def test_a_long_stream_passes(lab: Lab, source: str, family: int) -> None:
    seen = control.view(lab)
    far, size = pod_on(seen, 2), 1 << 20
    spaces = {"pod": pod_on(seen, 1).space, "node": seen.nodes[0].space, "client": seen.clients[0].space}
    with in_space(Space(far.space), _family(family), socket.SOCK_STREAM) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((far.addresses[family], 5003))
        server.listen()
        server.settimeout(10)
        with in_space(Space(spaces[source]), _family(family), socket.SOCK_STREAM) as client:
            client.settimeout(10)
            client.connect((far.addresses[family], 5003))
            connection, _ = server.accept()
            connection.settimeout(10)
            data = os.urandom(size)
            sending = threading.Thread(target=_send_all, args=(client, data))
            sending.start()
            with connection:
                got = b"".join(iter(lambda: connection.recv(1 << 16), b""))
            sending.join()
    assert got == data


def _send_all(out: socket.socket, data: bytes) -> None:
    out.sendall(data)
    out.shutdown(socket.SHUT_WR)


# --- what becomes of it ------------------------------------------------------------------------


def test_an_agent_that_comes_back_writes_nothing(lab: Lab) -> None:
    for number in (1, 2):
        control.ask(lab, control.KillAgent(f"node{number}"))
        control.ask(lab, control.StartAgent(f"node{number}"))
        assert writes(lab, number) == {"store": 0, "linux": 0, "nftables": 0}


def test_a_node_that_moves_or_is_away_for_a_while_is_reached_again(lab: Lab) -> None:
    control.ask(lab, control.Readdress("node2"))
    all_right(control.view(lab))
    control.ask(lab, control.KillNode("node2"))
    control.ask(lab, control.StartNode("node2"))
    all_right(control.view(lab))
    assert drift(lab) == []


def test_no_packet_is_lost_while_a_node_goes_over_to_another_transport(root: Path, manifests: Path) -> None:
    """One way: the other node takes packets of both kinds all the time."""
    with labs.lab(root, f"{NAME}s", manifests, 2) as found:
        set_transport(found, 2, "vxlan")
        seen = control.view(found)
        sh("ip", "netns", "exec", seen.nodes[1].space, "sysctl", "-qw", "net.ipv4.conf.all.rp_filter=0")
        for transport, device in (("vxlan", True), ("auto", False), ("vxlan", True)):
            with one_way(pod_on(seen, 1), pod_on(seen, 2)) as lost:
                set_transport(found, 1, transport)
            assert lost == []
            assert ("podwire-vxlan" in sh("ip", "-n", seen.nodes[0].space, "-o", "link")) == device


def set_transport(lab: Lab, node: int, transport: str) -> None:
    path = lab.node(f"node{node}").config
    path.write_text(re.sub(r'transport = "\w+"', f'transport = "{transport}"', path.read_text()))
    control.ask(lab, control.KillAgent(f"node{node}"))
    control.ask(lab, control.StartAgent(f"node{node}"))


@contextmanager
def one_way(source: PodView, to: PodView) -> Iterator[list[int]]:
    """Numbered datagrams of both families; the list has those that did not come, once it is over."""
    lost: list[int] = []
    over = threading.Event()
    with (
        sink(to, 0, 5004) as (four, place4),
        sink(to, 1, 5004) as (six, place6),
        in_space(Space(source.space), socket.AF_INET, socket.SOCK_DGRAM) as out4,
        in_space(Space(source.space), socket.AF_INET6, socket.SOCK_DGRAM) as out6,
    ):
        sent, got = [0], [set[int](), set[int]()]

        def send() -> None:
            while not over.wait(0.001):
                data = struct.pack(">I", sent[0])
                out4.sendto(data, place4)
                out6.sendto(data, place6)
                sent[0] += 1
            out4.sendto(b"end", place4)
            out6.sendto(b"end", place6)

        def receive(number: int, there: socket.socket) -> None:
            while (data := there.recv(10)) != b"end":
                got[number].add(struct.unpack(">I", data)[0])

        threads = [threading.Thread(target=send)]
        threads += [threading.Thread(target=receive, args=(n, it)) for n, it in enumerate((four, six))]
        for thread in threads:
            thread.start()
        try:
            yield lost
        finally:
            over.set()
            for thread in threads:
                thread.join()
        for each in got:
            lost += sorted(set(range(sent[0])) - each)
