"""The mark that the node's agent was able to attach pods, for the plugin to answer STATUS while the agent is away.

Invariants: it holds for one boot and one network namespace; of another it says nothing. The boot is that which the
agent believes in: the mark names the file that tells it, where that is not the kernel's. `shim.py` compares all of it
with what it reads itself, byte by byte.
"""

import os
from pathlib import Path

from podwire.config import BOOT_ID, aside_of

NAMESPACE = "/proc/thread-self/ns/net"


def present(boot_id: Path) -> bytes:
    """What the mark contains now, here: boot ID (random(4)), network namespace (namespaces(7)), and the file that tells
    the boot ID where that is another than the kernel's. Raises OSError."""
    teller = b"" if boot_id == BOOT_ID else os.fsencode(boot_id) + b"\n"
    return boot_id.read_bytes() + os.readlink(NAMESPACE).encode() + b"\n" + teller


def leave(path: Path, boot_id: Path) -> None:
    """Whole, or not at all; where it is already, nothing is written. Need not outlive a power loss. Raises OSError."""
    wanted = present(boot_id)
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
