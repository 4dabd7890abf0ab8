"""The demonstration: a lab from manifests, reached in every way there is, and changed while clients ask.

Invariants: it measures what it says on the real kernel. Whatever happens, the lab is taken down at the end. The exit
status is 1 where anything is not as expected.
"""

import asyncio
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import TypeVar
from urllib.parse import urlencode

import msgspec
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from podwire.announcing.views import PeerList
from podwire.cli import announcing, client, explanations
from podwire.cli.paper import show
from podwire.explain.packets import PacketWhy
from podwire.explain.services import ServiceWhy
from podwire.lab import changes, control, lifecycle, paths, probe, routers, tables
from podwire.lab.expand import ManifestsError
from podwire.lab.layout import Lab, LabError
from podwire.lab.questions import Row, judge, names_of
from podwire.lab.userfiles import files_in
from podwire.lab.views import LabView, NodeView

_ENDS = (signal.SIGTERM, signal.SIGINT)
Why = TypeVar("Why")


def run(root: Path, name: str, manifests: Path, nodes: int) -> int:
    """The exit status. Raises LabError where the lab can't be made."""
    begin = monotonic()
    with _ending_gently(), _copied(manifests) as own:
        lab = lifecycle.up(root, name, own, nodes, show)
        try:
            wrong, told = _show(lab)
        finally:
            for number in _ENDS:
                signal.signal(number, signal.SIG_IGN)  # a second Ctrl-C must not leave half of it
            lifecycle.down(root, name)
            show(f"lab {name} is gone")
    verdict = "all as expected" if not wrong else f"{wrong} NOT as expected"
    show(f"\n{verdict}: {told}, in {monotonic() - begin:.0f} s")
    return 1 if wrong else 0


def _show(lab: Lab) -> tuple[int, str]:
    """How many things are not as expected, and what all was asked."""
    seen = control.view(lab, control.MakeClient())
    workload = changes.subject(seen)
    if not workload:
        raise LabError("expected a Service with pods of a Deployment or another that can be scaled")
    if any(it.balancer_ips for it in seen.services) and seen.router:
        seen = control.view(lab, control.MakeClient("", behind=True))
    rows = _ask_all(seen)
    show(_titled("Every way to every Service, each backend asked 20 times", tables.ways(rows)))
    _explain(seen, workload)
    _show_router(seen)
    show(Text("\nChanges, while clients ask all the time", "bold"))
    happened = []
    for change in changes.changes(lab, workload):
        show(tables.change(change))
        happened.append(change)
    again = _ask_all(control.view(lab))
    wrong = [row for row in again if not row.right]
    if wrong:
        show(_titled("After all that", tables.ways(wrong)))
    steps = [step for change in happened for step in change.steps]
    asked = sum(row.question.times for row in (*rows, *again)) + sum(step.requests for step in steps)
    lost = sum(step.lost for step in steps)
    told = f"{len(rows)} ways before the changes and {len(again)} after, {asked:,} requests, "
    told += f"{lost} lost with a node" if lost else "none lost"
    outcomes = [*(row.right for row in (*rows, *again)), *(step.right for step in steps)]
    return outcomes.count(False), told


def _ask_all(seen: LabView) -> list[Row]:
    names = names_of(seen.nodes)
    return [judge(question, list(probe.put(question)), names) for question in paths.questions(seen)]


def _explain(seen: LabView, workload: str) -> None:
    """A Service of the workload, and a packet from as far as one can come, as the first node's agent explains them."""
    nearest, *_, question = [*changes.steady(seen, workload)[:1], *changes.steady(seen, workload)]
    service, node = paths.service_at(seen, nearest), seen.nodes[0]
    assert service is not None
    source = question.source.pod or next(it.addresses[0] for it in seen.clients if it.name == question.source.words)
    name = f"{service.namespace}/{service.name}"
    why = _asked(node, f"/explain/service/{name}", ServiceWhy)
    show(_titled(f"podwire explain service/{name}", explanations.service(why)))
    packet = _asked(node, f"/explain/packet?{urlencode({'from': source, 'to': question.place})}", PacketWhy)
    show(_titled(f"podwire explain {source} {question.place}", explanations.packet(packet)))


def _show_router(seen: LabView) -> None:
    """What it has learnt of the nodes, and the nodes' sessions with it."""
    if not seen.router:
        return
    learnt = asyncio.run(routers.routes(seen.name))
    names = names_of(seen.nodes)
    show(_titled(f"The router ({seen.router}) has learnt", tables.routes(learnt, names)))
    peers = _asked(seen.nodes[0], "/bgp/peers", PeerList)
    show(_titled(f"podwire bgp peers, on {seen.nodes[0].name}", announcing.peers_table(peers)))


def _asked(node: NodeView, target: str, form: type[Why]) -> Why:
    return msgspec.json.decode(client.ask(Path(node.admin_socket), "GET", target), type=form)


def _titled(title: str, what: RenderableType) -> RenderableType:
    return Group(Text(f"\n{title}", "bold"), Padding(what, (0, 0, 0, 2), expand=False))


@contextmanager
def _copied(manifests: Path) -> Iterator[Path]:
    """The user's own are not for a demonstration to change. Raises LabError."""
    try:
        files = files_in(manifests)
    except ManifestsError as error:
        raise LabError(str(error)) from None
    with tempfile.TemporaryDirectory(prefix="podwire-demo-") as directory:
        own = Path(directory, manifests.resolve().name)
        own.mkdir()
        for file in files:
            copy = own / file.relative_to(manifests)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
        yield own


@contextmanager
def _ending_gently() -> Iterator[None]:
    """SIGTERM as Ctrl-C; and as before afterwards."""
    before = {number: signal.getsignal(number) for number in _ENDS}
    signal.signal(signal.SIGTERM, _interrupted)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt
