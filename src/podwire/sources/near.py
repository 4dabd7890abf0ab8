"""Kinds that are nearly one of those that are understood: a slip of the pen must not pass in silence. Pure.

Invariants: what another API may well define is left alone, be its kind alike: only in Kubernetes' own groups, or what
looks like one, nobody else names kinds.
"""

import difflib
from collections.abc import Iterable

CUTOFF = 0.8
_CORE = """
    Binding ComponentStatus ConfigMap Endpoints Event LimitRange Namespace Node PersistentVolume PersistentVolumeClaim
    Pod PodTemplate ReplicationController ResourceQuota Secret Service ServiceAccount
"""
OTHERS = {
    "": frozenset(_CORE.split()),
    "networking.k8s.io": frozenset(("Ingress", "IngressClass", "IPAddress", "NetworkPolicy")),
}
"""By group, what Kubernetes itself calls so: right where it is written, even if nothing here reads it."""


def nearest(version: str, kind: str, known: Iterable[tuple[str, str]]) -> tuple[str, str] | None:
    """The (apiVersion, kind) among the known ones that is meant by one that is not among them; None: none of them.

    Such as `v1 Service` for `v1 Services` or `V1 service`, `discovery.k8s.io/v1 EndpointSlice` for that of `v1beta1`;
    but nothing for `serving.knative.dev/v1 Service`, which is another thing, or `v1 Secret`.
    """
    understood, group = list(known), _group(version)
    if (version == "v1" and kind in OTHERS[""]) or (kind in OTHERS.get(group, frozenset()) and "/" in version):
        return None
    if "." in group and max(_ratio(group, _group(its)) for its, _ in understood) < CUTOFF:
        return None
    alike = [it for it in understood if _ratio(kind, it[1]) >= CUTOFF]
    return max(alike, key=lambda it: (_ratio(kind, it[1]), _ratio(version, it[0]), it), default=None)


def _group(version: str) -> str:
    """The core group has no name."""
    return version.strip().rpartition("/")[0].lower()


def _ratio(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one.lower(), other.lower()).ratio()
