"""The admin API's views for people: rich tables and lines. Pure.

Invariants: nothing is told by colour alone. Only the last column of a table may be folded, and that on a terminal
only: elsewhere every row is one line, so that `grep` finds whole ones.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, tzinfo

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from podwire import views
from podwire.drift import DriftList
from podwire.ipam.views import MANY, IpamView

FEW = 3
"""Backends shown of each frontend where many Services are listed."""
_STYLES = {
    "programmed": "green",
    "wired": "green",
    "refused": "yellow",
    "dropped": "yellow",
    "pending": "yellow",
    "conflict": "yellow",
    "failed": "red",
    "no room": "red",
}


def status(seen: views.StatusView) -> RenderableType:
    ready = Text("ready", "green") if seen.ready else Text(f"not ready: {seen.not_ready}", "red")
    head = Text.assemble(f"node {seen.node}, podwire {seen.version}, up {duration(seen.uptime)}, ", ready)
    lines = Table.grid(padding=(0, 2, 0, 2))
    for block in seen.pod_cidrs:
        lines.add_row("pod addresses", f"{block.range}: {block.used} used, {_many(block.free)} free")
    for pool in seen.pools:
        if pool.pool:
            of = f"pool {pool.pool}, {pool.blocks} {pool.family} block{'' if pool.blocks == 1 else 's'}"
            lines.add_row("pod addresses", f"{of}: {pool.used} used, {_many(pool.free)} free")
    if seen.service_cidrs:
        lines.add_row("Service ranges", ", ".join(seen.service_cidrs))
    lines.add_row("MTU", str(seen.mtu) if seen.mtu else "not known yet")
    if seen.others:
        lines.add_row("other nodes", ", ".join(f"{count} {way}" for way, count in seen.others.items()))
    lines.add_row("known", _counted(seen.counts))
    lines.add_row("writes", _counted(seen.writes) or "none")
    failed = {driver: count for driver, count in seen.unknown.items() if count}
    if failed:
        lines.add_row(Text("failed", "red"), f"{_counted(failed)}: the last change failed; a resync reads them again")
    for error in seen.source_errors:
        lines.add_row(Text("source", "red"), error)
    return Group(head, lines)


def services(seen: views.ServiceList, *, full: bool) -> RenderableType:
    """`full`: with all backends of each frontend."""
    if not seen.services:
        return "no Services"
    table = columns("NAMESPACE", "NAME", "FRONTEND", "STATE", "BACKENDS")
    for it in seen.services:
        rows = [(_frontend(f), state(f.state.value), _backends(f, None if full else FEW)) for f in it.frontends]
        rows += [(_frontend(c), state("conflict"), _claims(it, c)) for c in it.conflicts]
        for row in rows or [("none", Text(""), "")]:
            table.add_row(it.namespace, it.name, *row)
    return table


def pods(seen: views.PodList) -> RenderableType:
    if not seen.pods:
        return "no pods"
    table = columns("NAMESPACE", "NAME", "INTERFACE", "ADDRESSES", "STATE", "LINK", "SANDBOX", "HOST PORTS")
    for it in seen.pods:
        last = it.link, it.sandbox[:12], ", ".join(map(_host_port_of, it.host_ports)) or "none"
        table.add_row(it.namespace, it.name, it.interface, ", ".join(it.addresses), state(it.state.value), *last)
    return table


def _host_port_of(it: views.HostPortView) -> str:
    odd = "" if it.state is views.FrontendState.PROGRAMMED else f" ({it.state.value})"
    return f"{_host_port(it.address, it.port)}/{it.protocol} to {it.pod_port}{odd}"


def interface(seen: views.InterfaceView) -> RenderableType:
    table = columns("INTERFACE", "LINK", "ADDRESSES", "STATE", "SANDBOX")
    for it in seen.interfaces:
        table.add_row(it.interface, it.link, ", ".join(it.addresses), state(it.state.value), it.sandbox[:12])
    return table


def ipam(seen: IpamView) -> RenderableType:
    parts: list[RenderableType] = []
    if seen.blocks:
        table = columns("BLOCK", "POOL", "USED", "FREE", "STATE")
        for it in seen.blocks:
            kind = "for the pod that asks for it" if it.single else "given"
            pool = it.pool or "none (pod CIDR)"
            table.add_row(it.range, pool, str(it.used), _many(it.free), f"not given: {it.idle}" if it.idle else kind)
        parts.append(table)
    else:
        parts.append(Text(f"node {seen.node} has no addresses for pods"))
    if seen.pools:
        table = columns("POOL", "CIDRS", "RESERVED", "FOR", "BLOCKS", "NODES", "LEFT", "STATE")
        for one in seen.pools:
            table.add_row(
                one.name,
                ", ".join(one.cidrs),
                ", ".join(one.reserved) or "none",
                "all pods" if one.auto_assign else "who asks",
                str(one.blocks),
                str(one.nodes),
                ", ".join(f"{_many(count)} {family}" for family, count in one.left.items()),
                one.unused or "used",
            )
        parts += [Text(), table]
    told = [f"due: to {verb} {it}" for verb, some in _due(seen) for it in some]
    parts += [Text(line) for line in told]
    parts += [Text(line, "red") for line in seen.short]
    return Group(*parts)


def _due(seen: IpamView) -> Iterable[tuple[str, tuple[str, ...]]]:
    return ("take", seen.take), ("give back", seen.give), ("write down again", seen.renew)


def _many(count: int) -> str:
    return str(count) if count < MANY else "many"


def history(seen: views.HistoryView, zone: tzinfo | None = None) -> RenderableType:
    """`zone` None: the machine's own."""
    if not seen.records:
        return "nothing happened"
    lines: list[Text] = []
    for record in seen.records:
        when = datetime.fromtimestamp(record.time, zone).strftime("%Y-%m-%d %H:%M:%S")
        wrote = f", {_counted(record.operations)}" if record.operations else ", no writes"
        lines.append(
            Text.assemble(
                (f"#{record.number}", "bold"), f"  {when}  {record.event}  ({record.milliseconds:.2f} ms{wrote})"
            )
        )
        lines += changes(record.changes)
        if record.error is not None:
            lines.append(Text(f"    error: {record.error}", "red"))
    return Group(*lines)


