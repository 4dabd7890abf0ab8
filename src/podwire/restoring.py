"""What a start knows again: the rows of the store, held against the boot and the kernel.

Invariants: an attachment of an earlier boot is kept only where it is seen to live; its addresses are free otherwise,
since no namespace outlives a boot. What a store lacks that no resync has filled since it was made is taken from the
kernel, and said so, however many starts were killed before. Nobody is restored with what a later one has: a row may
have outlived its DEL, while the disk was full. Nothing is written.
"""

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from podwire.cni.errors import CniError
from podwire.config import Config
from podwire.controller.difference import Scope
from podwire.controller.events import Restored
from podwire.dataplane.linux import rebuild
from podwire.dataplane.linux.driver import Linux
from podwire.model.addresses import Address
from podwire.model.network import Backend, HostPortKey, LinkKey
from podwire.model.objects import Attachment, AttachmentKey, NodeKey
from podwire.pods.names import link_of
from podwire.preflight import CannotStart
from podwire.sources.cni_server import check_namespace
from podwire.store.rows import Store

Attachments = Mapping[AttachmentKey, Attachment]
log = logging.getLogger(__name__)
_PROCESSES = "/proc/"
"""A path below it is a process's, whose number is given again after a boot."""


def boot_of(path: Path) -> str:
    """The boot's ID (random(4)). Raises OSError."""
    return path.read_text(encoding="ascii", errors="replace").strip()


class HostPorts(Protocol):
    """What is needed of nftables' driver."""

    def host_ports(self) -> dict[HostPortKey, Backend]: ...


def restored(config: Config, store: Store, linux: Linux, nftables: HostPorts, boot: str) -> Restored:
    """The first event. Raises CannotStart, OSError."""
    event = store.restored()
    _refuse_pods_of_another_node(config, event)
    rebuilt = _not_in(event.attachments, linux, nftables, boot) if store.unfilled() else {}
    rows = _identified(linux, not_given_again({**event.attachments, **rebuilt}))
    if rebuilt:
        log.warning("the store is new, and %d pods live: what it should know is taken from the kernel", len(rebuilt))
    living = dict(_of_this_boot(linux, rows, boot))
    dead = len(rows) - len(living)
    if dead:
        log.info("%d attachments of an earlier boot are released: no network namespace outlives a boot", dead)
    return replace(event, attachments=living, dead=dead, rebuilt=len(living.keys() & rebuilt.keys()))


def _not_in(rows: Attachments, linux: Linux, nftables: HostPorts, boot: str) -> dict[AttachmentKey, Attachment]:
    """Whose links are there and who has no row. Raises OSError."""
    found = rebuild.attachments(linux.read(Scope(None, frozenset())))
    found = rebuild.with_host_ports(found, nftables.host_ports()) if found else found
    return {key: replace(it, boot=boot) for key, it in found.items() if key not in rows}


def not_given_again(rows: Attachments) -> Attachments:
    """Without those of which a later one has an address or the index: it was given them since these were free. Also one
    that has gone again, or was never confirmed, tells that."""
    found: dict[AttachmentKey, Attachment] = {}
    given: set[Address | int] = set()
    for key, it in sorted(rows.items(), key=lambda row: (row[1].serial, row[1].confirmed, row[0]), reverse=True):
        if given.isdisjoint((*it.addresses, it.index)):
            found[key] = it
        given.update(it.addresses, (it.index,))
    if len(found) < len(rows):
        log.warning("%d attachments are released: others have been given their addresses", len(rows) - len(found))
    return dict(sorted(found.items()))


def _of_this_boot(linux: Linux, rows: Attachments, boot: str) -> Iterator[tuple[AttachmentKey, Attachment]]:
    earlier = {link_of(key, it): key for key, it in rows.items() if it.boot not in ("", boot)}
    links = linux.read(Scope({LinkKey(name): None for name in earlier}.keys(), frozenset())) if earlier else {}
    linked = {earlier[key.name] for key in links if isinstance(key, LinkKey)}
    for key, it in rows.items():
        if it.boot in ("", boot):
            yield key, it
        elif (there := _namespace(it.netns)) is not None:  # the runtime was here first, and has made it again
            yield key, replace(it, boot=boot, device=there[0], inode=there[1])
        elif key in linked:  # frozen and thawed, or whatever has kept it
            yield key, replace(it, boot=boot)


def _namespace(path: str) -> tuple[int, int] | None:
    """The network namespace that somebody has made since the boot by the name of the old one."""
    if not path or path.startswith(_PROCESSES):
        return None
    try:
        return check_namespace(path)
    except CniError:
        return None


def _identified(linux: Linux, rows: Attachments) -> Attachments:
    """Those of older versions, which noted only the path of a namespace, with what tells it from others."""
    unknown = {link_of(key, it): key for key, it in rows.items() if it.netns and not it.inode}
    paths = {name: rows[key].netns for name, key in unknown.items()}
    found = linux.identities(paths) if paths else {}
    return dict(rows) | {
        unknown[name]: replace(rows[unknown[name]], device=device, inode=inode)
        for name, (device, inode) in found.items()
    }


def _refuse_pods_of_another_node(config: Config, restored: Restored) -> None:
    """Raises CannotStart. They have addresses of that node's ranges, and this one's may be given elsewhere."""
    others = sorted(key.name for key in restored.objects if isinstance(key, NodeKey))
    if restored.attachments and others and config.node_name not in others:
        raise CannotStart(
            f"{config.state_dir} holds {len(restored.attachments)} pods of node {others[0]}, and node_name is "
            f"{config.node_name}: set node_name back; if the node was renamed, start once more by its old "
            "name and remove its pods first"
        )
