"""Which nodes may announce anything, and which have backends of a Service. Pure.

Invariants: all nodes decide alike. One that others are told to leave alone (a label, its deletion, NetworkUnavailable)
never announces, nor one that fell silent. One whose object says that it is not ready does not, either, unless that is
said of all that are left: then it is the API server that nobody reaches, more likely than all nodes.
"""

from podwire.model.addresses import Family
from podwire.model.objects import Node, NodeKey, ServiceKey
from podwire.model.snapshot import Snapshot

EXCLUDED = "node.kubernetes.io/exclude-from-external-load-balancers"


def bars(now: Snapshot) -> dict[str, str]:
    """By name of each node why it announces nothing at all; "": it may."""
    any_ready = any(it.ready and not _is_away(now, key) for key, it in now.nodes.items())
    return {key.name: _bar(now, key, node, any_ready) for key, node in now.nodes.items()}


def _bar(now: Snapshot, key: NodeKey, node: Node, any_ready: bool) -> str:
    if now.local.heeds_exclusion and any(name == EXCLUDED for name, _ in node.labels):
        return f"it has the label {EXCLUDED}"
    if node.leaving:
        return "it is being deleted"
    if node.unavailable:
        return "its condition NetworkUnavailable is true"
    if _is_away(now, key):
        return "it has fallen silent" if key.name in now.announcing.dead else "its agent is not in sync yet, or leaves"
    return "it is not ready" if any_ready and not node.ready else ""


def _is_away(now: Snapshot, key: NodeKey) -> bool:
    """This node is here: it asks."""
    return key != now.local.key and (key.name in now.announcing.dead or key.name in now.announcing.unready)


def with_backends(now: Snapshot, key: ServiceKey, family: Family) -> frozenset[str]:
    """The nodes of the pods that serve a Service, ready or at least on their way out; "" stands for hosts that are on
    no node."""
    wanted = {(port.name, port.protocol) for port in now.services[key].ports}
    return frozenset(
        member.node
        for name in now.slices_of.get(key, ())
        if any((port.name, port.protocol) in wanted for port in now.slices[name].ports)
        for member in now.slices[name].members
        if (member.ready or member.serving) and len(member.address) == family.size
    )
