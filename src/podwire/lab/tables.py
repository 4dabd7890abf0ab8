"""A lab for people: rich tables. Pure.

Invariants: nothing is told by colour alone. A cell is one line, so that `grep` finds whole rows.
"""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from podwire.lab.control import LabView


def lab(seen: LabView) -> RenderableType:
    running = sum(not pod.problem for pod in seen.pods)
    head = f"lab {seen.name} of {seen.manifests}: {len(seen.nodes)} nodes, {running} of {len(seen.pods)} pods run"
    parts: list[RenderableType] = [Text(head, "bold"), Text(), _nodes(seen)]
    if seen.clients:
        parts += [Text(), _clients(seen)]
    if seen.services:
        parts += [Text(), _services(seen)]
    if seen.pods:
        parts += [Text(), _pods(seen)]
    notes = [Text(f"not used here: {line}") for line in seen.unused]
    notes += [Text(line, "red") for line in seen.problems]
    notes += [Text(f"wrong, and not in force: {line}", "red") for line in seen.error.splitlines()]
    return Group(*parts, *([Text()] if notes else []), *notes)


def _nodes(seen: LabView) -> Table:
    table = _table("NODE", "STATE", "AGENT", "ADDRESSES", "POD RANGES", "PODS", "NETNS")
    for it in seen.nodes:
        state = Text("on", "green") if it.on else Text("off", "red")
        agent = Text(f"{it.agent} ({it.pid})", "green") if it.pid else Text(it.agent, "red")
        table.add_row(it.name, state, agent, ", ".join(it.addresses), ", ".join(it.pod_cidrs), str(it.pods), it.space)
    return table


def _clients(seen: LabView) -> Table:
    table = _table("CLIENT", "ADDRESSES", "NETNS")
    for it in seen.clients:
        table.add_row(it.name, ", ".join(it.addresses), it.space)
    return table


def _services(seen: LabView) -> Table:
    table = _table("NAMESPACE", "SERVICE", "TYPE", "CLUSTER IPS", "PORTS", "PODS")
    for it in seen.services:
        table.add_row(
            it.namespace, it.name, it.type, ", ".join(it.cluster_ips), ", ".join(it.ports), str(len(it.backends))
        )
    return table


def _pods(seen: LabView) -> Table:
    table = _table("NAMESPACE", "POD", "NODE", "STATE", "ADDRESSES", "PORTS")
    for it in seen.pods:
        state = Text(it.problem, "red") if it.problem else Text("runs", "green")
        table.add_row(it.namespace, it.name, it.node or "none", state, ", ".join(it.addresses), ", ".join(it.ports))
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in columns:
        table.add_column(name, no_wrap=True)
    return table
