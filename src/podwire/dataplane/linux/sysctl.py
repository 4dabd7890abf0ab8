"""Kernel settings of the node's namespace, below /proc/sys.

Invariants: only the settings that are wanted are read and written; one that is no longer wanted stays as it is.
Forwarding IPv6 makes a node deaf to router advertisements, and so lose its default route: interfaces that listen are
told to go on first (accept_ra 2, Documentation/networking/ip-sysctl).
"""

import os
from pathlib import Path

ROOT = Path(os.environ.get("PODWIRE_PROC_SYS", "/proc/sys"))
"""In a container, whose own /proc/sys can't be written, the node's is seen elsewhere. Below net/ both show the network
namespace of the thread that looks."""

FORWARDING = "net/ipv6/conf/all/forwarding"
FORWARDS = {"ipv4": "net/ipv4/ip_forward", "ipv6": FORWARDING}
"""Whether the node forwards at all, by family."""


def read(path: str) -> str | None:
    """None: this kernel has no such setting."""
    try:
        return (ROOT / path).read_text().strip()
    except FileNotFoundError:
        return None


def write(path: str, value: str) -> None:
    """Raises OSError."""
    if path == FORWARDING and value != "0":
        for listening in sorted((ROOT / "net/ipv6/conf").glob("*/accept_ra")):
            # Not `default` and `all`: an interface born later, a pod's above all, must not become the way out.
            if listening.parent.name not in ("all", "default") and listening.read_text().strip() == "1":
                listening.write_text("2")
    (ROOT / path).write_text(value)
