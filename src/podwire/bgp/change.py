"""From what a daemon holds to what it should hold: the least commands, in an order in which nothing is lost. Pure.

Invariants: what is named is made before what names it, and removed after it: first all that is new or another value,
then all that goes. So a route gets other attributes, another class or a new place without being gone for an instant,
a session keeps what it has until it has the other, and a change of routes says nothing about sessions. A new session
begins once all of it is said; so does one that can't go on as it is, at once, however often it has failed before.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from podwire.bgp.lines import neighbor_of, ranked, subject, undo
from podwire.bgp.ours import FAMILIES, ROUTER
from podwire.bgp.tree import EMPTY, Block, exit_of, headers

_OF_THE_SESSION = frozenset(("activate", "ebgp-multihop", "local-as", "password", "port", "remote-as", "update-source"))
"""What bgpd ends a session for, or begins it with."""

BEGIN, END = "XFRR_start_configuration", "XFRR_end_configuration"
"""Between these bgpd takes commands of its newer kind as one transaction, as from `vtysh -f`, until one of the older
kind comes: `exit` is one. What is wrong with the whole is in the text of the answer to the second."""
LEAST = 100
"""Commands that are said so: each that is said alone is a transaction of its own, in which bgpd looks through all that
there is, so that a thousand take minutes. New sessions wait some seconds for its end, so that few are said alone."""
_LISTS = ("ip prefix-list ", "ipv6 prefix-list ", "no ip prefix-list ", "no ipv6 prefix-list ")
_NEWER = ("route-map ", "no route-map ", *_LISTS)


class Change(NamedTuple):
    """Commands, beginning where `configure terminal` leads to. `make` comes first."""

    make: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()


def change(held: Block, wanted: Block, shared: bool = False) -> Change:
    """`held`: of ours. `shared`: others have lines in our router, so that it stays though we have none in it."""
    make = list(ranked(wanted.lines - held.lines))
    remove = _undone(held.lines - wanted.lines, wanted.lines - held.lines)
    first: list[str] = []
    for header in headers(held.blocks.keys() | wanted.blocks.keys()):
        inner = Change()
        if header in wanted.blocks:
            inner = _of_block(header, held.blocks.get(header), wanted.blocks[header])
        elif header.startswith(ROUTER) and any(it.startswith(ROUTER) for it in wanted.blocks):
            first += _farewell(header, held.blocks[header])  # there can be one only
        elif header in FAMILIES or (header.startswith(ROUTER) and shared):
            inner = _of_block(header, held.blocks[header], EMPTY)
        else:
            inner = Change((), _farewell(header, held.blocks[header]))
        make += inner.make
        remove = [*inner.remove, *remove]
    return Change((*first, *make), tuple(remove))


def _farewell(header: str, held: Block) -> tuple[str, ...]:
    """A router that goes tells its neighbours nothing, and they would wait for its return."""
    about = (line.split(" ") for line in held.lines)
    whom = sorted(words[1] for words in about if words[0] == "neighbor" and words[2] == "remote-as")
    ended = tuple(f"no neighbor {who}" for who in whom if "." in who or ":" in who)
    return (*_within(header, ended), undo(header))


def at_once(commands: Sequence[str], least: int = LEAST) -> Iterator[str]:
    """The same, with so many or more of route maps and lists of prefixes in a row as one transaction."""
    run: list[str] = []
    within = False
    for command in commands:
        newer = command.startswith(_NEWER)
        if not newer and not within:
            yield from _run(run, least)
            run = []
            yield command
            continue
        run.append(command)
        within = command.startswith("route-map ") or (within and not newer and command != "exit")
    yield from _run(run, least)


def _run(commands: list[str], least: int) -> list[str]:
    """Every header of a block is known within any other block."""
    if len(commands) < max(1, least):
        return commands
    return [BEGIN, *(it for it in commands if it != "exit"), END]


def lacking(commands: Iterable[str], refused: Iterable[str]) -> tuple[str, ...]:
    """The commands that take away the entries of route maps in which something was refused: without it they would let
    routes go further than these may."""
    wrong = set(refused)
    header, found = "", []
    for command in commands:
        if command.startswith("route-map "):
            header = command
        elif command in wrong and header and command.startswith(("match ", "set ")):
            found.append(undo(header))
    return tuple(dict.fromkeys(found))


def _undone(over: frozenset[str], new: frozenset[str]) -> list[str]:
    """Where a new line takes the place of an old one, nothing needs to be said of that."""
    kept = {subject(line) for line in new} if over else set()
    return [undo(line) for line in reversed(ranked(over)) if subject(line) not in kept]


def _of_block(header: str, held: Block | None, wanted: Block) -> Change:
    inner = (_router if header.startswith(ROUTER) else change)(held or EMPTY, wanted)
    return Change(_within(header, inner.make, held is None), _within(header, inner.remove))


def _within(header: str, commands: tuple[str, ...], at_all: bool = False) -> tuple[str, ...]:
    """`at_all`: that the block is there says something, too."""
    return (header, *commands, exit_of(header)) if commands or at_all else ()


def _router(held: Block, wanted: Block) -> Change:
    before, after = _neighbors(held), _neighbors(wanted)
    gone, new = before - after, sorted(after - before)
    again = sorted((before & after) & _restarting(held, wanted))
    plain = change(_without(held, gone), wanted)
    until_said = [f"neighbor {who} shutdown" for who in (*again, *new)]
    at = 1 + max((number for number, line in enumerate(plain.make) if " remote-as " in line), default=-1)
    make = (*plain.make[:at], *until_said, *plain.make[at:], *(f"no neighbor {who} shutdown" for who in new))
    ended = (f"no neighbor {who}" for who in sorted(gone))
    return Change(make, (*plain.remove, *ended, *(f"no neighbor {who} shutdown" for who in again)))


def _restarting(held: Block, wanted: Block) -> set[str | None]:
    """Neighbours of whom that changes by which a session comes about."""
    lines = (held.lines ^ wanted.lines).union(
        *(held.blocks.get(it, EMPTY).lines ^ wanted.blocks.get(it, EMPTY).lines for it in FAMILIES)
    )
    return {neighbor_of(line) for line in lines if line.split(" ", 3)[2:3] and line.split(" ", 3)[2] in _OF_THE_SESSION}


def _neighbors(router: Block) -> set[str]:
    found = (neighbor_of(line) for line in router.lines)
    return {who for who in found if who is not None}


def _without(router: Block, gone: set[str]) -> Block:
    """What goes with its neighbour needs no word of its own."""
    if not gone:
        return router
    lines = frozenset(line for line in router.lines if neighbor_of(line) not in gone)
    return Block(lines, {header: _without(block, gone) for header, block in router.blocks.items()})
