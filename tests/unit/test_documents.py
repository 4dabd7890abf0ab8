"""Text to objects: lines, Lists, YAML's traps, and that no text does more than give one clear error."""

import contextlib
import json
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from podwire.sources.documents import Broken, Document, documents, read_documents

HEAD = "apiVersion: v1\nkind: Thing\n"


def read(text: str | bytes, path: str = "f.yaml") -> list[Document]:
    return read_documents(path, text.encode() if isinstance(text, str) else text)


def error_of(text: str | bytes, path: str = "f.yaml") -> str:
    with pytest.raises(Broken) as caught:
        read(text, path)
    return str(caught.value)


def value_of(text: str) -> Any:
    (document,) = read(f"{HEAD}a: {text}\n")
    return document.data["a"]


# --- documents ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        pytest.param("", [], id="nothing"),
        pytest.param("# only a comment\n", [], id="a comment"),
        pytest.param("---\n---\n# empty\n---\n", [], id="empty documents"),
        pytest.param("~\n--- null\n", [], id="null"),
        pytest.param(HEAD, [1], id="one"),
        pytest.param(f"# a comment\n---\n{HEAD}...\n---\n{HEAD}", [1, 2], id="two, with their marks"),
        pytest.param(
            f"{HEAD}---\n---\n{HEAD}", [1, 3], id="an empty one counts, as it does for the reader of the file"
        ),
        pytest.param(f"\ufeff{HEAD}", [1], id="a byte order mark"),
        pytest.param(HEAD.replace("\n", "\r\n"), [1], id="lines of DOS"),
        pytest.param('{"apiVersion": "v1",\n\t"kind": "Thing"}', [1], id="JSON in a YAML file, indented by tabs"),
    ],
)
def test_documents_of_yaml(text: str, numbers: list[int]) -> None:
    documents = read(text)
    assert [document.place.number for document in documents] == numbers
    assert {(document.api_version, document.kind) for document in documents} <= {("v1", "Thing")}


def test_a_document_comes_before_the_next_is_looked_at() -> None:
    found = documents("a.yaml", b"apiVersion: v1\nkind: A\n---\n[")
    assert next(found).kind == "A"
    with pytest.raises(Broken, match="document 2"):
        next(found)


def test_json_values_follow_each_other() -> None:
    one, other = (json.dumps({"apiVersion": "v1", "kind": kind}) for kind in ("A", "B"))
    documents = read(f"\n{one}\n\n{other} ", "f.json")
    assert [(document.kind, str(document.place)) for document in documents] == [
        ("A", "f.json: document 1, line 2"),
        ("B", "f.json: document 2, line 4"),
    ]


def test_a_list_is_its_items() -> None:
    documents = read("""
apiVersion: v1
kind: List
items:
- {apiVersion: a/v1, kind: A}
- apiVersion: v1
  kind: BList
  items:
  - metadata: {name: x}
  - {apiVersion: v2, kind: C}
---
apiVersion: v1
kind: List
items: null
""")
    assert [(document.prefix, document.api_version, document.kind) for document in documents] == [
        ("items[0]", "a/v1", "A"),
        ("items[1].items[0]", "v1", "B"),
        ("items[1].items[1]", "v2", "C"),
    ]
    assert documents[1].data == {"apiVersion": "v1", "kind": "B", "metadata": {"name": "x"}}
    assert [document.line() for document in documents] == [5, 9, 10]
    assert documents[1].line("metadata.name") == 9


def test_a_kind_that_only_ends_like_a_list_is_itself() -> None:
    (document,) = read("apiVersion: v1\nkind: AllowList\nspec: {}\n")
    assert document.kind == "AllowList"


# --- lines -------------------------------------------------------------------------------------

POSITIONED = """# a comment
apiVersion: v1
kind: Thing
base: &base
  inherited: 1
metadata:
  labels:
    example.com/a: b
spec:
  <<: *base
  ports:
  - name: a
    port: 1
  -
    port: 2
  - {name: c,
     port: 3}
"""


@pytest.mark.parametrize(
    ("field", "line"),
    [
        ("", 2),
        ("kind", 3),
        ("metadata.labels[example.com/a]", 8),
        ("spec", 9),
        ("spec.inherited", 5),
        ("spec.ports[0].port", 13),
        ("spec.ports[1]", 15),
        ("spec.ports[1].port", 15),
        ("spec.ports[2].port", 17),
        ("spec.ports[1].nodePort", 15),
        ("spec.ports[7]", 11),
        ("spec.ports.first", 11),
        ("status.phase", 2),
    ],
)
def test_line_of_a_field_or_of_what_is_around_it(field: str, line: int) -> None:
    (document,) = read(POSITIONED)
    assert document.line(field) == line


