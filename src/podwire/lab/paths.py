"""Every way there is through a lab's network, as questions with their right answers. Pure.

Invariants: the right answer follows from the manifests alone: who answers, and whom they see as their client. A client
is seen as it is wherever the answer comes back by the node that balances; else that node stands in for it.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from podwire.lab.names import DOMAIN
from podwire.lab.questions import ITSELF, Lookup, Question, Source, name_of, own_of, parse_host_port, parse_port
from podwire.lab.system import DNS_SERVICE
from podwire.lab.topology import on_fabric, path_of
from podwire.lab.views import LabView, NodeView, PodView, ServiceView
from podwire.model.objects import Protocol


def questions(lab: LabView) -> Iterator[Question]:
    yield from _to_pods(lab)
    for service in lab.services:
        yield from to_service(lab, service)
    for service in lab.services:
        yield from _to_itself(lab, service)
    for service in lab.services:
        yield from _by_name(lab, service)
    for service in lab.services:
        yield from _to_node_ports(lab, service)
        yield from _to_external_ips(lab, service)
        yield from _to_balancer_ips(lab, service)
    for asked in _running(lab):
        yield from _to_host_ports(lab, asked)
    for service in [it for it in lab.services if balanced(it)][:1]:
        yield from _to_nobody(lab, service)


def behind(lab: LabView, question: Question) -> frozenset[str]:
    """Who answers there as the lab is now; nobody: it is refused."""
    service = service_at(lab, question)
    return frozenset(service.backends) if service is not None else frozenset()


def service_at(lab: LabView, question: Question) -> ServiceView | None:
    """The Service that has this address, port and protocol."""
    hosts = {address for node in lab.nodes for address in node.addresses}
    for service in lab.services:
        for number, outside, protocol in map(parse_port, service.ports):
            addresses = *service.cluster_ips, *service.external_ips, *service.balancer_ips
            own = question.host in addresses and question.port == number
            if protocol is question.protocol and (own or (question.host in hosts and question.port == outside)):
                return service
    return None


def to_service(lab: LabView, service: ServiceView) -> Iterator[Question]:
    """From a pod on each node that is no backend, and from each node, to every cluster IP and port."""
    names = _is_dns(service)
    what = ("cluster DNS" if names else "cluster IP") if service.backends else "Service without backends"
    for source in _insiders(lab, service):
        for host in service.cluster_ips if balanced(service) else ():
            for number, _, protocol in map(parse_port, service.ports):
                wanted = _clients(lab, service, source, source.node, host)
                path = f"{_kind(source)} to {what}"
                question = Question(path, source, _of(service), host, number, protocol, wanted)
                if names:
                    question = question._replace(lookup=_lookup(service, host), records=frozenset({host}))
                yield question


def _to_pods(lab: LabView) -> Iterator[Question]:
    """To the first pod that listens: from a pod on each node, from the nodes and from outside."""
    pods = _running(lab)
    for asked in [pod for pod in pods if pod.ports and not _is_dns(pod)][:1]:
        others = [pod for pod in pods if pod.workload != asked.workload] or [pod for pod in pods if pod is not asked]
        number, _, protocol = parse_port(asked.ports[0])
        for source in (*(_pod(lab, pod) for pod in _one_on_each(others)), *_nodes(lab), *_outside(lab)):
            where = f", {'same' if source.node == asked.node else 'other'} node" if source.node else ""
            for host in asked.addresses:
                path = f"{_kind(source)} to pod{where}"
                yield Question(path, source, _words(asked), host, number, protocol, {name_of(asked): ITSELF})


def _to_itself(lab: LabView, service: ServiceView) -> Iterator[Question]:
    """From the only backend."""
    own = [_pod(lab, pod) for pod in _backends(lab, service)]
    if len(own) == 1 and own[0].pod and balanced(service):
        for host in service.cluster_ips:
            for number, _, protocol in map(parse_port, service.ports):
                wanted = _clients(lab, service, own[0], own[0].node, host)
                path = "backend to itself by cluster IP"
                yield Question(path, own[0], _of(service), host, number, protocol, wanted)


def _by_name(lab: LabView, service: ServiceView) -> Iterator[Question]:
    """What its name means, and those of its pods; and the way to the pods of a headless one."""
    server = next((it for it in lab.services if _is_dns(it) and it.backends and balanced(it)), None)
    if server is None:
        return
    source, number = _insiders(lab, service)[0], parse_port(server.ports[0])[0]
    asked = Question("", source, "", server.cluster_ips[0], number, Protocol.UDP, {})
    asked = asked._replace(wanted=_clients(lab, server, source, source.node, asked.host))
    pods = _backends(lab, service)
    listed = service.cluster_ips if balanced(service) else [address for pod in pods for address in pod.addresses]
    whole = "Service's name" if balanced(service) else "headless Service's name"
    for path, name, addresses in (
        (whole, _full_name(service), listed),
        *(("pod's name", f"{it.hostname}.{_full_name(service)}", it.addresses) for it in pods if _named(it, service)),
    ):
        for lookup, records in _by_kind(service, name, addresses):
            question = asked._replace(path=f"{path} by DNS", target=lookup.name, lookup=lookup, records=records)
            yield question
            if name == _full_name(service) and not balanced(service):
                for port, _, protocol in _straight(service, pods):
                    yield Question(
                        path="pod to headless Service by DNS",
                        source=source,
                        target=_of(service),
                        host=lookup.name,
                        port=port,
                        protocol=protocol,
                        wanted=dict.fromkeys(service.backends, ITSELF),
                        lookup=lookup,
                        server=asked.host,
                        records=records,
                    )


def _straight(service: ServiceView, pods: Iterable[PodView]) -> list[tuple[int, int, Protocol]]:
    """The ports that are the pods' own: with nothing in between, a target port means nothing."""
    listening = [set(pod.ports) for pod in pods]
    return [it for it in map(parse_port, service.ports) if all(f"{it[0]}/{it[2].name}" in own for own in listening)]


