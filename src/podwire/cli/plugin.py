"""The command `podwire-cni`: puts the CNI plugin on a node and takes it off. A DaemonSet's init container calls it, or
an administrator.

Invariants: exit codes as those of `podwire`: 0 as asked, 1 it could not be, 2 a wrong command, option or argument. One
line for each file says what became of it.
"""

from pathlib import Path

from cyclopts import App

from podwire.cli.client import REFUSED, Failed
from podwire.cli.main import run
from podwire.cli.target import read
from podwire.cni.install import Foreign, NoPython, conflist_part, find_python, native_plugin, plugin_parts, put, take
from podwire.version import version

_PROGRAMS = Path("/usr/bin")
_BIN_DIR, _CONF_DIR = Path("/opt/cni/bin"), Path("/etc/cni/net.d")

app = App(
    name="podwire-cni",
    help="Podwire's CNI plugin: put it on a node, or take it off.",
    help_format="plaintext",
    version=version,
)


@app.command
def install(
    *,
    config: Path,
    bin_dir: Path = _BIN_DIR,
    conf_dir: Path = _CONF_DIR,
    programs: Path = _PROGRAMS,
    replace_foreign: bool = False,
) -> None:
    """Put the CNI plugin where the container runtime executes it, then the configuration by which it does.

    The native plugin, where this installation has one for the machine; else the one in Python. It may be called again
    at any time, also while the plugin is at work.

    Parameters
    ----------
    config
        The agent's TOML file: the plugin calls the agent in the state directory that it names.
    bin_dir
        The runtime's directory of plugins.
    conf_dir
        The runtime's directory of network configurations.
    programs
        Where the node's /usr/bin is seen: the plugin in Python runs with a Python from there.
    replace_foreign
        Also where another's files have our names.
    """
    right = read(config)
    try:
        native = native_plugin()
        interpreter = "" if native is not None else find_python(programs, _PROGRAMS)
        parts = plugin_parts(bin_dir, right.cni_socket, right.spool, right.ready_mark, interpreter, native)
        placed = put([*parts, conflist_part(conf_dir)], replace_foreign)
    except NoPython as error:
        raise Failed(str(error), REFUSED) from None
    except Foreign as error:
        raise Failed(f"{error}; --replace-foreign puts ours in its place", REFUSED) from None
    except OSError as error:
        raise Failed(f"{error.filename}: {error.strerror or error}", REFUSED) from None
    for it in placed:
        print(f"{it.path}: {it.became}")
    print(f"the plugin is {'native' if native is not None else f'in Python, with {interpreter}'}")


@app.command
def uninstall(*, bin_dir: Path = _BIN_DIR, conf_dir: Path = _CONF_DIR) -> None:
    """Take the CNI plugin off this node, the configuration first. `podwire uninstall` does so too, and takes the rest.

    Parameters
    ----------
    bin_dir
        The runtime's directory of plugins.
    conf_dir
        The runtime's directory of network configurations.
    """
    try:
        for line in take(bin_dir, conf_dir):
            print(line)
    except OSError as error:
        raise Failed(f"{error.filename}: {error.strerror or error}", REFUSED) from None


def main() -> None:
    run(app)
