"""From any configuration of FRR's daemons to any other: what they are told leads there, and nothing is lost on the way.

`Daemon` is a model of how bgpd takes commands; tests/kernel/test_bgp_config.py holds the same against a real one.
"""

from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.bgp.change import BEGIN, END, Change, at_once, change
from podwire.bgp.config import MOST_COMMUNITIES, plan
from podwire.bgp.ours import DAEMONS, found
from podwire.bgp.tree import EMPTY, Block, parse, show
from podwire.model.addresses import parse_prefix
from podwire.model.announcements import Attributes, Speaker
from tests.unit import bgp_speakers
from tests.unit.bgp_speakers import many, session, speaker, speakers

HEADERS = ("router bgp ", "address-family ", "route-map ", "bfd", "profile ")
SAID_SO = ("no bgp default ipv4-unicast", "no bgp network import-check", "no bgp graceful-restart notification")
LISTS = ("ip prefix-list ", "ipv6 prefix-list ", "no ip prefix-list ", "no ipv6 prefix-list ")
ONE_VALUE = (
    *("remote-as", "description", "timers connect", "timers", "local-as", "port", "password", "ebgp-multihop"),
    *("update-source", "bfd profile"),
)


class Daemon:
    """Takes commands as bgpd does, as far as ours go: a block's header opens it, `neighbor A remote-as` makes a
    neighbour, without which nothing else is known of it, and `no neighbor A` forgets all of it."""

    def __init__(self, block: Block = EMPTY) -> None:
        self.lines = set(block.lines)
        self.blocks = {header: Daemon(inner) for header, inner in block.blocks.items()}

    def block(self) -> Block:
        parts = {header: inner.block() for header, inner in self.blocks.items()}
        kept = {header: it for header, it in parts.items() if it or not header.startswith("address-family ")}
        return Block(frozenset(self.lines), kept)

    def told(self, commands: Iterable[str]) -> Iterator[None]:
        """Yields after each."""
        path = [self]
        for command in commands:
            if command.startswith(("route-map ", "no route-map ", *LISTS, BEGIN, END)):
                del path[1:]
            if command in (BEGIN, END):
                yield
                continue
            if command in ("exit", "exit-address-family"):
                path.pop()
            elif command.startswith("no ") and command.removeprefix("no ") in path[-1].blocks:
                del path[-1].blocks[command.removeprefix("no ")]
            elif command.startswith(HEADERS) and not command.startswith("bfd "):
                path.append(path[-1].opened(command))
            else:
                path[-1].take(command, path)
            yield
        assert path == [self], "every block is left"

    def opened(self, header: str) -> "Daemon":
        if header.startswith("router bgp "):
            routers = {it for it in self.blocks if it.startswith("router bgp ") and " vrf " not in it}
            assert routers <= {header}, "there can be one only"
        if header.startswith("route-map "):  # of one number there is one
            kind, number = header.split(" ")[2:]
            other = header.replace(f" {kind} ", " deny " if kind == "permit" else " permit ")
            if other in self.blocks:
                self.blocks[header] = self.blocks.pop(other)
            assert int(number) > 0
        return self.blocks.setdefault(header, Daemon())

    def take(self, command: str, path: list["Daemon"]) -> None:
        words = command.removeprefix("no ").split(" ")
        if words[0] == "neighbor":
            router = path[1]
            known = any(line.startswith(f"neighbor {words[1]} remote-as ") for line in router.lines)
            assert known or words[2] == "remote-as", f"{command}: unknown"
            if command == f"no neighbor {words[1]}":
                for part in (router, *router.blocks.values()):
                    part.lines = {line for line in part.lines if not line.startswith(f"neighbor {words[1]} ")}
                return
        if command.startswith("no ") and command not in SAID_SO:
            gone = command.removeprefix("no ")
            assert any(line == gone or line.startswith(f"{gone} ") for line in self.lines), f"{command}: there is none"
            self.lines = {line for line in self.lines if line != gone and not self.is_value_of(line, gone)}
            return
        if words[-1] in ("in", "out"):  # neighbor A route-map NAME out
            alike = (*words[:3], words[-1])
            self.lines = {line for line in self.lines if (*line.split(" ")[:3], line.split(" ")[-1]) != alike}
        head = self.head(words)
        self.lines = {line for line in self.lines if head is None or not self.is_value_of(line, head)}
        self.lines.add(command)

    @staticmethod
    def is_value_of(line: str, head: str) -> bool:
        if not line.startswith(f"{head} "):
            return False
        return not (head.endswith(" timers") and " timers connect " in line)

    @staticmethod
    def head(words: list[str]) -> str | None:
        """Of a line that can hold once: all but its value."""
        line = " ".join(words)
        heads = [f"neighbor {words[1]} {it}" for it in ONE_VALUE] if words[0] == "neighbor" else []
        heads += ["bgp router-id", "bgp graceful-restart restart-time", f"network {words[1]}", "set community"]
        return next((it for it in heads if line.startswith(f"{it} ")), None)


