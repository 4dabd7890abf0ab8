"""The difference of two typed maps, the part of the network it speaks of, and what a driver is.

Invariants: a difference holds only keys that change. Equality is of values after `place`: where the kernel needs a
position, the driver keeps the one that is there, so equal sets are equal. Keys and values are of the driver's own
types (`model/network.py`, `model/objects.py`); this room treats all alike, hence Any.
"""

from collections.abc import Callable, Iterable, KeysView, Mapping
from typing import Any, NamedTuple, Protocol

from podwire.model.network import room_of
from podwire.model.objects import Value

Desired = dict[str, dict[Any, Any]]
"""Driver → key → value."""


class Change(NamedTuple):
    """`before` None: the key is new; `after` None: the key goes."""

    before: Any
    after: Any


Difference = dict[Any, Change]


class Scope(Value, frozen=True):
    """`keys` None: all that is ours; else a set in a stable order. `spaces`: the pods' namespaces to look into."""

    keys: KeysView[Any] | None
    spaces: frozenset[str]

    def __contains__(self, key: object) -> bool:
        return self.keys is None or key in self.keys


def scope_of(keys: Iterable[Any], everything: bool = False) -> Scope:
    """The keys, or all that is ours, and the namespaces in which they lie."""
    listed = dict.fromkeys(keys).keys()
    spaces = frozenset(getattr(key, "space", "") for key in listed) - {""}
    return Scope(None if everything else listed, spaces)


class Outcome(Value, frozen=True):
    """What a key holds now (None: it is gone), or why its change failed: then what it holds is unknown.

    `gone` says that the failure is for ever: the namespace that should hold the key no longer exists. `again` says
    that other keys went with the change: the driver wants to be read again. `later` says that the failed change would
    fail again at once: nothing is tried before the next resync. `full` says that there is no room for it and that it
    holds what it held before, its `value`: nothing is tried before something else goes, or the next resync.
    """

    value: Any = None
    error: str | None = None
    gone: bool = False
    again: bool = False
    later: bool = False
    full: bool = False


class Driver(Protocol):
    """A part of the network that can be read and changed, and recognises what is ours."""

    name: str
    writes: int
    """Writes to the kernel or disk since the start; a restart of an unchanged node makes none."""
    apart: bool
    """Whether it may be read in another thread, while nobody else uses it."""
    slice: int
    """How much, by weight, may be applied between two turns of the event loop; 0: all at once."""

    def weight(self, change: Change) -> int:
        """How much work a change is, at least 1."""

    def rank(self, key: Any, change: Change) -> Any:
        """The order in which slices are cut: what others depend on comes first, and goes last."""

    def place(self, wanted: Any, actual: Any) -> Any:
        """What to hold for what is wanted, nearest to what is held already. Pure."""

    def settle(self, wanted: Mapping[Any, Any], actual: Mapping[Any, Any]) -> Mapping[Any, Any]:
        """What is wanted, with the values that follow from what another key holds. Pure."""

    def read(self, scope: Scope) -> dict[Any, Any]:
        """What the network holds of ours within the scope."""

    def apply(self, difference: Difference) -> dict[Any, Outcome]:
        """Makes the changes; answers for every key of the difference."""


class Watched(Protocol):
    """A driver that is told what others change."""

    name: str

    @property
    def by(self) -> str:
        """Who did it, where that is known."""

    def fileno(self) -> int:
        """Readable when there is something to look at."""

    def changed(self, held: Mapping[Any, Any]) -> frozenset[Any] | None:
        """The keys that others have changed since the last time, or may have; None: all of them. `held`: what was last
        reported."""

    @property
    def behind(self) -> bool:
        """Whether that look left something for the next: it takes a bounded time, however much others change."""


def gives_room(change: Change) -> bool:
    """Whether something goes with the change."""
    return room_of(change.after) < room_of(change.before)


def difference(wanted: Mapping[Any, Any], actual: Mapping[Any, Any], place: Callable[[Any, Any], Any]) -> Difference:
    changes: Difference = {}
    for key, value in wanted.items():
        before = actual.get(key)
        after = place(value, before)
        if after != before:
            changes[key] = Change(before, after)
    for key, before in actual.items():
        if key not in wanted:
            changes[key] = Change(before, None)
    return changes
