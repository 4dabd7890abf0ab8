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
from tests.packets.questions import Asked, asker_of, right, way
from tests.packets.refusals import SILENCE, Refusal, Why
from tests.packets.table import LED_HERE, Kind, hidden_by, masquerade, translator


class Difference(NamedTuple):
    """`answers`: all that kube-proxy may answer to what this difference `names`."""

    title: str
    rows: str
    kube_proxy: str
    podwire: str
    reason: str
    names: Callable[[Asked], bool]
    answers: Callable[[Asked], frozenset[str]]


def difference(it: Asked) -> Difference | None:
    """The one that names it; none is named by two."""
    found = [each for each in DIFFERENCES if each.names(it)]
    assert len(found) <= 1, f"{it.id} is in several differences: {[each.title for each in found]}"
    return found[0] if found else None


def is_silent(it: Asked) -> bool:
    """Whether kube-proxy may leave it without an answer."""
    listed = difference(it)
    return SILENCE in (listed.answers(it) if listed is not None else {right(it)})


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


def _is_external(it: Asked) -> bool:
    """Of all frontends but a ClusterIP and a pod's own address."""
    return it.kind in (Kind.NODE_PORT, *LED_HERE)


def _is_external_local(it: Asked) -> bool:
    return not isinstance(it, Refusal) and it.service.external_local


def _of_others(it: Asked) -> bool:
    path = way(it)
    if path is None or not _is_external(it) or _is_external_local(it):
        return False
    node = translator(path)
    if node is None or node in (path.asker, path.backend):
        return False
    return path.asker != path.backend and (is_on(path.asker, node) or is_on(path.backend, node))


def _of_the_node_itself(it: Asked) -> bool:
    path = way(it)
    if path is None or path.asker != translator(path):
        return False
    own_pod = isinstance(path.backend, Pod) and path.backend.node == path.asker
    return own_pod or (path.backend == path.asker and path.family == IPV4)


def _from_outside(it: Asked) -> bool:
    path = way(it)
    if path is None or it.kind is not Kind.CLUSTER_IP or not isinstance(path.asker, Outside):
        return False
    node = translator(path)
    return isinstance(path.backend, Pod) and path.backend.node == node


def _of_pods_there_and_back(it: Asked) -> bool:
    path = way(it)
    if path is None or not _is_external_local(it) or not isinstance(path.asker, Pod):
        return False
    node = hidden_by(path)
    return it.kind is Kind.NODE_PORT and node is not None and not is_on(path.asker, node)


def _out_of_the_cluster(it: Asked) -> bool:
    if isinstance(it, Refusal) or it.kind is not Kind.LOAD_BALANCER_IP:
        return False
    return it.service.proxied and isinstance(asker_of(it), Pod)


def _kept(it: Asked) -> frozenset[str]:
    """By the same backend, which sees the client itself."""
    name, _, _ = right(it).partition(" ")
    return frozenset({f"{name} {asker_of(it).address(it.family)}"})


def _of_datagrams_to_nothing(it: Asked) -> bool:
    at_node_port = (it.client, it.kind) == ("node-itself", Kind.NODE_PORT)
    return at_node_port and right(it) == "PermissionError"


def _of_unknown_ports(it: Asked) -> bool:
    return isinstance(it, Refusal) and it.kind in LED_HERE and it.why is Why.UNKNOWN_PORT and right(it) != SILENCE


def _of_unknown_addresses(it: Asked) -> bool:
    if not isinstance(it, Refusal) or it.why is not Why.UNKNOWN_ADDRESS:
        return False
    return it.protocol is Protocol.TCP or not isinstance(asker_of(it), Node)


# --- which answers -----------------------------------------------------------------------------


def _masqueraded(it: Asked) -> frozenset[str]:
    """By the same backend, which sees an address of the node."""
    path = way(it)
    assert path is not None
    node = translator(path)
    assert node is not None
    name, _, _ = right(it).partition(" ")
    return frozenset({f"{name} {masquerade(path, node)}"})


DIFFERENCES = (
    Difference(
        "Clients of node ports and external IPs stay visible",
        "NodePort, external IP and load balancer's IP with externalTrafficPolicy Cluster; from outside, from pods and "
        "from other nodes; to backends on the node that translates, or from its own pods to backends elsewhere",
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
        "all frontends and policies; from the node that translates; to its own pods, and for IPv4 to its host network",
        "the backend sees the first address of the node's pod block",
        "the backend sees the address that the node's socket has",
        "kube-proxy masquerades a node's own packets on all external frontends, whatever their policy, and on cluster "
        "IPs since the node is not in clusterCIDR. Which address that gives depends on the interface: towards pods, "
        "and for IPv4 towards the node itself, it is the one that lies on lo.",
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
        "Pods that ask another node's NodePort under a Local policy get their answers",
        "NodePort with externalTrafficPolicy Local; from a pod of another node; to a backend that is not on the node "
        "that was asked, the pod itself among them",
        "no answer: the backend sees the pod, and answers past the node that translates",
        "the backend sees the address of the node that translates, and the answer comes back by it",
        "For both the policy doesn't narrow what pods find. But kube-proxy masquerades none of them, and Podwire those "
        "whose answer would otherwise not come back.",
        _of_pods_there_and_back,
        lambda _: frozenset({SILENCE}),
    ),
    Difference(
        "What pods send out of the cluster bears the node's address",
        "a load balancer that takes connections itself (ipMode Proxy); from pods",
        "it sees the pod",
        "it sees the address of the pod's node",
        "kube-proxy leaves such packets to whoever attaches pods. Podwire does that too, and masquerades what pods "
        "send out of the cluster (`masquerade`, `non_masquerade_cidrs`).",
        _out_of_the_cluster,
        _kept,
    ),
    Difference(
        "A node's datagrams to a node port without backends are refused as they are sent",
        "NodePort without a backend anywhere, with any policy; UDP and SCTP; from the node itself",
        "the packet is sent and refused by ICMP: ECONNREFUSED",
        "sending fails: EPERM",
        "kube-proxy refuses node ports where packets arrive, Podwire refuses all frontends where packets leave, too. "
        "There the kernel answers the process by EPERM. TCP is reset by both.",
        _of_datagrams_to_nothing,
        lambda _: frozenset({"ConnectionRefusedError"}),
    ),
    Difference(
        "Ports that no Service has at an external IP or a load balancer's",
        "external IP and load balancer's IP, at a port that no Service has; from everywhere but pods of the node to "
        "which the router leads these addresses",
        "the packet goes on by the default route; where the router leads such an address to the node it comes back, "
        "until its hops are used up: no answer, or an unreachable host",
        "refused at once, by the node to which the network leads it",
        "kube-proxy knows these addresses only together with their ports. Podwire refuses what comes from elsewhere to "
        "one of them and no Service takes; what pods and the node itself send there goes the way of the network first.",
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
