"""The cluster as the agent sees it: its API's servers, what we may do there, nodes and ranges.

Invariants: credentials go to a server only after its certificate was trusted, by the agent's own client (`kube_api`);
the end of a certificate and the clock are asked for without any. Every wait has a limit.
"""

import asyncio
import os
import ssl
from collections.abc import Iterable, Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from podwire.config import Config, Kubernetes
from podwire.doctor.facts import Api as ApiFact
from podwire.doctor.facts import Cluster, NodeFact, Right, Server
from podwire.doctor.findings import Unseen
from podwire.doctor.judge.api import RIGHTS
from podwire.doctor.read.certificate import NotACertificate, ends, from_pem
from podwire.model.addresses import Prefix, disjoint
from podwire.model.kinds import Object, ObjectKey
from podwire.model.objects import Node, NodeKey, PodBlock, PodBlockKey, PodPool, PodPoolKey, ServiceCIDR
from podwire.sources import kube_credentials, manifests
from podwire.sources.fields import Invalid
from podwire.sources.kube_api import Api, ApiError
from podwire.sources.kube_config import Access, KubeConfigError, read_access
from podwire.sources.kube_credentials import Credentials, CredentialsError
from podwire.sources.kube_objects import POOLS
from podwire.sources.kubernetes import translate

SECONDS = 10.0
"""For one question."""
_NODES, _RANGES = "/api/v1/nodes", "/apis/networking.k8s.io/v1/servicecidrs"
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_POOLS, _BLOCKS = "/apis/podwire.io/v1alpha1/podpools", "/apis/podwire.io/v1alpha1/podblocks"
_KINDS = {
    _NODES: ("v1", "Node"),
    _RANGES: ("networking.k8s.io/v1", "ServiceCIDR"),
    _POOLS: (POOLS, "PodPool"),
    _BLOCKS: (POOLS, "PodBlock"),
}
_OPTIONAL = (_RANGES, _POOLS, _BLOCKS)
"""An older Kubernetes has none, or a cluster without our own kinds, or they are not for us to see."""
_PAGE = 500


def read(config: Config | None) -> tuple[ApiFact | Unseen, Cluster | Unseen]:
    if config is None:
        why = Unseen("no configuration says where the cluster's objects are")
        return why, why
    if config.kubernetes is not None:
        return asyncio.run(_from_api(config, config.kubernetes))
    if config.manifests is None:
        nowhere = Unseen("the configuration names neither manifests nor an API")
        return nowhere, nowhere
    no_api = Unseen("objects come from manifests")
    return no_api, cluster(manifests.look(str(config.manifests)).loaded.objects, config.service_cidrs)


def cluster(objects: Mapping[ObjectKey, Object], service_cidrs: Iterable[Prefix]) -> Cluster:
    blocks: dict[str, list[Prefix]] = {}
    for key, it in objects.items():
        if isinstance(key, PodBlockKey) and isinstance(it, PodBlock):
            blocks.setdefault(it.node, []).append(key.cidr)
    nodes = {
        key.name: NodeFact(it.pod_cidrs, it.addresses, tuple(sorted(blocks.get(key.name, ()))))
        for key, it in objects.items()
        if isinstance(key, NodeKey) and isinstance(it, Node)
    }
    pools = {
        key.name: it.cidrs for key, it in objects.items() if isinstance(key, PodPoolKey) and isinstance(it, PodPool)
    }
    ranges = [range_ for it in objects.values() if isinstance(it, ServiceCIDR) for range_ in it.prefixes]
    return Cluster(nodes, disjoint((*service_cidrs, *ranges)), dict(sorted(pools.items())))


# --- the API -----------------------------------------------------------------------------------


async def _from_api(config: Config, settings: Kubernetes) -> tuple[ApiFact | Unseen, Cluster | Unseen]:
    try:
        access = read_access(settings, os.environ)
    except KubeConfigError as error:
        return ApiFact(str(error)), Unseen("the API's access is not right")
    credentials = Credentials(access)
    try:
        await credentials.current()
    except CredentialsError as error:
        return ApiFact(str(error)), Unseen("there are no credentials for the API")
    servers = await asyncio.gather(*(_server(access, address) for address in access.servers))
    client = _own_end(access)
    good = tuple(it.address for it in servers if not it.error)
    if not good:
        silent = Unseen("no API server gives a good answer")
        return ApiFact("", tuple(servers), client, silent), silent
    api = Api(replace(access, servers=good), credentials)
    try:
        refused = await _refused(api)
        found = await _cluster(api, config)
    finally:
        await api.close()
    return ApiFact("", tuple(servers), client, refused), found


