"""The CNI plugin on this node: its files, the runtime's configurations, its socket and spool."""

import json
import os
import shlex
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

from podwire.cni import shim
from podwire.cni.install import PLUGIN, native_plugin
from podwire.doctor.facts import NATIVE, Cni, Conflist, Plugin
from podwire.doctor.findings import Unseen

SECONDS = 5.0
SUFFIXES = (".conf", ".conflist", ".json")
"""Of the files that a runtime reads (libcni, ConfFiles)."""
_CONFIGURATION = json.dumps({"cniVersion": "1.1.0", "name": PLUGIN, "type": PLUGIN}).encode()


def read(plugin: Path, conf_dir: Path, state_dir: Path, container: bool) -> Cni:
    """In a container the two directories may be missing though the node has them."""
    hidden = Unseen("the runtime's directories are not seen from this container")
    files: Plugin | Unseen = hidden if container and not os.path.isdir(plugin.parent) else _files(plugin, container)
    conflists = hidden if container and not os.path.isdir(conf_dir) else _conflists(conf_dir)
    return Cni(files, conflists, _answers(state_dir / "cni.sock"), _spool(state_dir / "spool"))


def _files(plugin: Path, container: bool) -> Plugin:
    loopback = os.path.exists(plugin.parent / "loopback")
    if not os.path.exists(plugin):
        return Plugin(False, loopback=loopback)
    native = _begins(plugin, b"\x7fELF")
    beside = [Path(f"{plugin}{suffix}") for suffix in ((".conf",) if native else (".py", ".conf"))]
    settings: dict[bytes, bytes] = {}
    error = ""
    try:
        settings = shim.read_settings(os.fsencode(plugin))
    except (OSError, ValueError) as failed:
        error = str(failed)
    return Plugin(
        True,
        os.access(plugin, os.X_OK),
        NATIVE if native else _interpreter(plugin, container),
        tuple(path.name for path in beside if not os.path.exists(path)),
        _same(plugin if native else beside[0], native),
        os.fsdecode(settings.get(b"socket", b"")),
        os.fsdecode(settings.get(b"spool", b"")),
        error,
        loopback,
    )


def _interpreter(plugin: Path, container: bool) -> str:
    """Of the first line: a path, or env(1) with a name; a container does not see the node's."""
    try:
        with plugin.open("rb") as file:
            words = shlex.split(file.readline(1000).decode(errors="replace").removeprefix("#!"))
    except (OSError, ValueError):
        return ""
    if words and os.path.basename(words[0]) == "env":
        words = [word for word in words[1:] if not word.startswith("-")]
    if not words:
        return ""
    return words[0] if container else shutil.which(words[0]) or ""


def _begins(path: Path, mark: bytes) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(mark)) == mark
    except OSError:
        return False


def _same(program: Path, native: bool) -> bool:
    """Whether an installation would leave it as it is. A native one is right where we have none to put in its place."""
    ours = native_plugin()
    if native and ours is None:
        return True
    try:
        return native == (ours is not None) and program.read_bytes() == (ours or Path(shim.__file__)).read_bytes()
    except OSError:
        return False


def _conflists(directory: Path) -> tuple[Conflist, ...] | Unseen | None:
    try:
        names = sorted(name for name in os.listdir(directory) if name.endswith(SUFFIXES))
    except FileNotFoundError:
        return None
    except OSError as error:
        return Unseen(f"{directory}: {error.strerror}")
    return tuple(_conflist(directory / name) for name in names)


def _conflist(path: Path) -> Conflist:
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        listed = held["plugins"] if path.suffix == ".conflist" or "plugins" in held else [held]
        types = tuple(str(each["type"]) for each in listed)
        if not held.get("name"):
            return Conflist(path.name, types, 'without a "name"')
        return Conflist(path.name, types)
    except OSError as error:
        return Conflist(path.name, error=f"can't be read ({error.strerror})")
    except UnicodeDecodeError:
        return Conflist(path.name, error="not UTF-8")
    except json.JSONDecodeError as error:
        return Conflist(path.name, error=f"no JSON (line {error.lineno}: {error.msg})")
    except (KeyError, TypeError, AttributeError):
        return Conflist(path.name, error='without "plugins" that have a "type"')


def _answers(socket: Path) -> Mapping[str, str] | Unseen:
    found = {}
    for command in ("VERSION", "STATUS"):
        try:
            stdout, code = _call(socket, command)
        except (OSError, ValueError) as error:
            return Unseen(f"{socket}: {getattr(error, 'strerror', None) or error}")
        found[command] = "" if code == 0 else _words(stdout)
    return found


def _call(socket: Path, command: str) -> tuple[bytes, int]:
    """As the plugin does. Raises OSError or ValueError."""
    variables = (f"CNI_COMMAND={command}", "CNI_PATH=/opt/cni/bin")
    request = b"".join(shim.field(1, variable.encode()) for variable in variables) + shim.field(2, _CONFIGURATION)
    return shim.reply(shim.call(os.fsencode(socket), request, time.monotonic() + SECONDS))


def _words(stdout: bytes) -> str:
    try:
        told = json.loads(stdout)
        details = f": {told['details']}" if told.get("details") else ""
        return f"{told['msg']}{details} (code {told['code']})"
    except (ValueError, KeyError, TypeError):
        return stdout.decode(errors="replace").strip() or "nothing"


def _spool(directory: Path) -> tuple[int, int] | Unseen:
    try:
        names = os.listdir(directory)
    except FileNotFoundError:  # the plugin makes it when it needs it
        return 0, 0
    except OSError as error:
        return Unseen(f"{directory}: {error.strerror}")
    return sum(name.endswith(".del") for name in names), sum(name.endswith(".bad") for name in names)
