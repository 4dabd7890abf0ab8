"""All kinds of objects that a source may tell of."""

from podwire.model.announcements import AnnouncingKey, AnnouncingObject
from podwire.model.objects import (
    BackendSlice,
    Namespace,
    NamespaceKey,
    Node,
    NodeKey,
    Pod,
    PodBlock,
    PodBlockKey,
    PodKey,
    PodPool,
    PodPoolKey,
    Service,
    ServiceCIDR,
    ServiceCIDRKey,
    ServiceKey,
    SliceKey,
)

ObjectKey = (
    NamespaceKey | NodeKey | PodKey | ServiceKey | SliceKey | ServiceCIDRKey | PodPoolKey | PodBlockKey | AnnouncingKey
)
Object = Namespace | Node | Pod | Service | BackendSlice | ServiceCIDR | PodPool | PodBlock | AnnouncingObject
