"""What a lab's network must answer, as questions with their right answers; and the judgement of what came. Pure.

Invariants: the right answer follows from the manifests alone. A row that is not as expected says what came instead.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from podwire.lab.control import ClientView, LabView, NodeView, PodView, ServiceView
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


def judge(question: Question, answers: Sequence[Answer]) -> Row:
    came = Counter(str(answer) for answer in answers)
    count = len(question.wanted)
    expected = f"{count} pod{'s' * (count > 1)}" if count else REFUSED
    right = came.keys() == (question.wanted or {REFUSED})
    answered = expected if right else ", ".join(f"{what} ×{count}" for what, count in sorted(came.items()))
    latency = median(answer.seconds for answer in answers)
    return Row(question.source, question.target, question.place, expected, answered, latency, right)


def questions(lab: LabView) -> Iterator[Question]:
    """From pod to pod; from pods and nodes to every Service; from a backend to itself; to a port that nobody has; and
    from clients to node ports."""
    pods = [pod for pod in lab.pods if not pod.problem]
    yield from _pod_to_pod(pods)
    for service in lab.services:
        yield from to_service(service, _strangers(service, pods), lab.nodes)
    for service in sorted(lab.services, key=lambda it: len(it.backends))[:1]:
        own = [pod for pod in pods if name_of(pod) in service.backends][:1]
        for question in to_service(service, own, ()):
            yield question._replace(target=f"itself by {question.target}")
    for service in lab.services[:1]:
        yield from _to_nobody(service, _strangers(service, pods), lab.nodes)
    for service in lab.services:
        yield from _to_node_ports(service, lab.clients, lab.nodes)


def questions_of(lab: LabView, service: ServiceView) -> Iterator[Question]:
    """Those to one Service alone."""
    return to_service(service, _strangers(service, [pod for pod in lab.pods if not pod.problem]), lab.nodes)


def to_service(service: ServiceView, pods: Iterable[PodView], nodes: Iterable[NodeView]) -> Iterator[Question]:
    """Every address and port, from each of these."""
    sources = [*_sources(pods), *((node.name, node.space) for node in nodes)]
    for address in service.cluster_ips:
        for text in service.ports if address != "None" else ():
            number, _, protocol = parse_port(text)
            for source, space in sources:
                target = f"Service {service.name}"
                yield Question(source, path_of(space), target, address, number, protocol, frozenset(service.backends))


def _pod_to_pod(pods: Sequence[PodView]) -> Iterator[Question]:
    for asked in [pod for pod in pods if pod.ports][:1]:
        others = [pod for pod in pods if pod.workload != asked.workload] or [pod for pod in pods if pod is not asked]
        number, _, protocol = parse_port(asked.ports[0])
        for address in asked.addresses:
            for source, space in _sources(_one_on_each(others)):
                wanted = frozenset({name_of(asked)})
                yield Question(source, path_of(space), _of(asked), address, number, protocol, wanted)


def _to_nobody(service: ServiceView, pods: Iterable[PodView], nodes: Iterable[NodeView]) -> Iterator[Question]:
    """A cluster IP is only its Service's: any other port is refused, not left to time out."""
    taken = {parse_port(text)[0] for text in service.ports}
    free = next(number for number in range(1, 65536) if number not in taken)
    for question in to_service(service, pods, nodes):
        target = f"{question.target}, no such port"
        yield question._replace(target=target, port=free, protocol=Protocol.TCP, wanted=frozenset())


def _to_node_ports(
    service: ServiceView, clients: Iterable[ClientView], nodes: Collection[NodeView]
) -> Iterator[Question]:
    families = {":" in address for address in service.cluster_ips}
    for text in service.ports:
        _, outside, protocol = parse_port(text)
        for client in clients if outside else ():
            for node in nodes:
                for address in node.addresses:
                    if (":" in address) in families:
                        target, wanted = f"Service {service.name}, {node.name}", frozenset(service.backends)
                        yield Question(client.name, path_of(client.space), target, address, outside, protocol, wanted)


def parse_port(text: str) -> tuple[int, int, Protocol]:
    """`80/TCP` and `80:30080/TCP` as a view has them: port, node port or 0, protocol."""
    numbers, _, protocol = text.partition("/")
    number, _, outside = numbers.partition(":")
    return int(number), int(outside or 0), Protocol[protocol]


def name_of(pod: PodView) -> str:
    return f"{pod.namespace}/{pod.name}"


def _strangers(service: ServiceView, pods: Sequence[PodView]) -> list[PodView]:
    """On each node a pod that is no backend; where all are, any of them."""
    return _one_on_each([pod for pod in pods if name_of(pod) not in service.backends] or pods)


def _one_on_each(pods: Iterable[PodView]) -> list[PodView]:
    found: dict[str, PodView] = {}
    for pod in pods:
        found.setdefault(pod.node, pod)
    return list(found.values())


def _sources(pods: Iterable[PodView]) -> list[tuple[str, str]]:
    """Words and namespace; the node is told where it makes a difference."""
    listed = list(pods)
    several = len({pod.node for pod in listed}) > 1
    return [(f"{_of(pod)} on {pod.node}" if several else _of(pod), pod.space) for pod in listed]


def _of(pod: PodView) -> str:
    return f"pod of {pod.workload.rpartition('/')[2]}"
