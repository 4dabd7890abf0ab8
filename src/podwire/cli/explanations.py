"""The agent's explanations for people: sentences, and tables where there are many. Pure.

Invariants: as in `tables.py`: nothing is told by colour alone, and only what stands last in a row may be folded.
"""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from podwire.cli.tables import columns, state
from podwire.explain.announcing import AnnouncedWhy
from podwire.explain.packets import PacketWhy, Verdict
from podwire.explain.services import FrontendWhy, LeftOutView, ServiceWhy

_INDENT = (0, 0, 0, 4)


def service(why: ServiceWhy) -> RenderableType:
    parts: list[RenderableType] = [Text(f"Service {why.service}", "bold")]
    for it in why.frontends:
        parts += _frontend(it)
    parts += [Text(f"  {line}") for line in why.health]
    if why.assigned:
        parts.append(Text(f"  load balancer: {why.assigned}"))
    for each in why.announced:
        parts += _announced(each)
    parts += [note(each) for each in why.notes]
    return Group(*parts)


def packet(why: PacketWhy) -> RenderableType:
    source = f"from {why.client}, {why.source}" if why.client is not None else f"from {why.source}"
    to = Text(f"to {why.destination}")
    if why.service is not None and why.state is not None:
        to = Text.assemble(f"to {why.destination}, Service {why.service}, ", state(why.state.value))
    if why.verdict is Verdict.HOST_PORT and why.state is not None:
        to = Text.assemble(f"to {why.destination}, ", state(why.state.value))
    parts: list[RenderableType] = [Text(source), to, Text.assemble((why.verdict.value, "bold"), f": {why.way}")]
    if why.choices:
        rows = columns("BACKEND", "WHERE", "SEES AS CLIENT", "BECAUSE")
        for choice in why.choices:
            rows.add_row(choice.backend, choice.where, choice.client or "the node", choice.because)
        parts.append(Padding(rows, _INDENT, expand=False))
    parts += [note(each) for each in why.notes]
    return Group(*parts)


def _announced(it: AnnouncedWhy) -> Iterator[RenderableType]:
    yield Text(f"  {it.address}, {f'of pool {it.pool}' if it.pool else 'of no AddressPool'}")
    rows = Table.grid(padding=(0, 2, 0, 0))
    for node in it.bgp:
        for route in node.routes or (f"tells nobody: {node.why}",):
            rows.add_row("BGP", f"node {node.node}", route)
    if it.others:
        rows.add_row("BGP", f"and {it.others} more nodes", "ask them")
    who = f"node {it.owner}" if it.owner else "nobody"
    rows.add_row("ARP, NDP", who, f"answers{f' {it.l2}' if it.l2 else ''}" if it.owner else it.l2)
    yield Padding(rows, _INDENT, expand=False)


def _frontend(it: FrontendWhy) -> Iterator[RenderableType]:
    name = f"  {it.frontend}, {it.kind}" + (f", port {it.port}" if it.port else "")
    if it.state is None:
        yield Text.assemble(name, ": ", state("conflict"), f", {it.owner} has it")
        return
    count = len(it.backends)
    yield Text.assemble(name, ": ", state(it.state.value), f", {count} backend{'' if count == 1 else 's'}")
    rows = Table.grid(padding=(0, 2, 0, 0))
    for backend in it.backends:
        rows.add_row(backend.backend, backend.where)
    for left in it.left_out:
        rows.add_row(left.member, _left_out(left))
    if it.backends or it.left_out:
        yield Padding(rows, _INDENT, expand=False)
    if it.cluster is not None:
        yield Text(f"    clients in the cluster find {len(it.cluster)} backend{'' if len(it.cluster) == 1 else 's'}:")
        inside = Table.grid(padding=(0, 2, 0, 0))
        for backend in it.cluster:
            inside.add_row(backend.backend, backend.where)
        yield Padding(inside, _INDENT, expand=False)
    for rule in it.rules:
        yield Text(f"    {rule}")


def _left_out(it: LeftOutView) -> str:
    pod = f"pod {it.pod}, " if it.pod is not None else ""
    return f"left out: {it.reason} ({pod}slice {it.slice})"


def note(text: str) -> Text:
    return Text(f"note: {text}", "yellow")
