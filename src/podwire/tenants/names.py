"""What providers know the cluster's things by. Pure.

Invariants: these are the names by which providers that there already are keep their networks: they stay as they are.
"""

from podwire.model.tenants import Network, NetworkRequest, NetworkStatus, Subnet


def build_network_name(name: str, tenant_id: str) -> str:
    return f"kube_{name}_{tenant_id}"


def build_load_balancer_name(name: str, namespace: str) -> str:
    """Of a Service's load balancer."""
    return f"kube_{name}_{namespace}"


def api_network_to_provider_network(name: str, request: NetworkRequest) -> Network:
    """What a provider is asked to make for a Network object. Its subnets are in the order of their names: which one is
    first means something."""
    return Network(
        build_network_name(name, request.tenant_id),
        request.tenant_id,
        tuple(
            Subnet(build_network_name(key, request.tenant_id), it.cidr, it.gateway, tenant_id=request.tenant_id)
            for key, it in sorted(request.subnets)
        ),
        status=NetworkStatus.INITIALIZING,
    )
