"""The cluster of the packet table, put together: machines, a plane at work on them, and what answers everywhere."""

from collections.abc import Callable, Container, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Generic, NamedTuple, TypeVar

from podwire.model.objects import Protocol
from tests.packets.answering import Answering, Question, answering, ask_all
from tests.packets.objects import objects
from tests.packets.plan import ONE, PODS, PROXY, TWO, Node, Pod, Station
from tests.packets.planes import Plane
from tests.packets.questions import ALL_SERVICES, Asked, asker_of, everything, target_of
from tests.packets.refusals import SILENCE
from tests.packets.topology import Topology, topology
from tests.packets.watching import until_none


class Asking(NamedTuple):
    asker: Station
    protocol: Protocol
    address: str
    port: int

    def __str__(self) -> str:
        return f"{self.asker.name} to {self.address} port {self.port}/{self.protocol.name}"


AnyPlane = TypeVar("AnyPlane", bound=Plane)


class Cluster(Generic[AnyPlane]):
    def __init__(self, machines: Topology, plane: AnyPlane, responders: Answering) -> None:
        self.topology, self.plane, self.responders = machines, plane, responders

    def start(self) -> None:
        """Two nodes with their pods."""
        nodes = (ONE, TWO)
        for node in nodes:
            self.topology.add_node(node)
        self.plane.publish(objects(nodes, ALL_SERVICES))
        for node in nodes:
            self.begin(node)
        for pod in PODS:
            self.add_pod(pod)
        self.responders.add(PROXY, self.topology.space(PROXY))

    def begin(self, node: Node) -> None:
        """The plane is at work on a node of the topology, and the node answers."""
        self.plane.add_node(node)
        self.responders.add(node, self.topology.space(node))

    def add_pod(self, pod: Pod) -> None:
        space = self.topology.add_pod(pod)
        self.plane.attach(pod)
        self.responders.add(pod, space)

    def ask_table(self, silent: Container[Asked]) -> dict[Asked, str]:
        """All that there is to ask, each once. `silent`: to which no answer should come."""
        return ask_all(
            {it: self._question(Asking(asker_of(it), it.protocol, *target_of(it)), it in silent) for it in everything()}
        )

    def come_to(self, wanted: dict[Asking, str]) -> None:
        """Asks all of it until each answer is right, again after each change of a node's network."""
        questions = {it: self._question(it, answer == SILENCE) for it, answer in wanted.items()}
        self.until(wanted, lambda: ask_all(questions))

    def until(self, wanted: dict[Asking, str], ask: Callable[[], dict[Asking, str]]) -> None:
        """Asks until each answer is right, again after each change of a node's network."""
        nodes = [self.topology.space(node) for node in self.topology.nodes.values()]

        def wrong() -> list[str]:
            found = ask()
            return [f"{it}: {found[it]}, not {answer}" for it, answer in wanted.items() if found[it] != answer]

        until_none(wrong, nodes)

    def _question(self, it: Asking, silent: bool = False) -> Question:
        return Question(self.topology.space(it.asker), it.protocol, it.address, it.port, silent)


@contextmanager
def cluster(plane: Callable[[Topology], AbstractContextManager[AnyPlane]]) -> Iterator[Cluster[AnyPlane]]:
    with topology() as machines, plane(machines) as at_work, answering() as responders:
        found = Cluster(machines, at_work, responders)
        found.start()
        yield found
