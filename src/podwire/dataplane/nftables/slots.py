"""The backends of a frontend as slots of its capacity class. Pure.

Invariants: the least class that holds all; each backend keeps its slot where that is possible, so one changed backend
is one or two elements of `eps` and no verdict; the lower half of a class is always full.
"""

from typing import Any

from podwire.dataplane.nftables.layout import CLASSES
from podwire.model.network import Backend, Slots


def place(wanted: Any, now: Any) -> Any:
    """For the backends of a frontend, their slots; any other value as it is."""
    if not isinstance(wanted, frozenset):
        return wanted
    return slots(wanted, now)


def slots(wanted: frozenset[Backend], now: Slots | None) -> Slots:
    """The least class that holds all, its lower half full, each backend where it was if that is possible.

    More than the largest class holds are left out from the end of the sorted list.
    """
    if not wanted:
        return Slots(0, ())
    most = CLASSES[-1]
    if len(wanted) > most:
        wanted = frozenset(sorted(wanted, key=_order)[:most])
    size = next(k for k in CLASSES if k >= len(wanted))
    found: list[Backend | None] = []
    kept: set[Backend] = set()
    for backend in (now.backends if now is not None else ())[:size]:
        stays = backend is not None and backend in wanted and backend not in kept
        found.append(backend if stays else None)
        if backend is not None and stays:
            kept.add(backend)
    found += [None] * (size - len(found))
    free = [number for number, backend in enumerate(found) if backend is None]
    for number, backend in zip(free, sorted(wanted - kept, key=_order), strict=False):
        found[number] = backend  # the lowest free slot: the lower half fills first
    _fill_lower_half(found)
    return Slots(size, tuple(found))


def _fill_lower_half(slots: list[Backend | None]) -> None:
    top = len(slots) - 1
    for hole in range(len(slots) // 2):
        if slots[hole] is None:
            while slots[top] is None:
                top -= 1
            slots[hole], slots[top] = slots[top], None


def _order(backend: Backend) -> tuple[bytes, int]:
    return backend.address, backend.port
