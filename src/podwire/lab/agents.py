"""A node's agent as a process in the node's namespace.

Invariants: the agent is the same program that a node runs, with its own configuration file and state directory. It is
written down before it is waited for. Nothing starts it again by itself.
"""

import asyncio
import os
import socket
import sys
import sysconfig
from asyncio.subprocess import DEVNULL, Process
from pathlib import Path

import msgspec

from podwire.cni.install import install, native_plugin
from podwire.lab.layout import Lab, NodePaths
from podwire.lab.process import ProgramError, last_words, record
from podwire.lab.topology import SERVICE_RANGES, station_space

PATIENCE = 60.0
"""Seconds for an agent to get ready."""


def prepare(lab: Lab, node: str) -> NodePaths:
    """The node's files: its plugin, and the agent's configuration. Raises OSError."""
    paths = lab.node(node)
    install(paths.bin, paths.cni_socket, paths.spool, paths.ready_mark, sys.executable, native_plugin())
    ranges = [str(range_) for range_ in SERVICE_RANGES.values()]
    # JSON's strings, lists and numbers are TOML's too.
    settings = {
        "node_name": node,
        "state_dir": str(paths.state),
        "manifests": str(lab.cluster),
        "service_cidrs": ranges,
        "transport": lab.transport,
        "frr_dir": str(paths.frr),
    }
    lines = [f"{name} = {msgspec.json.encode(value).decode()}" for name, value in settings.items()]
    paths.config.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return paths


async def start(lab: Lab, node: str) -> Process:
    """Answers once the agent says that it is ready. Raises ProgramError with the end of its log."""
    paths = lab.node(node)
    paths.notify.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as inbox, paths.log.open("ab") as log:
        inbox.bind(str(paths.notify))
        child = await asyncio.create_subprocess_exec(
            *("ip", "netns", "exec", station_space(lab.name, node)),
            *(str(Path(sysconfig.get_path("scripts"), "podwire")), "agent", "--config", str(paths.config)),
            stdin=DEVNULL,
            stdout=log,
            stderr=log,
            env={"PATH": os.environ.get("PATH", os.defpath), "NOTIFY_SOCKET": str(paths.notify)},
        )
        record(lab.processes, child.pid, f"agent of {node}")
        told, ended = asyncio.create_task(_told(inbox)), asyncio.create_task(child.wait())
        try:
            await asyncio.wait({told, ended}, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
            if not told.done():
                how = "ended" if ended.done() else f"is not ready after {PATIENCE:.0f} s"
                if not ended.done():
                    child.kill()
                    await ended
                raise ProgramError(f"the agent of {node} {how}: {last_words(paths.log)}")
        finally:
            told.cancel()
            ended.cancel()
            await asyncio.wait({told, ended})
    return child


async def _told(inbox: socket.socket) -> None:
    """sd_notify(3): lines of NAME=VALUE in a datagram."""
    while "READY=1" not in (await asyncio.get_running_loop().sock_recv(inbox, 4096)).decode().split("\n"):
        pass
