"""Changes of the cluster's objects, cut into events.

Invariants: pure; each change once and in order. An event is about 20 ms of work, so that what else waits gets its turn:
objects count, and the members of slices.
"""

from collections.abc import Iterable, Iterator

from podwire.controller.slicing import slices
from podwire.model.kinds import Object, ObjectKey
from podwire.model.objects import BackendSlice

MOST_CHANGES = 250
MEMBERS = 10
"""Of a slice, that are as much work as another object."""
Change = tuple[ObjectKey, Object | None]


def batches(changes: Iterable[Change]) -> Iterator[tuple[Change, ...]]:
    return map(tuple, slices(changes, _weight, MOST_CHANGES))


def _weight(change: Change) -> int:
    value = change[1]
    return 1 + len(value.members) // MEMBERS if isinstance(value, BackendSlice) else 1
