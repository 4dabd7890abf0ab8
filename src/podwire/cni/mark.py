"""The mark that the node's agent was able to attach pods, for the plugin to answer STATUS while the agent is away.

Invariants: it holds for one boot and one network namespace; of another it says nothing. `shim.py` compares it with what
it reads itself, byte by byte.
"""

import os
from pathlib import Path

from podwire.config import aside_of

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
NAMESPACE = "/proc/thread-self/ns/net"


def present() -> bytes:
    """What the mark contains now, here: boot ID (random(4)) and network namespace (namespaces(7)). Raises OSError."""
    return BOOT_ID.read_bytes() + os.readlink(NAMESPACE).encode() + b"\n"


def leave(path: Path) -> None:
    """Whole, or not at all; where it is already, nothing is written. Need not outlive a power loss. Raises OSError."""
    wanted = present()
    try:
        if path.read_bytes() == wanted:
            return
    except FileNotFoundError:
        pass
    aside = aside_of(path)
    try:
        aside.write_bytes(wanted)
        aside.rename(path)
    finally:
        aside.unlink(missing_ok=True)