def steps(daemon: str, before: Block, wanted: Block) -> Change:
    return change(found(daemon, before, wanted).ours, wanted)


def taken(change: Change, before: Block) -> Block:
    """Whether command by command, or many of them at once."""
    daemon, other = Daemon(before), Daemon(before)
    list(daemon.told((*change.make, *change.remove)))
    list(other.told((*at_once(change.make, 1), *at_once(change.remove, 1))))
    assert other.block() == daemon.block()
    return daemon.block()


@given(st.lists(speakers(), min_size=1, max_size=4))
def test_from_any_configuration_to_any_other(stations: list[Speaker | None]) -> None:
    held = dict.fromkeys(DAEMONS, EMPTY)
    for station in stations:
        wanted = plan(station, held["bgpd"]).held
        for daemon in DAEMONS:
            held[daemon] = taken(steps(daemon, held[daemon], wanted[daemon]), held[daemon])
            assert held[daemon] == wanted[daemon]
        again = plan(station, held["bgpd"]).held
        assert [steps(daemon, held[daemon], again[daemon]) for daemon in DAEMONS] == [Change()] * len(DAEMONS)


@given(speakers())
def test_what_a_daemon_begins_with_is_what_it_is_told(any_one: Speaker | None) -> None:
    for block in plan(any_one).held.values():
        assert parse(show(block)) == block


def routes_told(block: Block) -> dict[tuple[str, str], frozenset[str]]:
    """By neighbour and prefix, what its outbound route map sets: as bgpd goes through it, whose first match counts."""
    tags = {
        header.split(" ")[1]: next(iter(inner.lines), "")
        for header, inner in block.blocks.items()
        if header.startswith("route-map podwire-class-")
    }
    told = {}
    for router in (it for header, it in block.blocks.items() if header.startswith("router bgp ")):
        for family in router.blocks.values():
            networks = [line.split(" ") for line in family.lines if line.startswith("network ")]
            for line in sorted(it for it in family.lines if it.endswith(" out")):
                _, who, _, name, _ = line.split(" ")
                for _, prefix, _, which in networks:
                    mark = tags.get(which, "").replace("set", "match")
                    entries = [
                        it for header, it in block.blocks.items() if header.startswith(f"route-map {name} permit ")
                    ]
                    settings = [it.lines - {mark} for it in entries if mark in it.lines]
                    if settings:
                        told[who, prefix] = settings[0]
    return told


@given(speakers().filter(bool), st.data())
def test_a_route_that_stays_is_told_all_the_while(one: Speaker, data: st.DataObject) -> None:
    """After each single command, every route that is told before and after is told: in the old way or in the new."""
    other = data.draw(speakers().filter(bool))
    assert other is not None
    other = other._replace(asn=one.asn, sessions=one.sessions, next_hops=one.next_hops)
    before = plan(one).held["bgpd"]
    wanted = plan(other, before).held["bgpd"]
    old, new = routes_told(before), routes_told(wanted)
    due = steps("bgpd", before, wanted)
    assert not any(" shutdown" in it or " activate" in it or " remote-as " in it for it in (*due.make, *due.remove))
    daemon = Daemon(before)
    for _ in daemon.told((*due.make, *due.remove)):
        now = routes_told(daemon.block())
        for route in old.keys() & new.keys():
            assert now[route] in (old[route], new[route])


