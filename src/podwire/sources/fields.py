"""The fields of an API object: read and checked, one rule each.

Invariants: every function returns the meaning of what is right and raises `Invalid` for what is not. A reader of an
item knows nothing of where it stands; the caller that does puts its place before the error's field. Addresses are
read as leniently as API servers have stored them; our own files and commands read them strictly (`model.addresses`).
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from sys import intern
from typing import TypeVar

import msgspec

from podwire.model.addresses import (
    Address,
    AddressRange,
    Family,
    Prefix,
    family_of,
    overlap,
    parse_address,
    prefix_around,
    special,
    special_in,
)
from podwire.model.objects import Protocol

T = TypeVar("T")
U = TypeVar("U")


class Invalid(ValueError):
    """An object that breaks the API's rules.

    `field` is its path in the object (`spec.ports[1].port`), "" for the object itself; `message` says the right form.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field
        self.message = message

    def within(self, outer: str) -> "Invalid":
        dot = "." if outer and self.field and not self.field.startswith("[") else ""
        return type(self)(f"{outer}{dot}{self.field}", self.message)

    def dispensable(self) -> "Unfit":
        return Unfit(self.field, self.message)


class Unfit(Invalid):
    """What can't stand there, though the object means something without it: an address or range of the right form
    that nobody can have; one of many members that can't be read."""


def shown(value: object) -> str:
    if isinstance(value, int) and value.bit_length() > 64:
        return "a number of more than 64 bits"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


# --- msgspec's errors --------------------------------------------------------------------------

_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "a mapping",
}
_MISMATCH = re.compile(r"Expected `([^`]*)`(?:, got `([^`]*)`)?")
_MISSING = re.compile(r"Object missing required field `([^`]*)`")
_PATH = re.compile(r" - at (`key` in )?`\$\.?([^`]*)`$")


def invalid(error: msgspec.ValidationError) -> Invalid:
    """``Expected `int`, got `str` - at `$.spec.ports[0].port` `` in our words."""
    text = str(error)
    where = _PATH.search(text)
    path = where[2].removesuffix("[...]") if where else ""
    if missing := _MISSING.match(text):
        return Invalid(missing[1], "missing").within(path)
    if mismatch := _MISMATCH.match(text):
        wanted = " or ".join(_TYPES.get(name, name) for name in mismatch[1].split(" | ") if name != "null")
        got = f", not {_TYPES.get(mismatch[2], mismatch[2])}" if mismatch[2] else ""
        keys = "as keys, " if where and where[1] else ""
        return Invalid(path, f"{keys}expected {wanted}{got}")
    return Invalid(path, _PATH.sub("", text))


# --- several -----------------------------------------------------------------------------------


def read_each(
    path: str, given: Iterable[T] | None, read: Callable[[T], U], left_out: list[Invalid] | None = None
) -> list[U]:
    """`left_out`, where given, takes the errors of items that are Unfit, and the rest is read without them."""
    done: list[U] = []
    for number, item in enumerate(given or ()):
        try:
            done.append(read(item))
        except Invalid as wrong:
            inner = wrong.within(f"{path}[{number}]")
            if left_out is None or not isinstance(inner, Unfit):
                raise inner from None
            left_out.append(inner)
    return done


def read_at(path: str, value: T, read: Callable[[T], U]) -> U:
    try:
        return read(value)
    except Invalid as wrong:
        raise wrong.within(path) from None


def read_either(
    single: tuple[str, str | None],
    several: tuple[str, Sequence[str] | None],
    read: Callable[[str], T],
    left_out: list[Invalid] | None = None,
    item: str = "",
) -> list[T]:
    """A field in its older form and its newer one of several values, each by path and value.

    Of both, the older must repeat the first of the newer (Kubernetes API, ServiceSpec.clusterIPs and others).
    `left_out`: see `read_each`. `item`: the path of the value within each of the several.
    """
    (path, value), (paths, values) = single, several
    if not values:
        try:
            return [read(value)] if value else []
        except Invalid as wrong:
            inner = wrong.within(path)
            if left_out is None or not isinstance(inner, Unfit):
                raise inner from None
            left_out.append(inner)
            return []
    if value and value != values[0]:
        first = f"{paths}[0].{item}" if item else f"{paths}[0]"
        raise Invalid(path, f"expected the same as {first}, {shown(values[0])}, not {shown(value)}")
    return read_each(paths, values, lambda value: read_at(item, value, read), left_out)


def one_per_family(read: Callable[[str], T], family: Callable[[T], Family]) -> Callable[[str], T]:
    """A reader of a list's items that takes at most one of each family. For one list: it remembers what it has read."""
    taken: set[Family] = set()

    def read_next(text: str) -> T:
        item = read(text)
        if (its := family(item)) in taken:
            raise Invalid("", f"expected at most one of each family; this is a second {its} one ({shown(text)})")
        taken.add(its)
        return item

    return read_next


def check_apart(path: str, ranges: Sequence[Prefix | AddressRange]) -> None:
    """Raises Invalid where two overlap."""
    for number, each in enumerate(ranges):
        other = next((it for it in ranges[:number] if overlap(it, each)), None)
        if other is not None:
            raise Invalid(f"{path}[{number}]", f"expected ranges that don't overlap; {each} does with {other}")


