"""Where kube-proxy (nftables mode) answers otherwise than the table holds to be right, and why. Pure.

Invariants: this is the only list; docs/kube-proxy-differences.md is the same for people, kept in step by a test. Rows
and refusals that no difference names are answered as the table says, and each that one names is not.
"""

from collections.abc import Callable
from textwrap import fill
from typing import NamedTuple

from podwire.model.addresses import IPV4
from podwire.model.objects import Protocol
from tests.packets.plan import Node, Outside, Pod, is_on
from tests.packets.table import CLIENTS, Kind, Path, Refusal, Row, Why, masquerade, translator


class Difference(NamedTuple):
    """`answers`: all that kube-proxy may answer to what this difference `names`."""

    title: str
    rows: str
    kube_proxy: str
    podwire: str
    reason: str
    names: Callable[[Row | Refusal], bool]
    answers: Callable[[Row | Refusal], frozenset[str]]


def difference(it: Row | Refusal) -> Difference | None:
    """The one that names it; none is named by two."""
    found = [each for each in DIFFERENCES if each.names(it)]
    assert len(found) <= 1, f"{it.id} is in several differences: {[each.title for each in found]}"
    return found[0] if found else None


def section(it: Difference) -> str:
    """Of the page for people."""
    return (
        f"## {it.title}\n\n"
        f"| | |\n|---|---|\n"
        f"| rows | {it.rows} |\n"
        f"| kube-proxy | {it.kube_proxy} |\n"
        f"| Podwire | {it.podwire} |\n\n"
        f"{fill(it.reason, 120, break_long_words=False, break_on_hyphens=False)}\n"
    )


# --- which rows --------------------------------------------------------------------------------


def _by_its_node(path: Path) -> Node | None:
    """The node that translates a NodePort or an external IP."""
    return translator(path) if path.kind in (Kind.NODE_PORT, Kind.EXTERNAL_IP) else None


def _of_others(it: Row | Refusal) -> bool:
    node = _by_its_node(it.path) if isinstance(it, Row) else None
    if node is None or not isinstance(it, Row) or it.path.asker == node or it.path.backend == node:
        return False
    return it.path.asker != it.path.backend and (is_on(it.path.asker, node) or is_on(it.path.backend, node))


def _of_the_node_itself(it: Row | Refusal) -> bool:
    if not isinstance(it, Row) or it.path.asker != translator(it.path):
        return False
    path = it.path
    own_pod = isinstance(path.backend, Pod) and path.backend.node == path.asker
    return own_pod or (path.backend == path.asker and path.family == IPV4)


def _from_outside(it: Row | Refusal) -> bool:
    if not isinstance(it, Row) or it.kind is not Kind.CLUSTER_IP or not isinstance(it.path.asker, Outside):
        return False
    node = translator(it.path)
    return isinstance(it.path.backend, Pod) and it.path.backend.node == node


def _of_datagrams_to_nothing(it: Row | Refusal) -> bool:
    if not isinstance(it, Refusal) or it.protocol is Protocol.TCP:
        return False
    return (it.client, it.kind, it.why) == ("node-itself", Kind.NODE_PORT, Why.NO_BACKEND)


def _of_unknown_ports(it: Row | Refusal) -> bool:
    return isinstance(it, Refusal) and (it.kind, it.why) == (Kind.EXTERNAL_IP, Why.UNKNOWN_PORT)


def _of_unknown_addresses(it: Row | Refusal) -> bool:
    if not isinstance(it, Refusal) or it.why is not Why.UNKNOWN_ADDRESS:
        return False
    return it.protocol is Protocol.TCP or not isinstance(CLIENTS[it.client], Node)


# --- which answers -----------------------------------------------------------------------------


def _masqueraded(it: Row | Refusal) -> frozenset[str]:
    assert isinstance(it, Row)
    node = translator(it.path)
    assert node is not None
    return frozenset({f"{it.path.backend.name} {masquerade(it.path, node)}"})


DIFFERENCES = (
    Difference(
        "Clients of node ports and external IPs stay visible",
        "NodePort and external IP; from outside, from pods and from other nodes; to backends on the node that "
        "translates, or from its own pods to backends elsewhere",
        "the backend sees an address of the node",
        "the backend sees the client",
        "kube-proxy masquerades all that comes by these frontends unless externalTrafficPolicy is Local. Podwire "
        "masquerades only where the answer would otherwise not come back by the translating node; here it does, since "
        "the client or the backend is on it. Where kube-proxy's packets are for a process of that very node they are "
        "not masqueraded either: they never pass postrouting.",
        _of_others,
        _masqueraded,
    ),
    Difference(
        "The node's own address stays on all of a Service's addresses",
        "ClusterIP, NodePort and external IP; from the node that translates; to its own pods, and for IPv4 to its "
        "host network",
        "the backend sees the first address of the node's pod block",
        "the backend sees the address that the node's socket has",
        "The same rule of kube-proxy, and of cluster IPs the one of clusterCIDR: it masquerades a node's own packets "
        "too. Which address that gives depends on the "
        "interface: towards pods, and for IPv4 towards the node itself, it is the one that lies on lo.",
        _of_the_node_itself,
        _masqueraded,
    ),
    Difference(
        "Clients from outside stay visible on cluster IPs",
        "ClusterIP; from outside, where a router leads cluster IPs to a node; to backends on that node",
        "the backend sees the first address of the node's pod block",
        "the backend sees the client",
        "kube-proxy masquerades what comes to a cluster IP from outside of clusterCIDR. Podwire treats it as it treats "
        "any other frontend.",
        _from_outside,
        _masqueraded,
    ),
    Difference(
        "A node's datagrams to a node port without backends are refused as they are sent",
        "NodePort without a backend; UDP and SCTP; from the node itself",
        "the packet is sent and refused by ICMP: ECONNREFUSED",
        "sending fails: EPERM",
        "kube-proxy refuses node ports where packets arrive, Podwire refuses all frontends where packets leave, too. "
        "There the kernel answers the process by EPERM. TCP is reset by both.",
        _of_datagrams_to_nothing,
        lambda _: frozenset({"ConnectionRefusedError"}),
    ),
    Difference(
        "Ports that no Service has at an external IP",
        "external IP, at a port that no Service has; from everywhere",
        "the packet goes on by the default route; where the router leads external IPs to the node it comes back, until "
        "its hops are used up: no answer, or an unreachable host",
        "refused at once, by the node to which the network leads it",
        "kube-proxy knows external IPs only together with their ports. Podwire refuses what comes from elsewhere to an "
        "external IP and no Service takes; what pods and the node itself send there goes the way of the network first.",
        _of_unknown_ports,
        lambda _: frozenset({"TimeoutError", "OSError"}),
    ),
    Difference(
        "Cluster IPs that no Service has are refused",
        "an address of the service range that no Service has; from everywhere, but for a node's own datagrams",
        "dropped: no answer",
        "refused at once",
        "A client that still has the address of a Service that is gone learns it at once, instead of waiting. "
        "Datagrams that a node itself sends there fail with EPERM with both.",
        _of_unknown_addresses,
        lambda _: frozenset({"TimeoutError"}),
    ),
)