TOR = (session("tor-a", "10.99.1.254"), session("tor-b", "fd99:2::fe"))


def test_a_route_more_is_one_line_of_many() -> None:
    before = plan(many(500, TOR)).held["bgpd"]
    due = steps("bgpd", before, plan(many(501, TOR), before).held["bgpd"])
    assert [it.split(" route-map")[0] for it in due.make] == [
        *("router bgp 65001", "address-family ipv4 unicast", "network 10.201.1.244/32"),
        *("exit-address-family", "exit"),
    ]
    assert due.remove == ()


def test_many_route_maps_are_said_at_once_and_few_as_ever() -> None:
    """A transaction holds them alone, and ends before a session begins."""
    routes = {f"10.0.0.{number}/32": Attributes((f"1:{number}",)) for number in range(40)}
    wanted = plan(speaker(TOR, routes)).held["bgpd"]
    for due in (change(EMPTY, wanted).make, change(wanted, EMPTY).remove):
        said = list(at_once(due))
        assert [it for it in said if it not in (BEGIN, END, "exit")] == [it for it in due if it != "exit"]
        within = said[said.index(BEGIN) + 1 : said.index(END)]
        assert sum(" route-map " in f" {it}" for it in within) > 80
        assert not [it for it in within if it.startswith(("exit", "router", "neighbor", "network", "no router"))]
    few = plan(speaker(TOR, {"10.0.0.1/32": Attributes()})).held["bgpd"]
    assert tuple(at_once(change(EMPTY, few).make)) == change(EMPTY, few).make


def test_an_equal_configuration_says_nothing_whatever_the_order() -> None:
    one = speaker(TOR, {"10.0.0.1/32": Attributes(("1:2", "no-export")), "fd00::1/128": Attributes()})
    other = one._replace(sessions=TOR[::-1], routes=dict(reversed(one.routes.items())))
    assert plan(one).held == plan(other).held


def test_what_a_hand_has_said_of_us_is_put_right() -> None:
    wanted = plan(speaker(TOR, {"10.0.0.1/32": Attributes()})).held["bgpd"]
    hands = parse(
        show(wanted)
        .replace(" timers 30 90", " timers 5 15")
        .replace(" neighbor fd99:2::fe remote-as", " neighbor 10.99.1.254 shutdown\n neighbor fd99:2::fe remote-as")
        .replace(
            "  network 10.0.0.1/32 route-map", "  network 10.0.0.1/32 route-map mine\n  network 10.0.0.9/32 route-map"
        )
    )
    due = steps("bgpd", hands, wanted)
    assert taken(due, hands) == wanted
    assert "no neighbor 10.99.1.254 shutdown" in due.remove
    assert "no network 10.0.0.9/32" in due.remove


def test_what_others_have_said_stays_and_is_told() -> None:
    wanted = plan(speaker(TOR, {"10.0.0.1/32": Attributes()})).held["bgpd"]
    theirs = "\nrouter bgp 7 vrf red\n neighbor 1.1.1.1 remote-as 3\nexit\nip prefix-list mine seq 5 permit any\n"
    own = " neighbor 10.9.9.9 remote-as 65123\n neighbor 10.9.9.9 password hidden\n"
    text = show(wanted).replace("router bgp 65001\n", f"router bgp 65001\n{own}") + theirs
    read = found("bgpd", parse(text), wanted)
    assert read.ours == wanted
    assert set(read.foreign) == {
        "ip prefix-list mine seq 5 permit any",
        "router bgp 7 vrf red",
        "router bgp 65001: neighbor 10.9.9.9 remote-as 65123",
        "router bgp 65001: neighbor 10.9.9.9 password …",
    }
    assert read.shared
    kept = taken(change(read.ours, EMPTY, read.shared), parse(text))
    assert "router bgp 65001" in kept.blocks
    assert "neighbor 10.9.9.9 remote-as 65123" in kept.blocks["router bgp 65001"].lines


