"""A heartbeat: one UDP datagram from a node to another. Pure.

Invariants: the first five bytes tell what it is, and the version of the rest; a later version of the same number may
only add fields at the end. The last sixteen bytes are an HMAC (RFC 2104) over all that is before, with the key that
the nodes share; where they have none it keeps off accidents only. It is never longer than a packet.
"""

import hmac
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

INTERVAL = 0.3
"""Seconds from one to the next."""
_HEADER = b"PWL2\x01"
_TAG = 16
MOST = 1200
"""Bytes, so that it fits in a packet of any IPv6 network."""

_Name = Annotated[str, Meta(min_length=1, max_length=253)]


class Beat(Struct, frozen=True, array_like=True):
    """`incarnation`: of the process that sends it, later ones have higher numbers. `sequence`: rises with each.
    `ready`: it answers for the addresses that are its own. `dead`: the nodes that it has heard of and hears no more."""

    node: _Name
    incarnation: Annotated[int, Meta(ge=0, lt=1 << 62)]
    sequence: Annotated[int, Meta(ge=0, lt=1 << 62)]
    ready: bool
    dead: tuple[_Name, ...] = ()


class Ignored(ValueError):
    """Why a datagram is no heartbeat of the cluster's, in a word or two."""


def pack(beat: Beat, key: bytes) -> bytes:
    """Where there are too many dead nodes for one packet, with the first of them."""
    dead = beat.dead
    while True:
        body = _HEADER + msgspec.msgpack.encode(msgspec.structs.replace(beat, dead=dead))
        if len(body) + _TAG <= MOST or not dead:
            return body + _tag(body, key)
        dead = dead[: len(dead) // 2]


def parse(data: bytes, key: bytes) -> Beat:
    """Raises Ignored."""
    if data[:4] != _HEADER[:4]:
        raise Ignored("foreign")
    if data[4:5] != _HEADER[4:]:
        raise Ignored("another version")
    body, tag = data[:-_TAG], data[-_TAG:]
    if len(body) < len(_HEADER) or not hmac.compare_digest(tag, _tag(body, key)):
        raise Ignored("another key" if key else "damaged or with a key")
    try:
        return msgspec.msgpack.decode(body[len(_HEADER) :], type=Beat)
    except msgspec.MsgspecError:
        raise Ignored("damaged") from None


def _tag(body: bytes, key: bytes) -> bytes:
    return hmac.digest(key, body, "sha256")[:_TAG]
