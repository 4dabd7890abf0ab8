"""A provider of ours for others, over gRPC.

Invariants: what the provider raises goes back as a text in the reply, and nothing goes back as a failure of gRPC's but
what is no message of the protocol. A bug costs its own call.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import Message
from grpc import aio

from podwire.model.tenants import Affinity
from podwire.tenants.provider import MultipleResults, NotFound, Provider, ProviderError
from podwire.tenants.remote import types_pb2 as pb
from podwire.tenants.remote import wire

log = logging.getLogger(__name__)
Done = Callable[[Any], Awaitable[Message]]


async def serve(provider: Provider, address: str, credentials: grpc.ServerCredentials | None = None) -> aio.Server:
    """At HOST:PORT (port 0: any) or unix:PATH; answers once calls are served. Raises OSError where it can't listen.
    `await server.stop(grace)` ends it."""
    server = aio.server()
    server.add_generic_rpc_handlers(handlers(provider))
    try:
        if credentials is None:
            server.add_insecure_port(address)
        else:
            server.add_secure_port(address, credentials)
    except RuntimeError as error:  # as grpc says it
        raise OSError(f"{address}: {error}") from None
    await server.start()
    return server


def handlers(provider: Provider) -> tuple[grpc.GenericRpcHandler, ...]:
    """The protocol's three services."""
    calls = _Calls(provider)
    forms: dict[str, dict[str, tuple[type[Message], type[Message], Done]]] = {
        "Networks": {
            "Active": (pb.ActiveRequest, pb.ActivateResponse, calls.active),
            "CheckTenantID": (pb.CheckTenantIDRequest, pb.CheckTenantIDResponse, calls.check_tenant),
            "GetNetwork": (pb.GetNetworkRequest, pb.GetNetworkResponse, calls.get_network),
            "CreateNetwork": (pb.CreateNetworkRequest, pb.CommonResponse, calls.create_network),
            "UpdateNetwork": (pb.UpdateNetworkRequest, pb.CommonResponse, calls.update_network),
            "DeleteNetwork": (pb.DeleteNetworkRequest, pb.CommonResponse, calls.delete_network),
        },
        "LoadBalancers": {
            "GetLoadBalancer": (pb.GetLoadBalancerRequest, pb.GetLoadBalancerResponse, calls.get_balancer),
            "CreateLoadBalancer": (pb.CreateLoadBalancerRequest, pb.CreateLoadBalancerResponse, calls.create_balancer),
            "UpdateLoadBalancer": (pb.UpdateLoadBalancerRequest, pb.UpdateLoadBalancerResponse, calls.update_balancer),
            "DeleteLoadBalancer": (pb.DeleteLoadBalancerRequest, pb.CommonResponse, calls.delete_balancer),
        },
        "Pods": {
            "SetupPod": (pb.SetupPodRequest, pb.CommonResponse, calls.setup_pod),
            "TeardownPod": (pb.TeardownPodRequest, pb.CommonResponse, calls.teardown_pod),
            "PodStatus": (pb.PodStatusRequest, pb.PodStatusResponse, calls.pod_status),
        },
    }
    return tuple(
        grpc.method_handlers_generic_handler(
            f"types.{service}",
            {
                method: grpc.unary_unary_rpc_method_handler(
                    _answering(do, answer),
                    request_deserializer=request.FromString,
                    response_serializer=answer.SerializeToString,
                )
                for method, (request, answer, do) in methods.items()
            },
        )
        for service, methods in forms.items()
    )


def _answering(do: Done, form: type[Message]) -> Callable[[Any, Any], Awaitable[Message]]:
    make: Any = form  # all answers have an `error`

    async def answer(request: Any, _: Any) -> Message:
        try:
            return await do(request)
        except (NotFound, MultipleResults, ProviderError) as error:
            told: Message = make(error=str(error) or type(error).__name__)
        except Exception as error:
            log.exception("%s", type(request).__name__)
            told = make(error=f"internal error: {error!r}")
        return told

    return answer


class _Calls:
    """From a message to one."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider

    async def active(self, _: pb.ActiveRequest) -> Message:
        return pb.ActivateResponse(result=True)

    async def check_tenant(self, it: pb.CheckTenantIDRequest) -> Message:
        return pb.CheckTenantIDResponse(result=await self._provider.check_tenant_id(it.tenantID))

    async def get_network(self, it: pb.GetNetworkRequest) -> Message:
        networks = self._provider.networks
        found = await (networks.get_network_by_id(it.id) if it.id else networks.get_network(it.name))
        return pb.GetNetworkResponse(network=wire.write_network(found))

    async def create_network(self, it: pb.CreateNetworkRequest) -> Message:
        await self._provider.networks.create_network(wire.read_network(it.network))
        return pb.CommonResponse()

    async def update_network(self, it: pb.UpdateNetworkRequest) -> Message:
        await self._provider.networks.update_network(wire.read_network(it.network))
        return pb.CommonResponse()

    async def delete_network(self, it: pb.DeleteNetworkRequest) -> Message:
        await self._provider.networks.delete_network(it.networkName)
        return pb.CommonResponse()

    async def get_balancer(self, it: pb.GetLoadBalancerRequest) -> Message:
        found = await self._provider.load_balancers.get_load_balancer(it.name)
        return pb.GetLoadBalancerResponse(loadBalancer=wire.write_balancer(found))

    async def create_balancer(self, it: pb.CreateLoadBalancerRequest) -> Message:
        try:
            affinity = Affinity(it.affinity or Affinity.NONE)
        except ValueError:
            raise ProviderError(f"affinity: expected None or ClientIP, not {it.affinity!r}") from None
        balancer = wire.read_balancer(it.loadBalancer)
        vip = await self._provider.load_balancers.create_load_balancer(balancer, affinity)
        return pb.CreateLoadBalancerResponse(vip=wire.show(vip))

    async def update_balancer(self, it: pb.UpdateLoadBalancerRequest) -> Message:
        hosts = tuple(map(wire.read_host, it.hosts))
        external = wire.read_addresses("externalIPs", it.externalIPs)
        vip = await self._provider.load_balancers.update_load_balancer(it.name, hosts, external)
        return pb.UpdateLoadBalancerResponse(vip=wire.show(vip))

    async def delete_balancer(self, it: pb.DeleteLoadBalancerRequest) -> Message:
        await self._provider.load_balancers.delete_load_balancer(it.name)
        return pb.CommonResponse()

    async def setup_pod(self, it: pb.SetupPodRequest) -> Message:
        whose = it.podName, it.namespace, it.podInfraContainerID
        await self._provider.pods.setup_pod(*whose, wire.read_network(it.network), it.containerRuntime)
        return pb.CommonResponse()

    async def teardown_pod(self, it: pb.TeardownPodRequest) -> Message:
        whose = it.podName, it.namespace, it.podInfraContainerID
        await self._provider.pods.teardown_pod(*whose, wire.read_network(it.network), it.containerRuntime)
        return pb.CommonResponse()

    async def pod_status(self, it: pb.PodStatusRequest) -> Message:
        whose = it.podName, it.namespace, it.podInfraContainerID
        found = await self._provider.pods.pod_status(*whose, wire.read_network(it.network), it.containerRuntime)
        return pb.PodStatusResponse(ip=wire.show(found))