def _to_node_ports(lab: LabView, service: ServiceView) -> Iterator[Question]:
    families = {":" in address for address in service.cluster_ips}
    for _, number, protocol in map(parse_port, service.ports):
        for source in (*_insiders(lab, service)[:1], *_nodes(lab)[:1], *_outside(lab)) if number else ():
            for node in [it for it in lab.nodes if it.on]:
                whose = f", {'own' if node.name == source.node else 'other'} node" if source.node else ""
                for host in [address for address in node.addresses if (":" in address) in families]:
                    wanted = _clients(lab, service, source, node.name, host)
                    path, target = f"{_kind(source)} to node port{whose}", f"{_of(service)}, {node.name}"
                    yield Question(path, source, target, host, number, protocol, wanted)


def _to_host_ports(lab: LabView, asked: PodView) -> Iterator[Question]:
    """At its node, from the pod itself too. Where a Service has a node port of that number, the Service answers."""
    nodes = {it.name: it for it in lab.nodes if it.on}
    if asked.node not in nodes or not asked.host_ports:
        return
    home = nodes[asked.node]
    taken = {(outside, protocol) for it in lab.services for _, outside, protocol in map(parse_port, it.ports)}
    strangers = [pod for pod in _running(lab) if pod is not asked and pod.node in nodes]
    sources = (*(_pod(lab, pod) for pod in (*_one_on_each(strangers), asked)), *_nodes(lab), *_outside(lab))
    for at, number, protocol in map(parse_host_port, asked.host_ports):
        for source in sources if (number, protocol) not in taken else ():
            whose = f", {'own' if home.name == source.node else 'other'} node" if source.node else ""
            for host in [address for address in home.addresses if at in ("", address)]:
                seen = _seen(lab, source, home, asked, nodes, ":" in host)
                path = f"{_kind(source)} to host port{whose}"
                yield Question(path, source, _words(asked), host, number, protocol, {name_of(asked): seen})


