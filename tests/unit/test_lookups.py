"""Of all lookups that a new connection takes, any one may find nothing though the key is there (layout.LOOKS): it is
led to a backend of its list all the same. The rules are followed as text, by who knows only their forms.
"""

import errno
import re
from collections.abc import Mapping
from itertools import pairwise
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from podwire.controller.difference import Outcome, difference
from podwire.dataplane.messages import Message, attrs
from podwire.dataplane.nftables.driver import NFTables
from podwire.dataplane.nftables.layout import CLASSES, INTERNAL, rules_of
from podwire.dataplane.nftables.slots import place
from podwire.dataplane.nftables.wire import DELELEM, NEWELEM
from podwire.model.addresses import FAMILIES, Address, Family
from podwire.model.network import Backend, Frontend, InternalKey, Serving, Slots
from podwire.model.objects import Protocol
from podwire.trace.own import _remembering
from tests.unit.test_slots import Maps

_DRAW = re.compile(r"numgen random mod (\d+)(?: offset (\d+))? map @eps")
ALL, CLUSTER = "all", "cluster"
Held = Mapping[str, Mapping[int, str]]
"""By map: chains that verdicts lead to, or backends by slot."""


def lists(size: int, two: bool, affinity: bool) -> Held:
    filled = size // 2 + 1  # as few as the class is for
    return {
        "svc": {} if two else {0: "affine60" if affinity else f"c{size}"},
        "svc_outside": {0: "affine60" if affinity else f"c{size}"} if two else {},
        "svc_internal": {0: "affinein60" if affinity else f"i{size}"} if two else {},
        "drawn": {0: f"c{size}"},
        "drawn_internal": {0: f"i{size}"},
        "eps": dict.fromkeys(range(filled), ALL) | dict.fromkeys(range(INTERNAL, INTERNAL + filled), CLUSTER),
    }


class Connection:
    """`missed`: which of the lookups that should find something finds nothing. `then`: what the maps hold after so many
    lookups."""

    def __init__(
        self,
        family: Family,
        inside: bool,
        held: Held,
        chance: Random,
        missed: int = 0,
        then: tuple[int, Held] | None = None,
    ) -> None:
        self.rules, self.family, self.inside = rules_of(family), family, inside
        self.maps, self.then = held, then
        self.missed, self.chance, self.hits, self.lookups = missed, chance, 0, 0

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
        if self.then is not None and self.lookups == self.then[0]:
            self.maps = self.then[1]
        self.lookups += 1
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
                it = Connection(family, inside, lists(size, two, affinity), Random(seed), missed)
                assert it.follow(chain) == expected, f"class {size}, lookup {missed}"


# --- a commit on the way -----------------------------------------------------------------------


class Committed(NFTables):
    """The driver without a kernel. `held`: what each of its commits leaves."""

    def __init__(self, family: Family) -> None:
        self.writes, self._open, self._stuck = 0, {}, {}
        self.departed = SimpleNamespace(noted=lambda *_: [])  # type: ignore[assignment]
        self._family, self._maps, self.held = family, Maps(), [{}]

    def commit(self, messages: list[Message]) -> dict[int, int]:
        self._maps.apply(messages)
        self.held.append(dict(self._maps.read(self._family)))
        return {}

    def become(self, wanted: dict[Any, Serving]) -> list[dict[Any, Any]]:
        """What was held, and what each commit on the way to this left."""
        self.held = self.held[-1:]
        self.apply(difference(wanted, self.held[0], place))
        return self.held


def as_maps(held: Mapping[Any, Slots]) -> Held:
    found: dict[str, dict[int, str]] = {name: {} for name in lists(1, True, False)}
    for key, it in held.items():
        names, first = (("i", "in", "_internal"), INTERNAL) if isinstance(key, InternalKey) else (("c", "", ""), 0)
        letter, affine, twin = names
        if it.affinity or it.verdict:
            to = f"affine{affine}{it.affinity}" if it.affinity else f"{letter}{it.verdict}"
            found["svc_outside" if it.outside else "svc" + twin][0] = to
        if it.drawn:
            found["drawn" + twin][0] = f"{letter}{it.drawn}"
        found["eps"] |= {first + number: str(each) for number, each in enumerate(it.backends) if each is not None}
    return found


