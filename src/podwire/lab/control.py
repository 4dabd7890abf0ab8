"""What a lab's commands and its supervisor say to each other: a line of JSON each way, on a unix socket.

Invariants: a reply comes when what was asked for is done: packets flow. An error is one line for the user.
"""

import socket
from typing import Any

import msgspec
from msgspec import Struct

from podwire.lab.layout import Lab, LabError
from podwire.lab.views import LabView


class Request(Struct, frozen=True, tag=True):
    pass


class Status(Request, frozen=True):
    pass


class Sync(Request, frozen=True):
    """Read the manifests again, now."""


class Scale(Request, frozen=True):
    """`workload`: KIND/NAMESPACE/NAME."""

    workload: str
    replicas: int


class OfNode(Request, frozen=True):
    node: str


class KillAgent(OfNode, frozen=True):
    """SIGKILL; the node's network stays as it is."""


class StartAgent(OfNode, frozen=True):
    pass


class KillNode(OfNode, frozen=True):
    """The agent by SIGKILL, and the node's cable pulled."""


class StartNode(OfNode, frozen=True):
    pass


class Readdress(OfNode, frozen=True):
    """Gives a node another address on the fabric."""


class MakeClient(Request, frozen=True):
    """A namespace on the fabric that is not of the cluster. `name` "": the next number. `behind`: not on the fabric,
    but behind its router."""

    name: str = ""
    behind: bool = False


Requests = Status | Sync | Scale | KillAgent | StartAgent | KillNode | StartNode | Readdress | MakeClient


class Reply(Struct, frozen=True):
    """`error` "": done."""

    error: str = ""
    lab: LabView | None = None
    name: str = ""


def ask(lab: Lab, request: Requests) -> Reply:
    """Waits for as long as it takes. Raises LabError for an error too."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(str(lab.control))
            connection.sendall(msgspec.json.encode(request) + b"\n")
            with connection.makefile("rb") as answers:
                answer = answers.readline()
        except PermissionError:
            raise LabError("the lab answers only root: run it with sudo") from None
        except OSError:
            answer = b""
    if not answer.endswith(b"\n"):
        raise LabError(f"lab {lab.name} does not answer: its supervisor has ended (see {lab.log}), `down` clears it")
    reply = msgspec.json.decode(answer, type=Reply)
    if reply.error:
        raise LabError(reply.error)
    return reply


def view(lab: Lab, request: Requests | None = None) -> LabView:
    """The lab as it is, after what is asked. Raises LabError."""
    found = ask(lab, request or Status()).lab
    assert found is not None
    return found


def decode(line: bytes) -> Any:
    """Raises msgspec.DecodeError."""
    return msgspec.json.decode(line, type=Requests)