def _to_external_ips(lab: LabView, service: ServiceView) -> Iterator[Question]:
    """Whoever is outside comes by the first node that is on."""
    entry = next(it.name for it in lab.nodes if it.on and not it.link)
    for host in service.external_ips:
        for number, _, protocol in map(parse_port, service.ports):
            for source in (*_insiders(lab, service)[:1], *_nodes(lab)[:1], *_outside(lab)):
                wanted = _clients(lab, service, source, source.node or entry, host)
                path = f"{_kind(source)} to external IP"
                yield Question(path, source, _of(service), host, number, protocol, wanted)


def _to_balancer_ips(lab: LabView, service: ServiceView) -> Iterator[Question]:
    """Clients on the fabric come by the node that answers for the address, or else by the first node that is on; those
    behind the router by any that it has learnt."""
    on = [it for it in lab.nodes if it.on]
    entry = next(it.name for it in on if not it.link)
    for it in service.balancers:
        host = it.address
        for number, _, protocol in map(parse_port, service.ports):
            asked = Question("", Source("", Path()), _of(service), host, number, protocol, {})
            for source in (*_insiders(lab, service)[:1], *_nodes(lab)[:1]):
                wanted = _clients(lab, service, source, source.node, host)
                yield asked._replace(path=f"{_kind(source)} to load balancer", source=source, wanted=wanted)
            for source in _outside(lab):
                by_arp = bool(it.owner) and on_fabric(host)
                there = it.owner if by_arp else entry
                wanted = (
                    {name_of(pod): ITSELF for pod in _backends(lab, service) if pod.node == there}
                    if service.local
                    else _clients(lab, service, source, there, host)
                )
                path = BY_ARP if by_arp else "client to load balancer"
                yield asked._replace(path=path, source=source, wanted=wanted)
            for client in (each for each in lab.clients if each.behind and it.routes):
                source = Source(client.name, path_of(client.space))
                wanted = dict.fromkeys(service.backends, ITSELF)
                seen = frozenset(_on_fabric(node, ":" in host) for node in on)
                yield asked._replace(path=BEHIND_ROUTER, source=source, wanted=wanted, or_seen=seen)


BEHIND_ROUTER = "client behind the router to load balancer"
BY_ARP = "client to load balancer by ARP, NDP"


def owner_of(lab: LabView, question: Question) -> str:
    """The node that answers by ARP or neighbour discovery for what is asked, "" nobody."""
    service = service_at(lab, question)
    balancers = service.balancers if service is not None else ()
    return next((it.owner for it in balancers if it.address == question.host), "")


def _to_nobody(lab: LabView, service: ServiceView) -> Iterator[Question]:
    """A cluster IP is only its Service's: any other port is refused, not left to time out."""
    taken = {parse_port(text)[0] for text in service.ports}
    free = next(number for number in range(1, 65536) if number not in taken)
    for source in _insiders(lab, service):
        for host in service.cluster_ips:
            path = f"{_kind(source)} to a port that no Service has"
            yield Question(path, source, _of(service), host, free, Protocol.TCP, {})


def _clients(lab: LabView, service: ServiceView, source: Source, entry: str, host: str) -> dict[str, str]:
    """Whom each backend sees. `entry`: the node that balances."""
    nodes = {it.name: it for it in lab.nodes}
    return {name_of(pod): _seen(lab, source, nodes[entry], pod, nodes, ":" in host) for pod in _backends(lab, service)}


def _seen(
    lab: LabView, source: Source, entry: NodeView, pod: PodView, nodes: Mapping[str, NodeView], ipv6: bool
) -> str:
    among_pods = next(own_of(it) for it in entry.pod_cidrs if (":" in it) == ipv6)
    if name_of(pod) == source.pod and entry.name == source.node:
        return among_pods  # or its answer would never leave it
    far, hosted = _far(lab, entry, nodes[pod.node]), any(pod.space == it.space for it in lab.nodes)
    if entry.name not in (source.node, pod.node):  # its answer has to come back by the entry
        return among_pods if far and not hosted else _on_fabric(entry, ipv6)
    home = nodes.get(source.node)
    if far and entry is home:
        if hosted:  # who knows no way to a pod
            return _on_fabric(entry, ipv6) if source.pod else ITSELF
        return ITSELF if source.pod else among_pods  # by VXLAN its answer comes back to that address only
    if home is not None and source.pod and _far(lab, home, entry):  # which knows no way to a pod
        return _on_fabric(home, ipv6)
    return ITSELF


