"""Speakers of all kinds, for tests of what FRR is told: some that are told by hand, and any that hypothesis draws."""

from hypothesis import strategies as st

from podwire.bgp.config import MAX_PASSWORD, MOST_COMMUNITIES
from podwire.model.addresses import FAMILIES, Address, Prefix, parse_address, parse_prefix, prefix_around
from podwire.model.announcements import BFD, Attributes, Session, Speaker

ROUTERS = tuple(map(parse_address, ("10.99.1.254", "10.99.2.254", "10.99.2.253", "fd99:1::fe", "fd99:2::fe")))
"""Nobody has to be there."""
OWN = (parse_address("10.99.1.1"), parse_address("fd99:1::1"))
PREFIXES = tuple(
    map(
        parse_prefix,
        (
            *("10.200.0.1/32", "10.200.0.2/32", "10.200.0.0/24", "0.0.0.0/0", "10.0.0.0/8", "172.16.0.0/16"),
            *("fd00:200::1/128", "fd00::/64", "::/0", "::1.2.3.4/128", "2001:db8:0:0:1::/80"),
        ),
    )
)
PLAIN = Attributes()
NAMES = ("", ".x", "-end", "." + ".".join(["router"] * 30))
PASSWORDS = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=MAX_PASSWORD)
"""All that FRR can be told."""
MANY = tuple(f"4294967295:4294967295:{4294960000 + number}" for number in range(MOST_COMMUNITIES + 1))
"""Large communities."""


def session(name: str, address: str, **more: object) -> Session:
    given: dict[str, object] = {"asn": 65010, "local_asn": 65001, **more}
    return Session(name, parse_address(address), **given)  # type: ignore[arg-type]


def speaker(sessions: tuple[Session, ...], routes: dict[str, Attributes], asn: int = 65001) -> Speaker:
    """Every route is told to all."""
    told = {parse_prefix(prefix): tuple((it.name, how) for it in sessions) for prefix, how in routes.items()}
    return Speaker(asn, OWN[0], OWN, sessions, told)


attributes = st.builds(
    Attributes,
    communities=st.sets(st.sampled_from(("64512:100", "1:2", "no-export", "local-AS", "65535:666", "blackhole"))).map(
        lambda found: tuple(sorted(found))
    ),
    large=st.sets(st.sampled_from(("64512:1:2", "4200000001:0:7"))).map(lambda found: tuple(sorted(found)))
    | st.sampled_from((MANY[1:], MANY)),
    local_pref=st.sampled_from((None, 0, 100, 200, 4294967295)),
)
intervals = st.sampled_from((10, 100, 300, 60_000))
bfds = st.builds(BFD, intervals, intervals, st.sampled_from((2, 3, 5, 255)))


@st.composite
def sessions(draw: st.DrawFn, address: Address, name: str) -> Session:
    hold = draw(st.sampled_from((0, 3, 90, 180)))
    return Session(
        name,
        address,
        asn=draw(st.sampled_from((65001, 65010, 4200000001))),
        local_asn=draw(st.sampled_from((65001, 65001, 65002))),
        port=draw(st.sampled_from((179, 1179))),
        source=draw(st.sampled_from((None, next(it for it in OWN if len(it) == len(address))))),
        password=draw(st.sampled_from(("", "", "secret", "an!#other\"?$'")) | PASSWORDS),
        hold=hold,
        keepalive=draw(st.integers(1, hold)) if hold else 0,
        connect=draw(st.sampled_from((10, 120))),
        multihop=draw(st.booleans()),
        bfd=draw(st.none() | bfds),
        graceful_restart=draw(st.booleans()),
        restart=draw(st.sampled_from((120, 60, 4095))),
        families=draw(st.sampled_from((FAMILIES, FAMILIES, FAMILIES[:1], FAMILIES[1:]))),
        receives=tuple(sorted(draw(st.sets(st.sampled_from(PREFIXES), max_size=3)))),
    )


@st.composite
def speakers(draw: st.DrawFn) -> Speaker | None:
    if draw(st.integers(0, 7)) == 0:
        return None
    chosen = sorted(draw(st.sets(st.sampled_from(ROUTERS), max_size=3)))
    found = tuple(
        draw(sessions(address, f"router-{number}{draw(st.sampled_from(NAMES))}"))
        for number, address in enumerate(chosen)
    )
    names = [it.name for it in found]
    routes: dict[Prefix, tuple[tuple[str, Attributes], ...]] = {}
    for prefix in sorted(draw(st.sets(st.sampled_from(PREFIXES)))):
        told = sorted(draw(st.sets(st.sampled_from(names)))) if names else []
        routes[prefix] = tuple((name, draw(attributes)) for name in told)
    hops = tuple(draw(st.sets(st.sampled_from(OWN))))
    return Speaker(draw(st.sampled_from((65001, 65001, 65002))), OWN[0], hops, found, routes)


def many(count: int, sessions: tuple[Session, ...], attributes: Attributes = PLAIN) -> Speaker:
    """So many routes of a /32 each."""
    first = parse_address("10.201.0.0")
    base = int.from_bytes(first, "big")
    told = tuple((it.name, attributes) for it in sessions)
    prefixes = (prefix_around(Address((base + number).to_bytes(4, "big")), 32) for number in range(count))
    return Speaker(65001, OWN[0], OWN, sessions, dict.fromkeys(prefixes, told))
