"""What an attachment's link is called in the kernel, and whose a link is by what it is called. Pure.

Invariants: the name of the node's end is a hash of sandbox and interface; no two attachments hash the same text, since
what joins the two is in neither. Beside it the link carries both whole, whatever their length, and so the name of its
pod where an alias is too short for that: a lost store can be made again from the kernel.
"""

import re
from collections.abc import Iterable, Iterator
from hashlib import sha1

from podwire.model.objects import Attachment, AttachmentKey, PodKey

LINK_PREFIX, SHAPER_PREFIX = "pw", "pi"
"""Of a link's end on the node, and of the device that keeps to a rate what comes by it."""
ALTNAME_BYTES, ALIAS_BYTES = 127, 255
_PART = re.compile(rf"({LINK_PREFIX}[0-9a-f]{{12}})\.(?:long\Z|([sp])([0-9][0-9])\.(.*)\Z)", re.DOTALL)
"""A piece of a text that is longer than an altname: the link, whether it is of sandbox or pod, which one, the piece.
Of older versions `.long`: they kept nothing of a long one."""
_PIECE = ALTNAME_BYTES - len(f"{LINK_PREFIX}{'0' * 12}.s00.")
_SANDBOX, _POD = "s", "p"
MOST_SANDBOX = 1024
"""Bytes of a container ID that an ADD may have: its pieces must fit into what the kernel tells of a link at once."""


def interface_name(key: AttachmentKey) -> str:
    """The node's end of a new link: 14 bytes of the kernel's 15, whatever the sandbox is called."""
    return _hashed(_identity(key))


def link_of(key: AttachmentKey, it: Attachment) -> str:
    """The node's end of an attachment's link. Rows of older versions don't say it, and these joined by a dot always."""
    return it.link or _hashed(_joined(key))


def shaper_of(link: str) -> str:
    """The device that keeps to a rate what comes by a link."""
    return SHAPER_PREFIX + link.removeprefix(LINK_PREFIX)


def shaped_by(shaper: str) -> str:
    """The link of which a device keeps to a rate what comes."""
    return LINK_PREFIX + shaper.removeprefix(SHAPER_PREFIX)


def pod_mac(link: str) -> bytes:
    """Of the other end of a link, by the node's end: locally administered, unicast."""
    return b"\x02" + bytes.fromhex(link.removeprefix(LINK_PREFIX))[:5]


def mac_of(key: AttachmentKey, it: Attachment) -> bytes:
    """With which the pod's end is born."""
    return it.mac or pod_mac(link_of(key, it))


def altnames(key: AttachmentKey, it: Attachment) -> tuple[str, ...]:
    """The link's other names, sorted."""
    link = link_of(key, it)
    text = _identity(key) if link == interface_name(key) else _joined(key)
    whole = len(text.encode()) <= ALTNAME_BYTES and not _PART.match(text)
    found = [text] if whole else list(_pieces(link, _SANDBOX, text))
    pod = f"{it.pod.namespace}/{it.pod.name}"
    if len(pod.encode()) > ALIAS_BYTES:
        found += _pieces(link, _POD, pod)
    return tuple(sorted(found))


def link_by(altname: str) -> str:
    """The name of the link that has this altname, if that is one of ours."""
    piece = _PART.match(altname)
    return piece[1] if piece is not None else _hashed(altname)


def owner_of(link: str, names: Iterable[str]) -> AttachmentKey | None:
    """Whose link that is by its altnames; None where that can't be known."""
    names = sorted(names)
    for text in (_whole(_SANDBOX, names), *(name for name in names if not _PART.match(name))):
        # Nobody knows which dot an older version has put there; this one puts it last.
        for key in reversed(list(_keys_of(text))):
            if link in (interface_name(key), _hashed(_joined(key))):
                return key
    return None


def pod_of(alias: str, names: Iterable[str]) -> PodKey | None:
    """Whose pod's link that is; None where that can't be known."""
    namespace, slash, name = (_whole(_POD, sorted(names)) or alias).partition("/")
    return PodKey(namespace, name) if slash else None


def _identity(key: AttachmentKey) -> str:
    """Neither a container ID (CNI spec, section 2) nor an interface's name (dev_valid_name) has a colon. Where the last
    dot says as much, it is the dot, as in all versions."""
    return f"{key.sandbox}:{key.interface}" if "." in key.interface else _joined(key)


def _joined(key: AttachmentKey) -> str:
    return f"{key.sandbox}.{key.interface}"


def _hashed(text: str) -> str:
    return LINK_PREFIX + sha1(text.encode(), usedforsecurity=False).hexdigest()[:12]


def _keys_of(text: str) -> Iterator[AttachmentKey]:
    mark = ":" if ":" in text else "."
    parts = text.split(mark)
    for at in range(1, len(parts)):
        yield AttachmentKey(mark.join(parts[:at]), mark.join(parts[at:]))


def _pieces(link: str, of: str, text: str) -> Iterator[str]:
    number, piece = 0, ""
    for letter in text:
        if len((piece + letter).encode()) > _PIECE:
            yield f"{link}.{of}{number:02}.{piece}"
            number, piece = number + 1, ""
        piece += letter
    yield f"{link}.{of}{number:02}.{piece}"


def _whole(of: str, names: Iterable[str]) -> str:
    """The text whose pieces these sorted altnames are; "" where there are none."""
    found = (_PART.match(name) for name in names)
    return "".join(piece[4] for piece in found if piece is not None and piece[2] == of)
