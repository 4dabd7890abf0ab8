"""How many Services the data plane has room for, and what they need of it.

Invariants: derived from the objects alone. What is needed and what is held are counted in the same units, those of
`UNITS`, for each family by itself.
"""

from immutables import Map
from msgspec import Struct

from podwire.model.addresses import FAMILIES, Family
from podwire.model.objects import ServiceKey, Value

UNITS = ("frontends", "backends of all frontends together", "frontends with session affinity")
Need = tuple[int, ...]
"""For each family, IPv4 first, so many of each unit."""
NOTHING: Need = (0,) * len(UNITS) * len(FAMILIES)


class Capacity(Value, frozen=True):
    """What the data plane has room for: `units` of each of UNITS in each family, and `backends` of one frontend."""

    units: Need
    backends: int

    @property
    def whole(self) -> Need:
        """Of both families."""
        return self.units * len(FAMILIES)


Ranked = tuple[str, str, str]
"""A Service by its age: when it was created, its namespace and name."""


class Room(Struct, frozen=True):
    """Who has room. `bounds` are what each Service needs at most, which is soon said, and `bound` their sum. Where that
    does not fit, and only there, `needs` are what each needs, `need` their sum, `ages` when they were created, and
    `ranked` all of them, the oldest first. `left_out`: for which families there is no room."""

    bounds: Map[ServiceKey, Need] = Map()
    bound: Need = NOTHING
    needs: Map[ServiceKey, Need] = Map()
    need: Need = NOTHING
    ages: Map[ServiceKey, str] = Map()
    ranked: tuple[Ranked, ...] = ()
    left_out: Map[ServiceKey, frozenset[Family]] = Map()


def part(need: Need, family: Family) -> Need:
    """Of one family."""
    first = FAMILIES.index(family) * len(UNITS)
    return need[first : first + len(UNITS)]


def fits(need: Need, within: Need) -> bool:
    return all(one <= most for one, most in zip(need, within, strict=True))
