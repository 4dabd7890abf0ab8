"""Objects of Podwire's own kinds with what stands in their statuses, for who writes those.

Invariants: as in `pod_pools.py`. An object that can't be understood is none the less there: its status says why.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from podwire.model.announcements import (
    BGPAdvertisement,
    BGPAdvertisementKey,
    BGPPeer,
    BGPPeerKey,
    ConfigKey,
    Configured,
    L2Advertisement,
    L2AdvertisementKey,
)
from podwire.model.balancers import AddressPool, AddressPoolKey
from podwire.model.declared import Condition, Counts, Declared
from podwire.sources import address_pools
from podwire.sources import announcer_objects as announcers
from podwire.sources.fields import Invalid, read_labels
from podwire.sources.kube_objects import POOLS, NameMeta, PeerMeta, PoolMeta, Wire
from podwire.sources.kubernetes import Resource

Spec = TypeVar("Spec")


class DeclaredMeta(Wire, frozen=True):
    name: str
    uid: str | None = None
    resource_version: str | None = None
    generation: int | None = None
    creation_timestamp: str | None = None
    labels: dict[str, str] | None = None


class ConditionForm(Wire, frozen=True):
    type: str
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""
    observed_generation: int = 0


class CountsForm(Wire, frozen=True):
    total: str = ""
    assigned: int = 0
    available: str = ""


class DeclaredStatus(Wire, frozen=True):
    conditions: list[ConditionForm] | None = None
    ipv4: CountsForm | None = None
    ipv6: CountsForm | None = None


class DeclaredObject(Wire, Generic[Spec], frozen=True):
    metadata: DeclaredMeta
    spec: Spec | None = None
    status: DeclaredStatus | None = None


def read_declared(kind: "OwnKind", thing: DeclaredObject[Any], _: object = None) -> tuple[ConfigKey, Declared]:
    """Raises Invalid where its name is none."""
    meta, status = thing.metadata, thing.status or DeclaredStatus()
    value, wrong = None, ""
    try:
        value = kind.read(meta, thing.spec)
    except Invalid as error:
        wrong = str(error)
    conditions = tuple(
        Condition(it.type, it.status, it.reason, it.message, it.last_transition_time, it.observed_generation)
        for it in status.conditions or ()
    )
    counts = _counts(status.ipv4), _counts(status.ipv6)
    version, uid, generation = meta.resource_version or "", meta.uid or "", meta.generation or 0
    return kind.key("", meta.name), Declared(
        value, wrong, version, uid, generation, conditions, counts, read_labels(meta.labels)
    )


def _counts(given: CountsForm | None) -> Counts | None:
    return Counts(given.total, given.assigned, given.available) if given is not None else None


# --- each kind ---------------------------------------------------------------------------------


def _pool(meta: DeclaredMeta, spec: address_pools.AddressPoolSpec | None) -> AddressPool:
    about = PoolMeta(meta.name, meta.labels, meta.creation_timestamp)
    form = address_pools.AddressPoolObject(about, spec or address_pools.AddressPoolSpec())
    return address_pools.read_pool(form)[1]


def _peer(meta: DeclaredMeta, spec: announcers.BGPPeerSpec | None) -> BGPPeer:
    if spec is None:
        raise Invalid("spec", "missing")
    return announcers.read_peer(announcers.BGPPeerObject(PeerMeta(meta.name, meta.creation_timestamp), spec))[1]


def _bgp(meta: DeclaredMeta, spec: announcers.BGPAdvertisementSpec | None) -> BGPAdvertisement:
    return announcers.read_bgp_advertisement(announcers.BGPAdvertisementObject(NameMeta(meta.name), spec))[1]


def _l2(meta: DeclaredMeta, spec: announcers.L2AdvertisementSpec | None) -> L2Advertisement:
    return announcers.read_l2_advertisement(announcers.L2AdvertisementObject(NameMeta(meta.name), spec))[1]


class OwnKind(NamedTuple):
    """`plural`: by which the API's paths know it. `read`: what a spec means."""

    name: str
    plural: str
    form: Any
    read: Callable[[DeclaredMeta, Any], Configured]
    key: Callable[[str, str], ConfigKey]

    @property
    def path(self) -> str:
        """Of all its objects."""
        return f"/apis/{POOLS}/{self.plural}"


OWN_KINDS: dict[type[ConfigKey], OwnKind] = {
    AddressPoolKey: OwnKind(
        "AddressPool", "addresspools", DeclaredObject[address_pools.AddressPoolSpec], _pool, address_pools.pool_key
    ),
    BGPPeerKey: OwnKind("BGPPeer", "bgppeers", DeclaredObject[announcers.BGPPeerSpec], _peer, announcers.peer_key),
    BGPAdvertisementKey: OwnKind(
        "BGPAdvertisement",
        "bgpadvertisements",
        DeclaredObject[announcers.BGPAdvertisementSpec],
        _bgp,
        announcers.bgp_advertisement_key,
    ),
    L2AdvertisementKey: OwnKind(
        "L2Advertisement",
        "l2advertisements",
        DeclaredObject[announcers.L2AdvertisementSpec],
        _l2,
        announcers.l2_advertisement_key,
    ),
}
BY_NAME = {it.name: it for it in OWN_KINDS.values()}
AGAIN = 10.0
"""Seconds. Podwire's own kinds come when somebody applies their definitions, and may go again."""


def path_of(key: ConfigKey) -> str:
    return f"{OWN_KINDS[type(key)].path}/{key.name}"


def understood(kind: str, metadata: Mapping[str, Any], spec: Mapping[str, Any]) -> tuple[Any, Configured]:
    """An object that is made here, `kind` by its name: its spec in the API's form, and what that means. Raises
    Invalid, msgspec.ValidationError."""
    own = BY_NAME[kind]
    form = msgspec.convert({"metadata": metadata, "spec": spec}, own.form)
    return form.spec, own.read(form.metadata, form.spec)


def declared_resources() -> tuple[Resource, ...]:
    """All of them are optional: a cluster may have none of it."""
    return tuple(
        Resource(
            kind.plural,
            kind.path,
            kind.form,
            kind.key,
            optional=True,
            absent_seconds=AGAIN,
            read=partial(read_declared, kind),
        )
        for kind in OWN_KINDS.values()
    )
