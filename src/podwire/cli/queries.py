"""The commands that ask a running agent.

Invariants: what is printed is the agent's answer and nothing else: a table for people, or with `-o json` the bytes as
they came. Errors go to standard error.
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec
from cyclopts import Parameter
from rich.console import RenderableType

from podwire import views
from podwire.cli import explanations, tables, traffic
from podwire.cli.client import REFUSED, WRONG_USAGE, Failed, ask
from podwire.cli.paper import show
from podwire.cli.target import HERE, Output, Target
from podwire.drift import DriftList
from podwire.explain.packets import PacketWhy
from podwire.explain.services import ServiceWhy
from podwire.ipam.views import IpamView
from podwire.model.text import printable
from podwire.statistics.views import PodStatisticsList, ServiceStatisticsList

View = TypeVar("View")


BYTES = "surrogateescape"
"""An argument that is not UTF-8 goes out as the bytes it came in (PEP 383)."""
Stats = Annotated[bool, Parameter(negative="")]
WAIT = 30
"""Seconds that the agent lets a follower wait for the next entry, before it asks again."""


def status(*, target: Target = HERE, output: Output = "table") -> int:
    tell(ask(target.socket(), "GET", "/status"), output, views.StatusView, tables.status)
    return 0


def services(
    name: str | None = None, /, *, stats: Stats = False, target: Target = HERE, output: Output = "table"
) -> int:
    """
    Parameters
    ----------
    name
        NAMESPACE/NAME: this one only, with all its backends.
    stats
        Connections that this node saw, and packets and bytes where service_traffic is set; of one Service by frontend.
    """
    path, full = "/services" if name is None else f"/services/{_object_path(name)}", name is not None
    if stats:
        body = ask(target.socket(), "GET", f"/statistics{path}")
        tell(body, output, ServiceStatisticsList, partial(traffic.services, full=full))
    else:
        tell(ask(target.socket(), "GET", path), output, views.ServiceList, partial(tables.services, full=full))
    return 0


def pods(*, stats: Stats = False, target: Target = HERE, output: Output = "table") -> int:
    """
    Parameters
    ----------
    stats
        Packets and bytes of each pod's interface.
    """
    if stats:
        tell(ask(target.socket(), "GET", "/statistics/pods"), output, PodStatisticsList, traffic.pods)
    else:
        tell(ask(target.socket(), "GET", "/pods"), output, views.PodList, tables.pods)
    return 0


def ipam(*, target: Target = HERE, output: Output = "table") -> int:
    tell(ask(target.socket(), "GET", "/ipam"), output, IpamView, tables.ipam)
    return 0


def interface(
    pod: str,
    /,
    *,
    name: Annotated[str | None, Parameter("--interface")] = None,
    target: Target = HERE,
    output: Output = "table",
) -> int:
    """
    Parameters
    ----------
    pod
        NAMESPACE/NAME.
    name
        Only the interface that has this name in the pod, such as eth0.
    """
    namespace, _, own = pod.partition("/")
    if not own or "/" in own:
        raise Failed(f"{pod!r}: expected NAMESPACE/NAME", WRONG_USAGE)
    asked = {"namespace": namespace, "pod": own} | ({} if name is None else {"interface": name})
    body = ask(target.socket(), "GET", f"/interface?{urlencode(asked, errors=BYTES)}")
    tell(body, output, views.InterfaceView, tables.interface)
    return 0


def explain(what: str, to: str | None = None, /, *, target: Target = HERE, output: Output = "table") -> int:
    """
    Parameters
    ----------
    what
        service/NAMESPACE/NAME; or where a packet comes from: an IP address, `node`, or a pod as NAMESPACE/NAME.
    to
        Where the packet goes: IP:PORT or IP:PORT/PROTOCOL, such as 10.96.0.10:80 or [fd96::a]:53/UDP.
    """
    if to is not None:
        query = urlencode({"from": what, "to": to}, errors=BYTES)
        body = ask(target.socket(), "GET", f"/explain/packet?{query}")
        tell(body, output, PacketWhy, explanations.packet)
        return 0
    kind, _, name = what.partition("/")
    if kind != "service":
        forms = "`podwire explain service/NAMESPACE/NAME`, or `podwire explain FROM IP:PORT[/PROTOCOL]`"
        source = "FROM is an IP address, `node`, or a pod as NAMESPACE/NAME"
        raise Failed(f"{what!r} alone explains nothing: expected {forms}; {source}", WRONG_USAGE)
    body = ask(target.socket(), "GET", f"/explain/service/{_object_path(name)}")
    tell(body, output, ServiceWhy, explanations.service)
    return 0


def history(
    *,
    since: int | None = None,
    limit: Annotated[int, Parameter(name=["--limit", "-n"])] = 20,
    follow: Annotated[bool, Parameter(name=["--follow", "-f"], negative="")] = False,
    target: Target = HERE,
    output: Output = "table",
) -> int:
    """
    Parameters
    ----------
    since
        Only what followed the entry of this number, from there on.
    limit
        At most so many entries; without --since the newest ones.
    follow
        Then wait for what happens next, until Ctrl-C.
    """
    query = f"limit={limit}" if since is None else f"since={since}&limit={limit}"
    try:
        body = ask(target.socket(), "GET", f"/history?{query}")
        if not follow:
            tell(body, output, views.HistoryView, tables.history)
            return 0
        last = since or 0
        while True:
            seen = _decoded(body, views.HistoryView)
            if last and seen.oldest > last + 1:
                print(f"podwire: entries {last + 1} to {seen.oldest - 1} are no longer remembered", file=sys.stderr)
            if seen.records:
                _show(body, seen, output, tables.history)
                last = seen.records[-1].number
            body = ask(target.socket(), "GET", f"/history?since={last}&wait={WAIT}")
    except KeyboardInterrupt:
        return 0


def verify(*, target: Target = HERE, output: Output = "table") -> int:
    found = tell(ask(target.socket(), "GET", "/verify"), output, DriftList, tables.drift)
    return 1 if found.drift else 0


def resync(*, target: Target = HERE, output: Output = "table") -> int:
    done = tell(ask(target.socket(), "POST", "/resync"), output, views.ResyncView, tables.resync)
    if done.error is not None:
        raise Failed(f"the resync failed: {done.error}", REFUSED)
    return 0


def _object_path(name: str) -> str:
    namespace, _, own = name.partition("/")
    if not namespace or not own or "/" in own:
        raise Failed(f"{name!r}: expected NAMESPACE/NAME", WRONG_USAGE)
    return f"{quote(namespace, errors=BYTES)}/{quote(own, errors=BYTES)}"


def tell(body: bytes, output: Output, form: type[View], table: Callable[[View], RenderableType]) -> View:
    """Prints an answer, and gives it back decoded."""
    seen = _decoded(body, form)
    _show(body, seen, output, table)
    return seen


def _decoded(body: bytes, form: type[View]) -> View:
    """With all texts so that no terminal obeys them: names come from whoever made the objects."""
    try:
        return msgspec.convert(_harmless(msgspec.json.decode(body)), form)
    except msgspec.DecodeError as error:
        raise Failed(f"the agent's answer is not understood, it may be of another version: {error}", REFUSED) from None


def _harmless(value: Any) -> Any:
    match value:
        case str():
            return printable(value)
        case list():
            return [_harmless(item) for item in value]
        case dict():
            return {printable(key): _harmless(item) for key, item in value.items()}
    return value


def _show(body: bytes, seen: View, output: Output, table: Callable[[View], RenderableType]) -> None:
    if output == "json":
        sys.stdout.buffer.write(body + b"\n")
        sys.stdout.buffer.flush()
    else:
        show(table(seen))
