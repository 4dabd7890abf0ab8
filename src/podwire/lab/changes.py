"""What the demonstration changes while steady clients ask: pods, a port, a node, an agent.

Invariants: each change is made as a user makes it: by the lab's commands, or in the manifests, which are the demo's
own copy. Nothing may be lost but what is on its way to a node that dies.
"""

import json
from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path

import msgspec

from podwire import views as agent
from podwire.cli import client
from podwire.lab import control, paths
from podwire.lab.layout import Lab
from podwire.lab.questions import REFUSED, UNREACHABLE, Change, Question, Step, parse_port
from podwire.lab.steady import Heard, lost, while_asking
from podwire.lab.userfiles import files_in
from podwire.lab.views import LabView, ServiceView
from podwire.model.objects import Protocol
from podwire.sources.documents import read_documents

_INSIDE, _NAMES = "pod to cluster IP", "pod to cluster DNS"
_WAYS = (_INSIDE, "client to node port", "client to external IP", paths.BEHIND_ROUTER, paths.BY_ARP)
_FEWEST, _COUNTS = 1, (5, 0, 2)
_OUTCOMES = {(True, True): "", (True, False): ", then refused", (False, True): ", then answered", (False, False): ""}
"""By whether somebody is there before and after a change."""


def subject(seen: LabView) -> str:
    """The workload that is reached in most ways, and of several the one with most pods. "": none can be scaled."""
    scalable = [it for it in seen.workloads if not it.name.startswith(("Pod/", "DaemonSet/"))]
    reached = {it.name: len(steady(seen, it.name)) for it in scalable}
    best = max(scalable, key=lambda it: (reached[it.name], it.running), default=None)
    return best.name if best is not None and reached[best.name] else ""


def steady(seen: LabView, workload: str) -> list[Question]:
    """One question for each way in which the workload's Services are reached, from or by the first node."""
    pods = {f"{pod.namespace}/{pod.name}" for pod in seen.pods if pod.workload == workload}
    found: dict[str, Question] = {}
    for question in paths.questions(seen):
        plain = (question.family, question.protocol) == (4, Protocol.TCP)
        if plain and question.path in _WAYS and question.wanted.keys() == pods:
            found.setdefault(question.path, question)
    return list(found.values())


def changes(lab: Lab, workload: str) -> Iterator[Change]:
    """One after the other, as they happen. Raises LabError."""
    seen = control.view(lab, control.Scale(workload, _FEWEST))
    questions, before = steady(seen, workload), _FEWEST
    for count in _COUNTS:
        words = f"{workload.rpartition('/')[2]}: {before} → {count} pods"
        yield _watch(lab, words, questions, control.Scale(workload, count))
        before = count
    questions = yield from _another_port(lab, questions)
    first, last = seen.nodes[0].name, seen.nodes[-1].name
    if last != first:
        every = [*questions, *_to_names(control.view(lab))]
        yield _watch(
            lab, f"{last} is cut off: its agent killed, its cable pulled", every, control.KillNode(last), loss=last
        )
        yield _watch(lab, f"{last} is back", every, control.StartNode(last))
    yield _killed_agent(lab, questions, first)


def _to_names(seen: LabView) -> list[Question]:
    """By TCP: what the kernel remembers of datagrams outlives the backend that they went to."""
    return [it for it in paths.questions(seen) if it.path == _NAMES and it.protocol is Protocol.TCP][:1]


def _another_port(lab: Lab, questions: list[Question]) -> Generator[Change, None, list[Question]]:
    """Of the Service that pods reach by its cluster IP. Returns the questions that still make sense."""
    inside = next((it for it in questions if it.path == _INSIDE), None)
    service = paths.service_at(control.view(lab), inside) if inside is not None else None
    if inside is None or service is None:
        return questions
    new = inside._replace(path="pod to the new port", port=_free_port(service))
    change = partial(change_port, lab.manifests, service, inside.port, new.port)
    words = f"Service {service.name}: port {inside.port} → {new.port}"
    yield _watch(lab, words, [*questions, new], control.Sync(), first=change)
    after = control.view(lab)
    return [it for it in (new, *questions) if paths.behind(after, it)]


