"""What `podwire explain` says of a packet, held to the packet table: the agent of the node that translates it tells who
answers, which client that one sees, and what is refused or vanishes."""

import pytest

from podwire.controller.events import AddPod, Resync, ResyncReason
from podwire.controller.snapshot import fold
from podwire.explain.packets import PacketWhy, Verdict, explain_packet
from podwire.model.addresses import FAMILIES, parse_address, show_host_port
from podwire.model.network import Frontend
from podwire.model.objects import AttachmentKey, PodKey, Protocol
from podwire.model.snapshot import Local, Snapshot
from podwire.sources.kubernetes import translate
from tests.packets.objects import objects
from tests.packets.plan import FABRIC, ONE, PODS, SERVICE_RANGE, STATIONS, TARGET_PORT, TWO, Node, Pod, home, is_on
from tests.packets.questions import ALL_SERVICES, Asked, asker_of, everything, right, target_of
from tests.packets.refusals import SILENCE, Refusal, Why
from tests.packets.table import CLIENTS, LED_HERE, Kind


def _world(node: Node) -> Snapshot:
    """As the agent of that node knows it, its pods attached in the plan's order."""
    known = {it.key: it.value for it in map(translate, objects((ONE, TWO), ALL_SERVICES)) if it.value is not None}
    its_own = frozenset(parse_address(node.address(family)) for family in FAMILIES)
    networks = frozenset(FABRIC.values())
    now = Snapshot(Local(node.name, 1450, tuple(SERVICE_RANGE.values()), addresses=its_own, networks=networks))
    now, _ = fold(now, Resync(ResyncReason.STARTUP, known))
    for pod in (it for it in PODS if is_on(it, node)):
        key = AttachmentKey(f"sandbox-{pod.name}", "eth0")
        now, _ = fold(now, AddPod(key, PodKey("default", pod.name), f"/run/netns/{pod.name}"))
        held = [parse_address(pod.address(family)) for family in FAMILIES]
        assert list(now.attachments[key].addresses) == held
    return now


WORLDS = {node: _world(node) for node in (ONE, TWO)}
NAMES = {it.address(family): it.name for it in STATIONS for family in FAMILIES}


def _why(it: Asked) -> PacketWhy:
    asker = asker_of(it)
    node = ONE if it.kind is Kind.NODE_PORT else home(asker) or ONE
    address, port = target_of(it)
    source = None if asker == node else parse_address(asker.address(it.family))
    return explain_packet(WORLDS[node], source, Frontend(parse_address(address), it.protocol, port))


def _says(why: PacketWhy) -> set[str]:
    """As the table says it; where only the kernel knows a client's address, it has none."""
    if why.verdict is not Verdict.BALANCED:
        return {why.verdict.name}
    return {f"{_name(it.backend)} {it.client}" for it in why.choices}


def _name(backend: str) -> str:
    """`NAME`, or `NAME:PORT` at another port than TARGET_PORT."""
    for address, name in NAMES.items():
        head = show_host_port(parse_address(address), 0)[:-1]
        if backend.startswith(head):
            port = int(backend.removeprefix(head))
            return name if port == TARGET_PORT else f"{name}:{port}"
    return backend


def _wanted(it: Asked) -> str:
    """A packet to which no Service says anything goes on, wherever it is answered then."""
    if _goes_on(it):
        return Verdict.PASSED_ON.name
    answer = right(it._replace(protocol=Protocol.TCP))
    return {SILENCE: Verdict.DROPPED.name, "ConnectionRefusedError": Verdict.REFUSED.name}.get(answer, answer)


def _goes_on(it: Asked) -> bool:
    if isinstance(it, Refusal):
        unknown, inside = it.why is Why.UNKNOWN_PORT, isinstance(asker_of(it), Node | Pod)
        return unknown and (it.kind is Kind.NODE_PORT or (it.kind in LED_HERE and inside))
    if it.kind is Kind.NODE_PORT:
        return not it.service.node_ports
    return it.kind is Kind.POD_ADDRESS or (it.kind is Kind.LOAD_BALANCER_IP and it.service.proxied)


@pytest.mark.parametrize("client", CLIENTS)
def test_explain_says_what_the_table_says(client: str) -> None:
    every = [it for it in everything() if it.client == client]
    wrong = {it.id: (said, wanted) for it in every if (said := _says(_why(it))) != {wanted := _wanted(it)}}
    assert wrong == {}
