"""Two nodes, their pods and a client outside: the packet table asked of Podwire, and of a cluster that changes."""

import socket
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import product

import pytest

from podwire.model.addresses import FAMILIES
from podwire.model.objects import Protocol
from tests.kernel.rig import entered, respond, silence
from tests.packets.answering import PATIENCE
from tests.packets.cluster import Asking, Cluster, cluster
from tests.packets.objects import node_object, service_object, slice_objects
from tests.packets.plan import (
    ONE,
    ONE_BACKEND,
    ONE_CLIENT,
    OUTSIDE,
    THREE,
    TWO,
    TWO_BACKEND,
    TWO_CLIENT,
    Backend,
    Exposed,
    Node,
    Pod,
    State,
    Station,
    service_of,
)
from tests.packets.planes import Podwire, podwire
from tests.packets.questions import Asked, everything, right
from tests.packets.refusals import SILENCE, Why, refused
from tests.packets.table import FRONTENDS, Kind, Path, expected, frontend, target
from tests.packets.terms import answer


@pytest.fixture(scope="module")
def at_work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster[Podwire]]:
    with cluster(partial(podwire, directory=tmp_path_factory.mktemp("podwire"))) as found:
        yield found


@pytest.fixture(scope="module")
def asked(at_work: Cluster[Podwire]) -> dict[Asked, str]:
    """All at once: what changes the cluster comes later, and puts it back."""
    return at_work.ask_table({it for it in everything() if right(it) == SILENCE})


@pytest.mark.parametrize("it", [pytest.param(it, id=it.id) for it in everything()])
def test_who_answers_and_which_client_it_sees_or_how_it_is_refused(asked: dict[Asked, str], it: Asked) -> None:
    assert asked[it] == right(it)


# --- a cluster that changes --------------------------------------------------------------------


def _questions(
    askers: Iterable[Station],
    kinds: Iterable[Kind],
    service: Exposed,
    entry: Node = ONE,
    protocols: Iterable[Protocol] = tuple(Protocol),
    gone: bool = False,
) -> dict[Asking, str]:
    """Of both families, with the right answers. `gone`: no such Service is there any more."""
    found = {}
    for asker, kind, family, protocol in product(askers, kinds, FAMILIES, protocols):
        if gone or not service.backends:
            where = frontend(service, kind, family, entry)
            told = refused(asker, kind, protocol, Why.UNKNOWN_PORT if gone else Why.NO_BACKEND)
        else:
            path = Path(asker, kind, family, service.backends[0].station, entry)
            where, told = target(path, service), expected(path)
        found[Asking(asker, protocol, *where)] = told
    return found


def test_a_node_has_another_address(at_work: Cluster[Podwire]) -> None:
    """Its node ports and the way to its pods are at the new one; the old one is an address as any other."""
    local, remote = service_of(ONE_BACKEND), service_of(TWO_BACKEND)
    moved = ONE._replace(moved=True)
    askers = (ONE_CLIENT, TWO_CLIENT, TWO, OUTSIDE)
    old = dict.fromkeys(_questions(askers, (Kind.NODE_PORT,), local), "ConnectionRefusedError")
    with _at_another_address(at_work, ONE, moved):
        at_work.come_to(_questions(askers, (Kind.NODE_PORT,), local, moved) | old)
        at_work.topology.remove_address(ONE)
        at_work.come_to(
            _questions(askers, (Kind.NODE_PORT,), remote, moved)
            | _questions((TWO_CLIENT, TWO, OUTSIDE), (Kind.POD_ADDRESS, *FRONTENDS), local, moved)
        )


UNBOUND = 9053


