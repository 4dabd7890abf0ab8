"""The node's condition NetworkUnavailable, set to False once pods can be attached.

Some clouds taint a node until its network says so (Kubernetes docs, "Taints and Tolerations"). Invariants: a task of
its own, which holds up nobody. The condition is never set to True, since what is wired works on without the agent. One
that nobody asked for is not made, unless the configuration wants it.
"""

import logging
from collections.abc import Awaitable, Callable

import msgspec
from msgspec import Struct

from podwire.sources.kube_api import Api, ApiError
from podwire.sources.kube_position import backoff
from podwire.sources.kube_time import time_of
from podwire.sources.kube_watch import CHANCE, Chance

log = logging.getLogger(__name__)

AGAIN_SECONDS = 300.0
"""Others may set it to True again, such as when the node registers anew."""
TYPE = "NetworkUnavailable"


class Condition(Struct, frozen=True):
    type: str
    status: str


class NodeStatus(Struct, frozen=True):
    conditions: list[Condition] | None = None


class Node(Struct, frozen=True):
    status: NodeStatus | None = None


def is_due(node: Node, always: bool) -> bool:
    """Whether the condition has to be written. `always`: also where the node has none."""
    for condition in (node.status.conditions if node.status is not None else None) or ():
        if condition.type == TYPE:
            return condition.status != "False"
    return always


def patch(now: float) -> bytes:
    """A strategic merge patch of the node's status: conditions are merged by type. `now`: seconds since the epoch."""
    time = time_of(now)
    condition = {
        "type": TYPE,
        "status": "False",
        "reason": "PodwireIsReady",
        "message": "podwire attaches pods on this node",
        "lastHeartbeatTime": time,
        "lastTransitionTime": time,
    }
    return msgspec.json.encode({"status": {"conditions": [condition]}})


async def keep(
    api: Api, node: str, ready: Callable[[], Awaitable[None]], always: bool, chance: Chance = CHANCE
) -> None:
    """Looks and sets, whenever the node is `ready` (awaited until then). Never returns."""
    path, failures = f"/api/v1/nodes/{node}", 0
    while True:
        await ready()
        try:
            found = await api.get(path)
            if is_due(msgspec.json.decode(found, type=Node), always):
                await api.patch(f"{path}/status", patch(chance.now()))
                log.info("node %s: condition %s is False now", node, TYPE)
            failures, delay = 0, AGAIN_SECONDS
        except (ApiError, msgspec.DecodeError) as error:
            if failures == 0:
                log.warning("node %s: condition %s can't be set, and is tried again: %s", node, TYPE, error)
            delay = backoff(failures, chance.luck())
            failures += 1
        await chance.pause(delay)