def test_lines_of_json() -> None:
    text = (
        '\n{"apiVersion": "v1", "kind": "List", "items": [\n {"apiVersion": "v1", "kind": "A",\n  "spec":\n {"b": 1}}]}'
    )
    (document,) = read(text, "f.json")
    assert (document.line("spec.b"), document.line("spec"), document.line()) == (5, 4, 3)
    assert str(document.broken("spec.b", "expected 2")) == "f.json: document 1, line 5: items[0].spec.b: expected 2"


def test_an_error_names_file_document_line_and_field() -> None:
    _, document = read(f"{HEAD}---\n{HEAD}spec:\n  ports:\n  - port: 0\n")
    error = document.broken("spec.ports[0].port", "expected 1 to 65535, not 0")
    assert str(error) == "f.yaml: document 2, line 8: spec.ports[0].port: expected 1 to 65535, not 0"
    assert str(document.broken("", "is odd")) == "f.yaml: document 2, line 4: is odd"


# --- YAML's values -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("80", 80),
        ('"80"', "80"),
        ("!!str 80", "80"),
        ("010", 8),
        ("0x1F", 31),
        ("-0b11", -3),
        ("1_000", 1000),
        ("yes", True),
        ("Off", False),
        ("y", "y"),
        ("~", None),
        ("", None),
        ("1.5", 1.5),
        ("-.inf", float("-inf")),
        ("22:22", "22:22"),
        ("1:30.5", "1:30.5"),
        ("2024-05-01", "2024-05-01"),
        ("2024-05-01T12:00:00Z", "2024-05-01T12:00:00Z"),
        ("=", "="),
        ("<<", "<<"),
        ("[&x {b: 1}, *x]", [{"b": 1}, {"b": 1}]),
        ("{on: 1, 8080: 2, 1.5: 3}", {"on": 1, "8080": 2, "1.5": 3}),
        ("{<<: {b: 1, c: 2}, c: 3}", {"b": 1, "c": 3}),
        ("{<<: [{b: 1}, {b: 2, c: 3}]}", {"b": 1, "c": 3}),
    ],
    ids=lambda value: repr(value) if isinstance(value, str) else "",
)
def test_value(text: str, value: Any) -> None:
    assert value_of(text) == value


def test_aliases_are_not_shared() -> None:
    one, other = value_of("[&x {b: []}, *x]")
    one["b"].append(1)
    assert other == {"b": []}


LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{inner}: &{inner} [{','.join([f'*{outer}'] * 9)}]\n" for outer, inner in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        pytest.param("a: 1\n\tb: 2\n", "document 1, line 2: .*never by tabs", id="a tab"),
        pytest.param(f"{HEAD}---\na: [1,\n\n", "document 2, line 4: ", id="never closed"),
        pytest.param(
            f"{HEAD}spec:\n  a: b: c\n", "document 1, line 4: mapping values are not allowed", id="two colons"
        ),
        pytest.param(f"{HEAD}a: 1\nb: 2\na: 3\n", "document 1, line 5: key 'a' is already in line 3", id="key twice"),
        pytest.param(
            f"{HEAD}a:\n  1: x\n  '1': y\n", "line 5: key '1' is already in line 4", id="key twice, in quotes"
        ),
        pytest.param(f"{HEAD}a: *b\n", "line 3: found undefined alias", id="unknown alias"),
        pytest.param(f"{HEAD}a: &a [*a]\n", "line 3: nested deeper than 100", id="an alias in itself"),
        pytest.param(f"{HEAD}{LAUGHS}", "aliases repeat more than 100,000 values", id="a billion laughs"),
        pytest.param(f"{HEAD}{'- ' * 10_000}", "line 3: ", id="deep lists in a row"),
        pytest.param(f"{HEAD}a: {'[' * 200}{']' * 200}\n", "line 3: nested deeper than 100", id="deep lists"),
        pytest.param(
            f"{HEAD}a: !foo 1\n", "line 3: unknown tag; text that begins with ! needs quotes", id="unknown tag"
        ),
        pytest.param(f"{HEAD}a: !!binary aGk=\n", "line 3: unknown tag !!binary", id="a tag that JSON lacks"),
        pytest.param(f"{HEAD}a: !!set {{b, c}}\n", "line 3: unknown tag !!set", id="a set"),
        pytest.param(
            f"{HEAD}a: !!int b\n", "line 3: not a value of type int; text that looks", id="not of its tag's type"
        ),
        pytest.param(f"{HEAD}a: {'9' * 5000}\n", "line 3: not a value of type int; text", id="too long a number"),
        pytest.param(f"{HEAD}a: 0x{'f' * 17}\n", "line 3: not a value of type int", id="more than 64 bits"),
        pytest.param(f"{HEAD}? [a]\n: b\n", "line 3: expected text as the key", id="a list as key"),
        pytest.param(f"{HEAD}<<: 1\n", "line 3: expected a mapping or a list of them after the merge key", id="merge"),
        pytest.param(b"a: b\nc: \xff\n", "document 1, line 2: expected UTF-8 text", id="not UTF-8"),
        pytest.param(f"{HEAD}a: b\x01\n", "document 1, line 3: control characters", id="a control character"),
        pytest.param("- a\n", "line 1: expected a mapping with apiVersion and kind, not a list", id="a list"),
        pytest.param(f"{HEAD}--- hello\n", "document 2, line 3: expected a mapping .* not text", id="text"),
        pytest.param("\nkind: A\n", "document 1, line 2: apiVersion: missing", id="no apiVersion"),
        pytest.param("apiVersion: v1\nkind:\n", "line 2: kind: missing", id="no kind"),
        pytest.param("apiVersion: 1\nkind: A\n", "line 1: apiVersion: expected text, not a number", id="apiVersion: 1"),
        pytest.param("apiVersion: v1\nkind: List\nitems: {}\n", None, id="an empty mapping of items is no harm"),
        pytest.param("apiVersion: v1\nkind: List\nitems: a\n", "line 3: items: expected a list, not text", id="items"),
        pytest.param(
            "apiVersion: v1\nkind: AList\nitems:\n- 1\n", r"line 4: items\[0\]: expected a mapping", id="item"
        ),
        pytest.param(
            "apiVersion: v1\nkind: List\nitems:\n- {}\n", r"line 4: items\[0\].apiVersion: missing", id="bare"
        ),
    ],
)
def test_wrong_yaml(text: str | bytes, error: str | None) -> None:
    if error is None:
        assert read(text) == []
        return
    found = error_of(text)
    assert found.startswith("f.yaml: document ")
    with pytest.raises(Broken, match=error):
        read(text)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        pytest.param('{"a": 1,\n "b": }', "line 2: not JSON: Expecting value", id="syntax"),
        pytest.param('{"a": 1,}', "line 1: not JSON", id="YAML that JSON is not"),
        pytest.param('{"a": {"b": 1,\n"c": 1,\n"b": 2}}', "line 3: key 'b' is already in line 1", id="key twice"),
        pytest.param('{"a": NaN}', "line 1: not JSON: NaN is no number", id="NaN"),
        pytest.param('\n{"a": "\\ud800"}', "line 2: not JSON: half of a surrogate pair", id="surrogate"),
        pytest.param("[" * 100_000, "line 1: nested too deep", id="deep"),
        pytest.param("9" * 5000, "line 1: not JSON", id="a long number"),
        pytest.param('{"apiVersion": "v1", "kind": 1}', "line 1: kind: expected text, not a number", id="kind"),
        pytest.param("[1]", "line 1: expected a mapping with apiVersion and kind, not a list", id="a list"),
    ],
)
def test_wrong_json(text: str, error: str) -> None:
    with pytest.raises(Broken, match=f"^f.json: document 1, {error}"):
        read(text, "f.json")


def test_a_surrogate_pair_is_one_character() -> None:
    (document,) = read(r'{"apiVersion": "v1", "kind": "A", "a": "\ud83d\ude00"}', "f.json")
    assert document.data["a"] == "\N{GRINNING FACE}"
    assert document.line("a") == 1


# --- any text ----------------------------------------------------------------------------------

PIECES = st.sampled_from(
    [
        *"-:[]{}&*!|>%@`'\"#,?\n\t ",
        "\n",
        "  ",
        "- ",
        ": ",
        "---\n",
        "<<",
        "a",
        "&a ",
        "*a",
        "!!int ",
        HEAD,
        "\\ud800",
        "\0",
    ]
)


@settings(deadline=None)
@given(st.binary(max_size=60) | st.lists(PIECES, max_size=30).map(lambda pieces: "".join(pieces).encode()), st.data())
@example(b"%YAML 9.9\n---\na", None)
def test_any_text_gives_documents_or_one_error(text: bytes, data: Any) -> None:
    for path in ("f.yaml", "f.json"):
        with contextlib.suppress(Broken):
            for document in read_documents(path, text):
                assert 1 <= document.line("a.b[0]") <= text.count(b"\n") + text.count(b"\r") + 2
                assert document.api_version


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)


@settings(deadline=None)
@given(JSON)
def test_what_was_written_is_read(value: Any) -> None:
    thing = {"apiVersion": "v1", "kind": "A", "a": value}
    for path, text in (("f.json", json.dumps(thing)), ("f.yaml", yaml.safe_dump(thing))):
        (document,) = read(text, path)
        assert document.data == thing
