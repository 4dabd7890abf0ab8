"""What the network holds otherwise than it should, in words. Pure.

Invariants: sorted by driver, then key. A value is told as people write it, whatever driver it is of.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import fields

from podwire.controller.difference import Difference
from podwire.model.addresses import Address, show_address
from podwire.model.network import Space


class DriftView(Struct, frozen=True):
    """One key that the network holds otherwise than it should; None: not at all."""

    driver: str
    key: str
    found: str | None
    wanted: str | None


class DriftList(Struct, frozen=True):
    drift: tuple[DriftView, ...]


def drift(found: Mapping[str, Difference]) -> Iterator[DriftView]:
    """By driver, then key."""
    for driver, changes in sorted(found.items()):
        for key, change in sorted(((str(key), change) for key, change in changes.items()), key=lambda item: item[0]):
            yield DriftView(driver, key, words(change.before), words(change.after))


def words(value: Any) -> str | None:
    """A driver's value as people write it; None stays None.

    Packed addresses and MAC addresses are told by their size. A value with a text of its own gives that.
    """
    match value:
        case None:
            return None
        case True:
            return "present"
        case Space():
            return value.path
        case bytes() if len(value) == 6:
            return value.hex(":")
        case bytes() if len(value) in (4, 16):
            return show_address(Address(value))
        case tuple() if type(value) is tuple:
            return " ".join(words(item) or "none" for item in value)
        case Struct() if type(value).__str__ is object.__str__:
            held = ((field.name, getattr(value, field.name)) for field in fields(value))
            parts = ((name, words(it)) for name, it in held if it is not False)
            return ", ".join(f"{name} {text}" for name, text in parts if text)
        case _:
            return str(value)
