"""What a pod asks of IPAM by annotations: `podwire.io/addresses`, and `podwire.io/pool`, its own or its namespace's.

Invariants: while the cluster has no pools nobody is asked. What the watch has told of a pod counts where it is that
very pod (its uid): one that it has not told yet is asked for, for seconds at most. What can't be read is refused by one
line that names the annotation; a pod never gets something else in its place.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Protocol

import msgspec

from podwire.cni.errors import CniError, ErrorCode
from podwire.ipam.allocation import NOTHING, Wish
from podwire.ipam.claims import NO_WISHES, Wishes
from podwire.model.addresses import Address, family_of, host_prefix
from podwire.model.kinds import Object
from podwire.model.objects import Namespace, NamespaceKey, Pod, PodBlockKey, PodKey
from podwire.model.snapshot import Snapshot
from podwire.sources import kinds, kube_objects
from podwire.sources.fields import Invalid, one_per_family, read_each, read_label, read_name, read_unicast, shown
from podwire.sources.kube_api import Api, ApiError
from podwire.sources.kubernetes import translate

ADDRESSES = "podwire.io/addresses"
ASKING_SECONDS = 2.0
"""How long an ADD waits for the API server's answer."""


class Controller(Protocol):
    @property
    def snapshot(self) -> Snapshot: ...


class Claimer(Protocol):
    """`podwire.sources.kube_claims.Claimer`."""

    def held(self, wish: Wish) -> AbstractAsyncContextManager[None]: ...


Wished = Callable[[PodKey, str], AbstractAsyncContextManager[Wish]]
"""Of a pod and its uid: what it asks for, which is being seen to as long as it is entered. Raises CniError."""


@asynccontextmanager
async def nothing_wished(_pod: PodKey, _uid: str) -> AsyncIterator[Wish]:
    yield NOTHING


def wished_of(controller: Controller, api: Api | None, claimer: Claimer | None) -> Wished:
    """Without an API the node has the blocks that it is told of."""

    @asynccontextmanager
    async def wished(pod: PodKey, uid: str) -> AsyncIterator[Wish]:
        wish = await wish_of(controller, api, pod, uid)
        async with claimer.held(wish) if claimer is not None and controller.snapshot.pools else nullcontext():
            yield wish

    return wished


def read_fixed(text: str) -> tuple[Address, ...]:
    """`10.1.3.4, fd00::4`. Raises Invalid."""
    if not text.strip():
        return ()
    read = one_per_family(read_unicast, family_of)
    try:
        return tuple(read_each("", (it.strip() for it in text.split(",")), read))
    except Invalid as wrong:
        form = "expected addresses such as 10.1.3.4 or 10.1.3.4,fd00::4, at most one of each family"
        raise Invalid(f"metadata.annotations[{ADDRESSES}]", f"{form}, not {shown(text)} ({wrong.message})") from None


def awaited(now: Snapshot) -> Wishes:
    """What pods of this node ask for, whether they are attached or about to be."""
    if not now.pools:
        return NO_WISHES
    pools: set[str] = set()
    fixed: set[Address] = set()
    for key, pod in now.pods.items():
        if pod.node == now.local.name and not pod.host_network:
            pools.add(pod.pool or _namespace_of(now, key).pool)
            try:
                fixed.update(read_fixed(pod.fixed))
            except Invalid:  # its ADD says so
                continue
    return Wishes(frozenset(pools - {""}), frozenset(fixed))


async def wish_of(controller: Controller, api: Api | None, key: PodKey, uid: str) -> Wish:
    """`uid`: as the runtime has it, "" where it tells none. Raises CniError."""
    now = controller.snapshot
    if not now.pools or not key.namespace:  # or no pod of Kubernetes
        return NOTHING
    _check(key)
    pod = now.pods.get(key)
    if api is not None and (pod is None or (uid and pod.uid != uid)):
        try:
            async with asyncio.timeout(ASKING_SECONDS):
                pod = await _asked_pod(api, key)
        except (ApiError, TimeoutError) as error:
            return _as_before(now, key, uid, str(error) or f"no answer within {ASKING_SECONDS:g} s")
    pod = pod or Pod()
    try:
        fixed = read_fixed(pod.fixed)
    except Invalid as wrong:
        raise CniError(ErrorCode.INVALID_CONFIG, f"pod {key.namespace}/{key.name}: {wrong}") from None
    return Wish(pod.pool or await _pool_of_namespace(now, api, key), fixed)


def _check(key: PodKey) -> None:
    """Both are about to be parts of a path. Raises CniError."""
    try:
        read_label(key.namespace, "K8S_POD_NAMESPACE")
        read_name(key.name, "K8S_POD_NAME")
    except Invalid as wrong:
        raise CniError(ErrorCode.INVALID_ENVIRONMENT, f"CNI_ARGS: {wrong}") from None


async def _pool_of_namespace(now: Snapshot, api: Api | None, key: PodKey) -> str:
    """Raises CniError."""
    known = NamespaceKey(key.namespace) in now.namespaces
    if known or api is None:
        return _namespace_of(now, key).pool
    try:
        async with asyncio.timeout(ASKING_SECONDS):
            value = await _asked(api, f"/api/v1/namespaces/{key.namespace}", kube_objects.Namespace)
    except (ApiError, TimeoutError, Invalid, msgspec.DecodeError) as error:
        raise _unknown(key, f"namespace {key.namespace}: {error}") from None
    return value.pool if isinstance(value, Namespace) else ""


async def _asked_pod(api: Api, key: PodKey) -> Pod | None:
    """None: there is none, such as one of a file on the node, of which the API server does not know yet. Raises
    ApiError."""
    try:
        value = await _asked(api, f"/api/v1/namespaces/{key.namespace}/pods/{key.name}", kube_objects.Pod)
    except (Invalid, msgspec.DecodeError) as error:
        raise ApiError(f"pod {key.namespace}/{key.name}: {error}") from None
    return value if isinstance(value, Pod) else None


async def _asked(api: Api, path: str, form: type[kinds.Kind]) -> Object | None:
    """None: there is no such object. Raises ApiError, Invalid, msgspec.DecodeError."""
    body = await api.find(path)
    return None if body is None else translate(msgspec.json.decode(body, type=form)).value


def _as_before(now: Snapshot, key: PodKey, uid: str, why: str) -> Wish:
    """By what an earlier sandbox of this very pod was given, since nobody tells. Raises CniError where none was."""
    former = [it for it in now.attachments.values() if it.pod == key and uid and it.uid == uid]
    if not former:
        raise _unknown(key, why)
    last = max(former, key=lambda it: it.serial)
    singles = (it for it in last.addresses if PodBlockKey(host_prefix(it)) in now.blocks)
    return Wish(last.pool, tuple(singles))


def _unknown(key: PodKey, why: str) -> CniError:
    text = f"pod {key.namespace}/{key.name}: which pool it asks for is not known yet: {why}"
    return CniError(ErrorCode.TRY_AGAIN_LATER, text)


def _namespace_of(now: Snapshot, key: PodKey) -> Namespace:
    return now.namespaces.get(NamespaceKey(key.namespace), Namespace())
