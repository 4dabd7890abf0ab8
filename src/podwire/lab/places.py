"""What a user's words mean in a lab. Pure.

Invariants: a whole name wins over the beginning of others; words that fit several things are an error that lists them.
"""

from collections.abc import Iterable
from typing import NamedTuple

from podwire.lab.layout import LabError
from podwire.lab.views import LabView

_SHORT = {
    "deploy": "deployment",
    "rs": "replicaset",
    "rc": "replicationcontroller",
    "sts": "statefulset",
}


class Place(NamedTuple):
    """`space`: the name of its network namespace; `pods`: the cluster's namespace that a pod is of, "" elsewhere."""

    space: str
    pods: str = ""


def find(lab: LabView, words: str) -> Place:
    """A node, client or pod. Raises LabError."""
    stations = {it.name: it.space for it in lab.nodes} | {it.name: it.space for it in lab.clients}
    if words in stations:
        return Place(stations[words])
    named = {f"{pod.namespace}/{pod.name}": pod for pod in lab.pods}
    # By what to compare: with or without the namespace.
    spelled = {full: full if "/" in words else full.partition("/")[2] for full in named}
    whole = [full for full, text in spelled.items() if text == words]
    found = whole or [full for full, text in spelled.items() if text.startswith(words)]
    if not found:
        raise LabError(f"there is no pod, node or client {words}; there is {_few([*named, *stations])}")
    if len(found) > 1:
        raise LabError(f"{words} can be {_few(found)}: write more of it")
    pod = named[found[0]]
    if pod.problem:
        raise LabError(f"{found[0]} does not run: {pod.problem}")
    return Place(pod.space, pod.namespace)


def find_workload(lab: LabView, words: str, namespace: str) -> str:
    """KIND/NAMESPACE/NAME of a workload by KIND/NAME or NAME. Raises LabError."""
    kind, slash, name = words.lower().rpartition("/")
    kind = _SHORT.get(kind, kind)
    known = [it.name for it in lab.workloads]
    found = []
    for full in known:
        its_kind, its_namespace, its_name = full.split("/")
        if its_name == name and its_namespace == namespace and (not slash or its_kind.lower() == kind):
            found.append(full)
    if not found:
        raise LabError(f"there is no workload {words} in namespace {namespace}; there is {_few(known)}")
    if len(found) > 1:
        raise LabError(f"{words} can be {_few(found)}: write KIND/NAME")
    return found[0]


def _few(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:8]) + (f" and {len(listed) - 8} more" if len(listed) > 8 else "") if listed else "none"
