"""The demonstration: a lab from manifests, every Service reached in every way, and the agent killed under traffic.

Invariants: it measures what it says on the real kernel. Whatever happens, the lab is taken down at the end. The exit
status is 1 where any row is not as expected.
"""

import signal
import sys
import threading
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from podwire import views
from podwire.cli import client
from podwire.lab import control, lifecycle, probe
from podwire.lab.control import LabView
from podwire.lab.layout import Lab, LabError
from podwire.lab.questions import Question, Row, judge, name_of, parse_port, questions, questions_of

REQUESTS, KILL_AT = 1000, 300


def run(root: Path, name: str, manifests: Path, nodes: int) -> int:
    """The exit status. Raises LabError where the lab can't be made."""
    console = Console(width=None if sys.stdout.isatty() else 130, markup=False, highlight=False)
    before = signal.signal(signal.SIGTERM, _interrupted)
    try:
        lab = lifecycle.up(root, name, manifests, nodes, console.print)
        try:
            return _show(lab, console)
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not leave half of it
            lifecycle.down(root, name)
            console.print(f"lab {name} is gone")
            signal.signal(signal.SIGINT, signal.default_int_handler)
    finally:
        signal.signal(signal.SIGTERM, before)


def _show(lab: Lab, console: Console) -> int:
    seen = control.view(lab)
    if not any(service.backends and "None" not in service.cluster_ips for service in seen.services):
        raise LabError(f"{lab.manifests}: no Service has pods to answer")
    if any(parse_port(text)[1] for service in seen.services for text in service.ports):
        seen = control.view(lab, control.MakeClient())
    rows = [_row(question) for question in questions(seen)]
    rows += _without_backends(lab, seen)
    console.print(_table("\nWhat the network answers", rows))
    restart = _killed_under_traffic(lab, seen)
    console.print(_table("\nThe agent, killed by SIGKILL under traffic and started again", restart))
    wrong = sum(not row.right for row in (*rows, *restart))
    console.print("\nall as expected" if not wrong else f"\n{wrong} rows are not as expected")
    return 1 if wrong else 0


def _row(question: Question) -> Row:
    answers = probe.ask_often(question.times, question.space, question.address, question.port, question.protocol)
    return judge(question, list(answers))


def _without_backends(lab: Lab, seen: LabView) -> list[Row]:
    """The Service with the fewest pods, while their workload has none; and after."""
    scalable = {it.workload: name_of(it) for it in seen.pods if not it.workload.startswith(("Pod/", "DaemonSet/"))}
    for service in sorted(seen.services, key=lambda it: len(it.backends)):
        workloads = {pod.workload for pod in seen.pods if name_of(pod) in service.backends}
        if len(workloads) != 1 or not workloads <= scalable.keys():
            continue
        workload = workloads.pop()
        rows = []
        for replicas, when in ((0, "scaled to none"), (len(service.backends), "scaled back")):
            now = control.view(lab, control.Scale(workload, replicas))
            same = next(it for it in now.services if (it.namespace, it.name) == (service.namespace, service.name))
            rows += [_row(it._replace(target=f"{it.target}, {when}")) for it in questions_of(now, same)]
        return rows
    return []


def _killed_under_traffic(lab: Lab, seen: LabView) -> list[Row]:
    """At least so many requests, and on until the agent is back."""
    service = max((it for it in seen.services if "None" not in it.cluster_ips), key=lambda it: len(it.backends))
    question = next(questions_of(seen, service))
    node = seen.nodes[0].name
    failures: list[Exception] = []

    def restart() -> None:
        try:
            control.ask(lab, control.KillAgent(node))
            control.ask(lab, control.StartAgent(node))
        except Exception as error:
            failures.append(error)

    killing = threading.Thread(target=restart)
    answers: list[probe.Answer] = []
    while len(answers) < REQUESTS or killing.is_alive():
        if len(answers) == KILL_AT:
            killing.start()
        answers += probe.ask_often(1, question.space, question.address, question.port, question.protocol)
    killing.join()
    if failures:
        raise failures[0]
    row = judge(question, answers)
    lost = sum(answer.error != "" for answer in answers)
    writes = _writes(seen.nodes[0].admin_socket)
    return [
        row._replace(
            expected=f"{len(answers)} answers",
            answered=f"{row.answered}, {lost} lost",
            right=row.right and not lost,
        ),
        Row(
            f"agent of {node}",
            "its writes since the restart",
            "",
            "0",
            ", ".join(f"{driver} {count}" for driver, count in writes.items()),
            None,
            not any(writes.values()),
        ),
    ]


def _writes(admin_socket: str) -> dict[str, int]:
    body = client.ask(Path(admin_socket), "GET", "/status")
    return msgspec.json.decode(body, type=views.StatusView).writes


def _table(title: str, rows: list[Row]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("FROM", "TO", "AT", "EXPECTED", "ANSWERED BY", "MEDIAN", ""):
        table.add_column(column, justify="right" if column == "MEDIAN" else "left")
    for row in rows:
        latency = f"{row.latency * 1e3:.2f} ms" if row.latency is not None else ""
        verdict = Text("ok", "green") if row.right else Text("WRONG", "bold red")
        table.add_row(row.source, row.target, row.place, row.expected, row.answered, latency, verdict)
    return table


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt
