"""A pod begun and ended on its node, as a kubelet and its runtime do it.

Invariants: a namespace comes before the ADD and goes after the DEL. What fails half-way is undone. A pod of the host
network has no namespace of its own and never meets the plugin.
"""

import secrets
from pathlib import Path

from msgspec import Struct

from podwire.cni.install import PLUGIN
from podwire.lab import attach, nameserver, responder
from podwire.lab.layout import Lab
from podwire.lab.listeners import Listeners
from podwire.lab.nameserver import Names
from podwire.lab.process import ProgramError
from podwire.lab.slices import Listen
from podwire.lab.spaces import make, remove
from podwire.lab.topology import Station, path_of, pod_space, station_space
from podwire.lab.workloads import PlannedPod
from podwire.model.addresses import Address


class LivePod(Struct):
    """A pod that runs. `sandbox` None: it lives in its node's own network."""

    pod: PlannedPod
    addresses: tuple[Address, ...]
    space: Path
    listeners: Listeners
    sandbox: attach.Sandbox | None = None


async def begin(lab: Lab, pod: PlannedPod, host: Station, ports: frozenset[Listen], names: Names) -> LivePod:
    """Answers once the pod has its addresses and listens. `host`: its node.

    Raises ProgramError, AttachError or OSError.
    """
    if pod.host_network:
        live = LivePod(pod, host.addresses, path_of(station_space(lab.name, pod.node)), Listeners())
        await listen(live, ports, names)
        return live
    space = pod_space(lab.name, pod.key)
    await make([space])
    sandbox = attach.Sandbox(secrets.token_hex(32), pod.key, path_of(space))
    try:
        addresses = await attach.add(_plugin(lab, pod), sandbox, pod.host_ports)
        live = LivePod(pod, addresses, path_of(space), Listeners(), sandbox)
        await listen(live, ports, names)
    except (ProgramError, attach.AttachError, OSError):
        await _undo(lab, pod, sandbox, space)
        raise
    return live


async def listen(live: LivePod, ports: frozenset[Listen], names: Names) -> None:
    """On these ports and no others. Raises OSError; then on none."""
    if ports != live.listeners.ports:
        live.listeners.close()
        programs, key = {}, live.pod.key
        for port in ports:
            say = responder.saying(f"{key.namespace}/{key.name}", live.pod.node, port.number)
            programs[port] = nameserver.program(names, say) if port.dns else responder.program(say)
        await live.listeners.open(live.space, programs)


async def finish(lab: Lab, live: LivePod) -> None:
    """Raises ProgramError or AttachError; the pod is gone all the same."""
    live.listeners.close()
    if live.sandbox is not None:
        try:
            await attach.delete(_plugin(lab, live.pod), live.sandbox)
        finally:
            await remove([live.space.name])


async def _undo(lab: Lab, pod: PlannedPod, sandbox: attach.Sandbox, space: str) -> None:
    """A runtime sends DEL after a failed ADD (CNI spec, section 2); its own failure would hide the first one."""
    try:
        await attach.delete(_plugin(lab, pod), sandbox)
    except (ProgramError, attach.AttachError):
        pass
    finally:
        await remove([space])


def _plugin(lab: Lab, pod: PlannedPod) -> Path:
    return lab.node(pod.node).bin / PLUGIN