def check_distinct(path: str, name: str, values: Sequence[str]) -> None:
    """No two alike but those that are empty."""
    seen: dict[str, int] = {}
    for number, value in enumerate(values):
        if value and seen.setdefault(value, number) != number:
            raise Invalid(f"{path}[{number}].{name}", f"{value} is already that of {path}[{seen[value]}]")


# --- addresses ---------------------------------------------------------------------------------

_MAPPED = bytes(10) + b"\xff\xff"
_ZEROS = re.compile(r"(?<![0-9A-Fa-f])0+(?=[0-9A-Fa-f])")
"""Those that lead a number of an address."""


def _parse(text: str) -> Address:
    """Numbers may have leading zeros, and stay decimal in IPv4: API servers have stored such addresses, and go on
    serving them (KEP-4858; `ParseIPSloppy` of k8s.io/utils). Raises ValueError."""
    try:
        return parse_address(text)
    except ValueError:
        return parse_address(_ZEROS.sub("", text))


def read_address(text: str) -> Address:
    """An IPv4-mapped IPv6 address is the IPv4 address, as for the API's own parser."""
    try:
        address = _parse(text)
    except ValueError:
        raise Invalid("", f"expected an IP address, not {shown(text)}") from None
    return Address(address[12:]) if address[:12] == _MAPPED else address


def read_unicast(text: str, family: Family | None = None) -> Address:
    """An address that a host or a Service can have (`model.addresses.special`). Raises Unfit for any other."""
    address = read_address(text)
    if family is not None and len(address) != family.size:
        raise Invalid("", f"expected an {family} address, not {shown(text)}")
    if (kind := special(address)) is not None:
        raise Unfit("", f"expected an address that a host can have, not {shown(text)}, which is {kind}")
    return address


def read_prefix(text: str) -> Prefix:
    """A range of addresses that hosts or Services can have. Raises Unfit where it holds others."""
    prefix = _range(text)
    if (others := special_in(prefix)) is not None:
        raise Unfit("", f"expected a range without {others}, not {shown(text)}")
    return prefix


def read_sources(text: str) -> Prefix:
    """A range of clients; blanks around it are let pass, as by the API server."""
    return _range(text.strip())


def _range(text: str) -> Prefix:
    """Host bits mean nothing, as API servers have stored them (KEP-4858; Go's `ParseCIDR` gives the network)."""
    head, _, tail = text.partition("/")
    try:
        address = _parse(head)
        if tail.isascii() and tail.isdigit() and int(tail) <= family_of(address).bits:
            return prefix_around(address, int(tail))
    except ValueError:
        pass
    raise Invalid("", f"expected an address range such as 192.0.2.0/24 or 2001:db8::/32, not {shown(text)}")


# --- ports and names ---------------------------------------------------------------------------

_PROTOCOLS = {protocol.name: protocol for protocol in Protocol}
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")


def read_one_of(value: str | None, path: str, known: Sequence[str]) -> str:
    """The first of them where nothing is given."""
    if value is not None and value not in known:
        raise Invalid(path, f"expected {' or '.join(known)}, not {shown(value)}")
    return value or known[0]


def read_members(path: str, given: Sequence[str] | None, known: Mapping[str, T]) -> tuple[T, ...]:
    """What of the known ones is named, in their order; all of them where nothing is given. An empty list would say as
    much to one reader and nothing at all to another, so there must be one."""
    named = read_each(path, given, lambda text: read_one_of(text, "", tuple(known)))
    if given is not None and not named:
        raise Invalid(path, f"expected at least one of {', '.join(known)}, or no such field")
    return tuple(value for name, value in known.items() if given is None or name in named)


def read_labels(given: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    """Sorted."""
    return tuple(sorted((intern(key), intern(value)) for key, value in (given or {}).items()))


def read_number(value: int, path: str, least: int, most: int) -> int:
    if not least <= value <= most:
        raise Invalid(path, f"expected {least} to {most}, not {shown(value)}")
    return value


def read_port(value: int, path: str) -> int:
    return read_number(value, path, 1, 65535)


def read_protocol(text: str | None) -> Protocol:
    """Absent is TCP."""
    protocol = _PROTOCOLS.get(text or "TCP")
    if protocol is None:
        raise Invalid("protocol", f"expected TCP, UDP or SCTP, not {shown(text)}")
    return protocol


@lru_cache(maxsize=1024)
def read_label(text: str, path: str) -> str:
    """A DNS label (RFC 1123), as namespaces and ports are named: few in a cluster, and said again and again."""
    if not _LABEL.fullmatch(text):
        form = "at most 63 of a-z, 0-9 and -, with a letter or digit at both ends"
        raise Invalid(path, f"expected {form}, not {shown(text)}")
    return intern(text)


def read_name(text: str, path: str) -> str:
    """A DNS subdomain (RFC 1123), the widest form of an object's name."""
    if not _SUBDOMAIN.fullmatch(text):
        form = "at most 253 of a-z, 0-9, - and ., with a letter or digit at both ends of each part"
        raise Invalid(path, f"expected {form}, not {shown(text)}")
    return text


def read_time(text: str | None, path: str) -> str:
    """RFC 3339 in UTC, so that the order of texts is that of times."""
    if text and not _TIME.fullmatch(text):
        raise Invalid(path, f"expected the form 2006-01-02T15:04:05Z, not {shown(text)}")
    return text or ""
