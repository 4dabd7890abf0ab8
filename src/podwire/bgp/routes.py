"""Which routes a session has told and taken, from what bgpd says of them. Pure."""

from collections.abc import Mapping

from msgspec import Struct, json, structs

from podwire.model.addresses import Prefix, parse_prefix
from podwire.model.announcements import Attributes, Session, Told


class Route(Struct, frozen=True):
    """`next_hops`: none where it is the node itself. `path`: AS numbers, the nearest first, "" where it begins here."""

    prefix: str
    next_hops: tuple[str, ...] = ()
    path: str = ""
    attributes: Attributes = Attributes()


class Routes(Struct, frozen=True):
    received: tuple[Route, ...]
    advertised: tuple[Route, ...]


class _Advertised(Struct, rename="camel"):
    network: str
    path: str = ""


class _AllAdvertised(Struct, rename="camel"):
    advertised_routes: dict[str, _Advertised] = {}


class _NextHop(Struct):
    ip: str = ""
    scope: str = ""


class _Path(Struct, rename="camel"):
    path: str = ""
    nexthops: list[_NextHop] = []
    loc_prf: int | None = None


class _All(Struct):
    routes: dict[str, list[_Path]] = {}


def advertised(text: str, session: Session, wanted: Mapping[Prefix, Told]) -> list[Route]:
    """bgpd says which; with what attributes, its route maps do, which are made from `wanted`. A local preference goes
    to no router of another AS (RFC 4271, section 5.1.5). Raises msgspec.MsgspecError."""
    found = json.decode(text or "{}", type=_AllAdvertised).advertised_routes
    there = []
    for name, each in sorted(found.items()):
        told = dict(wanted.get(parse_prefix(name), ())).get(session.name, Attributes())
        if session.asn != session.local_asn:
            told = structs.replace(told, local_pref=None)
        there.append(Route(name, (), each.path, told))
    return there


def received(text: str) -> list[Route]:
    """Those that were taken. Raises msgspec.MsgspecError."""
    return [
        Route(name, _hops(each), each.path, Attributes(local_pref=each.loc_prf))
        for name, paths in sorted(json.decode(text or "{}", type=_All).routes.items())
        for each in paths
    ]


def _hops(path: _Path) -> tuple[str, ...]:
    """A link-local one says less than the global one beside it."""
    whole = [it.ip for it in path.nexthops if it.scope != "link-local"]
    return tuple(whole or [it.ip for it in path.nexthops])
