"""`podwire trace`: has the agent send a packet, and tells its way for people.

Invariants: as in `explanations.py`. Exit code 1 where what happened is not what explain says.
"""

from collections.abc import Iterator
from functools import partial
from urllib.parse import urlencode

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from podwire.cli.client import ask
from podwire.cli.explanations import note
from podwire.cli.queries import tell
from podwire.cli.target import HERE, Output, Target
from podwire.trace.steps import Fate
from podwire.trace.table import TABLE as OWN_TABLE
from podwire.trace.views import StepView, TraceView, WayView

LOST = Fate.LOST.value


def trace(
    source: str,
    to: str,
    /,
    *,
    timeout: float = 3.0,
    rules: bool = False,
    target: Target = HERE,
    output: Output = "table",
) -> int:
    """
    Parameters
    ----------
    source
        Who sends: a pod of the agent's node as NAMESPACE/NAME, or `node`.
    to
        Where the packet goes: IP:PORT or IP:PORT/PROTOCOL (TCP, UDP), such as 10.96.0.10:80 or [fd96::a]:53/UDP.
    timeout
        Seconds to wait for an answer, 0.1 to 30.
    rules
        With every rule that matched, of whatever table, in nft's words.
    """
    query = urlencode({"from": source, "to": to, "timeout": f"{timeout:g}"} | ({"rules": "all"} if rules else {}))
    body = ask(target.socket(), "POST", f"/trace?{query}")
    seen = tell(body, output, TraceView, partial(show_trace, rules=rules))
    return 0 if seen.agrees else 1


def show_trace(seen: TraceView, *, rules: bool) -> RenderableType:
    """`rules`: every step, with its rule."""
    of = f", Service {seen.service}" if seen.service is not None else ""
    parts: list[RenderableType] = [Text(f"from {seen.source}"), Text(f"{seen.packet}{of}")]
    parts += _way("the packet", seen.way, rules)
    if seen.answer_way is not None:
        parts += _way("the answer", seen.answer_way, rules)
    parts += _flow(seen)
    if seen.repeats:
        parts.append(Text(f"sent {seen.repeats + 1} times, as nothing came back"))
    good = seen.outcome in ("connected", "answered")
    parts.append(Text.assemble(("result: ", "bold"), (seen.told, "green" if good else "yellow")))
    said = f"{seen.predicted.verdict.value}: {seen.predicted.way}"
    if seen.agrees:
        parts.append(Text(f"as `podwire explain` says: {said}"))
    else:
        parts.append(Text(f"otherwise than `podwire explain` says: {said}", "red"))
        parts += [Text(f"    {each}") for each in seen.differences]
    parts += [note(each) for each in seen.notes]
    return Group(*parts)


def _way(name: str, way: WayView, rules: bool) -> Iterator[RenderableType]:
    yield Text(f"{name}:", "bold")
    lines = Table.grid(padding=(0, 2, 0, 0))
    for step in way.steps:
        if step.words or rules:
            place = "" if step.table.endswith(f" {OWN_TABLE}") and not rules else f"{step.table} {step.chain}"
            lines.add_row(step.hook, place, step.words or _plain(step))
        if rules and step.rule:
            lines.add_row("", "", Text(f"rule {step.handle}: {step.rule}", "dim"))
    if lines.row_count:
        yield Padding(lines, (0, 0, 0, 4), expand=False)
    if not way.steps or way.fate == LOST:
        yield Text(f"    {way.told}")


def _plain(step: StepView) -> str:
    return step.verdict if step.handle else f"{step.verdict}, at the chain's end"


def _flow(seen: TraceView) -> Iterator[RenderableType]:
    it = seen.flow
    if it is None:
        if seen.way.steps:
            yield Text("connection tracking: holds no entry of it")
        return
    to = f"went to {it.server} ({it.where})" if it.translated else "went there untranslated"
    client = f"seen as from {it.client}, {'masqueraded' if it.masqueraded else 'its own address'}"
    yield Text(f"connection tracking: {to}, {client}; {it.state}")