def changes(told: Mapping[str, Iterable[str]]) -> list[Text]:
    return [Text(f"    {capability}: {line}") for capability, lines in told.items() for line in lines]


def drift(seen: DriftList) -> RenderableType:
    if not seen.drift:
        return "the network is as it should be"
    table = columns("DRIVER", "KEY", "FOUND", "WANTED")
    for it in seen.drift:
        table.add_row(it.driver, it.key, it.found or "nothing", it.wanted or "nothing")
    return table


def resync(seen: views.ResyncView) -> RenderableType:
    wrote = _counted(seen.operations) or "nothing to write"
    ended = "resynced" if seen.error is None else "tried"
    return Group(Text(f"{ended} in {seen.milliseconds:.1f} ms: {wrote}"), *changes(seen.changes))


def duration(seconds: float) -> str:
    """In its two largest units: `1d 2h`, `3m 4s`, `5s`."""
    left = int(seconds)
    parts: list[str] = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count or (parts and len(parts) < 2) or unit == "s":
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2])


def columns(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in names:
        table.add_column(name, no_wrap=name != names[-1])
    return table


def state(name: str) -> Text:
    return Text(name, _STYLES[name])


def _frontend(it: views.FrontendView | views.ConflictView) -> str:
    return f"{_host_port(it.address, it.port)}/{it.protocol}"


def _host_port(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _backends(it: views.FrontendView, most: int | None) -> str:
    held = it.backends
    shown = ", ".join(_host_port(each.address, each.port) for each in held[:most])
    more = len(held) - len(held[:most])
    told = f"{shown} and {more} more" if more else shown or "none"
    return f"{told}; {it.beyond} beyond the {len(held)} that a frontend can have" if it.beyond else told


def _claims(it: views.ServiceView, conflict: views.ConflictView) -> str:
    own = f"{it.namespace}/{it.name}"
    if own != conflict.owner:
        return f"{conflict.owner} is older and has it"
    return f"also claimed by {', '.join(name for name in conflict.claimants if name != own)}"


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())
