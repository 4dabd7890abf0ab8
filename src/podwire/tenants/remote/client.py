"""A provider that is another program, called over gRPC.

Invariants: each call has a deadline, within which it is tried again while nobody answers: all may be called twice. What
has no name or ID is refused here. A failure that the provider tells comes out as it was told, and one of the way to it
names the provider's address.
"""

import asyncio
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TextIO, TypeVar

import grpc
import msgspec
from google.protobuf.message import Message
from grpc import aio

from podwire.model.addresses import Address
from podwire.model.tenants import Affinity, HostPort, LoadBalancer, Network
from podwire.tenants.provider import MultipleResults, NotFound, ProviderError
from podwire.tenants.remote import types_pb2 as pb
from podwire.tenants.remote import wire

DEADLINE = 10.0
"""Seconds of a call, tries included."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0
Answer = TypeVar("Answer", bound=Message)


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`address`: HOST:PORT or unix:PATH. `ca`: who has signed the provider's certificate, "": no TLS; `certificate` and
    `key`: our own, where it asks for one. `deadline` in seconds."""

    address: str
    ca: str = ""
    certificate: str = ""
    key: str = ""
    deadline: float = DEADLINE


class _Call(NamedTuple):
    service: str
    method: str


def read_settings(config: TextIO | None) -> Settings:
    """From TOML. Raises ValueError, in one line."""
    if config is None:
        raise ValueError('expected a configuration with address = "HOST:PORT"')
    try:
        found = msgspec.convert(tomllib.loads(config.read()), Settings)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ValueError(f"configuration: {error}") from None
    if bool(found.certificate) != bool(found.key):
        raise ValueError("certificate, key: expected both or none")
    if found.certificate and not found.ca:
        raise ValueError("ca: expected beside a certificate of our own")
    if not found.address or found.deadline <= 0:
        raise ValueError("address, deadline: expected HOST:PORT, and seconds above 0")
    return found


def factory(config: TextIO | None) -> "RemoteProvider":
    """Raises ValueError, OSError."""
    return RemoteProvider(read_settings(config))


