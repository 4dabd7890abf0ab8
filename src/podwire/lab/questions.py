"""What a lab's network must answer, as questions with their right answers; and the judgement of what came. Pure.

Invariants: the right answer follows from the manifests alone. A row that is not as expected says what came instead.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from podwire.lab.control import LabView, NodeView, PodView, ServiceView
from podwire.lab.probe import REFUSED, Answer
from podwire.lab.spaces import path_of
from podwire.model.objects import Protocol

EACH = 20
"""Questions for each backend: with so many, a backend is passed over by chance once in 500 million times."""


class Question(NamedTuple):
    """`source` and `target` in words. `wanted`: the pods that shall answer, all of them and no other; none: refused."""

    source: str
    space: Path
    target: str
    address: str
    port: int
    protocol: Protocol
    wanted: frozenset[str]

    @property
    def place(self) -> str:
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{host}:{self.port}/{self.protocol.name}"

    @property
    def times(self) -> int:
        return EACH * max(1, len(self.wanted))


class Row(NamedTuple):
    """`latency`: median, in seconds, of an answer or a refusal; None where nothing was asked."""

    source: str
    target: str
    place: str
    expected: str
    answered: str
    latency: float | None
    right: bool


def questions(lab: LabView) -> Iterator[Question]:
    """From pod to pod; from pods and node to every Service; from a backend to itself; to a port nobody has."""
    pods, node = {name_of(pod): pod for pod in lab.pods if not pod.problem}, lab.nodes[0]
    yield from _pod_to_pod(list(pods.values()))
    for service in lab.services:
        yield from to_service(service, pods, node)
    for service in sorted(lab.services, key=lambda it: len(it.backends))[:1]:
        yield from _to_itself(service, pods)
    for service in lab.services[:1]:
        yield from _to_nobody(service, pods, node)


def to_service(service: ServiceView, pods: dict[str, PodView], node: NodeView) -> Iterator[Question]:
    """Every address and port, from a pod that is no backend where there is one, and from the node."""
    for address in _addresses(service):
        for text in service.ports:
            number, protocol = parse_port(text)
            target = f"Service {service.name}"
            asking = _other_than(service.backends, pods)
            wanted = frozenset(service.backends)
            if asking is not None:
                yield Question(_source(asking), path_of(asking.space), target, address, number, protocol, wanted)
            yield Question(node.name, path_of(node.space), target, address, number, protocol, wanted)


def judge(question: Question, answers: Sequence[Answer]) -> Row:
    came = Counter(str(answer) for answer in answers)
    count = len(question.wanted)
    expected = f"{count} pod{'s' * (count > 1)}" if count else REFUSED
    right = came.keys() == (question.wanted or {REFUSED})
    answered = expected if right else ", ".join(f"{what} ×{count}" for what, count in sorted(came.items()))
    latency = median(answer.seconds for answer in answers)
    return Row(question.source, question.target, question.place, expected, answered, latency, right)


def _pod_to_pod(pods: Sequence[PodView]) -> Iterator[Question]:
    for asked in [pod for pod in pods if pod.ports][:1]:
        others = [pod for pod in pods if pod.workload != asked.workload] or [pod for pod in pods if pod is not asked]
        for asking in others[:1]:
            for address in asked.addresses:
                number, protocol = parse_port(asked.ports[0])
                yield Question(
                    _source(asking),
                    path_of(asking.space),
                    _source(asked),
                    address,
                    number,
                    protocol,
                    frozenset({name_of(asked)}),
                )


def _to_itself(service: ServiceView, pods: dict[str, PodView]) -> Iterator[Question]:
    for backend in [pods[name] for name in service.backends if name in pods][:1]:
        for question in to_service(service, {name_of(backend): backend}, _NOBODY):
            if question.source != _NOBODY.name:
                yield question._replace(target=f"itself by {question.target}")


def _to_nobody(service: ServiceView, pods: dict[str, PodView], node: NodeView) -> Iterator[Question]:
    """A cluster IP is only its Service's: any other port is refused, not left to time out."""
    for question in to_service(service, pods, node):
        free = next(n for n in range(1, 65536) if all(parse_port(text)[0] != n for text in service.ports))
        yield question._replace(
            target=f"{question.target}, no such port", port=free, protocol=Protocol.TCP, wanted=frozenset()
        )


def parse_port(text: str) -> tuple[int, Protocol]:
    """`80/TCP` and `80:30080/TCP` as a view has them."""
    number, _, protocol = text.partition("/")
    return int(number.partition(":")[0]), Protocol[protocol]


def name_of(pod: PodView) -> str:
    return f"{pod.namespace}/{pod.name}"


def _addresses(service: ServiceView) -> list[str]:
    return [address for address in service.cluster_ips if address != "None"]


def _other_than(backends: Iterable[str], pods: dict[str, PodView]) -> PodView | None:
    mine = set(backends)
    others = [pod for name, pod in pods.items() if name not in mine]
    return next(iter(others or pods.values()), None)


def _source(pod: PodView) -> str:
    return f"pod of {pod.workload.rpartition('/')[2]}"


_NOBODY = NodeView("nobody", False, "", None, (), (), "", 0, "")
