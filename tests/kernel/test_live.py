"""Two nodes under steady clients, while their world changes: the right answer at each step, and nothing lost to
backends that stay."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from podwire.lab import control
from podwire.lab.layout import Lab
from podwire.lab.paths import questions
from podwire.lab.probe import look_up, put
from podwire.lab.questions import REFUSED, Lookup, Question, Source, judge, names_of
from podwire.lab.steady import Heard, lost, while_asking
from podwire.lab.topology import path_of
from podwire.lab.views import LabView
from podwire.model.objects import Protocol
from tests.kernel import labs
from tests.kernel.labs import all_right, backends

NAME = f"v{os.getpid()}"


def service(name: str, spec: str = "", app: str | None = None) -> str:
    return dedent(f"""\
        apiVersion: v1
        kind: Service
        metadata: {{name: {name}}}
        spec: {{selector: {{app: {app or name}}}, {spec or "ports: [{port: 80, targetPort: 8080}]"}}}
        """)


def workload(name: str, spec: str = "replicas: 2", pod: str = "restartPolicy: Always", kind: str = "Deployment") -> str:
    return dedent(f"""\
        apiVersion: apps/v1
        kind: {kind}
        metadata: {{name: {name}}}
        spec:
          selector: {{matchLabels: {{app: {name}}}}}
          {spec}
          template:
            metadata: {{labels: {{app: {name}}}}}
            spec:
              {pod}
              containers: [{{name: main, ports: [{{containerPort: 8080}}, {{containerPort: 53, protocol: UDP}}]}}]
        """)


STAYS = service(
    "stays",
    "type: NodePort, ipFamilyPolicy: PreferDualStack, ports: ["
    "{name: t, port: 80, targetPort: 8080, nodePort: 30080}, {name: u, port: 53, protocol: UDP, nodePort: 30053}]",
)


@pytest.fixture(scope="module")
def manifests(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("manifests")
    write(
        directory, "asker", workload("asker", "minReadySeconds: 0", kind="DaemonSet")
    )  # by name the first pod of a node
    write(directory, "stays", STAYS, workload("stays"))
    return directory


@pytest.fixture(scope="module")
def lab(manifests: Path) -> Iterator[Lab]:
    with labs.directory() as root, labs.lab(root, NAME, manifests, 2) as found:
        control.ask(found, control.MakeClient())
        yield found


def write(directory: Path, name: str, *documents: str) -> None:
    """As an editor does: a new file takes the old one's name."""
    draft = directory / f".{name}.new"
    draft.write_text("---\n".join(documents), encoding="utf-8")
    draft.rename(directory / f"{name}.yaml")


def stays(seen: LabView) -> list[Question]:
    """To the Service that stays: from a pod and a node by its cluster IPs, and from outside by the first node."""
    kinds = ("pod to cluster IP", "node to cluster IP", "client to node port")
    found: dict[tuple[str, int, Protocol], Question] = {}
    for it in questions(seen):
        if it.path in kinds and it.target.startswith("Service stays"):
            found.setdefault((it.path, it.family, it.protocol), it)
    return [it for it in found.values() if it.path != "node to cluster IP" or it.family == 4]


def through(lab: Lab, change: Callable[[], LabView], *asked: Question) -> tuple[LabView, list[Heard]]:
    """The lab after the change, and what clients of `asked` heard meanwhile. Those of the Service that stays heard
    right answers alone, before, meanwhile and after."""
    before = control.view(lab)
    steady = stays(before)
    assert len(steady) == 10
    assert {it.source.pod.partition("-")[0] for it in steady} == {"default/asker", ""}
    after, _, heard = while_asking([*steady, *asked], change)
    assert (after.problems, [it.problem for it in after.pods if it.problem]) == ((), [])
    assert backends(after, "stays") == backends(before, "stays")
    names = names_of((*before.nodes, *after.nodes))
    for it in heard[: len(steady)]:
        row = judge(it.question, (*it.before, *it.during, *it.after), names)
        assert row.right, row
    return after, heard[len(steady) :]


def to(seen: LabView, host: str, port: int = 80) -> Question:
    """From the first node."""
    node = seen.nodes[0]
    source = Source(node.name, path_of(node.space), node.name)
    return Question("", source, "", host, port, Protocol.TCP, {})


def said(answers: tuple[object, ...]) -> set[str]:
    return {str(answer) for answer in answers}


def sync(lab: Lab, manifests: Path, name: str, *documents: str) -> Callable[[], LabView]:
    def change() -> LabView:
        write(manifests, name, *documents)
        return control.view(lab, control.Sync())

    return change


