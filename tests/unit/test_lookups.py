"""Of all lookups that a new connection takes, any one may find nothing though the key is there (layout.LOOKS): it is
led to a backend of its list all the same. The rules are followed as text, by who knows only their forms.
"""

import re
from random import Random

import pytest

from podwire.dataplane.nftables.layout import CLASSES, INTERNAL, rules_of
from podwire.model.addresses import FAMILIES, Family
from podwire.trace.own import _remembering

_DRAW = re.compile(r"numgen random mod (\d+)(?: offset (\d+))? map @eps")
ALL, CLUSTER = "all", "cluster"


class Connection:
    """`two`: the frontend has another list for clients in the cluster.

    `missed`: which of the lookups that should find something finds nothing."""

    def __init__(
        self, family: Family, size: int, two: bool, inside: bool, affinity: bool, missed: int, chance: Random
    ) -> None:
        self.rules, self.family, self.inside = rules_of(family), family, inside
        self.missed, self.chance, self.hits = missed, chance, 0
        filled = size // 2 + 1  # as few as the class is for
        self.maps: dict[str, dict[int, str]] = {
            "svc": {} if two else {0: "affine60" if affinity else f"c{size}"},
            "svc_outside": {0: "affine60" if affinity else f"c{size}"} if two else {},
            "svc_internal": {0: "affinein60" if affinity else f"i{size}"} if two else {},
            "drawn": {0: f"c{size}"},
            "drawn_internal": {0: f"i{size}"},
            "eps": dict.fromkeys(range(filled), ALL) | dict.fromkeys(range(INTERNAL, INTERNAL + filled), CLUSTER),
        }

    def follow(self, chain: str) -> str | None:
        for rule in self.rules.get(chain) or _remembering(self.family, chain):
            _, _, verdicts = rule.partition(" vmap @")
            if verdicts and (self.inside or "saddr @cluster" not in rule):
                target = self._found(verdicts, 0)
                if target is not None:
                    return self.follow(target)
            if rule.startswith("jump draw"):
                backend = self.follow(rule.removeprefix("jump "))
                if backend is not None:
                    return backend
            drawn = _DRAW.search(rule)
            if drawn is not None:
                backend = self._found("eps", self.chance.randrange(int(drawn[1])) + int(drawn[2] or 0))
                if backend is not None:
                    return backend
        return None

    def _found(self, name: str, key: int) -> str | None:
        found = self.maps[name].get(key)
        if found is not None:
            self.hits += 1
            if self.hits == self.missed:
                return None
        return found


@pytest.mark.parametrize("family", FAMILIES, ids=str)
@pytest.mark.parametrize("affinity", [False, True], ids=["drawn", "remembered by nobody"])
@pytest.mark.parametrize(
    ("chain", "two", "inside", "expected"),
    [
        pytest.param("pre", True, False, ALL, id="from outside"),
        pytest.param("pre", True, True, CLUSTER, id="from a pod"),
        pytest.param("out", True, True, CLUSTER, id="from the node"),
        pytest.param("pre", False, False, ALL, id="from outside, of one list"),
        pytest.param("pre", False, True, ALL, id="from a pod, of one list"),
        pytest.param("out", False, True, ALL, id="from the node, of one list"),
    ],
)
def test_a_connection_is_led_to_its_list_whatever_one_lookup_misses(
    family: Family, affinity: bool, chain: str, two: bool, inside: bool, expected: str
) -> None:
    for size in CLASSES:
        for missed in range(5):  # 0: none; on the way there are at most three, and one again
            for seed in range(4):
                it = Connection(family, size, two, inside, affinity, missed, Random(seed))
                assert it.follow(chain) == expected, f"class {size}, lookup {missed}"
