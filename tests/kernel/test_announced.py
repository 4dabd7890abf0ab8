"""Load balancers' addresses reached from outside, as the nodes announce them: by BGP from behind a real router, and by
ARP and NDP on the nodes' own link; through every policy, and while nodes and agents go."""

import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest

from podwire.announcing.views import PeerList
from podwire.cli.client import ask
from podwire.lab import control, probe
from podwire.lab.layout import Lab
from podwire.lab.questions import ITSELF, UNREACHABLE, Answer, Question, Source
from podwire.lab.steady import lost, while_asking
from podwire.lab.topology import fabric_space, path_of
from podwire.lab.views import ClientView, LabView
from podwire.loadbalancer.election import owner
from podwire.model.addresses import parse_address
from podwire.model.objects import Protocol
from tests.kernel import labs
from tests.kernel.process import until
from tests.kernel.rig import sh

NAME = f"a{os.getpid()}"
WORKLOAD = """
apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}}}
spec:
  replicas: {replicas}
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata: {{labels: {{app: {name}}}}}
    spec:
      nodeSelector: {{kubernetes.io/hostname: {node}}}
      containers: [{{name: main, ports: [{{containerPort: 8080}}]}}]
"""
SERVICE = """
apiVersion: v1
kind: Service
metadata: {{name: {name}, labels: {{app: {name}}}, annotations: {{podwire.io/address-pool: {pool}}}}}
spec:
  type: LoadBalancer
  ipFamilyPolicy: PreferDualStack
  externalTrafficPolicy: {policy}
  selector: {{app: {app}}}
  ports: [{{port: 80, targetPort: 8080}}]
"""
CONFIG = """
apiVersion: podwire.io/v1alpha1
kind: AddressPool
metadata: {name: public}
spec: {addresses: [203.0.113.0/24, "2001:db8::/112"], announce: [BGP]}
---
apiVersion: podwire.io/v1alpha1
kind: AddressPool
metadata: {name: lan}
spec: {addresses: [192.168.99.150-192.168.99.159, "fd00:99::150-fd00:99::15f"], autoAssign: false, announce: [L2]}
---
apiVersion: podwire.io/v1alpha1
kind: BGPPeer
metadata: {name: fabric}
spec: {peerAddress: 192.168.99.254, peerASN: 64500, myASN: 64512, connectRetryTimeSeconds: 1, bfd: {}}
---
apiVersion: podwire.io/v1alpha1
kind: BGPAdvertisement
metadata: {name: public}
spec: {addressPools: [public], communities: ["64512:7"]}
---
apiVersion: podwire.io/v1alpha1
kind: L2Advertisement
metadata: {name: lan}
spec: {addressPools: [lan]}
"""
DOCUMENTS = [
    CONFIG,
    WORKLOAD.format(name="one", node="node1", replicas=2),
    WORKLOAD.format(name="two", node="node2", replicas=1),
    SERVICE.format(name="cluster", app="one", pool="public", policy="Cluster"),
    SERVICE.format(name="local", app="one", pool="public", policy="Local"),
    SERVICE.format(name="two", app="two", pool="public", policy="Cluster"),
    SERVICE.format(name="lan", app="one", pool="lan", policy="Cluster"),
    SERVICE.format(name="lan-local", app="two", pool="lan", policy="Local"),
    SERVICE.format(name="nobody", app="none", pool="public", policy="Cluster"),
]


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    with labs.directory() as found:
        yield found


