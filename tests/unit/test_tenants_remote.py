"""A provider behind the remote protocol is as good as one at hand; what the wire says, exactly; and what becomes of
calls that nobody answers."""

import asyncio
import io
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio
from hypothesis import given
from hypothesis import strategies as st

from podwire.model.addresses import Address, Prefix, parse_address, parse_prefix, prefix_around
from podwire.model.tenants import (
    HostPort,
    LoadBalancer,
    LoadBalancerType,
    Network,
    NetworkStatus,
    Route,
    Subnet,
)
from podwire.tenants.provider import MultipleResults, NotFound, ProviderError
from podwire.tenants.remote import types_pb2 as pb
from podwire.tenants.remote import wire
from podwire.tenants.remote.client import RemoteProvider, Settings, factory, read_settings
from podwire.tenants.remote.server import handlers, serve
from podwire.tenants.testing import CASES, Case, network
from tests.unit.kube_pki import Pki, needs_openssl
from tests.unit.memory_provider import MemoryProvider

# --- both ends ---------------------------------------------------------------------------------


@asynccontextmanager
async def remote(path: Path, provider: MemoryProvider, **more: Any) -> AsyncIterator[RemoteProvider]:
    address = f"unix:{path}/provider.sock"
    server = await serve(provider, address)
    client = RemoteProvider(Settings(address, **more))
    try:
        yield client
    finally:
        await client.close()
        await server.stop(None)


@pytest.mark.parametrize("case", CASES, ids=lambda it: it.name)
async def test_the_conformance_suite_passes_through_the_protocol(case: Case, tmp_path: Path) -> None:
    provider = MemoryProvider()
    async with remote(tmp_path, provider) as client:
        await client.active()
        await case.check(client, "tenant")
    assert (provider.there, provider.balancers, provider.set_up) == ({}, {}, {})


