"""YAML text to nodes that know their lines, and to plain data.

Invariants: pure. What would be read differently from how it looks is an error, not a guess: a key twice in a mapping,
an unknown tag. Data is free of sharing: aliases and merge keys are resolved within a bound. Scalars are YAML 1.1's,
as Kubernetes reads them: without times and base 60. A key is the text as it is written.
"""

import re
from collections.abc import Iterator
from typing import Any

import yaml

DEEPEST = 100
"""Levels of nesting."""

MOST_REPEATED = 100_000
"""Nodes that the aliases of a document may repeat; a few lines of aliases can stand for billions."""


class Malformed(Exception):
    """What is wrong, and in which line (from 1)."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


def compose(text: str) -> Iterator[yaml.Node]:
    """The documents of a text; an empty one is a null. Raises Malformed for what is not YAML."""
    loader = _Loader(text)
    try:
        while loader.check_node():
            if (node := loader.get_node()) is not None:
                yield node
    except yaml.MarkedYAMLError as error:
        raise _malformed(error, text) from None
    except yaml.reader.ReaderError as error:
        line = text.encode()[: error.position].count(b"\n") + 1
        raise Malformed(line, str(error.reason)) from None
    finally:
        loader.dispose()


def plain(root: yaml.Node) -> Any:
    """Mappings, lists, texts, numbers, booleans and None. Raises Malformed."""
    return _Reader().value(root, 0)


_STEP = re.compile(r"([^.\[\]]+)|\[([^\]]*)\]")


def line_of(root: yaml.Node, field: str) -> int:
    """The line of `spec.ports[1].port` or `metadata.labels[example.com/a]`, or of the nearest field around it."""
    node, line = root, line_at(root)
    for step in _STEP.finditer(field):
        found = _child(node, step[1] or step[2])
        if found is None:
            break
        line, node = found
    return line


def line_at(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _child(node: yaml.Node, name: str) -> tuple[int, yaml.Node] | None:
    if isinstance(node, yaml.SequenceNode):
        number = int(name) if name.isascii() and name.isdigit() else len(node.value)
        return (line_at(node.value[number]), node.value[number]) if number < len(node.value) else None
    if not isinstance(node, yaml.MappingNode):
        return None
    for key, value in node.value:
        if isinstance(key, yaml.ScalarNode) and key.value == name:
            return line_at(key), value
    for key, value in node.value:
        if key.tag == _MERGE:
            sources = value.value if isinstance(value, yaml.SequenceNode) else [value]
            if found := next(filter(None, (_child(source, name) for source in sources)), None):
                return found
    return None


# --- the text ----------------------------------------------------------------------------------

_TAG = "tag:yaml.org,2002:"
_MERGE = f"{_TAG}merge"


class _Loader(yaml.CSafeLoader):
    """Its plain scalars are never times."""

    yaml_implicit_resolvers = {
        first: [(tag, form) for tag, form in resolvers if tag not in (f"{_TAG}timestamp", f"{_TAG}value")]
        for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
    }


def _malformed(error: yaml.MarkedYAMLError, text: str) -> Malformed:
    mark = error.problem_mark or error.context_mark
    last = text.count("\n", 0, len(text.rstrip())) + 1
    line = min(int(mark.line) + 1, last) if mark else 1
    message = ", ".join(part for part in (error.context, error.problem) if part)
    if mark and _tab_in(text, line):
        message += " (YAML indents by spaces, never by tabs)"
    return Malformed(line, message)


def _tab_in(text: str, line: int) -> bool:
    lines = text.split("\n", line)
    indent = re.match(r"\s*", lines[line - 1] if line <= len(lines) else "")
    return indent is not None and "\t" in indent[0]


# --- the values --------------------------------------------------------------------------------

_BOOLEANS = {"yes": True, "true": True, "on": True, "no": False, "false": False, "off": False}


class _Reader:
    """Reads one document; remembers the nodes it has seen, since an alias is the same node again."""

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self.repeated = 0

    def value(self, node: yaml.Node, depth: int) -> Any:
        if id(node) in self.seen:
            self.repeated += 1
            if self.repeated > MOST_REPEATED:
                raise Malformed(line_at(node), f"aliases repeat more than {MOST_REPEATED:,} values")
        self.seen.add(id(node))
        if depth > DEEPEST:
            raise Malformed(line_at(node), f"nested deeper than {DEEPEST} levels, or an alias within itself")
        if isinstance(node, yaml.ScalarNode):
            return _scalar(node)
        if node.tag not in (f"{_TAG}map", f"{_TAG}seq"):
            raise Malformed(line_at(node), _unknown(node.tag))
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, depth)
        return [self.value(item, depth + 1) for item in node.value]

    def mapping(self, node: yaml.MappingNode, depth: int) -> dict[str, Any]:
        data: dict[str, Any] = {}
        merged: list[dict[str, Any]] = []
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE:
                merged += self.sources(value_node, depth)
                continue
            key = _key(key_node)
            if key in data:
                first = next(line_at(other) for other, _ in node.value if other.value == key)
                raise Malformed(line_at(key_node), f"key {key!r} is already in line {first}")
            data[key] = self.value(value_node, depth + 1)
        for source in merged:
            data = source | data
        return data

    def sources(self, node: yaml.Node, depth: int) -> list[dict[str, Any]]:
        """What a merge key `<<` brings in; the first has precedence."""
        value = self.value(node, depth + 1)
        several = value if isinstance(value, list) else [value]
        if not all(isinstance(each, dict) for each in several):
            raise Malformed(line_at(node), "expected a mapping or a list of them after the merge key <<")
        return several


def _key(node: yaml.Node) -> str:
    if not isinstance(node, yaml.ScalarNode) or node.tag == f"{_TAG}null":
        raise Malformed(line_at(node), "expected text as the key")
    _scalar(node)
    return str(node.value)


def _scalar(node: yaml.ScalarNode) -> Any:
    text, tag = str(node.value), node.tag.removeprefix(_TAG)
    if tag in ("str", "merge", "value", "timestamp"):
        return text
    try:
        match tag:
            case "null":
                return None
            case "bool":
                return _BOOLEANS[text.lower()]
            case "int":
                return text if ":" in text else _whole(text.replace("_", ""))
            case "float":
                return text if ":" in text else float(re.sub(r"\.(?=inf|nan)", "", text.replace("_", "").lower()))
    except (ValueError, KeyError):
        raise Malformed(line_at(node), f"not a value of type {tag}; text that looks like one needs quotes") from None
    raise Malformed(line_at(node), _unknown(node.tag))


def _unknown(tag: str) -> str:
    """One of nobody's may be a password that lacks its quotes: values are not repeated."""
    if tag.startswith(_TAG):
        return f"unknown tag {tag.replace(_TAG, '!!')}"
    return "unknown tag; text that begins with ! needs quotes"


def _whole(text: str) -> int:
    """Octal begins with 0, as in YAML 1.1. Raises ValueError, also for what no 64 bits hold."""
    digits = text.lstrip("+-").lower()
    base = {"0x": 16, "0b": 2}.get(digits[:2], 8 if digits[:1] == "0" and len(digits) > 1 else 10)
    number = int(digits, base)
    if number.bit_length() > 64:
        raise ValueError
    return -number if text.startswith("-") else number
