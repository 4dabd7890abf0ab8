"""Fields that a kind of Podwire's own does not have.

Invariants: for manifests alone. The API server leaves out what a kind's schema does not have, and tells whoever applies
it; a file has nobody else to say that `interface` was written for `interfaces`, and that all interfaces are meant now.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

from msgspec import inspect

from podwire.sources.fields import Invalid

_TOP = ("apiVersion", "kind", "metadata", "spec", "status")


def check_fields(data: dict[str, Any], form: Any) -> None:
    """`data`: an object that `form`, a struct with the field `spec`, has taken. Raises Invalid for the first field, in
    the order in which they stand there, that it does not have."""
    for name in data:
        if name not in _TOP:
            raise Invalid(str(name), f"unknown; expected one of {', '.join(_TOP)}")
    for wrong in _unknown(data.get("spec"), _spec(form), "spec"):
        raise wrong


@cache
def _spec(form: Any) -> inspect.Type:
    info = inspect.type_info(form)
    assert isinstance(info, inspect.StructType)
    return next(it.type for it in info.fields if it.name == "spec")


def _unknown(data: Any, form: inspect.Type, path: str) -> Iterator[Invalid]:
    match form, data:
        case inspect.UnionType(), _:
            for one in form.types:
                yield from _unknown(data, one, path)
        case inspect.ListType(), list():
            for number, item in enumerate(data):
                yield from _unknown(item, form.item_type, f"{path}[{number}]")
        case inspect.StructType(), dict():
            known = {it.encode_name: it.type for it in form.fields}
            for name, value in data.items():
                if name in known:
                    yield from _unknown(value, known[name], f"{path}.{name}")
                else:
                    yield Invalid(f"{path}.{name}", f"unknown; expected one of {', '.join(known)}")
