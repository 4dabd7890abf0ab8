"""What is heard of other nodes reaches the snapshot as it was heard last, however late events end."""

from pathlib import Path
from typing import Any

import pytest

from podwire.announcers import Announcers
from podwire.announcing.decisions import NEVER_BY_L2, Decision
from podwire.config import Config
from podwire.controller.events import Event, NodesHeard
from podwire.controller.snapshot import fold
from podwire.model.addresses import parse_address
from podwire.model.announcements import Liveness
from podwire.model.snapshot import Local, Snapshot

ALIVE, UNREADY, DEAD = Liveness.ALIVE, Liveness.UNREADY, Liveness.DEAD


class Late:
    """A controller whose events end `after` more have come; `Late.end` ends the rest."""

    def __init__(self, after: int) -> None:
        self.snapshot, self.after = Snapshot(Local("one", 1500)), after
        self.followers: list[Any] = []
        self.waiting: list[Event] = []

    def submit(self, event: Event) -> None:
        self.waiting.append(event)
        if len(self.waiting) > self.after:
            self.end(1)

    def end(self, count: int) -> None:
        for event in self.waiting[:count]:
            self.snapshot, _ = fold(self.snapshot, event)
        del self.waiting[:count]


@pytest.mark.parametrize("after", range(4))
@pytest.mark.parametrize(
    "heard", [(UNREADY, ALIVE), (DEAD, UNREADY, ALIVE), (ALIVE, DEAD, ALIVE), (UNREADY, DEAD), (DEAD, ALIVE, DEAD)]
)
def test_the_last_word_of_a_node_counts(tmp_path: Path, heard: tuple[Liveness, ...], after: int) -> None:
    controller = Late(after)
    announcers = Announcers(Config("one", tmp_path), controller)  # type: ignore[arg-type]
    for it in heard:
        announcers._heard({"two": it})
    controller.end(len(heard))
    now = controller.snapshot.announcing
    assert ("two" in now.dead, "two" in now.unready) == (heard[-1] is DEAD, heard[-1] is UNREADY)


def test_nothing_is_said_twice(tmp_path: Path) -> None:
    controller = Late(9)
    announcers = Announcers(Config("one", tmp_path), controller)  # type: ignore[arg-type]
    for it in (ALIVE, DEAD, DEAD, ALIVE, ALIVE):
        announcers._heard({"two": it})
    dead = frozenset(("two",))
    assert controller.waiting == [NodesHeard(dead), NodesHeard(frozenset())]


@pytest.mark.parametrize(
    ("decision", "listed"),
    [
        (Decision(owner="two"), True),
        (Decision(pool="public", no_answers="no L2Advertisement chooses it"), True),
        (Decision(pool="public", no_answers=NEVER_BY_L2), False),
        (Decision(), False),
    ],
    ids=["answered for", "could be", "a cluster IP", "of no way"],
)
def test_which_addresses_are_listed_with_those_who_answer(tmp_path: Path, decision: Decision, listed: bool) -> None:
    announcers = Announcers(Config("one", tmp_path), Late(0))  # type: ignore[arg-type]
    announcers.follower.decided[parse_address("203.0.113.1")] = decision
    assert [it.address for it in announcers.layer2().addresses] == ["203.0.113.1"] * listed
