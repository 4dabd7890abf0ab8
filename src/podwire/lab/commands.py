"""The commands `podwire lab …`.

Invariants: a command answers when what it says is so: packets flow, or nothing is left. Tables are for people,
`-o json` is for programs. Exit codes: 0 as asked; 1 not, with one line that says why.
"""

import os
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from podwire.cli.client import WRONG_USAGE, Failed
from podwire.cli.target import Output
from podwire.lab.layout import DEFAULT, ROOT, called, load

if TYPE_CHECKING:
    from rich.console import RenderableType

    from podwire.lab.control import Reply, Requests
    from podwire.lab.layout import Lab
    from podwire.lab.views import LabView

app = App(
    name="lab",
    help="A cluster of network namespaces on this machine, from untouched Kubernetes manifests.",
    help_format="plaintext",
)


@Parameter(name="*")
@dataclass(frozen=True)
class Which:
    """
    Parameters
    ----------
    name
        The lab's name: lower-case letters and digits.
    run_dir
        Where labs keep their directories.
    """

    name: Annotated[str, Parameter(env_var="PODWIRE_LAB")] = DEFAULT
    run_dir: Annotated[Path, Parameter(env_var="PODWIRE_LAB_DIR")] = ROOT


_LAB = Which()


@app.command
def up(
    directory: Path,
    /,
    *,
    nodes: int = 1,
    links: int = 1,
    transport: Literal["direct", "vxlan", "auto", "bgp"] = "auto",
    which: Which = _LAB,
) -> int:
    """Start a cluster from a directory of manifests, and follow their changes until `down`.

    Parameters
    ----------
    directory
        Kubernetes manifests, as for `kubectl apply`.
    nodes
        How many nodes: 1 to 200.
    links
        On how many links they are, with a router between these that knows nobody's pods: 1 to 9.
    transport
        How packets come to other nodes' pods: direct, vxlan, auto: by VXLAN to nodes on another link, or bgp: by
        routes that the router on the fabric tells, of which the manifests have a BGPPeer.
    """
    from podwire.lab import lifecycle

    lab = lifecycle.up(which.run_dir, which.name, directory, nodes, partial(print, flush=True), links, transport)
    seen = _view(lab)
    of = _named(lab.name)
    commands = (f"`podwire lab {it}`" for it in (f"status{of}", f"exec{of} POD -- COMMAND", f"down{of}"))
    print(f"{called(lab.name)} is up: {', '.join(commands)}")
    return 1 if seen.problems or any(pod.problem for pod in seen.pods) else 0


@app.command
def down(*, which: Which = _LAB) -> int:
    """End a lab: its processes, namespaces and files."""
    from podwire.lab import lifecycle

    found = lifecycle.down(which.run_dir, which.name)
    print(f"{called(which.name)} is gone" if found else f"there is no lab {which.name}: nothing to do")
    return 0


@app.command
def status(*, which: Which = _LAB, output: Output = "table") -> int:
    """Nodes, pods and Services, and what is wrong."""
    seen = _view(_loaded(which))
    if output == "json":
        import msgspec

        sys.stdout.buffer.write(msgspec.json.encode(seen) + b"\n")
        return 0
    from podwire.lab.tables import lab

    _show(lab(seen))
    return 0


@app.command(name="exec")
def execute(place: str, /, *command: Annotated[str, Parameter(allow_leading_hyphen=True)], which: Which = _LAB) -> int:
    """Run a program of this machine in the network of a pod, node or client; a pod has the cluster's DNS.

    Parameters
    ----------
    place
        A pod's NAME or NAMESPACE/NAME, or the beginning of one that no other pod shares; a node or client by its name.
    command
        The program and its arguments, after `--`.
    """
    from podwire.lab.places import find

    if not command:
        raise Failed("expected a command after --, such as: podwire lab exec POD -- ip address", WRONG_USAGE)
    lab = _loaded(which)
    found = find(_view(lab), place)
    # ip-netns(8) gives the program mounts of its own: only there names are looked up by the cluster's DNS.
    resolver = str(lab.resolver / found.pods)
    named = ["sh", "-c", 'mount --bind "$0" /etc/resolv.conf && exec "$@"', resolver] if found.pods else []
    sys.stdout.flush()
    os.execvp("ip", ["ip", "netns", "exec", found.space, *named, *command])  # noqa: S606  what was asked for