def test_a_router_of_another_number_is_in_the_way() -> None:
    wanted = plan(speaker(TOR, {})).held["bgpd"]
    due = steps("bgpd", parse("router bgp 64999\n neighbor 1.1.1.1 remote-as 3\nexit\n"), wanted)
    assert due.make[:4] == ("router bgp 64999", "no neighbor 1.1.1.1", "exit", "no router bgp 64999")


@pytest.mark.parametrize(
    ("which", "words"),
    [
        (session("x", "10.0.0.9", asn=65002, local_asn=65002), "between AS 65002 and AS 65002"),
        (session("x", "10.0.0.9", asn=65001, local_asn=65002), "between AS 65002 and AS 65001"),
        (session("x", "10.99.1.254"), "tor-a has the same address"),
        (session("x", "fe80::1"), "link-local"),
        (session("x", "10.0.0.9", password="two words"), "blank"),
        (session("x", "10.0.0.9", password="x" * 81), "81 characters"),
    ],
)
def test_a_session_that_can_not_be_had_is_refused_and_no_other(which: bgp_speakers.Session, words: str) -> None:
    made = plan(speaker((*TOR, which), {"10.0.0.1/32": Attributes()}))
    assert words in made.refused["x"]
    assert made.held == plan(speaker(TOR, {"10.0.0.1/32": Attributes()})).held
    assert which.password == "" or which.password not in made.refused["x"]


def test_a_family_without_an_address_to_name_is_not_told() -> None:
    made = plan(speaker(TOR, {"10.0.0.1/32": Attributes(), "fd00::1/128": Attributes()})._replace(next_hops=()))
    assert set(routes_told(made.held["bgpd"])) == {("10.99.1.254", "10.0.0.1/32"), ("fd99:2::fe", "fd00::1/128")}
    assert made.limits == {
        "tor-a": "it is told no IPv6 route: the node has no IPv6 address to name in one",
        "tor-b": "it is told no IPv4 route: the node has no IPv4 address to name in one",
    }


def test_no_community_that_is_none() -> None:
    with pytest.raises(ValueError, match="'no-exports' is no community: expected such as 64512:100"):
        plan(speaker(TOR, {"10.0.0.1/32": Attributes(("no-exports",))}))


@given(speakers())
def test_no_line_is_longer_than_bgpd_takes(any_one: Speaker | None) -> None:
    """After one of 4,096 bytes it answers nothing more."""
    for daemon in plan(any_one).held.values():
        for line in show(daemon).splitlines():
            assert len(line) < 4000
            assert len(line.split()) < 250


@pytest.mark.parametrize("large", [False, True])
def test_a_route_with_more_communities_than_can_be_told_is_not_told_without_them(large: bool) -> None:
    most = tuple(f"1:{'1:' if large else ''}{number}" for number in range(MOST_COMMUNITIES + 1))
    for few, addresses in ((most, ()), (most[1:], ("10.99.1.254", "fd99:2::fe"))):
        made = plan(speaker(TOR, {"10.0.0.1/32": Attributes((), few) if large else Attributes(few)}))
        assert {where for where, _ in routes_told(made.held["bgpd"])} == set(addresses)
        words = "" if addresses else f"it is not told routes with more than {MOST_COMMUNITIES} communities of a kind"
        assert set(made.limits.values()) == set(filter(None, [words]))


def test_other_attributes_are_another_class_that_is_made_first() -> None:
    before = plan(many(3, TOR)).held["bgpd"]
    due = steps("bgpd", before, plan(many(3, TOR, Attributes(("1:2",))), before).held["bgpd"])
    firsts = [it for it in due.make if it.startswith(("route-map podwire-class", "network"))]
    assert [it.split(" ")[0] for it in firsts] == ["route-map", *["network"] * 3]
    assert not any(it.startswith("no network") for it in due.remove)
    assert parse_prefix("10.201.0.0/32") in many(3, TOR).routes
