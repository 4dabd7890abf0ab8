"""What counters that may begin anew add up to, and whose it is. Pure.

Invariants: no total of anybody ever falls while he lives, whatever is read: a counter that reads less than before began
anew, and what it had counts on; one that is not read stays as it was, since a dump may miss it. So one that was gone,
and has more by the next reading than before, tells less than there was, never more. What is nobody's counts for nobody,
and whoever comes by its key later has what counts from there.
"""

from collections.abc import Container, Hashable, Mapping
from types import MappingProxyType
from typing import Generic, NamedTuple, TypeVar

Key = TypeVar("Key", bound=Hashable)
Owner = TypeVar("Owner", bound=Hashable)
Counts = tuple[int, ...]
"""Of one key, always as many: each rises by itself."""


class Series(NamedTuple, Generic[Owner]):
    """One key's. `before`: what is to be added to what was read `last`; less than zero where its counter is older than
    its owner."""

    owner: Owner
    before: Counts
    last: Counts

    @property
    def total(self) -> Counts:
        return plus(self.before, self.last)


class Totals(NamedTuple, Generic[Key, Owner]):
    """`ended`: by an owner that lives, what those of its keys had that are no longer its. `whole`: of all owners, those
    that are gone too. `nobodys`: what was read last of keys that are nobody's."""

    series: Mapping[Key, Series[Owner]]
    ended: Mapping[Owner, Counts]
    whole: Counts
    nobodys: Mapping[Key, Counts] = MappingProxyType({})

    def of_owners(self) -> dict[Owner, Counts]:
        """The sums of all keys that each has or had."""
        found = dict(self.ended)
        for it in self.series.values():
            found[it.owner] = plus(found.get(it.owner, ()), it.total)
        return found


def nothing(size: int, older: Mapping[Key, Counts] = MappingProxyType({})) -> Totals[Key, Owner]:
    """Of so many counts each. `older`: what there is already, and counts for nobody."""
    return Totals({}, {}, (0,) * size, older)


def add(
    before: Totals[Key, Owner], read: Mapping[Key, Counts], owners: Mapping[Key, Owner], living: Container[Owner]
) -> Totals[Key, Owner]:
    """`owners`: whose each key is now; one that is missing is nobody's. `living`: owners, also without a key. What was
    counted since the last reading is the present owner's, or the last one's where there is none."""
    series: dict[Key, Series[Owner]] = {}
    ended = {owner: counts for owner, counts in before.ended.items() if owner in living}
    whole = before.whole
    for key in before.series.keys() | (read.keys() & owners.keys()):
        was, owner = before.series.get(key), owners.get(key)
        now = _read(was, read.get(key), owner, before.nobodys.get(key, ()))
        whole = plus(whole, minus(now.total, was.total if was is not None and was.owner == now.owner else ()))
        if owner is not None:
            series[key] = now
        lost = was if was is not None and owner is not None and was.owner != owner else now if owner is None else None
        if lost is not None and lost.owner in living:
            ended[lost.owner] = plus(ended.get(lost.owner, ()), lost.total)
    return Totals(series, ended, whole, {key: counts for key, counts in read.items() if key not in series})


def _read(was: Series[Owner] | None, read: Counts | None, owner: Owner | None, older: Counts) -> Series[Owner]:
    """A key's series after a reading. One of the first two is not None; without an owner it stays the last one's.
    `older`: what was there while it was nobody's."""
    if was is None:
        assert read is not None
        assert owner is not None
        known = older and all(now >= then for now, then in zip(read, older, strict=True))
        return Series(owner, minus((0,) * len(read), older if known else ()), read)
    last = was.last if read is None else read
    anew = tuple(old if now < old else 0 for old, now in zip(was.last, last, strict=True))
    if owner is None or owner == was.owner:
        return Series(was.owner, plus(was.before, anew), last)
    return Series(owner, minus(anew, was.last), last)


def plus(one: Counts, other: Counts) -> Counts:
    """() is nothing of anything."""
    return tuple(a + b for a, b in zip(one, other, strict=True)) if one and other else one or other


def minus(one: Counts, other: Counts) -> Counts:
    return tuple(a - b for a, b in zip(one, other, strict=True)) if other else one
