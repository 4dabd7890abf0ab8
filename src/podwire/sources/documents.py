"""The text of a file to the objects in it, each with the lines of its fields.

Invariants: pure. Whatever the text, the answer is all of its documents or one `Broken` that names file, document and
line. Lists are taken apart, so that an object is an object however it was written down.
"""

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, NoReturn

from podwire.sources.positions import Malformed, compose, line_of, plain


class Broken(Exception):
    """A text that can't be read, or an object in it that is wrong. The error's text says where."""


class Place(NamedTuple):
    """`number`: the document's in the file; `line`: the line in the file; both from 1."""

    path: str
    number: int
    line: int

    def __str__(self) -> str:
        return f"{self.path}: document {self.number}, line {self.line}"


class Document(NamedTuple):
    """One object: `data` is plain and has apiVersion and kind. `place` is its first line, in JSON its document's.

    `prefix` is its own path in the document, such as `items[3]` for one of a List, "" for the document itself.
    """

    place: Place
    prefix: str
    api_version: str
    kind: str
    data: dict[str, Any]
    find: Callable[[str], int]

    def line(self, field: str = "") -> int:
        """The line of a field such as `spec.ports[1].port` or `metadata.labels[example.com/a]`, from 1.

        For a field that isn't there, the line of the nearest one around it.
        """
        return self.find(_within(self.prefix, field))

    def broken(self, field: str, message: str) -> Broken:
        """`FILE: document 2, line 14: spec.ports[0].port: expected 1 to 65535, not 0`."""
        path = _within(self.prefix, field)
        where = self.place._replace(line=self.line(field))
        return Broken(f"{where}: {path}: {message}" if path else f"{where}: {message}")


def read_documents(path: str, text: bytes) -> list[Document]:
    """All objects in a file. Raises Broken."""
    return list(documents(path, text))


def documents(path: str, text: bytes) -> Iterator[Document]:
    """The objects in a file of YAML, or of JSON where its name ends so, one after the other. Raises Broken, where what
    came before was right.

    Empty documents are left out; a List's items come in its stead, with the kind that a ServiceList implies. Whoever
    lets go of a document before the next one holds only that one in memory: nodes that know their lines are twenty
    times as large as their text.
    """
    number = 1
    try:
        content = _decoded(text)
        for data, find in _json(content) if path.endswith(".json") else _yaml(content):
            if data is not None:
                yield from _objects(Place(path, number, find("")), "", data, find)
            number += 1
    except Malformed as error:
        raise Broken(f"{Place(path, number, error.line)}: {error}") from None


def _objects(place: Place, prefix: str, data: Any, find: Callable[[str], int]) -> Iterator[Document]:
    def fail(field: str, message: str) -> NoReturn:
        path = _within(prefix, field)
        raise Malformed(find(path), f"{path}: {message}" if path else message)

    if not isinstance(data, dict):
        fail("", f"expected a mapping with apiVersion and kind, not {_word(data)}")
    for field in ("apiVersion", "kind"):
        if not isinstance(data.get(field), str) or not data[field]:
            fail(field, "missing" if data.get(field) in (None, "") else f"expected text, not {_word(data[field])}")
    version, kind = data["apiVersion"], data["kind"]
    if kind != "List" and not (kind.endswith("List") and "items" in data):
        yield Document(place, prefix, version, kind, data, find)
        return
    items = data.get("items") or []
    if not isinstance(items, list):
        fail("items", f"expected a list, not {_word(items)}")
    implied = {} if kind == "List" else {"apiVersion": version, "kind": kind.removesuffix("List")}
    for number, item in enumerate(items):
        inner = _within(prefix, f"items[{number}]")
        complete = implied | item if isinstance(item, dict) else item
        yield from _objects(place, inner, complete, find)


def _within(prefix: str, field: str) -> str:
    return f"{prefix}.{field}" if prefix and field else prefix or field


def _word(value: object) -> str:
    match value:
        case None:
            return "nothing"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case list():
            return "a list"
    return "a mapping"


def _decoded(text: bytes) -> str:
    try:
        return text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Malformed(text.count(b"\n", 0, error.start) + 1, "expected UTF-8 text") from None


def _yaml(text: str) -> Iterator[tuple[Any, Callable[[str], int]]]:
    for node in compose(text):
        yield plain(node), partial(line_of, node)


# --- JSON --------------------------------------------------------------------------------------

_SPACE = re.compile(r"[ \t\r\n]*")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class _Twice(ValueError):
    pass


def _json(text: str) -> Iterator[tuple[Any, Callable[[str], int]]]:
    """One value after another."""
    decoder = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse)
    line, end = 1, 0
    while (start := _end_of_space(text, end)) < len(text):
        line += text.count("\n", end, start)
        data, end = _json_value(decoder, text, start, line)
        yield data, partial(_json_line, text[start:end], line)
        line += text.count("\n", start, end)


def _json_value(decoder: json.JSONDecoder, text: str, start: int, line: int) -> tuple[Any, int]:
    try:
        data, end = decoder.raw_decode(text, start)
        if _SURROGATE.search(text, start, end):
            json.dumps(data, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise Malformed(error.lineno, f"not JSON: {error.msg}") from None
    except UnicodeEncodeError:
        raise Malformed(line, "not JSON: half of a surrogate pair") from None
    except RecursionError:
        raise Malformed(line, "nested too deep") from None
    except _Twice as error:
        _find_twice("\n" * (line - 1) + text[start:])
        raise Malformed(line, str(error)) from None
    except ValueError as error:
        raise Malformed(line, f"not JSON: {error}") from None
    return data, end


def _end_of_space(text: str, start: int) -> int:
    space = _SPACE.match(text, start)
    return space.end() if space else start


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) != len(pairs):
        keys = [key for key, _ in pairs]
        raise _Twice(f"key {next(key for key in keys if keys.count(key) > 1)!r} is there twice")
    return data


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _find_twice(text: str) -> None:
    """JSON is YAML but for rare cases, and YAML knows lines: this raises the same error with its line."""
    for node in compose(text):
        plain(node)
        return


def _json_line(text: str, first: int, field: str) -> int:
    """Only errors ask for a line, so that it is found by reading the text again."""
    if field:
        try:
            return line_of(next(compose("\n" * (first - 1) + text)), field)
        except Malformed:
            pass  # one of the rare cases in which JSON is not YAML
    return first
