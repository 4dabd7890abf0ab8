"""How the network around a lab's cluster knows the way to load balancers' addresses. Pure.

Invariants: what to expect of agents is decided by their own pure rooms, from the objects that they get. A node whose
agent is not there answers for nothing; its FRR goes on telling routers what it was told.
"""

from collections.abc import Collection, Iterable

from msgspec import Struct

from podwire.announcing.addresses import decisions
from podwire.announcing.decisions import around, pod_routes
from podwire.announcing.speaker import routes, sessions
from podwire.controller.events import KubeStateChange, NodesHeard
from podwire.controller.snapshot import fold
from podwire.lab.forms import Fields
from podwire.lab.topology import MTU, SERVICE_RANGES, router
from podwire.model.addresses import Address, Prefix
from podwire.model.snapshot import Local, Snapshot
from podwire.sources.kubernetes import translate


class Announced(Struct, frozen=True):
    """`owner`: the node that answers by ARP or neighbour discovery, "" nobody. `routes`: the nodes that tell routers of
    it, sorted."""

    owner: str = ""
    routes: tuple[str, ...] = ()


NOTHING = Announced()


def routes_of(node: str, objects: Iterable[Fields]) -> frozenset[Prefix]:
    """The routes that the agent of that node will tell the router on the fabric."""
    now = seen_by(node, change_of(objects))
    mine = sessions(now).sessions
    carried = {it.name: it.families for it in mine if it.address in router(0).addresses}
    own = pod_routes(now, around(now, [it.name for it in mine]))
    told = routes(decisions(now, lambda _: True).values(), own)
    return frozenset(
        prefix for prefix, peers in told.items() if any(prefix.family in carried.get(name, ()) for name, _ in peers)
    )


def announced(
    objects: Iterable[Fields], nodes: Collection[str], absent: Collection[str], off: Collection[str] = ()
) -> dict[Address, Announced]:
    """Of the load balancers' addresses. `absent`: the nodes whose agents are not there; of these those that are `off`
    have no FRR either."""
    change = change_of(objects)
    owners: dict[Address, str] = {}
    tellers: dict[Address, tuple[str, ...]] = {}
    for name in sorted(set(nodes) - set(off)):
        now = seen_by(name, change, absent)
        if not (now.announcing.bgp or now.announcing.l2):
            return {}
        balanced = {address for it in now.services.values() for address in it.balancer_ips}
        for address, decision in decisions(now, lambda _: True).items():
            if address in balanced:
                tellers[address] = (*tellers.get(address, ()), *([name] if decision.routes else ()))
                if name not in absent:
                    owners[address] = decision.owner
    return {address: Announced(owners.get(address, ""), names) for address, names in tellers.items()}


def change_of(objects: Iterable[Fields]) -> KubeStateChange:
    understood = (translate(dict(thing)) for thing in objects)
    return KubeStateChange(tuple((it.key, it.value) for it in understood if it.value is not None))


def seen_by(node: str, change: KubeStateChange, absent: Collection[str] = ()) -> Snapshot:
    """By that node's agent, which hears nothing of those that are `absent`."""
    now, _ = fold(Snapshot(Local(node, MTU, tuple(SERVICE_RANGES.values()))), change)
    now, _ = fold(now, NodesHeard(frozenset(absent)))
    return now
