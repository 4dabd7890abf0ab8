"""What the agent and its layer-2 process tell each other, and how it is framed. Pure.

Invariants: each message is whole by itself, and the newest of its kind counts: nothing is told as a change. A frame is
four bytes of length, network order, and MessagePack.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from podwire.model.addresses import Address
from podwire.model.announcements import Liveness

# --- to the process ----------------------------------------------------------------------------


class Begin(Struct, frozen=True, tag=True):
    """The first one. `known`: what an earlier process has found of the nodes."""

    node: str
    port: int
    key: bytes
    known: dict[str, Liveness]


class Nodes(Struct, frozen=True, tag=True):
    """The cluster's nodes with their addresses, this one included."""

    addresses: dict[str, tuple[bytes, ...]]


class Want(Struct, frozen=True, tag=True):
    """By address: on which interfaces it is answered for, (): on all that can."""

    answers: dict[bytes, tuple[str, ...]]


class Ready(Struct, frozen=True, tag=True):
    ready: bool


class Leave(Struct, frozen=True, tag=True):
    """The others are told that this node answers no more; it goes on with it until the channel is closed."""


class Alive(Struct, frozen=True, tag=True):
    """Of the agent: told every `ALIVE` seconds."""


ToProcess = Begin | Nodes | Want | Ready | Leave | Alive
ALIVE = 1.0

# --- from the process --------------------------------------------------------------------------


class Heard(Struct, frozen=True, tag=True):
    liveness: dict[str, Liveness]


class Left(Struct, frozen=True, tag=True):
    """The others have been told of the end, as far as they can be."""


class Answered(Struct, frozen=True):
    """One address. `interfaces`: where it is answered for. `since`: in seconds of the epoch. `requests`: how many were
    answered since then. `also`: the MAC address of another host that has claimed it of late, "": of none. `unable`: why
    it is not answered for on others that are named."""

    interfaces: tuple[str, ...]
    since: float
    requests: int = 0
    also: str = ""
    unable: tuple[str, ...] = ()


class State(Struct, frozen=True, tag=True):
    """For people; told every `TOLD` seconds at least. `ignored`: datagrams that are no heartbeats of the cluster's, by
    the reason. `late`: in seconds, the longest that the process has ever been kept from its work."""

    answers: dict[bytes, Answered] = {}
    troubles: tuple[str, ...] = ()
    ignored: dict[str, int] = {}
    late: float = 0.0


FromProcess = Heard | Left | State
TOLD = 2.0


def frame(message: ToProcess | FromProcess) -> bytes:
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(4, "big") + body


def to_process(frames: "Frames") -> Iterator[ToProcess]:
    for body in frames:
        message: ToProcess = _TO_PROCESS.decode(body)
        yield message


def from_process(frames: "Frames") -> Iterator[FromProcess]:
    for body in frames:
        message: FromProcess = _FROM_PROCESS.decode(body)
        yield message


class Frames:
    """The whole frames of a stream, as its bytes come."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> None:
        self._held += data

    def __iter__(self) -> Iterator[bytes]:
        while len(self._held) >= 4:
            end = 4 + int.from_bytes(self._held[:4], "big")
            if len(self._held) < end:
                return
            body = bytes(self._held[4:end])
            del self._held[:end]
            yield body


_TO_PROCESS: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(ToProcess)
_FROM_PROCESS: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(FromProcess)


def shown(state: State) -> dict[Address, Answered]:
    return {Address(address): it for address, it in state.answers.items()}