class Odd(MemoryProvider):
    """Raises what it is told to."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    async def get_network(self, name: str) -> Network:
        assert name
        raise self.error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (NotFound(), NotFound("NotFound")),
        (MultipleResults(), MultipleResults("MultipleResults")),
        (ProviderError("segment IDs are exhausted"), ProviderError("segment IDs are exhausted")),
        (ValueError("a bug"), ProviderError("internal error: ValueError('a bug')")),
    ],
    ids=lambda it: repr(it),
)
async def test_an_error_comes_out_as_it_went_in(error: Exception, expected: Exception, tmp_path: Path) -> None:
    async with remote(tmp_path, Odd(error)) as client:
        with pytest.raises(type(expected)) as raised:
            await client.get_network("n")
        assert str(raised.value) == str(expected)
        assert await client.check_tenant_id("tenant") is True


@pytest.mark.parametrize(
    "call",
    [
        lambda it: it.check_tenant_id(""),
        lambda it: it.get_network(""),
        lambda it: it.get_network_by_id(""),
        lambda it: it.create_network(Network("")),
        lambda it: it.update_network(Network("")),
        lambda it: it.delete_network(""),
        lambda it: it.get_load_balancer(""),
        lambda it: it.delete_load_balancer(""),
        lambda it: it.setup_pod("", "default", "s", Network("n"), "r"),
        lambda it: it.teardown_pod("p", "default", "", Network("n"), "r"),
    ],
)
async def test_what_has_no_name_is_refused_before_anybody_is_asked(call: Callable[[RemoteProvider], Any]) -> None:
    client = RemoteProvider(Settings("unix:/nowhere"))
    with pytest.raises(ProviderError, match="expected a "):
        await call(client)


# --- the way -----------------------------------------------------------------------------------


async def test_a_provider_that_comes_back_within_the_deadline_answers(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/provider.sock"
    client = RemoteProvider(Settings(address, deadline=10.0))
    asked = asyncio.create_task(client.check_tenant_id("tenant"))
    await asyncio.sleep(0)  # it has begun
    server = await serve(MemoryProvider(), address)
    assert await asked is True
    await server.stop(None)
    await client.close()


async def test_nobody_there_is_told_with_the_address(tmp_path: Path) -> None:
    client = RemoteProvider(Settings(f"unix:{tmp_path}/nobody.sock", deadline=0.3))
    with pytest.raises(ProviderError, match=r"network provider unix:.*/nobody\.sock: Active: "):
        await client.active()
    await client.close()


@needs_openssl
async def test_by_tls_both_ends_know_each_other(tmp_path: Path) -> None:
    pki = Pki(tmp_path)
    own, theirs = pki.pair("provider", "/CN=provider", "IP:127.0.0.1"), pki.pair("cluster", "/CN=cluster")
    credentials = grpc.ssl_server_credentials(
        [(own.key.read_bytes(), own.certificate.read_bytes())], pki.authority.read_bytes(), require_client_auth=True
    )
    server = aio.server()
    server.add_generic_rpc_handlers(handlers(MemoryProvider()))
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    ca, files = str(pki.authority), (str(theirs.certificate), str(theirs.key))
    known = RemoteProvider(Settings(f"127.0.0.1:{port}", ca, *files))
    stranger = RemoteProvider(Settings(f"127.0.0.1:{port}", ca, deadline=0.5))
    assert await known.check_tenant_id("tenant") is True
    with pytest.raises(ProviderError, match="CheckTenantID: "):
        await stranger.check_tenant_id("tenant")
    for it in (known, stranger):
        await it.close()
    await server.stop(None)


async def test_a_provider_that_never_answers_is_waited_for_until_the_deadline(tmp_path: Path) -> None:
    class Silent(MemoryProvider):
        async def check_tenant_id(self, tenant_id: str) -> bool:
            await asyncio.Event().wait()
            return bool(tenant_id)

    async with remote(tmp_path, Silent(), deadline=0.2) as client:
        with pytest.raises(ProviderError, match=r"CheckTenantID: no answer within 0\.2 s"):
            await client.check_tenant_id("tenant")


async def test_one_that_says_that_it_is_not_active_is_not_taken(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/provider.sock"
    server = aio.server()

    async def active(*_: object) -> pb.ActivateResponse:
        return pb.ActivateResponse(result=False)

    handler = grpc.unary_unary_rpc_method_handler(
        active,
        request_deserializer=pb.ActiveRequest.FromString,
        response_serializer=pb.ActivateResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("types.Networks", {"Active": handler}),))
    server.add_insecure_port(address)
    await server.start()
    client = RemoteProvider(Settings(address))
    with pytest.raises(ProviderError, match="says that it is not active"):
        await client.active()
    await client.close()
    await server.stop(None)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        pytest.param(None, 'expected a configuration with address = "HOST:PORT"', id="nothing"),
        pytest.param("", "configuration: Object missing required field `address`", id="without an address"),
        pytest.param("address = 1", "configuration: Expected `str`, got `int` - at `$.address`", id="a number"),
        pytest.param('address = "a"\nno = 1', "configuration: Object contains unknown field `no`", id="unknown"),
        pytest.param('address = "a"\ncertificate = "c"', "certificate, key: expected both or none", id="half"),
        pytest.param(
            'address = "a"\ncertificate = "c"\nkey = "k"', "ca: expected beside a certificate of our own", id="no ca"
        ),
        pytest.param(
            'address = "a"\ndeadline = 0', "address, deadline: expected HOST:PORT, and seconds above 0", id="no time"
        ),
    ],
)
def test_a_wrong_configuration_is_told_in_one_line(text: str | None, error: str) -> None:
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - compared whole
        read_settings(io.StringIO(text) if text is not None else None)
    assert str(raised.value) == error


def test_a_provider_is_made_from_its_configuration() -> None:
    made = factory(io.StringIO('address = "192.0.2.1:4237"\ndeadline = 3.5'))
    assert made.provider_name == "192.0.2.1:4237"


# --- what is on the wire -----------------------------------------------------------------------

addresses = st.one_of(st.binary(min_size=4, max_size=4), st.binary(min_size=16, max_size=16)).map(Address)


@st.composite
def prefixes(draw: st.DrawFn) -> Prefix:
    address = draw(addresses)
    return prefix_around(address, draw(st.integers(0, 8 * len(address))))


names = st.text(st.characters(exclude_categories=("Cs",)), max_size=5)
subnets = st.builds(
    Subnet,
    names,
    prefixes(),
    st.none() | addresses,
    st.lists(st.builds(Route, addresses, prefixes(), names), max_size=2).map(tuple),
    st.lists(addresses, max_size=2).map(tuple),
    names,
    names,
)
networks = st.builds(
    Network,
    names,
    names,
    st.lists(subnets, max_size=2).map(tuple),
    st.integers(0, 2**24 - 1),
    names,
    st.sampled_from(NetworkStatus),
)
hosts = st.builds(HostPort, addresses, st.integers(0, 65535), st.integers(0, 65535), names)
balancers = st.builds(
    LoadBalancer,
    names,
    names,
    st.sampled_from(LoadBalancerType),
    st.none() | addresses,
    st.lists(addresses, max_size=2).map(tuple),
    st.lists(subnets, max_size=2).map(tuple),
    st.lists(hosts, max_size=2).map(tuple),
    names,
    names,
)


@given(networks, balancers)
def test_what_is_sent_is_what_is_read(it: Network, balancer: LoadBalancer) -> None:
    assert wire.read_network(pb.Network.FromString(wire.write_network(it).SerializeToString())) == it
    sent = pb.LoadBalancer.FromString(wire.write_balancer(balancer).SerializeToString())
    assert wire.read_balancer(sent) == balancer


def test_the_numbers_of_the_fields_are_those_of_the_protocol() -> None:
    """By hand, from the protocol's own table: tag, length, text."""
    told = Network("n", "t", (Subnet("s", parse_prefix("10.0.0.0/8")),), 7, "u", NetworkStatus.ACTIVE)
    expected = b"\n\x01n\x12\x01u\x1a\x01t \x07*\x0f\n\x01s\x1a\n10.0.0.0/82\x06Active"
    assert wire.write_network(told).SerializeToString(deterministic=True) == expected
    host = HostPort(parse_address("10.0.0.1"), 80, 8080, "h")
    assert wire.write_host(host).SerializeToString(deterministic=True) == b"\n\x01h\x12\x0810.0.0.1\x18P \x90?"
    balancer = LoadBalancer(
        "b", "t", vip=parse_address("10.0.0.2"), external_ips=(parse_address("192.0.2.1"),), uid="u"
    )
    expected = b'\n\x01b\x12\x01u\x1a\x0810.0.0.2"\x03TCP2\x01t:\t192.0.2.1'
    assert wire.write_balancer(balancer).SerializeToString(deterministic=True) == expected


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (pb.Network(name="n", status="Odd"), "network.status: can't be read: 'Odd'"),
        (pb.Network(subnets=[pb.Subnet(name="s", cidr="10.0.0.1/8")]), "subnet s.cidr: can't be read: '10.0.0.1/8'"),
        (
            pb.Network(subnets=[pb.Subnet(name="s", cidr="10.0.0.0/8", gateway="x")]),
            "subnet s.gateway: can't be read: 'x'",
        ),
    ],
    ids=lambda it: str(it).replace("\n", " ")[:40],
)
def test_what_can_not_be_read_names_its_field(message: pb.Network, error: str) -> None:
    with pytest.raises(ProviderError) as raised:
        wire.read_network(message)
    assert str(raised.value) == error