def test_datagram_servers_of_a_node_answer_with_the_address_that_was_asked(at_work: Cluster[Podwire]) -> None:
    """Those that listen at any address, as most do: the routes to pods say which one they answer with, on a node with
    two of them in one network too."""
    space, moved = at_work.topology.space(ONE), ONE._replace(moved=True)
    respond(space, "one", UNBOUND)
    try:
        at_work.come_to(_of_datagrams((ONE_CLIENT, TWO_CLIENT, TWO, OUTSIDE, ONE), ONE))
        with _at_another_address(at_work, ONE, moved):
            at_work.come_to(_of_datagrams((ONE_CLIENT, TWO_CLIENT), moved))
    finally:
        silence()


def _of_datagrams(askers: Iterable[Station], node: Node) -> dict[Asking, str]:
    return {
        Asking(asker, Protocol.UDP, node.address(family), UNBOUND): f"one {asker.address(family)}"
        for asker, family in product(askers, FAMILIES)
    }


@contextmanager
def _at_another_address(at_work: Cluster[Podwire], node: Node, moved: Node) -> Iterator[None]:
    """It has both; the Node object says the new one."""
    at_work.topology.add_address(moved)
    at_work.plane.publish([node_object(moved)])
    try:
        yield
    finally:
        at_work.topology.add_address(node)
        at_work.plane.publish([node_object(node)])
        at_work.come_to(_questions((TWO_CLIENT, OUTSIDE), (Kind.NODE_PORT, Kind.POD_ADDRESS), service_of(ONE_BACKEND)))
        at_work.topology.remove_address(moved)


def test_a_pod_moves_to_another_node(at_work: Cluster[Podwire]) -> None:
    askers = (ONE_CLIENT, TWO_CLIENT, ONE, TWO, OUTSIDE)
    before, after = Pod("before", ONE, 4), Pod("after", TWO, 4)
    service = Exposed("moving", 70).to(before)
    moved = service.to(after)
    with _pod(at_work, after), _published(at_work, service):
        with _pod(at_work, before):
            at_work.come_to(_questions(askers, FRONTENDS, service))
            at_work.plane.publish(slice_objects(moved))
            at_work.come_to(_questions(askers, FRONTENDS, moved))
        at_work.come_to(_questions(askers, (*FRONTENDS, Kind.POD_ADDRESS), moved))


SAYING = Exposed("saying", 73).to(TWO_BACKEND)
LEAVING = (Backend(ONE_BACKEND, State.LEAVING), Backend(TWO_BACKEND))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(
            SAYING, SAYING._replace(external_local=True, internal_local=True), id="the traffic policies are Local"
        ),
        pytest.param(
            SAYING, SAYING._replace(sources=("10.1.1.2/32", "fd01:0:0:1::2/128")), id="source ranges leave one client"
        ),
        pytest.param(SAYING, SAYING._replace(node_ports=False), id="it has no node ports"),
        pytest.param(
            SAYING._replace(backends=LEAVING), SAYING._replace(backends=LEAVING[:1]), id="one that is leaving is left"
        ),
    ],
)
def test_a_service_says_otherwise_and_takes_it_back(at_work: Cluster[Podwire], one: Exposed, other: Exposed) -> None:
    with _published(at_work, one):
        for said in (one, other, one):
            at_work.plane.publish([service_object(said), *slice_objects(said)])
            at_work.come_to(_of_what_it_says(said))


def _of_what_it_says(service: Exposed) -> dict[Asking, str]:
    askers: tuple[Station, ...] = (ONE_CLIENT, TWO_CLIENT, ONE, OUTSIDE)
    every = product(askers, FRONTENDS, (Protocol.TCP, Protocol.UDP), FAMILIES)
    return {
        Asking(asker, protocol, *frontend(service, kind, family)): answer(service, asker, kind, protocol, family)
        for asker, kind, protocol, family in every
    }


