"""What was told of Services last, in a file, so that an agent that is started again tells on from there.

Invariants: no sum is told before what it is made of, beside the kernel's own counters, is written down. It is written
only when that changes: never for a packet, nor by a restart. It counts as long as the counters that it goes with: a
boot, another namespace or a table that was made anew ends it. Need not outlive a power loss: the counters don't either.
"""

import logging
from collections.abc import Container, Mapping
from pathlib import Path

import msgspec

from podwire.config import aside_of
from podwire.model.network import Frontend
from podwire.model.objects import ServiceKey
from podwire.statistics.counted import COUNTS
from podwire.statistics.totals import Counts, Series, Totals

ServiceTotals = Totals[Frontend, ServiceKey]
_Shape = tuple[str, Mapping[Frontend, tuple[ServiceKey, Counts, Counts]], Mapping[ServiceKey, Counts]]
log = logging.getLogger(__name__)


class _File(msgspec.Struct, frozen=True, array_like=True):
    """`counters`: which these are (`Counting.identity`). `unread`: of the series, those whose counters had gone."""

    counters: str
    series: tuple[tuple[Frontend, ServiceKey, Counts, Counts], ...]
    ended: tuple[tuple[ServiceKey, Counts], ...]
    whole: Counts
    unread: tuple[Frontend, ...]


class Kept:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._held: _Shape | None = None
        """What the file says; None: nothing that is right."""
        self._failing = False

    def recall(self, counters: str) -> ServiceTotals | None:
        """None where nothing is known of these counters."""
        try:
            told = msgspec.msgpack.decode(self._path.read_bytes(), type=_File)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError, ValueError) as error:
            log.warning("%s: %s: counts of Services begin anew", self._path, error)
            return None
        series = {frontend: Series(owner, before, last) for frontend, owner, before, last in told.series}
        sizes = {len(told.whole), *(len(it) for one in series.values() for it in (one.before, one.last))}
        if told.counters != counters or sizes | {len(counts) for _, counts in told.ended} != {COUNTS}:
            return None
        totals = Totals(series, dict(told.ended), told.whole)
        self._held = _shape(counters, totals, told.unread)
        return totals

    def keep(self, counters: str, totals: ServiceTotals, unread: Container[Frontend] = ()) -> None:
        """Writes nothing where it is known already. `unread`: whose counters are no longer there. What can't be written
        must not be believed later: the next agent begins anew."""
        shape = _shape(counters, totals, unread)
        if shape == self._held:
            return
        gone = tuple(it for it in sorted(totals.series) if it in unread)
        rows = tuple((frontend, *totals.series[frontend]) for frontend in sorted(totals.series))
        told = _File(counters, rows, tuple(sorted(totals.ended.items())), totals.whole, gone)
        aside = aside_of(self._path)
        try:
            aside.write_bytes(msgspec.msgpack.encode(told))
            aside.rename(self._path)
            self._held, self._failing = shape, False
        except OSError as error:
            self._held = None
            if not self._failing:
                log.warning("%s: counts of Services begin anew at the next start: %s", self._path, error)
            self._failing = True
            _remove(aside)
            _remove(self._path)


def _shape(counters: str, totals: ServiceTotals, unread: Container[Frontend] = ()) -> _Shape:
    """What the kernel's counters alone don't tell."""
    held = {key: (it.owner, it.before, it.last if key in unread else ()) for key, it in totals.series.items()}
    return counters, held, totals.ended


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("%s: %s", path, error)