def test_a_service_comes_moves_to_another_port_and_goes(lab: Lab, manifests: Path) -> None:
    pods, ip = workload("comes"), "10.96.7.7"
    seen, _ = through(lab, sync(lab, manifests, "comes", pods))
    old, new = to(seen, ip), to(seen, ip, 8000)
    there = service("comes", f"clusterIP: {ip}, ports: [{{port: 80, targetPort: 8080}}]")
    seen, (heard,) = through(lab, sync(lab, manifests, "comes", pods, there), old)
    held = set(backends(seen, "comes"))
    assert (said(heard.before), said(heard.after), lost(heard.all)) == ({REFUSED}, held, 0)

    moved = there.replace("port: 80", "port: 8000")
    _, (at_old, at_new) = through(lab, sync(lab, manifests, "comes", pods, moved), old, new)
    assert (said(at_old.before), said(at_old.after), lost(at_old.all)) == (held, {REFUSED}, 0)
    assert (said(at_new.before), said(at_new.after), lost(at_new.all)) == ({REFUSED}, held, 0)

    _, (heard,) = through(lab, sync(lab, manifests, "comes", pods), new)
    assert (said(heard.before), said(heard.after), lost(heard.all)) == (held, {REFUSED}, 0)


def test_backends_come_and_go(lab: Lab, manifests: Path) -> None:
    text = (service("scales", "clusterIP: 10.96.7.8, ports: [{port: 80, targetPort: 8080}]"), workload("scales", ""))
    seen, _ = through(lab, sync(lab, manifests, "scales", *text))
    before = set(backends(seen, "scales"))
    assert len(before) == 1
    for count in (5, 0, 2):
        scale = control.Scale("Deployment/default/scales", count)
        seen, (heard,) = through(lab, lambda scale=scale: control.view(lab, scale), to(seen, "10.96.7.8"))
        after = set(backends(seen, "scales"))
        assert len(after) == count
        assert (said(heard.before), said(heard.after)) == (before or {REFUSED}, after or {REFUSED})
        assert lost(heard.all) == 0
        assert REFUSED not in said(heard.during) or not (before and after)
        before = after


def test_a_node_moves_to_another_address(lab: Lab) -> None:
    before = control.view(lab)
    old = before.nodes[1].addresses[0]
    seen, _ = through(lab, lambda: control.view(lab, control.Readdress("node2")))
    new = seen.nodes[1].addresses[0]
    assert new != old
    (answer, *_) = put(to(seen, new, 30080), 20)
    assert answer.pod in backends(seen, "stays")
    assert {it.pod for it in put(to(seen, old, 30080), 1)} == {""}
    all_right(seen)


def test_a_deployment_s_pod_moves_to_the_other_node(lab: Lab, manifests: Path) -> None:
    where = "nodeSelector: {kubernetes.io/hostname: NODE}"
    there = service("moves", "clusterIP: 10.96.7.9, ports: [{port: 80, targetPort: 8080}]")
    pods = workload("moves", "", where)
    seen, _ = through(lab, sync(lab, manifests, "moves", there, pods.replace("NODE", "node1")))
    seen, (heard,) = through(
        lab, sync(lab, manifests, "moves", there, pods.replace("NODE", "node2")), to(seen, "10.96.7.9")
    )
    assert {it.error for it in heard.all} == {""}  # the new one is there before the old one goes
    assert [{it.node for it in part} for part in (heard.before, heard.after)] == [{"node1"}, {"node2"}]


def test_a_stateful_set_s_pod_moves_and_keeps_its_name(lab: Lab, manifests: Path) -> None:
    where = "nodeSelector: {kubernetes.io/hostname: NODE}"
    there = service("keeps", "clusterIP: 10.96.7.10, ports: [{port: 80, targetPort: 8080}]")
    named = service("named", "clusterIP: None, ports: [{port: 80, targetPort: 8080}]", "keeps")
    pods = workload("keeps", "serviceName: named", where, "StatefulSet")
    seen, _ = through(lab, sync(lab, manifests, "keeps", there, named, pods.replace("NODE", "node1")))
    change = sync(lab, manifests, "keeps", there, named, pods.replace("NODE", "node2"))
    seen, (heard,) = through(lab, change, to(seen, "10.96.7.10"))
    assert lost(heard.all) == 0  # refused in between, since two pods can't have one name
    assert said(heard.before) == said(heard.after) == {"default/keeps-0"}
    assert {it.node for it in heard.after} == {"node2"}
    (pod,) = (it for it in seen.pods if it.name == "keeps-0")
    lookup = Lookup("keeps-0.named.default.svc.cluster.local", "A")
    assert look_up(path_of(pod.space), "10.96.0.10", lookup).records == {pod.addresses[0]}


def test_an_agent_is_killed_and_started_again(lab: Lab) -> None:
    def restart() -> LabView:
        control.ask(lab, control.KillAgent("node1"))
        return control.view(lab, control.StartAgent("node1"))

    through(lab, restart)


def test_a_node_dies_and_comes_back(lab: Lab) -> None:
    before = control.view(lab)
    steady = [it for it in stays(before) if it.protocol is Protocol.TCP]
    seen, _, heard = while_asking(steady, lambda: control.view(lab, control.KillNode("node2")))
    rest = set(backends(seen, "stays"))
    assert rest < set(backends(before, "stays"))
    for it in heard:
        assert (lost(it.before), said(it.after)) == (0, rest), it.question
    seen, _, heard = while_asking(steady, lambda: control.view(lab, control.StartNode("node2")))
    for it in heard:
        assert (lost(it.all), said(it.after)) == (0, set(backends(before, "stays"))), it.question
    all_right(seen)
