"""The kinds of objects that are understood, and in which form each comes.

Invariants: one form reads a kind from the API and from manifests alike.
"""

from podwire.sources.address_pools import AddressPoolObject
from podwire.sources.announcer_objects import BGPAdvertisementObject, BGPPeerObject, L2AdvertisementObject
from podwire.sources.kube_objects import (
    POOLS,
    EndpointSlice,
    Namespace,
    Node,
    Pod,
    PodBlock,
    PodPool,
    Service,
    ServiceCIDR,
)
from podwire.sources.passwords import SecretObject

Announcer = AddressPoolObject | BGPPeerObject | BGPAdvertisementObject | L2AdvertisementObject | SecretObject
Kind = Service | Pod | Node | Namespace | EndpointSlice | ServiceCIDR | PodPool | PodBlock | Announcer

KINDS: dict[tuple[str, str], type[Kind]] = {
    ("v1", "Service"): Service,
    ("v1", "Pod"): Pod,
    ("v1", "Node"): Node,
    ("v1", "Namespace"): Namespace,
    ("v1", "Secret"): SecretObject,
    ("discovery.k8s.io/v1", "EndpointSlice"): EndpointSlice,
    ("networking.k8s.io/v1", "ServiceCIDR"): ServiceCIDR,
    (POOLS, "PodPool"): PodPool,
    (POOLS, "PodBlock"): PodBlock,
    (POOLS, "AddressPool"): AddressPoolObject,
    (POOLS, "BGPPeer"): BGPPeerObject,
    (POOLS, "BGPAdvertisement"): BGPAdvertisementObject,
    (POOLS, "L2Advertisement"): L2AdvertisementObject,
}
"""(apiVersion, kind) of all that is understood."""
