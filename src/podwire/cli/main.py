"""The command `podwire`: the agent itself, questions to a running one, the CNI plugin's installation, and the lab.

Invariants: a command's module is imported when that command is called, so that `podwire --help` is quick; hence the
texts here. Exit codes: 0 as asked, 1 no (drift, a refused request, a wrong file), 2 a wrong command, option or
argument, 3 no agent answered.
"""

import gc
import os
import sys
from pathlib import Path

from cyclopts import App, CycloptsError

from podwire.cli.client import REFUSED, WRONG_USAGE, Failed
from podwire.model.text import printable
from podwire.version import version

app = App(
    name="podwire",
    help="The network of a Kubernetes cluster: pods and Services by one agent per node.",
    help_format="plaintext",
    version=version,
)
for _name, _help in (
    ("status", "What an agent knows, what it gave out, and what is wrong."),
    ("services", "Services with their frontends, backends, and what the data plane holds of them."),
    ("pods", "The pods attached on the agent's node."),
    ("ipam", "The addresses of the agent's node: blocks, pools, what is free, and why not more."),
    ("interface", "What leads to a pod of the agent's node: the node's end of each of its links."),
    ("history", "What happened: one entry for each event, with what it changed and wrote."),
    ("verify", "Compare the network with what it should be, touching nothing; exit code 1 where they differ."),
    ("resync", "Read the whole network and make it what it should be."),
):
    app.command(f"podwire.cli.queries:{_name}", name=_name, help=_help)
app.command("podwire.cli.announcing:bgp", name="bgp", help="The node's BGP sessions, and the routes that go over them.")
app.command(
    "podwire.cli.announcing:l2",
    name="l2",
    help="Which node answers for which address by ARP and NDP, and what is heard of the nodes.",
)
app.command(
    "podwire.cli.queries:explain",
    name="explain",
    help="Why a Service is as it is, or what the agent's node does with a packet.",
    usage="Usage: podwire explain service/NAMESPACE/NAME\n       podwire explain FROM IP:PORT[/PROTOCOL]\n",
)
app.command(
    "podwire.cli.traces:trace",
    name="trace",
    help="Send a real first packet from a pod of the agent's node, or the node itself, and tell its way hop by hop.",
    usage="Usage: podwire trace NAMESPACE/POD|node IP:PORT[/PROTOCOL] [--timeout SECONDS] [--rules]\n",
)
app.command(
    "podwire.doctor.command:doctor",
    name="doctor",
    help="What is right on this node, what is wrong and what to do; exit code 1 where something is wrong.",
)
app.command("podwire.cli.uninstall:uninstall", name="uninstall", help="Take off this node what Podwire has put there.")
app.command(
    "podwire.cli.importing:app", name="import", help="Print another load balancer's configuration as Podwire's objects."
)
app.command(
    "podwire.lab.commands:app", name="lab", help="A cluster of network namespaces on this machine, from manifests."
)


@app.command
def agent(*, config: Path) -> None:
    """Run the node's agent until it is told to stop.

    Parameters
    ----------
    config
        The agent's TOML file.
    """
    from podwire.cli.target import read

    right = read(config)  # before the agent's imports: a mistake is told at once
    gc.disable()  # until the agent has started: what it imports and makes stays
    from podwire.agent import Ended, run
    from podwire.preflight import CannotStart

    try:
        run(right)
    except (CannotStart, Ended) as error:
        raise Failed(str(error), REFUSED) from None


@app.command
def controller(
    *,
    kubeconfig: Path | None = None,
    namespace: str = "podwire",
    classed_only: bool = False,
    identity: str = "",
    metrics_listen: str = "",
    import_metallb: bool = False,
    metallb_namespace: str = "metallb-system",
) -> None:
    """Run the cluster's controller, which gives Services of type LoadBalancer their addresses, until told to stop.

    Parameters
    ----------
    kubeconfig
        How to reach the API; without, as the pod's service account.
    namespace
        Where the Lease is by which one of several works.
    classed_only
        Only Services with loadBalancerClass podwire.io/podwire are served, not those without a class.
    identity
        By which others know it in the Lease; without, the host's name and the process's number.
    metrics_listen
        IP:PORT where /healthz and /metrics are answered, 0.0.0.0 for all addresses of both families; without, nowhere.
    import_metallb
        Keep Podwire's pools, peers and advertisements as MetalLB's objects in the cluster are.
    metallb_namespace
        Where those are.
    """
    from podwire.clustercontroller.process import Settings
    from podwire.clustercontroller.process import run as work
    from podwire.config import Kubernetes
    from podwire.model.addresses import parse_host_port
    from podwire.preflight import CannotStart
    from podwire.sources.lease import Lost

    try:
        listen = parse_host_port(metrics_listen) if metrics_listen else None
    except ValueError as error:
        raise Failed(f"--metrics-listen: {error}", WRONG_USAGE) from None
    try:
        metallb = metallb_namespace if import_metallb else ""
        work(Settings(Kubernetes(kubeconfig), not classed_only, namespace, identity, listen, metallb))
    except (CannotStart, Lost) as error:
        raise Failed(str(error), REFUSED) from None


@app.command
def bgp_daemons(*, directory: Path, programs: Path = Path("/usr/lib/frr"), port: int = 179) -> None:
    """Run FRR's zebra, bfdd and bgpd for the agent of this node until told to stop, and start again what ends.

    Parameters
    ----------
    directory
        Where they have their sockets and find what to begin with: the agent's frr_dir. FRR's user must reach it.
    programs
        Where FRR's programs are.
    port
        Where bgpd listens; 0 for nowhere: then it is the node alone that begins sessions.
    """
    from podwire.bgp.daemons import CannotStart
    from podwire.bgp.daemons import run as work
    from podwire.logs import set_up

    set_up("info")
    try:
        work(directory, programs, port)
    except CannotStart as error:
        raise Failed(str(error), REFUSED) from None


def main() -> None:
    run(app)


def run(app: App) -> None:
    try:
        app(exit_on_error=False)
    except CycloptsError:  # it has said what is wrong
        sys.exit(WRONG_USAGE)
    except Failed as failed:
        for line in failed.lines:
            print(f"{app.name[0]}: {printable(line)}", file=sys.stderr)
        sys.exit(failed.code)
    except BrokenPipeError:  # whoever read our output has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(REFUSED)
