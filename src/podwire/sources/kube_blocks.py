"""PodBlocks as single objects of the API: looked at, made, given to another Node object, deleted.

Invariants: to make one is to have its block, since its name is made of that: whoever comes second is told so. One is
changed or deleted only as it was looked at (its uid and version), so that nobody else's is ever touched.
"""

import msgspec
from msgspec import Struct

from podwire.model.addresses import Prefix
from podwire.model.objects import Node, PodBlock, Value
from podwire.sources.fields import Invalid
from podwire.sources.kube_api import MERGE, Api, ApiError
from podwire.sources.kube_objects import POOLS
from podwire.sources.kube_objects import PodBlock as Form
from podwire.sources.kubernetes import translate
from podwire.sources.pod_pools import block_name

PATH = f"/apis/{POOLS}/podblocks"
_GONE, _CONFLICT = 404, 409


class Record(Value, frozen=True):
    """What the API server has, and by which uid and version."""

    block: PodBlock
    uid: str
    version: str


class Meta(Struct, frozen=True, rename="camel"):
    uid: str
    resource_version: str


class Anything(Struct, frozen=True):
    metadata: Meta


async def find(api: Api, cidr: Prefix) -> Record | None:
    """None: there is none. Raises ApiError."""
    body = await api.find(_path(cidr))
    return None if body is None else _record(body)


async def make(api: Api, cidr: Prefix, pool: str, name: str, node: Node) -> Record | None:
    """`name` is the node's. None: there is one already, whosesoever. Raises ApiError."""
    body = {
        "apiVersion": POOLS,
        "kind": "PodBlock",
        "metadata": {"name": block_name(cidr), "ownerReferences": _owners(name, node)},
        "spec": {"cidr": str(cidr), "pool": pool, "node": name},
    }
    try:
        return _record(await api.post(PATH, msgspec.json.encode(body)))
    except ApiError as error:
        if error.status == _CONFLICT:
            return None
        raise


async def adopt(api: Api, cidr: Prefix, record: Record, name: str, node: Node) -> Record | None:
    """It goes with this Node from now on. None: it is not as it was looked at any more. Raises ApiError."""
    metadata = {"resourceVersion": record.version, "uid": record.uid, "ownerReferences": _owners(name, node)}
    try:
        return _record(await api.patch(_path(cidr), msgspec.json.encode({"metadata": metadata}), MERGE))
    except ApiError as error:
        if error.status in (_GONE, _CONFLICT):
            return None
        raise


async def delete(api: Api, cidr: Prefix, record: Record) -> bool:
    """False: it is not as it was looked at any more. Raises ApiError."""
    options = {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": {"uid": record.uid, "resourceVersion": record.version},
    }
    try:
        await api.delete(_path(cidr), msgspec.json.encode(options))
    except ApiError as error:
        if error.status not in (_GONE, _CONFLICT):
            raise
        return error.status == _GONE
    return True


def _path(cidr: Prefix) -> str:
    return f"{PATH}/{block_name(cidr)}"


def _owners(name: str, node: Node) -> list[dict[str, str]]:
    """The cluster's garbage collector takes what the Node leaves (Kubernetes docs, "Garbage Collection")."""
    return [{"apiVersion": "v1", "kind": "Node", "name": name, "uid": node.uid}] if node.uid else []


def _record(body: bytes) -> Record:
    """Raises ApiError for what can't be."""
    try:
        meta = msgspec.json.decode(body, type=Anything).metadata
        _, block, _ = translate(msgspec.json.decode(body, type=Form))
    except (msgspec.DecodeError, Invalid) as error:
        raise ApiError(f"{PATH}: expected a PodBlock: {error}") from None
    assert isinstance(block, PodBlock)
    return Record(block, meta.uid, meta.resource_version)