async def _server(access: Access, address: str) -> Server:
    expires, clock = await _shown(address, access.server_name)
    api = Api(replace(access, servers=(address,)), Credentials(access))
    error, status = "", 200
    try:
        async with asyncio.timeout(SECONDS):
            await api.get(_NODES, {"limit": "1"})
    except TimeoutError:
        error, status = f"no answer within {SECONDS:g} s", 0
    except ApiError as failed:
        status = failed.status
        # What is forbidden or not there is an answer, and the matter of other checks.
        if status in (0, 401) or status >= 500:
            error = str(failed).removeprefix(f"{address}: ").removeprefix(f"GET {address}{_NODES}: ")
    finally:
        await api.close()
    return Server(address, error, status, expires, clock)


async def _shown(address: str, name: str | None) -> tuple[float | None, float | None]:
    """What a server shows to anyone: the end of its certificate, and its time. None where it shows nothing."""
    parts = urlsplit(address)
    secure = parts.scheme == "https"
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    expires = clock = None
    with suppress(OSError, TimeoutError, ValueError, NotACertificate, asyncio.IncompleteReadError):
        async with asyncio.timeout(SECONDS):
            reader, writer = await asyncio.open_connection(
                parts.hostname,
                parts.port or (443 if secure else 80),
                ssl=context if secure else None,
                server_hostname=(name or parts.hostname) if secure else None,
            )
            try:
                tls = writer.get_extra_info("ssl_object")
                shown = tls.getpeercert(binary_form=True) if tls is not None else None
                expires = ends(shown) if shown else None
                writer.write(f"HEAD /version HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n".encode())
                head = await reader.readuntil(b"\r\n\r\n")
                clock = _date(head.decode("latin-1"))
            finally:
                writer.transport.abort()
    return expires, clock


def _date(head: str) -> float | None:
    for line in head.split("\r\n")[1:]:
        name, _, value = line.partition(":")
        if name.strip().lower() == "date":
            return parsedate_to_datetime(value.strip()).timestamp()
    return None


def _own_end(access: Access) -> float | None:
    try:
        return ends(from_pem(kube_credentials.read(access.certificate))) if access.certificate is not None else None
    except (CredentialsError, NotACertificate):
        return None


async def _refused(api: Api) -> tuple[Right, ...] | Unseen:
    try:
        async with asyncio.timeout(SECONDS):
            allowed = await asyncio.gather(*(_allowed(api, right) for right in RIGHTS))
    except (ApiError, TimeoutError, msgspec.DecodeError, KeyError, TypeError) as error:
        return Unseen(f"the API does not say what we may do: {error or 'no answer in time'}")
    return tuple(right for right, may in zip(RIGHTS, allowed, strict=True) if not may)


async def _allowed(api: Api, right: Right) -> bool:
    attributes = {
        "verb": right.verb,
        "group": right.group,
        "resource": right.resource,
        "subresource": right.subresource,
    }
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {name: value for name, value in attributes.items() if value}},
    }
    return msgspec.json.decode(await api.post(_REVIEWS, msgspec.json.encode(review)))["status"]["allowed"] is True


async def _cluster(api: Api, config: Config) -> Cluster | Unseen:
    objects: dict[ObjectKey, Object] = {}
    try:
        for path in _KINDS:
            async with asyncio.timeout(SECONDS):
                objects |= await _listed(api, path)
    except TimeoutError:
        return Unseen(f"the API did not list the nodes within {SECONDS:g} s")
    except (ApiError, msgspec.DecodeError) as error:
        return Unseen(f"the API does not list the nodes: {error}")
    return cluster(objects, config.service_cidrs)


async def _listed(api: Api, path: str) -> dict[ObjectKey, Object]:
    """As the agent reads them: what can't be understood is left out, of an object no more than that; the agent's own
    errors tell of it."""
    found: dict[ObjectKey, Object] = {}
    query = {"limit": str(_PAGE)}
    while True:
        try:
            page: dict[str, Any] = msgspec.json.decode(await api.get(path, query), type=dict[str, Any])
        except ApiError as error:
            if path in _OPTIONAL and error.status in (403, 404):
                return found
            raise
        version, kind = _KINDS[path]
        for item in page.get("items") or ():
            with suppress(Invalid):
                key, value, _ = translate({**item, "apiVersion": version, "kind": kind}, left_out=[])
                if value is not None:
                    found[key] = value
        rest = (page.get("metadata") or {}).get("continue")
        if not rest:
            return found
        query["continue"] = rest
