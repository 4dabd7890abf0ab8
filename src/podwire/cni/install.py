"""Puts the CNI plugin where a container runtime executes it.

Invariants: a runtime may execute the plugin at any moment, so each file appears whole (written aside, synced, renamed)
and the executable last. Nothing is removed: a DEL comes also for the pods of an agent that is gone.
"""

import os
from pathlib import Path

PLUGIN = "podwire"
_HERE = Path(__file__).parent


def install(directory: Path, socket: Path, spool: Path, interpreter: str = "/usr/bin/env -S python3") -> Path:
    """The plugin's path. `interpreter` is a Python (3.11 or later) as the runtime finds it; the full path of one is
    half a millisecond quicker at each call. Raises OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    plugin = directory / PLUGIN
    launcher = (_HERE / "launcher.py").read_text(encoding="utf-8").partition("\n")[2]
    _place(directory / f"{PLUGIN}.py", (_HERE / "shim.py").read_text(encoding="utf-8"), 0o644)
    _place(directory / f"{PLUGIN}.conf", f"socket={socket}\nspool={spool}\n", 0o644)
    _place(plugin, f"#!{interpreter} -IS\n{launcher}", 0o755)
    return plugin


def _place(path: Path, text: str, mode: int) -> None:
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with aside.open("w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), mode)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        aside.rename(path)
    finally:
        aside.unlink(missing_ok=True)
