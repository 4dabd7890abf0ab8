"""MetalLB's objects in the cluster, followed: ours are kept as `metallb.py` says that they should be.

Invariants: what we have made has a label, and nothing else is touched; a name that somebody else's object has is left
to it. All of it follows from the objects on both sides. Nothing is taken away because MetalLB itself goes, with its
namespace or its kinds: then what was imported stays, and goes on announcing. Nor where an object of MetalLB's can't
come over any more. What fails is tried again with growing delay.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Set
from functools import partial
from typing import Any, NamedTuple, Protocol, cast

import msgspec
from msgspec import Struct

from podwire.clustercontroller.backoff import Backoff, Refused, refused
from podwire.model.announcements import NAMESPACE, ConfigKey
from podwire.model.declared import Declared
from podwire.sources.declared import AGAIN, BY_NAME, OWN_KINDS, understood
from podwire.sources.fields import Invalid
from podwire.sources.kube_api import JSON_PATCH, Api, ApiError
from podwire.sources.kube_watch import CHANCE, Chance, Watch, wrong_with
from podwire.sources.kubernetes import Resource
from podwire.sources.metallb import FROM, GROUP, LABEL, PREFIX, Named, Object, Thing, convert
from podwire.sources.troubles import Troubles

log = logging.getLogger(__name__)
EVERY = 2.0
"""Seconds from one look to the next, at least."""
_THEIRS = {
    "ipaddresspools": ("v1beta1", "IPAddressPool"),
    "bgppeers": ("v1beta2", "BGPPeer"),
    "bgpadvertisements": ("v1beta1", "BGPAdvertisement"),
    "l2advertisements": ("v1beta1", "L2Advertisement"),
    "bfdprofiles": ("v1beta1", "BFDProfile"),
    "communities": ("v1beta1", "Community"),
}
_GOING = "MetalLB is being removed: what was imported of it stays; end this with a controller without --import-metallb"


class Cluster(Protocol):
    """What the API last said of our own kinds."""

    @property
    def declared(self) -> Mapping[ConfigKey, Declared]: ...
    @property
    def secrets(self) -> Mapping[str, Set[str]] | None: ...
    async def watched(self) -> None: ...


class _About(Struct, frozen=True, rename="camel"):
    name: str = ""
    resource_version: str = ""
    uid: str = ""
    labels: dict[str, str] | None = None
    deletion_timestamp: str | None = None


class _Any(Struct, frozen=True):
    """An object of whatever kind, as far as it is looked at here."""

    metadata: _About = _About()
    spec: dict[str, Any] | None = None
    data: dict[str, str] | None = None


class _Held(NamedTuple):
    """Ours as it is. `alike`: whether that is what it should be."""

    version: str
    uid: str
    alike: Callable[[Object], bool]


class Importer:
    """`theirs`: MetalLB's namespace. `check`: raises Refused where we may not write."""

    def __init__(
        self,
        api: Api,
        cluster: Cluster,
        theirs: str,
        check: Callable[[], None],
        chance: Chance = CHANCE,
    ) -> None:
        self._api, self._cluster, self._theirs = api, cluster, theirs
        self._check, self._chance = check, chance
        self._stirred = asyncio.Event()
        self._stirred.set()
        self._backoff: Backoff[Named] = Backoff()
        self._troubles, self._own = Troubles(log, "MetalLB: "), Troubles(log, "Kubernetes API: ")
        self._watches = {it.name: Watch(api, it, self._told, self._noted, chance) for it in _resources(theirs)}

    def stir(self) -> None:
        """Something of ours has changed."""
        self._stirred.set()

    async def run(self) -> None:
        """Never returns."""
        watching = [asyncio.create_task(it.run()) for it in self._watches.values()]
        try:
            await self._cluster.watched()
            for watch in self._watches.values():
                await watch.listed.wait()
            while True:
                await self._stirred.wait()
                await self.once()
                await self._chance.pause(EVERY)
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)

    def _told(self, *_: object) -> None:
        self._stirred.set()

    def _noted(self) -> None:
        self._own.tell(wrong_with(self._watches.values()))

    # --- what is there, and what should be -------------------------------------------------------

    def _things(self) -> list[Thing]:
        kinds = (*_THEIRS, "secrets")
        return [it for name in kinds for _, it in sorted(cast(Any, self._watches[name].objects).items())]

    def _held(self) -> tuple[dict[Named, _Held], set[Named]]:
        """What we have made, and the names of what others have."""
        ours: dict[Named, _Held] = {}
        others: set[Named] = set()
        for key, it in self._cluster.declared.items():
            name = OWN_KINDS[type(key)].name, key.name
            if (LABEL, FROM) in it.labels:
                ours[name] = _Held(it.version, it.uid, partial(_means, it.value))
            else:
                others.add(name)
        copies = cast(Mapping[str, _Any], self._watches["copies"].objects)
        for secret, copy in copies.items():
            about = copy.metadata
            ours["Secret", secret] = _Held(about.resource_version, about.uid, partial(_has, copy.data or {}))
        others |= {("Secret", it) for it in self._cluster.secrets or () if it not in copies}
        return ours, others

    async def once(self) -> None:
        """All that is due now."""
        self._stirred.clear()
        ours, others = self._held()
        found = convert(self._things(), others)
        wanted = {(it["kind"], it["metadata"]["name"]): it for it in found.objects}
        taken = sorted(wanted.keys() & others)
        told = [*found.warnings, *(f"{kind} {name} is not made: another one has the name" for kind, name in taken)]
        writes = [
            (name, ours.get(name))
            for name in wanted
            if name not in others and not (name in ours and ours[name].alike(wanted[name]))
        ]
        stays = _kept(found.left_out)
        goes = [name for name in sorted(ours, reverse=True) if name not in wanted and not stays(name)]
        self._backoff.keep({*(name for name, _ in writes), *goes})
        for name, held in writes:
            await self._try(name, held, wanted[name])
        if goes and await self._is_going():
            told.append(_GOING)
        else:
            for name in goes:
                await self._try(name, ours[name], None)
        self._troubles.tell(told)
        self._backoff.wake(self._stirred.set, self._chance.clock())

    # --- what is done ----------------------------------------------------------------------------

    async def _try(self, name: Named, held: _Held | None, wanted: Object | None) -> None:
        version = held.version if held is not None else ""
        if self._backoff.waits(name, version, self._chance.clock()):
            return
        try:
            self._check()
            await self._do(name, held, wanted)
        except (ApiError, Refused) as error:
            why = refused(error) if isinstance(error, ApiError) else error
            self._backoff.failed(name, version, why, self._chance.clock())
        else:
            self._backoff.done(name)

    async def _do(self, name: Named, held: _Held | None, wanted: Object | None) -> None:
        """Raises ApiError."""
        every, words = self._path(name[0]), " ".join(name)
        if wanted is None:
            assert held is not None
            only = {"preconditions": {"uid": held.uid, "resourceVersion": held.version}}
            body = {"apiVersion": "v1", "kind": "DeleteOptions", **only}
            await self._api.delete(f"{every}/{name[1]}", msgspec.json.encode(body))
            log.info("%s is taken away: MetalLB has it no more", words)
        elif held is None:
            await self._api.post(every, msgspec.json.encode(wanted))
            log.info("%s is made, as MetalLB has it", words)
        else:
            part = "data" if name[0] == "Secret" else "spec"
            patch = [
                {"op": "replace", "path": "/metadata/resourceVersion", "value": held.version},
                {"op": "add", "path": "/metadata/labels", "value": wanted["metadata"]["labels"]},
                {"op": "add", "path": f"/{part}", "value": wanted[part]},
            ]
            await self._api.patch(f"{every}/{name[1]}", msgspec.json.encode(patch), JSON_PATCH)
            log.info("%s is changed, as MetalLB has it", words)

    def _path(self, kind: str) -> str:
        if kind == "Secret":
            return f"/api/v1/namespaces/{NAMESPACE}/secrets"
        return BY_NAME[kind].path

    async def _is_going(self) -> bool:
        """Whether MetalLB itself is being removed, or has gone; where that can't be found out, as if it were."""
        paths = [f"/api/v1/namespaces/{self._theirs}"]
        paths += [f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{it}.{GROUP}" for it in _THEIRS]
        try:
            for path in paths:
                found = await self._api.find(path)
                if found is None or msgspec.json.decode(found, type=_Any).metadata.deletion_timestamp:
                    return True
        except (ApiError, msgspec.DecodeError) as error:
            log.warning("nothing is taken away: %s", error)
            return True
        return False


def _kept(left_out: Iterable[Named]) -> Callable[[Named], bool]:
    """Whether an object of ours stays as it was, since MetalLB's is there and can't come over any more: a peer, with
    whatever password it has."""
    kinds = {"IPAddressPool": "AddressPool"}
    names = {(kinds.get(kind, kind), each) for kind, name in left_out for each in (name, f"{PREFIX}{name}")}
    peers = any(kind == "BGPPeer" for kind, _ in names)
    return lambda name: name in names or (peers and name[0] == "Secret")


def _has(data: Mapping[str, str], wanted: Object) -> bool:
    return bool(dict(data) == wanted["data"])


def _means(value: object, wanted: Object) -> bool:
    """Whether an object, that is right, means that."""
    try:
        _, found = understood(wanted["kind"], wanted["metadata"], wanted["spec"])
    except Invalid:
        return False
    return bool(found == value)


# --- what is followed ----------------------------------------------------------------------------

_Read = Callable[[_Any, list[Invalid]], tuple[str, Any]]


def _resources(theirs: str) -> tuple[Resource, ...]:
    """MetalLB's objects and Secrets, and the Secrets that we have made."""

    def of(name: str, path: str, read: _Read, selection: Mapping[str, str] = {}) -> Resource:
        return Resource(name, path, _Any, lambda _, own: own, selection, True, AGAIN, read)

    def copy(thing: _Any, _: list[Invalid]) -> tuple[str, _Any]:
        return thing.metadata.name, thing

    passwords = {"fieldSelector": "type=kubernetes.io/basic-auth"}
    mark = {"labelSelector": f"{LABEL}={FROM}"}
    return (
        *(
            of(name, f"/apis/{GROUP}/{version}/namespaces/{theirs}/{name}", _reads(f"{GROUP}/{version}", kind))
            for name, (version, kind) in _THEIRS.items()
        ),
        of("secrets", f"/api/v1/namespaces/{theirs}/secrets", _reads("v1", "Secret"), passwords),
        of("copies", f"/api/v1/namespaces/{NAMESPACE}/secrets", copy, mark),
    )


def _reads(version: str, kind: str) -> _Read:
    def read(thing: _Any, _: list[Invalid]) -> tuple[str, Thing]:
        about = {"name": thing.metadata.name, "labels": thing.metadata.labels or {}}
        made: Object = {"apiVersion": version, "kind": kind, "metadata": about}
        return thing.metadata.name, {**made, **({"data": thing.data} if kind == "Secret" else {"spec": thing.spec})}

    return read
