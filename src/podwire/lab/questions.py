"""A question to a lab's network with its right answer, and the judgement of what came. Pure.

Invariants: an answer is right where exactly the wanted pods answered, each saw the client that it should, and a name
server said the right records. A row that is not as expected says what came instead.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from msgspec import Struct

from podwire.ipam.blocks import own_address
from podwire.lab.views import NodeView, PodView
from podwire.model.addresses import parse_prefix, show_address
from podwire.model.objects import Protocol

EACH = 20
"""Questions for each backend: with so many, a backend is passed over by chance once in 500 million times."""

REFUSED, TIMEOUT, UNREACHABLE, RESET, STRANGE = "refused", "timeout", "unreachable", "reset", "not a responder"
NO_NAME = "no such name"
ITSELF = ""
"""Of a client that a pod sees: the address that the asking socket had."""


class Answer(Struct, frozen=True):
    """`error` "": it came, from `pod`. `asked_from`: the address that the asking socket had. `seconds`: until the
    answer, or until it failed. `records`: what a name server said."""

    pod: str = ""
    node: str = ""
    client: str = ""
    port: int = 0
    error: str = ""
    asked_from: str = ""
    seconds: float = 0.0
    records: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return self.error or self.pod


class Source(NamedTuple):
    """Who asks. `node` "": from outside of the cluster; `pod` "": the node itself, or a pod of its network."""

    words: str
    space: Path
    node: str = ""
    pod: str = ""


class Lookup(NamedTuple):
    """A question for a name server. `kind`: A or AAAA."""

    name: str
    kind: str


class Question(NamedTuple):
    """`path`: the kind of way. `host`: an address; or, where `server` is a name server's address, the name that
    `lookup` has, asked for before each connection. `wanted`: the pods that shall answer, all of them and no other, and
    whom each sees; none: refused. `or_seen`: whom any of them may see as well, where several nodes may be the one by
    which packets come. `records`: the right answer to `lookup`, which without `server` is what is asked."""

    path: str
    source: Source
    target: str
    host: str
    port: int
    protocol: Protocol
    wanted: Mapping[str, str]
    lookup: Lookup | None = None
    server: str = ""
    records: frozenset[str] = frozenset()
    or_seen: frozenset[str] = frozenset()

    @property
    def place(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}/{self.protocol.name}"

    @property
    def times(self) -> int:
        return EACH * max(1, len(self.wanted))

    @property
    def family(self) -> int:
        """4 or 6: of the packets."""
        return 6 if ":" in self.host or (self.server and self.lookup and self.lookup.kind == "AAAA") else 4


class Row(NamedTuple):
    """`seen`: whom the pods saw. `latency`: median, in seconds, of an answer or a refusal."""

    question: Question
    expected: str
    answered: str
    seen: str
    latency: float
    right: bool


class Step(NamedTuple):
    """What one steady client heard while something changed. `then`: who answers it afterwards."""

    way: str
    requests: int
    lost: int
    refused: int
    expected: str
    then: str
    right: bool


class Change(NamedTuple):
    """`seconds`: until the network had followed."""

    words: str
    seconds: float
    steps: tuple[Step, ...]


# --- judgement ---------------------------------------------------------------------------------


def judge(question: Question, answers: Sequence[Answer], names: Mapping[str, str]) -> Row:
    """`names`: of the nodes, by their addresses."""
    came = Counter(str(answer) for answer in answers)
    good = [answer for answer in answers if not answer.error]
    count = len(question.wanted)
    expected = f"{count} pod{'s' * (count > 1)}" if count else REFUSED
    all_came = came.keys() == (question.wanted.keys() or {REFUSED})
    answered = ", ".join(f"{what} ×{many}" for what, many in sorted(came.items()))
    if all_came:
        answered = f"{expected} on {', '.join(sorted({answer.node for answer in good}))}" if count else REFUSED
    wrong = {answer.records for answer in good} - {question.records} if question.lookup else set()
    if wrong:
        answered = f"{answered}, saying {', '.join(sorted(next(iter(wrong)))) or 'nothing'}"
    seen = {(answer.pod, ITSELF if answer.client == answer.asked_from else answer.client) for answer in good}
    rightly_seen = seen == question.wanted.items()
    if question.or_seen:
        rightly_seen = all(question.wanted.get(pod) == client or client in question.or_seen for pod, client in seen)
    told = _in_words((client for _, client in seen), names) if seen else ""
    if all_came and not rightly_seen:
        told = f"{told}, not {_in_words(question.wanted.values(), names)}"
    latency = median(answer.seconds for answer in answers)
    return Row(question, expected, answered, told, latency, all_came and rightly_seen and not wrong)


def _in_words(clients: Iterable[str], names: Mapping[str, str]) -> str:
    return ", ".join(sorted({"itself" if it == ITSELF else names.get(it, it) for it in clients}))


def names_of(nodes: Iterable[NodeView]) -> dict[str, str]:
    """The nodes by their addresses on the fabric and among their pods."""
    return {address: node.name for node in nodes for address in (*node.addresses, *map(own_of, node.pod_cidrs))}


# --- words -------------------------------------------------------------------------------------


def parse_port(text: str) -> tuple[int, int, Protocol]:
    """`80/TCP` and `80:30080/TCP` as a view has them: port, node port or 0, protocol."""
    numbers, _, protocol = text.partition("/")
    number, _, outside = numbers.partition(":")
    return int(number), int(outside or 0), Protocol[protocol]


def parse_host_port(text: str) -> tuple[str, int, Protocol]:
    """`8001/TCP to 80`, `127.0.0.1:8001/TCP to 80` and `[fd00::1]:8001/TCP to 80` as a view has them: address or "",
    and the node's port."""
    at, _, port = text.partition(" ")[0].rpartition(":")
    number, _, protocol = port.partition("/")
    return at.strip("[]"), int(number), Protocol[protocol]


def name_of(pod: PodView) -> str:
    return f"{pod.namespace}/{pod.name}"


def own_of(block: str) -> str:
    own = own_address(parse_prefix(block), ())
    assert own is not None  # of a block that nobody has an address of
    return show_address(own)
