"""A lab's state for those who ask.

Invariants: everything is sorted, and in the words that a user types.
"""

from collections.abc import Collection, Iterable, Mapping

from podwire.lab import views
from podwire.lab.announced import NOTHING, Announced
from podwire.lab.expand import Plan, PlannedService
from podwire.lab.kubelet import LivePod
from podwire.lab.layout import Lab
from podwire.lab.machines import Machines
from podwire.lab.services import balancer_ips, external_ips
from podwire.lab.slices import selected_by
from podwire.lab.topology import BEHIND, pod_space, station_space
from podwire.lab.workloads import PlannedPod
from podwire.model.addresses import Address, show_address
from podwire.model.objects import PodKey


def report(
    lab: Lab,
    plan: Plan,
    pods: Mapping[PodKey, LivePod],
    troubles: Mapping[PodKey, str],
    machines: Machines,
    error: str,
    unsettled: Iterable[str],
    router: str,
    known: Mapping[Address, Announced],
) -> views.LabView:
    """`known`: how the network knows load balancers' addresses."""
    owners = {key: str(workload) for workload, keys in plan.workloads.items() for key in keys}
    return views.LabView(
        name=lab.name,
        manifests=str(lab.manifests),
        nodes=tuple(_node(lab, name, machines, pods) for name in machines.nodes),
        services=tuple(
            _service(it, plan, pods, machines.off, known)
            for _, it in sorted(plan.services.items(), key=lambda i: str(i[0]))
        ),
        workloads=tuple(
            views.WorkloadView(str(key), len(keys), sum(one in pods for one in keys))
            for key, keys in sorted(plan.workloads.items())
        ),
        pods=tuple(
            _pod(lab, pod, owners[key], pods.get(key), troubles.get(key, ""))
            for key, pod in sorted(plan.pods.items(), key=lambda item: str(item[0]))
        ),
        clients=tuple(
            views.ClientView(
                name, tuple(map(show_address, it.addresses)), station_space(lab.name, name), it.link == BEHIND
            )
            for name, it in sorted(machines.clients.items())
        ),
        notes=plan.notes,
        error=error,
        problems=tuple(unsettled),
        transport=lab.transport,
        router=router,
    )


def _node(lab: Lab, name: str, machines: Machines, pods: Mapping[PodKey, LivePod]) -> views.NodeView:
    station = machines.nodes[name]
    return views.NodeView(
        name=name,
        on=name not in machines.off,
        agent=machines.agent_in_words(name),
        pid=machines.pid(name),
        addresses=tuple(map(show_address, station.addresses)),
        pod_cidrs=tuple(map(str, station.pod_blocks)),
        space=station_space(lab.name, name),
        pods=sum(live.pod.node == name for live in pods.values()),
        admin_socket=str(lab.node(name).admin_socket),
        link=station.link,
    )


def _pod(lab: Lab, pod: PlannedPod, workload: str, live: LivePod | None, trouble: str) -> views.PodView:
    space = station_space(lab.name, pod.node) if pod.host_network else pod_space(lab.name, pod.key)
    return views.PodView(
        namespace=pod.key.namespace,
        name=pod.key.name,
        workload=workload,
        node=pod.node,
        addresses=tuple(map(show_address, live.addresses)) if live else (),
        ports=tuple(map(str, sorted(live.listeners.ports))) if live else (),
        space=space,
        problem=trouble or ("" if live else "not begun"),
        hostname=pod.object["spec"].get("hostname") or "",
        subdomain=pod.object["spec"].get("subdomain") or "",
        host_ports=tuple(map(str, pod.host_ports)) if live else (),
    )


def _service(
    service: PlannedService,
    plan: Plan,
    pods: Mapping[PodKey, LivePod],
    off: Collection[str],
    known: Mapping[Address, Announced],
) -> views.ServiceView:
    spec, metadata = service.object["spec"], service.object["metadata"]
    ports = []
    for port in spec.get("ports") or ():
        outside = f":{port['nodePort']}" if port.get("nodePort") else ""
        ports.append(f"{port['port']}{outside}/{port['protocol']}")
    alive = (key for key, live in pods.items() if key in plan.pods and live.pod.node not in off)
    serving = (key for key in alive if selected_by(service.form, plan.pods[key]))
    return views.ServiceView(
        namespace=metadata["namespace"],
        name=metadata["name"],
        type=spec["type"],
        families=tuple(spec.get("ipFamilies") or ()),
        cluster_ips=tuple(spec.get("clusterIPs") or ()),
        external_ips=tuple(map(show_address, external_ips(service.form))),
        ports=tuple(ports),
        backends=tuple(sorted(f"{key.namespace}/{key.name}" for key in serving)),
        balancers=tuple(_balancer(it, known.get(it, NOTHING)) for it in balancer_ips(service.object)),
        local=spec.get("externalTrafficPolicy") == "Local",
    )


def _balancer(address: Address, how: Announced) -> views.BalancerView:
    return views.BalancerView(show_address(address), how.owner, how.routes)