@pytest.mark.parametrize("family", FAMILIES, ids=str)
@pytest.mark.parametrize("affinity", [0, 60], ids=["drawn", "remembered by nobody"])
@pytest.mark.parametrize(
    ("chain", "inside"),
    [
        pytest.param("pre", False, id="from outside"),
        pytest.param("pre", True, id="from a pod"),
        pytest.param("out", True, id="from the node"),
    ],
)
def test_no_connection_is_lost_while_a_frontend_gets_a_second_list_or_loses_it(
    family: Family, affinity: int, chain: str, inside: bool
) -> None:
    """Wherever a commit comes in between its lookups."""
    to = Frontend(Address(bytes(family.size)), Protocol.TCP, 80)
    some = [Backend(Address(bytes((number,)) * family.size), 80) for number in range(1, 10)]
    for here, all_ in ((0, 1), (0, 5), (1, 1), (1, 2), (2, 3), (1, 5), (5, 5), (3, 9)):
        if not (here or inside):
            continue  # dropped: nobody of its own node answers
        every = Serving(frozenset(some[:all_]), affinity=affinity)
        one = {to: every}
        local = Serving(frozenset(some[:here]), affinity=affinity, outside=True) if here else Serving(dropped=True)
        two = {to: local, InternalKey(to): every}
        driver = Committed(family)
        driver.become(one)
        for wanted in (two, one, two):
            stages = [as_maps(held) for held in driver.become(wanted)]
            for before, after in pairwise(stages):
                for lookups in range(12):
                    for seed in range(3):
                        it = Connection(family, inside, before, Random(seed), then=(lookups, after))
                        assert it.follow(chain) is not None, f"{here} of {all_}, after {lookups} lookups"


class Full(Committed):
    """`svc` has room for nothing more."""

    full = False

    def commit(self, messages: list[Message]) -> dict[int, int]:
        new = (at for at, it in enumerate(messages, 1) if it.kind == NEWELEM and attrs(it.body, 4)[2] == b"svc\0")
        refused = dict.fromkeys(new, errno.ENFILE) if self.full else {}
        return refused or super().commit(messages)


@pytest.mark.parametrize("most", [1, 2], ids=["one after the other", "together"])
def test_a_frontend_that_can_not_become_one_list_keeps_both(most: int) -> None:
    """Else clients in the cluster would be led by the list for others."""
    some = [Backend(Address(bytes((number,)) * 4), 80) for number in (1, 2)]
    to = Frontend(Address(bytes(4)), Protocol.TCP, 80)
    every = Serving(frozenset(some))
    driver = Full(FAMILIES[0])
    driver.become({to: Serving(frozenset(some[:1]), outside=True), InternalKey(to): every})
    driver.full, before = True, driver.held[-1]
    changes = sorted(difference({to: every}, before, place).items(), key=lambda item: driver.rank(*item))
    outcomes: dict[Any, Outcome] = {}
    for at in range(0, len(changes), most):
        outcomes |= driver.apply(dict(changes[at : at + most]))
    assert driver.held[-1] == before
    assert {key: (it.full, it.value) for key, it in outcomes.items()} == {key: (True, before[key]) for key in before}
    driver.full = False
    assert driver.become({to: every})[-1] == {to: place(every, before[to])}


class Stubborn(Committed):
    """What is in `svc_internal` stays."""

    def commit(self, messages: list[Message]) -> dict[int, int]:
        stays = (at for at, it in enumerate(messages, 1) if attrs(it.body, 4)[2] == b"svc_internal\0")
        refused = dict.fromkeys(stays, errno.ENOENT) if any(it.kind == DELELEM for it in messages) else {}
        return refused or super().commit(messages)


def test_what_is_refused_of_the_second_batch_is_told() -> None:
    some = [Backend(Address(bytes((number,)) * 4), 80) for number in (1, 2)]
    to = Frontend(Address(bytes(4)), Protocol.TCP, 80)
    every = Serving(frozenset(some))
    driver = Stubborn(FAMILIES[0])
    driver.become({to: Serving(frozenset(some[:1]), outside=True), InternalKey(to): every})
    changes = difference({to: every}, driver.held[-1], place)
    outcomes = driver.apply(changes)
    assert outcomes[to].value == changes[to].after == driver.held[-1][to]
    assert outcomes[InternalKey(to)].error is not None
    assert driver.held[-1][InternalKey(to)] == changes[InternalKey(to)].before