async def test_a_server_refuses_an_affinity_that_there_is_not(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/provider.sock"
    server = await serve(MemoryProvider(), address)
    channel = aio.insecure_channel(address)
    ask = channel.unary_unary(
        "/types.LoadBalancers/CreateLoadBalancer",
        request_serializer=pb.CreateLoadBalancerRequest.SerializeToString,
        response_deserializer=pb.CreateLoadBalancerResponse.FromString,
    )
    answer = await ask(pb.CreateLoadBalancerRequest(loadBalancer=pb.LoadBalancer(name="b"), affinity="Odd"))
    assert answer.error == "affinity: expected None or ClientIP, not 'Odd'"
    await channel.close()
    await server.stop(None)


async def test_the_id_goes_before_the_name(tmp_path: Path) -> None:
    async with remote(tmp_path, provider := MemoryProvider()) as client:
        for name in ("one", "two"):
            await client.create_network(network("tenant", name))
        uid = (await client.get_network("kube_two_tenant")).uid
        ask = aio.insecure_channel(client.provider_name).unary_unary(
            "/types.Networks/GetNetwork",
            request_serializer=pb.GetNetworkRequest.SerializeToString,
            response_deserializer=pb.GetNetworkResponse.FromString,
        )
        answer = await ask(pb.GetNetworkRequest(name="kube_one_tenant", id=uid))
        assert answer.network.name == "kube_two_tenant"
        assert len(provider.there) == 2
