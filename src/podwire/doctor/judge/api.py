"""The Kubernetes API: its servers, who they are, what we may do there, and what it says of this node. Pure.

Rules: KEP-1880 and the Node API for ranges, SelfSubjectAccessReview for rights.
"""

from collections.abc import Iterator
from datetime import UTC, datetime

from podwire.doctor.facts import Api, Cluster, Facts, Right, Server
from podwire.doctor.findings import Judgement, Unseen, note, ok, unseen, warning, wrong

DAYS = 86_400.0
SOON = 14 * DAYS
"""Before a certificate ends, when a warning comes."""
APART = 60.0
"""Seconds between the clocks of node and server from which a warning comes."""

_READ = ("get", "list", "watch")
_OWN = ("podpools", "addresspools", "bgppeers", "bgpadvertisements", "l2advertisements")
RIGHTS = (
    *(Right(verb, "", resource) for resource in ("nodes", "services", "namespaces", "pods") for verb in _READ),
    *(Right(verb, "discovery.k8s.io", "endpointslices") for verb in _READ),
    *(Right(verb, "networking.k8s.io", "servicecidrs", vital=False) for verb in _READ),
    *(Right(verb, "podwire.io", kind, vital=False) for kind in _OWN for verb in _READ),
    *(Right(verb, "podwire.io", "podblocks", vital=False) for verb in (*_READ, "create", "patch", "delete")),
    *(Right(verb, "podwire.io", "bgpsessions", vital=False) for verb in ("list", "create", "patch", "delete")),
    Right("patch", "", "nodes", "status", vital=False),
)
"""As deploy/podwire.yaml grants them."""
_APPLY = "kubectl apply -f deploy/podwire.yaml    # its ClusterRole and ClusterRoleBinding"


def configuration(facts: Facts) -> Iterator[Judgement]:
    setup = facts.setup
    if setup.error and not setup.root and "ermission denied" in setup.error:
        yield note(f"not looked into: {setup.error}", "sudo podwire doctor")
    elif setup.error:
        yield wrong(setup.error, f"{setup.config or 'the configuration'}: mend it as the line says")
    elif not setup.config:
        yield note("no configuration was given, and the usual one is not there", "podwire doctor --config FILE")
    else:
        source = "the Kubernetes API" if setup.kubernetes else "manifests"
        yield ok(f"{setup.config}: node {setup.node}, objects from {source}")


def servers(facts: Facts) -> Iterator[Judgement]:
    if isinstance(facts.api, Unseen):
        yield unseen(facts.api)
        return
    if facts.api.error:
        yield wrong(facts.api.error, f"mend [kubernetes] in {facts.setup.config}")
        return
    good = [it for it in facts.api.servers if not it.error]
    for it in good:
        yield ok(f"{it.address} answers")
    for it in facts.api.servers:
        if it.error:
            seen = f"{it.address}: {it.error}"
            yield warning(f"{seen}; another one answers", _mend(it)) if good else wrong(seen, _mend(it))


def _mend(it: Server) -> str:
    if it.status in (401, 403):
        return "kubectl -n podwire get serviceaccount podwire    # the token or client certificate is not accepted"
    if "certificate" in it.error:
        return "see the finding api-certificate; the address must be one of those in the server's certificate"
    return f"curl -k {it.address}/livez    # kubernetes.api_servers: addresses that need no Service"


def certificate(facts: Facts) -> Iterator[Judgement]:
    if isinstance(facts.api, Unseen):
        yield unseen(facts.api)
        return
    ends = [(f"the certificate of {it.address}", it.expires) for it in facts.api.servers if it.expires is not None]
    if facts.api.client is not None:
        ends.append(("our own client certificate", facts.api.client))
    for what, end in ends:
        day = datetime.fromtimestamp(end, UTC).strftime("%Y-%m-%d")
        left = end - facts.setup.now
        fix = "kubeadm certs renew all    # then restart the control plane's pods; or renew it as it was made"
        if left <= 0:
            yield wrong(f"{what} ended on {day}", fix)
        elif left < SOON:
            yield warning(f"{what} ends in {int(left // DAYS)} days, on {day}", fix)
        else:
            yield ok(f"{what} ends on {day}")
    if not ends:
        yield note("no server showed a certificate")


def clock(facts: Facts) -> Iterator[Judgement]:
    if isinstance(facts.api, Unseen):
        yield unseen(facts.api)
        return
    told = [it for it in facts.api.servers if it.clock is not None]
    for it in told:
        apart = facts.setup.now - (it.clock or 0.0)
        if abs(apart) > APART:
            ahead = "ahead of" if apart > 0 else "behind"
            yield warning(
                f"the node's clock is {abs(apart):.0f} s {ahead} that of {it.address}",
                "timedatectl set-ntp true    # or chronyc makestep",
            )
        else:
            yield ok(f"the clocks of node and {it.address} agree")
    if not told:
        yield note("no server told its time")


def rights(facts: Facts) -> Iterator[Judgement]:
    if isinstance(facts.api, Unseen):
        yield unseen(facts.api)
    elif isinstance(facts.api.refused, Unseen):
        yield unseen(facts.api.refused)
    elif facts.api.refused:
        for state, refused in ((wrong, _vital(facts.api)), (warning, _rest(facts.api))):
            if refused:
                yield state(f"the API does not let us {', '.join(map(str, refused))}", _APPLY)
    else:
        yield ok("the API lets us do all that an agent does")


def _vital(api: Api) -> list[Right]:
    return [it for it in api.refused if it.vital] if not isinstance(api.refused, Unseen) else []


def _rest(api: Api) -> list[Right]:
    return [it for it in api.refused if not it.vital] if not isinstance(api.refused, Unseen) else []


def node(facts: Facts) -> Iterator[Judgement]:
    cluster, name = facts.cluster, facts.setup.node
    if isinstance(cluster, Unseen):
        yield unseen(cluster)
    elif not name:
        yield note("the node's name is not known", "podwire doctor --config FILE")
    elif name not in cluster.nodes:
        known = ", ".join(sorted(cluster.nodes)[:5]) or "none"
        yield wrong(
            f"there is no node {name}; there is: {known}", "node_name must be the name that the kubelet registered"
        )
    else:
        yield from _node(cluster, name)


def _node(cluster: Cluster, name: str) -> Iterator[Judgement]:
    it = cluster.nodes[name]
    if not it.pod_cidrs and cluster.pools:
        blocks = f"{len(it.pool_blocks)} block{'' if len(it.pool_blocks) == 1 else 's'}"
        yield ok(f"node {name}: no spec.podCIDRs, {blocks} of the pools {', '.join(sorted(cluster.pools))}")
    elif not it.pod_cidrs:
        yield wrong(
            f"node {name} has no spec.podCIDRs: no pod can get an address",
            "kube-controller-manager: --allocate-node-cidrs --cluster-cidr=RANGE (kubeadm: --pod-network-cidr), or a "
            "PodPool",
        )
        return
    else:
        yield ok(f"node {name}: {', '.join(map(str, it.pod_cidrs))}")
    missing = sorted(
        {block.family.name for block in it.blocks if not any(len(own) == len(block.first) for own in it.addresses)}
    )
    if missing and len(cluster.nodes) > 1:
        yield warning(
            f"node {name} has no InternalIP of {', '.join(missing)}: other nodes can't reach its pods of that family",
            "kubelet: --node-ip with an address of each family",
        )
