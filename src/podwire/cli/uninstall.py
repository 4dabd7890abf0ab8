"""`podwire uninstall`: takes off a node what Podwire has put there, and nothing else.

Invariants: only what is recognisably ours goes, by the marks that an agent itself knows it by (tables with our seal,
routes, addresses and neighbours of our protocol number, links of our form, files of our names). Nothing goes while an
agent runs, nor while FRR announces what is to go, nor while pods are attached, unless that is asked for: they would
lose their network.
"""

from collections.abc import Iterator
from pathlib import Path

from podwire.bgp import daemons
from podwire.cli.client import REFUSED, Failed
from podwire.cli.target import read
from podwire.cni.install import take
from podwire.config import Config, aside_of
from podwire.controller.difference import Scope, difference
from podwire.dataplane.linux.driver import Linux
from podwire.dataplane.nftables.driver import NFTables
from podwire.model.network import LinkKey, SysctlKey, UpKey
from podwire.preflight import CannotStart, ready
from podwire.trace.driver import Tracer


def uninstall(
    *,
    config: Path,
    bin_dir: Path = Path("/opt/cni/bin"),
    conf_dir: Path = Path("/etc/cni/net.d"),
    with_pods: bool = False,
) -> None:
    """Take Podwire off this node: tables, routes, addresses, links, the CNI plugin and the state directory.

    Kernel settings (forwarding) stay: others may count on them by now.

    Parameters
    ----------
    config
        The agent's TOML file.
    bin_dir
        The runtime's directory of plugins.
    conf_dir
        The runtime's directory of network configurations.
    with_pods
        Even where pods are attached: they lose their network, and must be started anew by another one.
    """
    right = read(config)
    try:
        with ready(right):
            if name := daemons.answering(right.frr):
                form = "end it first: kubectl delete -f deploy/podwire-bgp.yaml, or podwire bgp-daemons"
                raise Failed(f"FRR's {name} still tells routers the way to this node ({right.frr}): {form}", REFUSED)
            _network(with_pods)
            _files(right, bin_dir, conf_dir)
        right.lock.unlink(missing_ok=True)
        if not any(right.state_dir.iterdir()):
            right.state_dir.rmdir()
    except CannotStart as error:
        raise Failed(str(error), REFUSED) from None
    except OSError as error:
        raise Failed(f"{error.filename or 'the network'}: {error.strerror or error}", REFUSED) from None


def _network(with_pods: bool) -> None:
    """Raises Failed, OSError."""
    linux, nftables = Linux(), NFTables()
    try:
        held = linux.read(Scope(None, frozenset()))
        pods = sorted(key.name for key in held if isinstance(key, LinkKey))
        if pods and not with_pods:
            form = "drain the node first, or give --with-pods: they lose their network then"
            raise Failed(
                f"{len(pods)} pods are attached ({', '.join(pods[:3])}{' …' if len(pods) > 3 else ''}): {form}", REFUSED
            )
        ours = {key: value for key, value in held.items() if not isinstance(key, SysctlKey | UpKey)}
        outcomes = linux.apply(difference({}, ours, linux.place))
        linux.collect()
        for key, outcome in outcomes.items():
            print(f"{key}: {outcome.error or 'removed'}")
        for said in nftables.uninstall():
            print(said)
        tracer = Tracer(nftables.commit)
        tracer.sweep()
        tracer.close()
    finally:
        linux.close()
        nftables.close()


def _files(config: Config, bin_dir: Path, conf_dir: Path) -> None:
    for line in take(bin_dir, conf_dir):
        print(line)
    for path in _state(config):
        if path.is_dir() and not path.is_symlink():
            print(f"{path}: kept: a directory is not Podwire's")
        elif path.exists() or path.is_symlink():
            path.unlink()
            print(f"{path}: removed")
    for directory in (config.spool, config.leases, config.frr):
        if directory.is_dir() and not any(directory.iterdir()):
            directory.rmdir()


def _state(config: Config) -> Iterator[Path]:
    yield from config.database.parent.glob(f"{config.database.name}*")
    yield from (config.cni_socket, config.admin_socket)
    for path in (config.ready_mark, config.counts):
        yield path
        yield aside_of(path)
        yield from sorted(path.parent.glob(f".{path.name}.*"))  # by killed agents of older versions
    yield from sorted(config.spool.glob("*"))
    yield from sorted(config.leases.glob("*"))
    yield from daemons.left(config.frr)
