"""All that is asked of a plane, and what is right of it. Pure.

Invariants: every question has one right answer, and is asked once.
"""

from tests.packets.plan import EMPTY, LOCAL_SERVICES, SERVICES, Exposed, Station
from tests.packets.refusals import Refusal, refusals, refused
from tests.packets.table import CLIENTS, Kind, Path, Row, expected, rows, target
from tests.packets.terms import CASES, Case, answer, cases, reached

Asked = Row | Refusal | Case

ALL_SERVICES: tuple[Exposed, ...] = (*SERVICES, *LOCAL_SERVICES, EMPTY, *CASES)


def everything() -> list[Asked]:
    return [*rows(), *refusals(), *cases()]


def asker_of(it: Asked) -> Station:
    return CLIENTS[it.client]


def target_of(it: Asked) -> tuple[str, int]:
    """The address and port that the client asks."""
    return target(it.path, it.service) if isinstance(it, Row) else it.target


def right(it: Asked) -> str:
    """The only right answer."""
    match it:
        case Row() if it.kind is Kind.POD_ADDRESS:
            return expected(it.path)
        case Refusal():
            return refused(CLIENTS[it.client], it.kind, it.protocol, it.why)
        case Row() | Case():
            return answer(it.service, CLIENTS[it.client], it.kind, it.protocol, it.family)


def way(it: Asked) -> Path | None:
    """By which a backend is reached; None where none is."""
    if isinstance(it, Refusal):
        return None
    if isinstance(it, Row) and it.kind is Kind.POD_ADDRESS:
        return it.path
    asker = CLIENTS[it.client]
    backend = reached(it.service, asker, it.kind, it.family)
    return Path(asker, it.kind, it.family, backend.station) if backend is not None else None