class RemoteProvider:
    """All calls raise ProviderError. Needs a running event loop from its first call on."""

    def __init__(self, settings: Settings) -> None:
        """Raises OSError where a file can't be read."""
        self.provider_name = settings.address
        self._settings, self._credentials = settings, _credentials(settings)
        self._channel: aio.Channel | None = None
        # One object is all three parts, as on the wire.
        self.networks = self.load_balancers = self.pods = self

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close()
            self._channel = None

    async def active(self) -> None:
        """That it is there, and at work."""
        answer = await self._ask(_Call("Networks", "Active"), pb.ActiveRequest(), pb.ActivateResponse)
        if not answer.result:
            raise ProviderError(f"network provider {self.provider_name} says that it is not active")

    async def check_tenant_id(self, tenant_id: str) -> bool:
        request = pb.CheckTenantIDRequest(tenantID=_given("tenant ID", tenant_id))
        return (await self._ask(_Call("Networks", "CheckTenantID"), request, pb.CheckTenantIDResponse)).result

    # --- networks ---

    async def get_network(self, name: str) -> Network:
        return await self._get(pb.GetNetworkRequest(name=_given("network's name", name)))

    async def get_network_by_id(self, uid: str) -> Network:
        return await self._get(pb.GetNetworkRequest(id=_given("network's ID", uid)))

    async def _get(self, request: pb.GetNetworkRequest) -> Network:
        answer = await self._ask(_Call("Networks", "GetNetwork"), request, pb.GetNetworkResponse)
        if not answer.HasField("network"):
            raise NotFound
        return wire.read_network(answer.network)

    async def create_network(self, network: Network) -> None:
        _given("network's name", network.name)
        request = pb.CreateNetworkRequest(network=wire.write_network(network))
        await self._ask(_Call("Networks", "CreateNetwork"), request, pb.CommonResponse)

    async def update_network(self, network: Network) -> None:
        _given("network's name", network.name)
        request = pb.UpdateNetworkRequest(network=wire.write_network(network))
        await self._ask(_Call("Networks", "UpdateNetwork"), request, pb.CommonResponse)

    async def delete_network(self, name: str) -> None:
        request = pb.DeleteNetworkRequest(networkName=_given("network's name", name))
        await self._ask(_Call("Networks", "DeleteNetwork"), request, pb.CommonResponse)

    # --- load balancers ---

    async def get_load_balancer(self, name: str) -> LoadBalancer:
        request = pb.GetLoadBalancerRequest(name=_given("load balancer's name", name))
        answer = await self._ask(_Call("LoadBalancers", "GetLoadBalancer"), request, pb.GetLoadBalancerResponse)
        if not answer.HasField("loadBalancer"):
            raise NotFound
        return wire.read_balancer(answer.loadBalancer)

    async def create_load_balancer(self, balancer: LoadBalancer, affinity: Affinity) -> Address:
        _given("load balancer's name", balancer.name)
        request = pb.CreateLoadBalancerRequest(loadBalancer=wire.write_balancer(balancer), affinity=affinity.value)
        call = _Call("LoadBalancers", "CreateLoadBalancer")
        return wire.read_address("vip", (await self._ask(call, request, pb.CreateLoadBalancerResponse)).vip)

    async def update_load_balancer(
        self, name: str, hosts: tuple[HostPort, ...], external_ips: tuple[Address, ...]
    ) -> Address:
        request = pb.UpdateLoadBalancerRequest(
            name=_given("load balancer's name", name),
            externalIPs=map(wire.show, external_ips),
            hosts=map(wire.write_host, hosts),
        )
        call = _Call("LoadBalancers", "UpdateLoadBalancer")
        return wire.read_address("vip", (await self._ask(call, request, pb.UpdateLoadBalancerResponse)).vip)

    async def delete_load_balancer(self, name: str) -> None:
        request = pb.DeleteLoadBalancerRequest(name=_given("load balancer's name", name))
        await self._ask(_Call("LoadBalancers", "DeleteLoadBalancer"), request, pb.CommonResponse)

    # --- pods ---

    async def setup_pod(self, name: str, namespace: str, sandbox: str, network: Network, runtime: str) -> None:
        request = pb.SetupPodRequest(**_pod(name, namespace, sandbox, network, runtime))
        await self._ask(_Call("Pods", "SetupPod"), request, pb.CommonResponse)

    async def teardown_pod(self, name: str, namespace: str, sandbox: str, network: Network, runtime: str) -> None:
        request = pb.TeardownPodRequest(**_pod(name, namespace, sandbox, network, runtime))
        await self._ask(_Call("Pods", "TeardownPod"), request, pb.CommonResponse)

    async def pod_status(
        self, name: str, namespace: str, sandbox: str, network: Network, runtime: str
    ) -> Address | None:
        request = pb.PodStatusRequest(**_pod(name, namespace, sandbox, network, runtime))
        answer = await self._ask(_Call("Pods", "PodStatus"), request, pb.PodStatusResponse)
        return wire.read_address("ip", answer.ip) if answer.ip else None

    # --- the way ---

    async def _ask(self, call: _Call, request: Message, form: type[Answer]) -> Answer:
        """Raises NotFound, MultipleResults, ProviderError."""
        answer = await self._answered(call, request, form)
        error: str = getattr(answer, "error", "")
        if not error:
            return answer
        if error == "NotFound":
            raise NotFound
        raise MultipleResults if error == "MultipleResults" else ProviderError(error)

    async def _answered(self, call: _Call, request: Message, form: type[Answer]) -> Answer:
        loop, pause = asyncio.get_running_loop(), FIRST_PAUSE
        end = loop.time() + self._settings.deadline
        while True:
            try:
                return await self._once(call, request, form, end - loop.time())
            except aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE or loop.time() + pause >= end:
                    raise ProviderError(self._in_words(call, error)) from None
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _once(self, call: _Call, request: Message, form: type[Answer], seconds: float) -> Answer:
        if self._channel is None:
            self._channel = self._open()
        ask = self._channel.unary_unary(
            f"/types.{call.service}/{call.method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=form.FromString,
        )
        answer: Answer = await ask(request, timeout=max(0.001, seconds))
        return answer

    def _open(self) -> aio.Channel:
        address = self._settings.address
        if self._credentials is None:
            return aio.insecure_channel(address)
        return aio.secure_channel(address, self._credentials)

    def _in_words(self, call: _Call, error: aio.AioRpcError) -> str:
        where = f"network provider {self.provider_name}: {call.method}"
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            return f"{where}: no answer within {self._settings.deadline:g} s"
        return f"{where}: {' '.join((error.details() or error.code().name).split())}"


def _given(what: str, text: str) -> str:
    if not text:
        raise ProviderError(f"expected a {what}")
    return text


def _pod(name: str, namespace: str, sandbox: str, network: Network, runtime: str) -> Mapping[str, Any]:
    return {
        "podName": _given("pod's name", name),
        "namespace": _given("pod's namespace", namespace),
        "podInfraContainerID": _given("sandbox's ID", sandbox),
        "containerRuntime": runtime,
        "network": wire.write_network(network),
    }


def _credentials(settings: Settings) -> grpc.ChannelCredentials | None:
    if not settings.ca:
        return None
    files = (settings.ca, settings.key, settings.certificate)
    ca, key, certificate = (Path(it).read_bytes() if it else None for it in files)
    return grpc.ssl_channel_credentials(ca, key, certificate)