# To connection tracking the datagrams of one socket are one connection, however long it lasts.
FLOWING = Exposed("flowing", 72).to(TWO_BACKEND)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(FLOWING, FLOWING.to(ONE_BACKEND), id="another backend"),
        pytest.param(FLOWING, FLOWING.to(), id="its last backend goes"),
        pytest.param(FLOWING.to(), FLOWING, id="its first backend comes"),
        pytest.param(FLOWING, None, id="the Service goes"),
    ],
)
def test_a_flow_of_datagrams_follows_its_service(
    at_work: Cluster[Podwire], before: Exposed, after: Exposed | None
) -> None:
    askers = (ONE_CLIENT, TWO_CLIENT, ONE, OUTSIDE)
    kinds = FRONTENDS if after is not None else (Kind.CLUSTER_IP, Kind.NODE_PORT)
    at_first = _questions(askers, kinds, before, protocols=(Protocol.UDP,))
    at_last = _questions(askers, kinds, after or before, protocols=(Protocol.UDP,), gone=after is None)
    with _flows(at_work, at_first) as flows:
        with _published(at_work, before):
            at_work.come_to(at_first)
            assert _say(flows) == at_first
            if after is not None:
                at_work.plane.publish(slice_objects(after))
                at_work.come_to(at_last)
                at_work.until(at_last, lambda: _say(flows))
        if after is None:
            at_work.come_to(at_last)
            at_work.until(at_last, lambda: _say(flows))


@contextmanager
def _flows(at_work: Cluster[Podwire], askings: Iterable[Asking]) -> Iterator[dict[Asking, socket.socket]]:
    """A socket for each, connected and kept."""
    with ExitStack() as opened:
        found = {}
        for it in askings:
            with entered(at_work.topology.space(it.asker)):
                number = socket.AF_INET6 if ":" in it.address else socket.AF_INET
                found[it] = opened.enter_context(socket.socket(number, socket.SOCK_DGRAM))
            found[it].settimeout(PATIENCE)
            found[it].connect((it.address, it.port))
        yield found


def _say(flows: dict[Asking, socket.socket]) -> dict[Asking, str]:
    found = {}
    for it, kept in flows.items():
        kept.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)  # what the last refusal left
        try:
            kept.send(b"?")
            found[it] = kept.recv(100).decode()
        except OSError as error:
            found[it] = type(error).__name__
    return found


def test_a_node_is_added(at_work: Cluster[Podwire]) -> None:
    """Its pods are reached and reach others, and its address has the node ports."""
    pod = Pod("three-backend", THREE, 2)
    service = Exposed("to-three", 71).to(pod)
    askers = (ONE_CLIENT, TWO_CLIENT, ONE, TWO, THREE, pod, OUTSIDE)
    with _node(at_work, THREE), _pod(at_work, pod), _published(at_work, service):
        at_work.come_to(_questions(askers, (Kind.POD_ADDRESS, *FRONTENDS), service))
        for other in (service, service_of(ONE_BACKEND), service_of(TWO_BACKEND)):
            at_work.come_to(_questions(askers, (Kind.NODE_PORT,), other, THREE))
        at_work.come_to(_questions((THREE, pod), (Kind.POD_ADDRESS, *FRONTENDS), service_of(ONE_BACKEND)))


@contextmanager
def _node(at_work: Cluster[Podwire], node: Node) -> Iterator[None]:
    at_work.topology.add_node(node)
    at_work.plane.publish([node_object(node)])
    at_work.begin(node)
    try:
        yield
    finally:
        at_work.responders.remove(node)
        at_work.plane.withdraw([node_object(node)])
        at_work.plane.remove_node(node)
        at_work.topology.remove_node(node)


@contextmanager
def _pod(at_work: Cluster[Podwire], pod: Pod) -> Iterator[None]:
    at_work.add_pod(pod)
    try:
        yield
    finally:
        at_work.responders.remove(pod)
        at_work.plane.detach(pod)


@contextmanager
def _published(at_work: Cluster[Podwire], service: Exposed) -> Iterator[None]:
    its_own = [service_object(service), *slice_objects(service)]
    at_work.plane.publish(its_own)
    try:
        yield
    finally:
        at_work.plane.withdraw(its_own)