@pytest.fixture(scope="module")
def lab(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    manifests = tmp_path_factory.mktemp("manifests")
    (manifests / "all.yaml").write_text("---\n".join(DOCUMENTS))
    with labs.lab(root, NAME, manifests, 3) as found:
        control.ask(found, control.MakeClient("near"))
        control.ask(found, control.MakeClient("far", behind=True))
        yield found


@pytest.fixture
def seen(lab: Lab) -> LabView:
    return labs.seen(lab)


def addresses(seen: LabView, service: str) -> tuple[str, ...]:
    return next(it.balancer_ips for it in seen.services if it.name == service)


def client(seen: LabView, name: str) -> ClientView:
    return next(it for it in seen.clients if it.name == name)


def question(seen: LabView, name: str, host: str, app: str = "one") -> Question:
    source = Source(name, path_of(client(seen, name).space))
    pods = [f"{it.namespace}/{it.name}" for it in seen.pods if it.workload.endswith(f"/{app}")]
    return Question("", source, "", host, 80, Protocol.TCP, dict.fromkeys(pods, ITSELF))


def answers(seen: LabView, name: str, host: str, app: str = "one") -> list[Answer]:
    return list(probe.put(question(seen, name, host, app)))


def learnt(lab: Lab, host: str) -> set[str]:
    """The next hops that the router has for an address."""
    version = "-6" if ":" in host else "-4"
    shown = sh("ip", version, "-n", fabric_space(lab.name), "-o", "route", "show", host, "proto", "bgp")
    words = shown.split()
    return {words[number + 1] for number, word in enumerate(words) if word == "via"}


def own(seen: LabView, *names: str, like: str) -> set[str]:
    return {
        address
        for it in seen.nodes
        if it.name in names
        for address in it.addresses
        if (":" in address) == (":" in like)
    }


def sessions(lab: Lab) -> dict[str, tuple[float, str]]:
    """Of each node's session: since when, and its state."""
    found = {}
    for name in nodes(lab):
        body = ask(lab.node(name).admin_socket, "GET", "/bgp/peers")
        (peer,) = msgspec.json.decode(body, type=PeerList).peers
        found[name] = (peer.since or 0.0, peer.state)
    return found


def nodes(lab: Lab) -> list[str]:
    return [it.name for it in lab.stations]


# --- by BGP ------------------------------------------------------------------------------------


def test_every_node_is_a_next_hop_and_every_backend_answers(lab: Lab, seen: LabView) -> None:
    for host in addresses(seen, "cluster"):
        assert learnt(lab, host) == own(seen, "node1", "node2", "node3", like=host)
        came = answers(seen, "far", host)
        assert {it.error for it in came} == {""}
        assert {it.pod for it in came} == set(question(seen, "far", host).wanted)


def test_a_client_made_by_the_command_is_behind_the_router(lab: Lab, root: Path) -> None:
    made = labs.podwire(root, NAME, "client", "further", "--behind")
    assert made.stdout == f"further is behind the router: podwire lab exec --name {NAME} further -- COMMAND\n", made
    seen = control.view(lab)
    for host in addresses(seen, "local"):
        assert {it.error for it in answers(seen, "further", host)} == {""}
        assert client(seen, "further").addresses != client(seen, "near").addresses


def test_with_policy_local_only_nodes_with_backends_announce_and_the_client_is_seen(lab: Lab, seen: LabView) -> None:
    for host in addresses(seen, "local"):
        assert learnt(lab, host) == own(seen, "node1", like=host)
        came = answers(seen, "far", host)
        assert {(it.error, it.client) for it in came} == {("", it.asked_from) for it in came}


def test_what_nobody_answers_for_is_announced_by_nobody(lab: Lab, seen: LabView) -> None:
    for host in addresses(seen, "nobody"):
        assert learnt(lab, host) == set()
        assert {it.error for it in probe.put(question(seen, "far", host), 3)} == {UNREACHABLE}


def test_the_last_backend_s_end_withdraws_and_the_first_one_announces(lab: Lab) -> None:
    seen = control.view(lab, control.Scale("Deployment/default/one", 0))
    for host in (*addresses(seen, "cluster"), *addresses(seen, "local")):
        assert learnt(lab, host) == set()
    seen = control.view(lab, control.Scale("Deployment/default/one", 2))
    for host in addresses(seen, "cluster"):
        assert learnt(lab, host) == own(seen, "node1", "node2", "node3", like=host)
        assert {it.error for it in answers(seen, "far", host)} == {""}


def test_a_killed_agent_loses_nothing_and_its_next_one_flaps_nothing(lab: Lab, seen: LabView) -> None:
    questions = [question(seen, "far", host) for name in ("cluster", "local") for host in addresses(seen, name)]
    before = sessions(lab)

    def change() -> None:
        control.ask(lab, control.KillAgent("node1"))
        control.ask(lab, control.StartAgent("node1"))

    _, _, heard = while_asking(questions, change)
    assert [lost(it.all) for it in heard] == [0] * len(heard)
    after = sessions(lab)
    assert {name: state for name, (_, state) in after.items()} == {name: state for name, (_, state) in before.items()}
    assert max(abs(after[name][0] - since) for name, (since, _) in before.items()) < 2, "bgpd counts in whole seconds"


def test_what_changed_while_an_agent_was_away_is_told_once_it_is_back(lab: Lab, seen: LabView) -> None:
    """bgpd goes on with what it was told last, since nftables does, too; nothing of it outlives the agent's return."""
    gone, stays = addresses(seen, "cluster"), addresses(seen, "two")
    control.ask(lab, control.KillAgent("node1"))
    control.ask(lab, control.Scale("Deployment/default/one", 0))
    for host in gone:
        until(lambda host=host: learnt(lab, host) == own(seen, "node1", like=host))  # type: ignore[misc]
    control.ask(lab, control.StartAgent("node1"))
    for host in gone:
        until(lambda host=host: not learnt(lab, host))  # type: ignore[misc]
    for host in stays:
        assert learnt(lab, host) == own(seen, "node1", "node2", "node3", like=host)
    control.view(lab, control.Scale("Deployment/default/one", 2))


def test_a_killed_bgpd_comes_back_and_the_router_keeps_its_routes_meanwhile(lab: Lab, seen: LabView) -> None:
    questions = [question(seen, "far", host) for host in addresses(seen, "local")]
    pid_file = lab.node("node1").frr / "bgpd.pid"
    killed, before = int(pid_file.read_text()), sessions(lab)["node1"]

    def change() -> None:
        os.kill(killed, signal.SIGKILL)
        until(lambda: pid_file.read_text().strip() not in ("", str(killed)))
        until(lambda: sessions(lab)["node1"] > before)

    _, _, heard = while_asking(questions, change)
    assert [lost(it.all) for it in heard] == [0] * len(heard)


def test_a_node_that_dies_is_left_out_and_comes_back(lab: Lab, seen: LabView) -> None:
    hosts = addresses(seen, "cluster")
    seen = control.view(lab, control.KillNode("node3"))
    assert (seen.problems, [learnt(lab, host) for host in hosts]) == (
        (),
        [own(seen, "node1", "node2", like=host) for host in hosts],
    )
    assert {it.error for host in hosts for it in answers(seen, "far", host)} == {""}
    seen = control.view(lab, control.StartNode("node3"))
    assert [learnt(lab, host) for host in hosts] == [own(seen, "node1", "node2", "node3", like=host) for host in hosts]


# --- by ARP and NDP ----------------------------------------------------------------------------


def answering(lab: Lab, host: str) -> str:
    """The node whose MAC address a client on the link has found."""
    space = client(control.view(lab), "near").space
    shown = sh("ip", "-n", space, "neigh", "show", host).split()
    mac = shown[shown.index("lladdr") + 1]
    macs = {name: sh("ip", "-n", f"pw-{lab.name}-{name}", "-o", "link", "show", "eth0") for name in nodes(lab)}
    return next(name for name, text in macs.items() if mac in text)


def is_answered(asked: Question) -> bool:
    return not next(probe.put(asked, 1)).error


def answers_again(lab: Lab, host: str, node: str | None) -> bool:
    return answering(lab, host) == node


def test_one_node_answers_for_an_address_of_the_link_and_all_backends_are_reached(lab: Lab, seen: LabView) -> None:
    for host in addresses(seen, "lan"):
        came = answers(seen, "near", host)
        assert {it.error for it in came} == {""}
        assert {it.pod for it in came} == set(question(seen, "near", host).wanted)
        assert answering(lab, host) == owner(parse_address(host), nodes(lab))


def test_with_policy_local_a_node_with_backends_answers_and_the_client_is_seen(lab: Lab, seen: LabView) -> None:
    for host in addresses(seen, "lan-local"):
        came = answers(seen, "near", host, "two")
        assert {(it.error, it.client) for it in came} == {("", it.asked_from) for it in came}
        assert answering(lab, host) == "node2"


def test_when_the_node_that_answers_dies_another_takes_its_place(lab: Lab, seen: LabView) -> None:
    """Backends are on the first node; the address may well be another one's, whose death costs nothing else."""
    hosts = [it for it in addresses(seen, "lan") if owner(parse_address(it), nodes(lab)) != "node1"]
    for host in hosts or pytest.fail("the addresses of the pool lan should be others: all are the first node's"):
        assert is_answered(question(seen, "near", host))
        died = answering(lab, host)
        left = [it for it in nodes(lab) if it != died]
        control.ask(lab, control.KillNode(died))
        try:
            until(partial(is_answered, question(seen, "near", host)))
            until(partial(answers_again, lab, host, owner(parse_address(host), left)))
        finally:
            control.ask(lab, control.StartNode(died))
        until(partial(answers_again, lab, host, died))
        assert {it.error for it in answers(seen, "near", host)} == {""}
