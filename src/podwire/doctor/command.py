"""`podwire doctor`: gathers, judges, and shows.

Invariants: whatever can't be looked into is a finding, never an error of the command. Nothing is told by colour alone.
"""

import sys
from pathlib import Path

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from podwire.cli.client import REFUSED, Failed
from podwire.cli.paper import show
from podwire.cli.tables import columns
from podwire.cli.target import HERE, Output, Target
from podwire.doctor import catalogue
from podwire.doctor.findings import Finding, Report, State
from podwire.doctor.read import node

USUAL = Path("/etc/podwire/agent.toml")
"""Where an installation has the agent's configuration."""
_STYLES = {State.OK: "green", State.NOTE: "cyan", State.WARNING: "yellow", State.WRONG: "bold red"}
_BAD = (State.WRONG, State.WARNING)


def doctor(
    *,
    target: Target = HERE,
    bin_dir: Path = Path("/opt/cni/bin"),
    conf_dir: Path = Path("/etc/cni/net.d"),
    output: Output = "table",
) -> int:
    """
    Parameters
    ----------
    bin_dir
        The container runtime's directory of plugins.
    conf_dir
        The container runtime's directory of network configurations.
    """
    config = target.config
    if config is None and USUAL.exists():
        config = USUAL
    try:
        facts = node.read(config, target.state_dir, bin_dir, conf_dir)
    except OSError as error:
        raise Failed(f"this machine's links can't be listed: {error.strerror or error}", REFUSED) from None
    seen = catalogue.examine(facts)
    if output == "json":
        sys.stdout.buffer.write(msgspec.json.encode(seen) + b"\n")
        sys.stdout.buffer.flush()
    else:
        show(table(seen))
    return 0 if seen.healthy else 1


def table(seen: Report) -> RenderableType:
    """All findings, then those that ask for something, with the reason and what to do."""
    listed = columns("STATE", "CHECK", "SEEN")
    for it in seen.findings:
        listed.add_row(Text(it.state.value, _STYLES[it.state]), it.name, it.seen)
    parts: list[RenderableType] = [listed]
    for it in sorted((it for it in seen.findings if it.state in _BAD), key=lambda it: _BAD.index(it.state)):
        parts += ["", *_told(it)]
    return Group(*parts, "", _summary(seen))


def _told(it: Finding) -> list[Text]:
    return [
        Text.assemble((it.state.value, _STYLES[it.state]), f"  {it.name}: {it.seen}"),
        Text(f"    because: {it.why}"),
        Text(f"    do:      {it.fix}"),
    ]


def _summary(seen: Report) -> Text:
    counted = ", ".join(f"{count} {state}" for state, count in seen.counts.items() if count)
    if not seen.healthy:
        return Text(f"{counted}: Podwire can't work as it should", "red")
    if seen.counts[State.WARNING.value]:
        return Text(f"{counted}: nothing keeps Podwire from working", "yellow")
    return Text(f"{counted}: all is well", "green")