def _free_port(service: ServiceView) -> int:
    taken = {parse_port(text)[0] for text in service.ports}
    return next(number for number in range(8000, 65536) if number not in taken)


def change_port(directory: Path, service: ServiceView, port: int, new: int) -> None:
    """In the manifests; the pods' port stays. Raises OSError."""
    for file in files_in(directory):
        documents = [it.data for it in read_documents(str(file), file.read_bytes())]
        for document in documents:
            metadata = document.get("metadata") or {}
            named = (document.get("kind"), metadata.get("namespace") or "default", metadata.get("name"))
            if named == ("Service", service.namespace, service.name):
                for it in document["spec"]["ports"]:
                    if it["port"] == port:
                        it.update(port=new, targetPort=it.get("targetPort") or port)
                whole = {"apiVersion": "v1", "kind": "List", "items": documents}
                file.write_text(json.dumps(whole, default=str), encoding="utf-8")  # JSON is YAML too
                return


def _killed_agent(lab: Lab, questions: list[Question], node: str) -> Change:
    words = f"the agent of {node} is killed by SIGKILL and started again"
    change = _watch(lab, words, questions, control.KillAgent(node), control.StartAgent(node), away=node)
    body = client.ask(lab.node(node).admin_socket, "GET", "/status")
    writes = msgspec.json.decode(body, type=agent.StatusView).writes
    told = ", ".join(f"{driver} {count}" for driver, count in writes.items())
    own = Step("its writes since then", 0, 0, 0, "none", told, not any(writes.values()))
    return change._replace(steps=(*change.steps, own))


def _watch(
    lab: Lab,
    words: str,
    questions: list[Question],
    *requests: control.Requests,
    first: Callable[[], None] = lambda: None,
    loss: str = "",
    away: str = "",
) -> Change:
    """`first`: what comes before the requests; `loss`: a node, on whose way something may be lost; `away`: one whose
    agent is not there for a while. Whoever is on an address's way while it moves is lost, too."""

    def change() -> LabView:
        first()
        return [control.view(lab, it) for it in requests][-1]

    before = control.view(lab)
    after, seconds, heard = while_asking(questions, change)

    def lossy(question: Question) -> str:
        owners = {paths.owner_of(seen, question) for seen in (before, after)} - {""}
        moves = question.path == paths.BY_ARP and (len(owners) > 1 or away in owners)
        return loss or (" or ".join(sorted(owners)) if moves else "")

    steps = (
        _step(it, paths.behind(before, it.question), paths.behind(after, it.question), lossy(it.question))
        for it in heard
    )
    return Change(words, seconds, tuple(steps))


def _step(heard: Heard, before: frozenset[str], after: frozenset[str], loss: str) -> Step:
    then, nodes = {str(answer) for answer in heard.after}, {answer.node for answer in heard.after}
    # Of what nobody announces the router knows no way.
    routed = heard.question.path == paths.BEHIND_ROUTER and not (before and after)
    nobody = UNREACHABLE if routed else REFUSED
    refused = sum(answer.error in (REFUSED, nobody) for answer in heard.all)
    right = then == (after or {nobody})
    told = f"{len(then)} pod{'s' * (len(then) > 1)} on {', '.join(sorted(nodes))}" if after else nobody
    outcome = _OUTCOMES[bool(before), bool(after)].replace(REFUSED, nobody)
    return Step(
        way=heard.question.path,
        requests=len(heard.all),
        lost=lost(heard.all, nobody),
        refused=refused,
        expected=f"lost only what is on its way to {loss}" if loss else f"none lost{outcome}",
        then=told if right else ", ".join(sorted(then)),
        right=right
        and not lost((*heard.before, *heard.after) if loss else heard.all, nobody)
        and not (before and after and refused),
    )
