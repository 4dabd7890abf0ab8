"""Steady clients: they ask all the while that something changes.

Invariants: the change begins once each client has been answered for a while, and each goes on for a while after it is
done. Each client has a thread of its own, and asks one question after the other: a lost one holds it up for as long as
its time limit.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from threading import Event
from time import perf_counter
from typing import NamedTuple, TypeVar

from podwire.lab import probe
from podwire.lab.questions import REFUSED, Answer, Question

A_WHILE, LONGEST = 100, 3.0
"""Questions; and seconds, since what is not there may be told late."""
T = TypeVar("T")


class Heard(NamedTuple):
    """A client's answers: before, until the change was done, and after."""

    question: Question
    before: tuple[Answer, ...]
    during: tuple[Answer, ...]
    after: tuple[Answer, ...]

    @property
    def all(self) -> tuple[Answer, ...]:
        return self.before + self.during + self.after


def lost(answers: Iterable[Answer], nobody: str = REFUSED) -> int:
    """How many were neither answered nor refused; nor told that there is `nobody`, in whichever words."""
    return sum(answer.error not in ("", REFUSED, nobody) for answer in answers)


def while_asking(questions: Sequence[Question], change: Callable[[], T]) -> tuple[T, float, list[Heard]]:
    """What `change` returns, how many seconds it took, and what each client heard. Raises what `change` raises."""
    done, given_up = Event(), Event()
    with ThreadPoolExecutor(max(1, len(questions))) as clients:
        ready = [Event() for _ in questions]
        heard = [clients.submit(_ask, *it, done, given_up) for it in zip(questions, ready, strict=True)]
        try:
            for it in ready:
                it.wait()
            begin = perf_counter()
            result = change()
            seconds = perf_counter() - begin
            done.set()
            return result, seconds, [it.result() for it in heard]
        finally:
            given_up.set()
            done.set()


def _ask(question: Question, ready: Event, done: Event, given_up: Event) -> Heard:
    try:
        before = _for_a_while(question, given_up)
    finally:
        ready.set()
    during: list[Answer] = []
    while not done.is_set():
        during += probe.put(question, 1)
    return Heard(question, before, tuple(during), _for_a_while(question, given_up))


def _for_a_while(question: Question, given_up: Event) -> tuple[Answer, ...]:
    until = perf_counter() + LONGEST
    return tuple(takewhile(lambda _: not given_up.is_set() and perf_counter() < until, probe.put(question, A_WHILE)))
