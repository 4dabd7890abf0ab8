"""Files of Kubernetes objects, to the cluster's objects that they name.

Invariants: pure. What is loaded depends on each file's text, and on its last good one where it is broken now: never
on the order in which files came. A broken file is one error and changes nothing; an object named twice counts where
it is named first, by path and then by line.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from podwire.model.kinds import Object, ObjectKey
from podwire.model.objects import Value
from podwire.model.text import printable
from podwire.sources.documents import Broken, Document, Place, documents
from podwire.sources.fields import Invalid
from podwire.sources.kinds import KINDS
from podwire.sources.kubernetes import translate
from podwire.sources.near import nearest

Changes = tuple[tuple[ObjectKey, Object | None], ...]


class Placed(NamedTuple):
    """An object where a file names it. `value` None: it means nothing to the network."""

    key: ObjectKey
    value: Object | None
    place: Place


class File(Value, frozen=True):
    """What a file says: where it is broken, what it said when it last was not, beside the error."""

    objects: tuple[Placed, ...] = ()
    ignored: frozenset[str] = frozenset()
    error: str = ""


class Loaded(Value, frozen=True):
    """The objects of all files. `errors` and `ignored` are for people: sorted, each line once, and printable.

    `ignored`: `apps/v1 Deployment` for a kind that isn't understood, `slice/default/a: …` for an object without
    meaning to the network.
    """

    objects: Mapping[ObjectKey, Object]
    errors: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()


NOTHING = Loaded({})


def read_file(path: str, text: bytes, last: File = File()) -> File:  # noqa: B008 (a frozen value)
    """What a file says by its text; a broken one goes on saying what it said `last`.

    A file without a byte is taken for one that is being rewritten: `>` empties a file before the first byte comes.
    """
    if not text:
        return broken_file(last, f"{path}: is empty; to remove its objects, remove the file")
    objects: list[Placed] = []
    ignored: set[str] = set()
    try:
        for document in documents(path, text):
            version, kind = document.api_version, document.kind
            if (version, kind) in KINDS:
                objects.append(_placed(document, ignored))
            elif f"{version} {kind}" not in ignored:
                if (meant := nearest(version, kind, KINDS)) is not None:
                    field = "apiVersion" if kind == meant[1] else "kind"
                    raise document.broken(field, f"unknown: {version} {kind}; did you mean {' '.join(meant)}?")
                ignored.add(f"{version} {kind}")
    except Broken as error:
        return broken_file(last, str(error))
    return File(tuple(objects), frozenset(ignored))


def broken_file(last: File, error: str) -> File:
    return File(last.objects, last.ignored, error)


def _placed(document: Document, ignored: set[str]) -> Placed:
    try:
        key, value, reason = translate(document.data)
    except Invalid as error:
        raise document.broken(error.field, error.message) from None
    if value is None:
        ignored.add(f"{key}: {reason}")
    return Placed(key, value, document.place)


def merge(files: Mapping[str, File], troubles: Mapping[str, str] | None = None) -> Loaded:
    """All files as one cluster. `troubles`: further errors by path, such as a directory that can't be read."""
    objects: dict[ObjectKey, Object] = {}
    places: dict[ObjectKey, Place] = {}
    errors = [f"{path}: {trouble}" for path, trouble in (troubles or {}).items()]
    ignored: set[str] = set()
    for _, file in sorted(files.items()):
        ignored |= file.ignored
        if file.error:
            errors.append(f"{file.error}; its last good content stays in force" if file.objects else file.error)
        for key, value, place in file.objects:
            if (first := places.setdefault(key, place)) is not place:
                errors.append(f"{place}: {key} is already in {first}, which counts")
            elif value is not None:
                objects[key] = value
    return Loaded(objects, _lines(errors), _lines(ignored))


def _lines(texts: Iterable[str]) -> tuple[str, ...]:
    """Names of files and what stands in them may hold anything."""
    return tuple(sorted(set(map(printable, texts))))


def load(texts: Mapping[str, bytes]) -> Loaded:
    """All files as if read for the first time, by path."""
    return merge({path: read_file(path, text) for path, text in texts.items()})


def changes(before: Mapping[ObjectKey, Object], after: Mapping[ObjectKey, Object]) -> Changes:
    """What came or changed, and (None) what went, sorted by the key's text."""
    changed = [(key, value) for key, value in after.items() if before.get(key) != value]
    gone = [(key, None) for key in before if key not in after]
    return tuple(sorted([*changed, *gone], key=lambda change: str(change[0])))
