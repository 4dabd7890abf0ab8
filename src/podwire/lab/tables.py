"""A lab for people: rich tables. Pure.

Invariants: nothing is told by colour alone. A cell is one line, so that `grep` finds whole rows.
"""

from collections.abc import Mapping, Sequence
from statistics import median

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from podwire.lab.questions import Change, Row
from podwire.lab.views import BalancerView, LabView


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
    notes = [Text(line) for line in seen.notes]
    notes += [Text(line, "red") for line in seen.problems]
    notes += [Text(f"wrong, and not in force: {line}", "red") for line in seen.error.splitlines()]
    return Group(*parts, *([Text()] if notes else []), *notes)


def ways(rows: Sequence[Row]) -> RenderableType:
    """A row for each kind of way: one of them, and the medians of all, by protocol and family. What is wrong has a row
    of its own."""
    kinds: dict[str, list[Row]] = {}
    for row in rows:
        kinds.setdefault(row.question.path, []).append(row)
    variants = sorted({_variant(row) for row in rows})
    table = _table("WAY", "SUCH AS", "EXPECTED", "ANSWERED BY", "CLIENT SEEN", wrap=True)
    for _, _, name in variants:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    for path, alike in kinds.items():
        medians = []
        for variant in variants:
            held = [row.latency for row in alike if _variant(row) == variant]
            medians.append(f"{median(held) * 1e3:.2f}" if held else "")
        for row in [row for row in alike if not row.right] or alike[:1]:
            place = row.question.lookup.name if row.question.lookup else row.question.place
            table.add_row(path, place, row.expected, row.answered, row.seen, *medians, _verdict(row.right))
    names = ", ".join(name for _, _, name in variants)
    return Group(table, Text(f"{names}: median until the answer, in milliseconds"))


def _variant(row: Row) -> tuple[int, int, str]:
    """Sorted as they shall stand: IPv4 first."""
    family, protocol = row.question.family, row.question.protocol
    return family, protocol.value, f"{protocol.name}{'6' if family == 6 else ''}"


def routes(learnt: Mapping[str, frozenset[str]], names: Mapping[str, str]) -> RenderableType:
    """What a router has learnt. `names`: of the nodes, by their addresses."""
    table = _table("DESTINATION", "BY WAY OF")
    for destination, hops in sorted(learnt.items(), key=lambda it: (":" in it[0], it[0])):
        table.add_row(destination, ", ".join(f"{hop} ({names.get(hop, 'nobody known')})" for hop in sorted(hops)))
    return table


def change(happened: Change) -> RenderableType:
    """With columns that are as wide for every change, since each is printed once it has happened."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for width in (22, 15, 7, 14, 37, 28, 5):
        table.add_column(min_width=width)
    for it in happened.steps:
        counts = (
            (f"{it.requests:,} requests", f"{it.lost} lost", f"{it.refused:,} refused") if it.requests else ("",) * 3
        )
        table.add_row(it.way, *counts, it.expected, it.then, _verdict(it.right))
    head = Text(f"{happened.words} ({happened.seconds:.2f} s)")
    return Group(Padding(head, (0, 0, 0, 2)), Padding(table, (0, 0, 0, 6), expand=False))


def _verdict(right: bool) -> Text:
    return Text("ok", "green") if right else Text("WRONG", "bold red")


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
    given = any(it.balancer_ips for it in seen.services)
    table = _table("NAMESPACE", "SERVICE", "TYPE", "CLUSTER IPS", *["LOAD BALANCER"] * given, "PORTS", "PODS")
    for it in seen.services:
        own = [", ".join(map(_balancer, it.balancers))] * given
        last = ", ".join(it.ports), str(len(it.backends))
        table.add_row(it.namespace, it.name, it.type, ", ".join(it.cluster_ips), *own, *last)
    return table


def _balancer(it: BalancerView) -> str:
    """`192.0.2.1 (ARP: node2; BGP: node1, node2)`."""
    how = [f"{'NDP' if ':' in it.address else 'ARP'}: {it.owner}"] if it.owner else []
    how += [f"BGP: {', '.join(it.routes)}"] if it.routes else []
    return f"{it.address} ({'; '.join(how) or 'not announced'})"


def _pods(seen: LabView) -> Table:
    mapped = any(it.host_ports for it in seen.pods)
    table = _table("NAMESPACE", "POD", "NODE", "STATE", "ADDRESSES", "PORTS", *["HOST PORTS"] * mapped)
    for it in seen.pods:
        state = Text(it.problem, "red") if it.problem else Text("runs", "green")
        last = ", ".join(it.addresses), ", ".join(it.ports), *[", ".join(it.host_ports)] * mapped
        table.add_row(it.namespace, it.name, it.node or "none", state, *last)
    return table


def _table(*columns: str, wrap: bool = False) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in columns:
        table.add_column(name, no_wrap=not wrap)
    return table