@app.command
def scale(workload: str, replicas: int, /, *, namespace: str = "default", which: Which = _LAB) -> int:
    """Give a workload another number of pods, until its manifest names another one.

    Parameters
    ----------
    workload
        NAME or KIND/NAME, such as deployment/frontend.
    namespace
        Of the workload.
    """
    from podwire.lab.control import Scale
    from podwire.lab.places import find_workload

    lab = _loaded(which)
    name = find_workload(_view(lab), workload, namespace)
    return _ask(lab, Scale(name, replicas), f"{name} has {replicas} pods")


@app.command
def sync(*, which: Which = _LAB) -> int:
    """Read the manifests now, and answer once the network is as they say."""
    from podwire.lab.control import Sync

    return _ask(_loaded(which), Sync(), "in sync")


@app.command(name="kill-node")
def kill_node(node: str, /, *, agent: bool = False, which: Which = _LAB) -> int:
    """Cut a node off: its agent by SIGKILL, its cable, and its pods as backends.

    Parameters
    ----------
    agent
        Only the agent: the node's network stays as it is.
    """
    from podwire.lab.control import KillAgent, KillNode

    return _ask(_loaded(which), KillAgent(node) if agent else KillNode(node), f"{node}: killed")


@app.command(name="start-node")
def start_node(node: str, /, *, agent: bool = False, which: Which = _LAB) -> int:
    """Bring back a node that was killed.

    Parameters
    ----------
    agent
        Only the agent.
    """
    from podwire.lab.control import StartAgent, StartNode

    return _ask(_loaded(which), StartAgent(node) if agent else StartNode(node), f"{node}: ready")


@app.command
def readdress(node: str, /, *, which: Which = _LAB) -> int:
    """Give a node another address on the fabric, as after a move."""
    from podwire.lab.control import Readdress

    return _ask(_loaded(which), Readdress(node), f"{node}: has another address")


@app.command
def client(name: str = "", /, *, behind: bool = False, which: Which = _LAB) -> int:
    """Add a machine beside the cluster, on the fabric: pods, external IPs and load balancers by way of nodes.

    Parameters
    ----------
    name
        Else client1, client2, and so on.
    behind
        On a link of its own behind the router, with no way but what that has learnt.
    """
    from podwire.lab.control import MakeClient

    made = _asked(_loaded(which), MakeClient(name, behind)).name
    where, of = "behind the router" if behind else "on the fabric", _named(which.name)
    print(f"{made} is {where}: podwire lab exec{of} {made} -- COMMAND")
    return 0


@app.command
def demo(directory: Path, /, *, nodes: int = 1, which: Which = Which(name="demo")) -> int:
    """Start a lab, reach every Service in every way, kill the agent under traffic, and clean up.

    Parameters
    ----------
    directory
        Kubernetes manifests, such as examples/guestbook.
    nodes
        How many nodes: 1 to 200.
    """
    from podwire.lab.demo import run

    return run(which.run_dir, which.name, directory, nodes)


def _named(lab: str) -> str:
    """What a command needs to be about that lab."""
    return f" --name {lab}" if lab != DEFAULT else ""


def _loaded(which: Which) -> "Lab":
    return load(which.run_dir, which.name)


def _view(lab: "Lab") -> "LabView":
    from podwire.lab.control import view

    return view(lab)


def _ask(lab: "Lab", request: "Requests", done: str) -> int:
    seen = _asked(lab, request).lab
    assert seen is not None
    for line in (*seen.problems, *(f"pod/{it.namespace}/{it.name}: {it.problem}" for it in seen.pods if it.problem)):
        print(line)
    print(done)
    return 0


def _asked(lab: "Lab", request: "Requests") -> "Reply":
    from podwire.lab.control import ask

    return ask(lab, request)


def _show(what: "RenderableType") -> None:
    from podwire.cli.paper import show

    show(what)
