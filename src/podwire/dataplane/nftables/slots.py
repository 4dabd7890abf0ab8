"""The backends of a frontend as slots of its capacity class. Pure.

Invariants: the least class that holds all; each backend keeps its slot where that is possible, so one changed backend
is one or two elements of `eps` and no verdict; the lower half of a class is always full.
"""

from bisect import bisect_left
from typing import Any

from podwire.dataplane.nftables.layout import CLASSES
from podwire.model.network import Backend, Serving, Slots


def place(wanted: Any, now: Any) -> Any:
    """For what answers for a frontend, its slots; any other value as it is."""
    if not isinstance(wanted, Serving):
        return wanted
    return slots(wanted, now)


def slots(wanted: Serving, now: Slots | None) -> Slots:
    """The least class that holds all, its lower half full, each backend where it was if that is possible.

    More than the largest class holds are left out from the end of the sorted list, and all weigh the same then.
    """
    if not wanted.backends:
        return Slots(None, (), refused=not wanted.dropped, dropped=wanted.dropped)
    size = CLASSES[bisect_left(CLASSES, _total(wanted))]
    found = list(now.backends) if now is not None and _all_in_place(wanted, now, size) else _placed(wanted, now, size)
    if wanted.affinity:
        keeps = frozenset(backend for backend in found if backend is not None)
        drawn: dict[str, Any] = {"affinity": wanted.affinity, "drawn": size, "keeps": keeps}
        return Slots(None, tuple(found), outside=wanted.outside, **drawn)
    return Slots(size, tuple(found), outside=wanted.outside)


def _all_in_place(wanted: Serving, now: Slots, size: int) -> bool:
    """Whether nothing would move or come: as good as always at a restart."""
    held = now.backends
    return (
        len(held) == size
        and not wanted.heavy
        and held.count(None) == size - len(wanted.backends)
        and None not in held[: size // 2]
        and {*wanted.backends} == {backend for backend in held if backend is not None}
    )


def _placed(wanted: Serving, now: Slots | None, size: int) -> list[Backend | None]:
    left = _counts(wanted)
    found: list[Backend | None] = []
    for backend in (now.backends if now is not None else ())[:size]:
        stays = backend is not None and left.get(backend, 0) > 0
        found.append(backend if stays else None)
        if backend is not None and stays:
            left[backend] -= 1
    found += [None] * (size - len(found))
    free = [number for number, backend in enumerate(found) if backend is None]
    new = [backend for backend, times in left.items() for _ in range(times)]
    for number, backend in zip(free, new, strict=False):
        found[number] = backend  # the lowest free slot: the lower half fills first
    _fill_lower_half(found)
    return found


def _total(wanted: Serving) -> int:
    """How many slots all together get."""
    weighed = len(wanted.backends) + len(wanted.heavy) * (wanted.weight - 1)
    return weighed if weighed <= CLASSES[-1] else min(len(wanted.backends), CLASSES[-1])


def _counts(wanted: Serving) -> dict[Backend, int]:
    """How many slots each gets, in order."""
    most, heavy = CLASSES[-1], wanted.weight
    if len(wanted.backends) + len(wanted.heavy) * (heavy - 1) <= most:
        return {backend: heavy if backend in wanted.heavy else 1 for backend in wanted.backends}
    return dict.fromkeys(wanted.backends[:most], 1)


def _fill_lower_half(slots: list[Backend | None]) -> None:
    top = len(slots) - 1
    for hole in range(len(slots) // 2):
        if slots[hole] is None:
            while slots[top] is None:
                top -= 1
            slots[hole], slots[top] = slots[top], None
