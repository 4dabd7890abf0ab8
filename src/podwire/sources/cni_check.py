"""CHECK: whether an attachment is as its ADD has said, and what an ADD says.

Invariants: nothing is repaired, and nothing changed. What later plugins of a chain have added is theirs.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from podwire.cni import bandwidth, portmappings, requested
from podwire.cni.errors import CniError, ErrorCode
from podwire.cni.request import Request
from podwire.cni.result import DNS, NO_DNS, AddResult, End, add_result, decode_previous, missing
from podwire.controller.difference import Difference
from podwire.model.addresses import Address, family_of
from podwire.model.network import CursorKey, NeighbourKey
from podwire.model.objects import NO_BANDWIDTH, Attachment, AttachmentKey
from podwire.model.snapshot import Snapshot, Touched
from podwire.pods import hostports, wiring
from podwire.pods.names import link_of, mac_of


class Controller(Protocol):
    """What is needed of the controller's loop."""

    @property
    def snapshot(self) -> Snapshot: ...

    async def check(self, touched: Touched) -> dict[str, Difference]: ...


async def check(controller: Controller, request: Request) -> None:
    """That the attachment is as its result said (CNI spec, section 4, "CHECK"); repairs nothing. Raises CniError."""
    now, key = controller.snapshot, request.key
    previous = request.config.prev_result
    if previous is None:
        raise CniError(ErrorCode.INVALID_CONFIG, "network configuration: prevResult: missing; CHECK needs it")
    held = now.attachments.get(key)
    if held is None:
        raise CniError(ErrorCode.UNKNOWN_CONTAINER, f"{key}: this node's agent has not attached it")
    wrong = missing(decode_previous(previous), result_of(request.version, key, held, now.pod_mtu), request.netns)
    if wrong:
        raise CniError(ErrorCode.DIFFERS, f"{key}: prevResult lacks {', '.join(wrong)}")
    families = set(map(family_of, held.addresses))
    asked, given = (hostports.places(ports, families) for ports in (request.host_ports, held.host_ports))
    if asked and asked != given:
        raise CniError(ErrorCode.DIFFERS, f"{key}: {portmappings.NAME} are not those of its ADD")
    if request.bandwidth not in (NO_BANDWIDTH, held.bandwidth):
        raise CniError(ErrorCode.DIFFERS, f"{key}: {bandwidth.NAME} is not that of its ADD")
    lost = [requested.IPS] * bool(set(request.addresses) - set(held.addresses))
    lost += [requested.MAC] * (request.mac not in (b"", mac_of(key, held)))
    if lost:
        raise CniError(ErrorCode.DIFFERS, f"{key}: {', '.join(lost)}: not what its ADD has given")
    try:
        drift = await controller.check(Touched(attachments=frozenset((key,))))
    except OSError as error:
        raise CniError(ErrorCode.IO_FAILURE, f"{key}: the network can't be read: {error}") from None
    desired = wiring.desired(now, Touched(attachments=frozenset((key,))))
    off = [
        str(item)
        for driver, keys in desired.items()
        for item in keys
        if item in drift.get(driver, ()) and not isinstance(item, CursorKey)
    ]
    if off:
        raise CniError(ErrorCode.DIFFERS, f"{key}: not as it should be: {', '.join(off)}")
    linux: Mapping[Any, Any] = now.programmed.get("linux", {})
    has = linux.get(NeighbourKey("", held.index, held.addresses[0]))  # which follows what the pod's end really has
    if request.mac and has not in (None, request.mac):
        raise CniError(ErrorCode.DIFFERS, f"{key}: {requested.MAC}: its interface has {has.hex(':')} by now")


def result_of(version: str, key: AttachmentKey, held: Attachment, mtu: int, dns: DNS = NO_DNS) -> AddResult:
    def gateway(address: Address) -> Address:
        return wiring.GATEWAY[family_of(address)]

    families = dict.fromkeys(map(family_of, held.addresses))
    return add_result(
        version,
        End(link_of(key, held), wiring.NODE_MAC),
        End(key.interface, mac_of(key, held)),
        held.netns,
        mtu,
        [(address, gateway(address)) for address in held.addresses],
        [(each, gateway(each.first)) for family in families for each in wiring.sends_to(held, family)],
        dns,
    )
