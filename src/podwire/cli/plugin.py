"""`podwire install-plugin`: what a DaemonSet's init container does on its node, or an administrator by hand."""

from pathlib import Path

from podwire.cli.client import REFUSED, Failed
from podwire.cli.target import read
from podwire.cni.install import NoPython, configure, find_python
from podwire.cni.install import install as install_plugin

_PROGRAMS = Path("/usr/bin")


def install(
    *,
    config: Path,
    bin_dir: Path = Path("/opt/cni/bin"),
    conf_dir: Path = Path("/etc/cni/net.d"),
    programs: Path = _PROGRAMS,
) -> None:
    """Put the CNI plugin where the container runtime executes it, then the configuration by which it does.

    Parameters
    ----------
    config
        The agent's TOML file: the plugin calls the agent in the state directory that it names.
    bin_dir
        The runtime's directory of plugins.
    conf_dir
        The runtime's directory of network configurations.
    programs
        Where the node's /usr/bin is seen: the plugin runs with a Python from there.
    """
    right = read(config)
    try:
        interpreter = find_python(programs, _PROGRAMS)
        plugin = install_plugin(bin_dir, right.cni_socket, right.spool, right.ready_mark, interpreter)
        conflist = configure(conf_dir)
    except NoPython as error:
        raise Failed(str(error), REFUSED) from None
    except OSError as error:
        raise Failed(f"{error.filename}: {error.strerror or error}", REFUSED) from None
    print(f"{plugin} (with {interpreter}), {conflist}")
