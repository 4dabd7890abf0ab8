"""Elements of maps as bytes: written in one piece or in parts, read back whatever stands beside them."""

from struct import pack
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from podwire.dataplane.messages import NESTED, attr, nest, text
from podwire.dataplane.nftables import wire as w
from podwire.dataplane.nftables.elements import elements
from podwire.model.addresses import IPV4, IPV6


class Given(NamedTuple):
    key: bytes
    data: bytes
    flags: int
    beyond: bytes


def binary(most: int) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=1, max_size=most)


ODD = st.builds(Given, binary(40), st.just(b"") | binary(24).map(lambda it: attr(1, it)), st.integers(0, 2), binary(8))
ALIKE = st.builds(
    Given,
    st.binary(min_size=16, max_size=16),
    st.binary(min_size=8, max_size=8).map(lambda it: attr(1, it)),
    st.just(0),
    st.just(b""),
)
KEYS_ALONE = ALIKE.map(lambda it: it._replace(data=b""))


def in_parts(it: Given) -> bytes:
    flagged = attr(3, pack(">I", it.flags)) if it.flags else b""
    until = nest(10, attr(1, it.beyond)) if it.beyond else b""
    return nest(1, nest(1, attr(1, it.key)), until, nest(2, it.data) if it.data else b"", flagged)


@given(ODD | ALIKE | KEYS_ALONE)
def test_an_element_is_the_same_bytes_however_it_is_made(it: Given) -> None:
    assert w.element(*it) == in_parts(it)


@given(st.lists(ALIKE, max_size=4), st.lists(ODD | ALIKE | KEYS_ALONE, max_size=4), st.booleans())
def test_every_element_is_read_whatever_comes_before_it(alike: list[Given], others: list[Given], first: bool) -> None:
    given_ = [*others, *alike] if first else [*alike, *others]
    body = w.head(IPV4) + text(1, "podwire") + text(2, "eps") + nest(3, *map(in_parts, given_))
    read = list(elements([body]))
    assert [(it.key, it.data, it.flags, it.until) for it in read] == [tuple(it) for it in given_]
    for was, it in zip(given_, read, strict=True):
        until = attr(10 | NESTED, attr(1, was.beyond)) if was.beyond else b""
        flagged = attr(3, pack(">I", was.flags)) if was.flags else b""
        assert it.raw == attr(1 | NESTED, attr(1, was.key)) + until + flagged


@given(st.binary(max_size=120))
def test_whatever_bytes_come_are_read_or_passed_over(body: bytes) -> None:
    for listed in (body, w.head(IPV6) + nest(3, body), w.head(IPV6) + nest(3, attr(1, body))):
        list(elements([listed]))