def _far(lab: LabView, one: NodeView, other: NodeView) -> bool:
    """Whether pods of the one reach those of the other by VXLAN."""
    return one is not other and (lab.transport == "vxlan" or one.link != other.link)


def _on_fabric(node: NodeView, ipv6: bool) -> str:
    return next(it for it in node.addresses if (":" in it) == ipv6)


# --- the lab -----------------------------------------------------------------------------------


def balanced(service: ServiceView) -> bool:
    """Whether it has cluster IPs."""
    return bool(service.cluster_ips) and "None" not in service.cluster_ips


def _running(lab: LabView) -> list[PodView]:
    return [pod for pod in lab.pods if not pod.problem]


def _backends(lab: LabView, service: ServiceView) -> list[PodView]:
    return [pod for pod in _running(lab) if name_of(pod) in service.backends]


def _insiders(lab: LabView, service: ServiceView) -> list[Source]:
    """On each node a pod that is no backend; where all are, any of them. Then the nodes."""
    pods = _running(lab)
    strangers = [pod for pod in pods if name_of(pod) not in service.backends] or pods
    return [*(_pod(lab, pod) for pod in _one_on_each(strangers)), *_nodes(lab)]


def _one_on_each(pods: Iterable[PodView]) -> list[PodView]:
    """Those of the user before those of the lab."""
    found: dict[str, PodView] = {}
    for pod in sorted(pods, key=_is_dns):
        found.setdefault(pod.node, pod)
    return [found[node] for node in sorted(found)]


def _nodes(lab: LabView) -> list[Source]:
    return [Source(node.name, path_of(node.space), node.name) for node in lab.nodes if node.on]


def _outside(lab: LabView) -> list[Source]:
    """But for those behind the router, which know nobody's way but the load balancers'."""
    return [Source(it.name, path_of(it.space)) for it in lab.clients if not it.behind]


def _pod(lab: LabView, pod: PodView) -> Source:
    hosted = any(pod.space == node.space for node in lab.nodes)
    return Source(f"{_words(pod)} on {pod.node}", path_of(pod.space), pod.node, "" if hosted else name_of(pod))


def _is_dns(thing: ServiceView | PodView) -> bool:
    """The cluster DNS or, as far as names tell, one of its pods."""
    if isinstance(thing, PodView):
        return thing.namespace == DNS_SERVICE.namespace
    return (thing.namespace, thing.name) == (DNS_SERVICE.namespace, DNS_SERVICE.name)


# --- names and words ---------------------------------------------------------------------------


def _full_name(service: ServiceView) -> str:
    return f"{service.name}.{service.namespace}.svc.{DOMAIN}"


def _named(pod: PodView, service: ServiceView) -> bool:
    """Whether it has a name below the Service's."""
    return bool(pod.hostname) and pod.subdomain == service.name


def _lookup(service: ServiceView, host: str) -> Lookup:
    return Lookup(_full_name(service), "AAAA" if ":" in host else "A")


def _by_kind(service: ServiceView, name: str, addresses: Iterable[str]) -> Iterator[tuple[Lookup, frozenset[str]]]:
    """For each family of the Service the question and its right answer, where there is one."""
    listed = list(addresses)
    for family, kind, mark in (("IPv4", "A", "."), ("IPv6", "AAAA", ":")):
        records = frozenset(address for address in listed if mark in address)
        if family in service.families and records:
            yield Lookup(name, kind), records


def _kind(source: Source) -> str:
    return "client" if not source.node else "pod" if source.pod else "node"


def _words(pod: PodView) -> str:
    return f"pod of {pod.workload.rpartition('/')[2]}"


def _of(service: ServiceView) -> str:
    return f"Service {service.name}"
