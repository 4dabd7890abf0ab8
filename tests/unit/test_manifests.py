"""A directory of manifests: what is loaded, what is wrong, and what changes while it is watched."""

import asyncio
import logging
import os
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import watchfiles
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from podwire.controller.events import Event, KubeStateChange, Resync
from podwire.model.addresses import parse_address
from podwire.model.kinds import Object, ObjectKey
from podwire.model.objects import BackendSlice, Member, Node, Protocol, Service, ServiceKey, ServicePort
from podwire.sources import manifests
from podwire.sources.batches import MOST_CHANGES
from podwire.sources.loading import File, Loaded, changes, load, merge, read_file
from podwire.sources.manifests import UNSEEN, Look, Manifests, look


def thing(name: str, port: int = 80) -> dict[str, Any]:
    spec = {"clusterIP": "10.0.0.1", "ports": [{"port": port}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


def text(name: str, port: int = 80) -> str:
    return yaml.safe_dump(thing(name, port))


def key(name: str) -> ServiceKey:
    return ServiceKey("default", name)


def value(port: int = 80) -> Service:
    return Service((ServicePort("", Protocol.TCP, port),), (parse_address("10.0.0.1"),))


def services(**ports: int) -> dict[ObjectKey, Object]:
    return {key(name): value(port) for name, port in ports.items()}


# --- texts -------------------------------------------------------------------------------------


def test_objects_of_all_kinds_from_yaml_and_json() -> None:
    member = {"addresses": ["10.1.0.1"], "nodeName": "n"}
    labels = {"kubernetes.io/service-name": "a"}
    backends = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4"}
    node = {"apiVersion": "v1", "kind": "NodeList", "items": [{"metadata": {"name": "n"}}]}
    loaded = load(
        {
            "a.yaml": yaml.safe_dump_all([thing("a"), None, node]).encode(),
            "b.json": msgspec.json.encode(
                {**backends, "metadata": {"name": "a-1", "labels": labels}, "endpoints": [member]}
            ),
        }
    )
    assert {str(found): loaded.objects[found] for found in loaded.objects} == {
        "service/default/a": value(),
        "slice/default/a-1": BackendSlice(key("a"), (), (Member(parse_address("10.1.0.1"), node="n"),)),
        "node/n": Node(),
    }
    assert (loaded.errors, loaded.ignored) == ((), ())


@pytest.mark.parametrize(
    ("path", "content", "error"),
    [
        pytest.param(
            "a.yaml",
            f"{text('a')}---\n{text('b', 0)}",
            "a.yaml: document 2, line 17: spec.ports[0].port: expected 1 to 65535, not 0",
            id="a number out of range",
        ),
        pytest.param(
            "a.yaml",
            text("a").replace("80", "'80'"),
            "a.yaml: document 1, line 8: spec.ports[0].port: expected a whole number, not text",
            id="a port as text",
        ),
        pytest.param(
            "a.yaml",
            text("a").replace("port: 80", "name: b"),
            "a.yaml: document 1, line 8: spec.ports[0].port: missing",
            id="a missing field, by the line of what should have it",
        ),
        pytest.param(
            "a.yaml",
            yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": [thing("a"), thing("b", -1)]}),
            "a.yaml: document 1, line 18: items[1].spec.ports[0].port: expected 1 to 65535, not -1",
            id="in a List",
        ),
        pytest.param(
            "a.json",
            '\n{"apiVersion": "v1", "kind": "Service",\n"metadata": {"name": "a"},\n"spec": {"ports":\n[{"port": 0}]}}',
            "a.json: document 1, line 5: spec.ports[0].port: expected 1 to 65535, not 0",
            id="in JSON",
        ),
        pytest.param("a.yaml", "", "a.yaml: is empty; to remove its objects, remove the file", id="an empty file"),
        pytest.param("a.yaml", "a: [", "a.yaml: document 1, line 1: while parsing", id="not YAML"),
    ],
)
def test_error(path: str, content: str, error: str) -> None:
    loaded = load({path: content.encode()})
    assert loaded.objects == {}
    (found,) = loaded.errors
    assert found.startswith(error)


def test_a_broken_file_keeps_what_it_said_last() -> None:
    good = read_file("a.yaml", text("a").encode())
    broken = read_file("a.yaml", b"a: [", good)
    still = read_file("a.yaml", b"", broken)
    for file in (broken, still):
        loaded = merge({"a.yaml": file})
        assert loaded.objects == services(a=80)
        (error,) = loaded.errors
        assert error.endswith("; its last good content stays in force")
    assert merge({"a.yaml": read_file("a.yaml", text("a").encode(), still)}) == load({"a.yaml": text("a").encode()})


def test_nothing_of_a_broken_file_is_taken() -> None:
    assert load({"a.yaml": f"{text('a')}---\n{text('b')}---\nkind: x\n".encode()}).objects == {}


def test_a_file_of_comments_says_that_there_is_nothing() -> None:
    file = read_file("a.yaml", b"# nothing\n", read_file("a.yaml", text("a").encode()))
    assert file == File()


def test_of_an_object_named_twice_the_first_counts() -> None:
    again = f"{text('a', 82)}---\n{text('b')}---\n{text('b', 83)}"
    loaded = load({"b.yaml": again.encode(), "a.yaml": text("a").encode()})
    assert loaded.objects == services(a=80, b=80)
    assert loaded.errors == (
        "b.yaml: document 1, line 1: service/default/a is already in a.yaml: document 1, line 1, which counts",
        "b.yaml: document 3, line 19: service/default/b is already in b.yaml: document 2, line 10, which counts",
    )


@pytest.mark.parametrize(
    "content",
    [
        pytest.param('apiVersion: v1\nkind: "\\e[31m\\n"', id="a kind"),
        pytest.param('{"apiVersion": "v1", "kind": "\\u001b[2J"}', id="a kind in JSON"),
        pytest.param('apiVersion: v1\nkind: Service\nmetadata: {name: "\\e]0;x\\a"}\nspec: {ports: 7}', id="a name"),
        pytest.param('apiVersion: v1\nkind: Service\n"\\e[31m": 1\n"\\e[31m": 1', id="a key"),
    ],
)
def test_what_stands_in_files_is_told_so_that_no_terminal_obeys_it(content: str) -> None:
    loaded = load({"a.yaml": content.encode()})
    told = (*loaded.errors, *loaded.ignored)
    assert told
    assert all(line.isprintable() for line in told)


def test_what_means_nothing_here_is_told_once() -> None:
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment"}
    slice_ = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4"}
    other = yaml.safe_dump_all([deployment, deployment, {**slice_, "metadata": {"name": "s"}}, thing("a")])
    loaded = load({"a.yaml": other.encode(), "b.yaml": yaml.safe_dump(deployment).encode()})
    assert loaded == Loaded(
        services(a=80),
        (),
        ("apps/v1 Deployment", "slice/default/s: it belongs to no Service (label kubernetes.io/service-name)"),
    )


def test_changes_are_sorted_and_only_what_differs() -> None:
    before, after = services(z=1, b=1, c=1), services(z=1, c=2, a=1)
    assert changes(before, after) == ((key("a"), value(1)), (key("b"), None), (key("c"), value(2)))
    assert changes(after, dict(after)) == ()


# --- any distribution, any history -------------------------------------------------------------

NAMES = st.lists(st.sampled_from("abcdefgh"), unique=True)
FORMS: list[tuple[str, Callable[[list[Any]], bytes]]] = [
    ("yaml", lambda things: yaml.safe_dump_all([None, *things]).encode()),
    ("yml", lambda things: yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": things}).encode()),
    ("json", lambda things: b"\n".join(map(msgspec.json.encode, things)) + b" "),
    ("json", lambda things: msgspec.json.encode({"apiVersion": "v1", "kind": "ServiceList", "items": things})),
]


@settings(deadline=None)
@given(NAMES, st.data())
def test_how_objects_are_spread_over_files_means_nothing(names: list[str], data: st.DataObject) -> None:
    files: dict[str, list[str]] = {}
    for name in data.draw(st.permutations(names)):
        files.setdefault(data.draw(st.sampled_from(["1", "2", "d/3"])), []).append(name)
    texts = {}
    for path, held in files.items():
        suffix, write = data.draw(st.sampled_from(FORMS))
        texts[f"{path}.{suffix}"] = write([thing(name) for name in held])
    loaded = load(dict(data.draw(st.permutations(list(texts.items())))))
    assert (loaded.objects, loaded.errors) == (services(**dict.fromkeys(names, 80)), ())


PATHS = ("1.yaml", "2.yaml", "d/3.yaml", "d/e/4.yaml")
CONTENT = st.lists(st.tuples(st.sampled_from("abc"), st.integers(79, 82)), max_size=3).map(
    lambda held: yaml.safe_dump_all([None, *(thing(name, port) for name, port in held)])
)
EDITS = st.lists(st.tuples(st.sampled_from(PATHS), CONTENT | st.sampled_from(["", "a: [", "remove"])), max_size=8)


@settings(deadline=None)
@given(EDITS, EDITS)
def test_any_edits_end_like_a_fresh_look(edits: list[tuple[str, str]], last: list[tuple[str, str]]) -> None:
    """Once no file is broken, what happened before means nothing; each step's changes lead from look to look."""
    with tempfile.TemporaryDirectory() as directory:
        found, told = UNSEEN, dict[ObjectKey, Object]()
        whole = [(path, "remove" if content in ("", "a: [") else content) for path, content in last]
        rest = [(path, "remove") for path in PATHS if path not in dict(whole)]
        for path, content in [*edits, *rest, *whole]:
            edit(Path(directory, path), content)
            before, found = found, look(directory, found, frozenset({f"{directory}/{path}"}))
            for changed, now in changes(before.loaded.objects, found.loaded.objects):
                told.pop(changed, None)
                if now is not None:
                    told[changed] = now
        assert found.loaded == look(directory).loaded
        assert told == found.loaded.objects


def edit(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if content == "remove":
        path.unlink(missing_ok=True)
    else:
        path.write_text(content)


# --- a look ------------------------------------------------------------------------------------


def files_of(found: Look, directory: Path) -> dict[str, str]:
    return {os.path.relpath(path, directory): held.file.error for path, held in found.files.items()}


def test_only_manifests_are_read(tmp_path: Path) -> None:
    for name in ("a.yaml", "b.yml", "c.json", "sub/dir.yaml/d.yaml"):
        edit(tmp_path / name, "# nothing\n" if "json" not in name else " ")
    for name in (".a.yaml.swp", ".hidden.yaml", "a.yaml~", "#a.yaml#", "~a.yaml", ".git/x.yaml", "README.md", "4913"):
        edit(tmp_path / name, "a: [")
    assert files_of(look(str(tmp_path)), tmp_path) == dict.fromkeys(
        ["a.yaml", "b.yml", "c.json", "sub/dir.yaml/d.yaml"], ""
    )


def test_only_what_changed_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        edit(tmp_path / f"{name}.yaml", text(name))
    first = look(str(tmp_path))
    read: list[str] = []
    monkeypatch.setattr(
        manifests, "read_file", lambda path, *rest: read.append(Path(path).name) or read_file(path, *rest)
    )
    assert look(str(tmp_path), first) is first
    assert read == []
    edit(tmp_path / "b.yaml", text("b", 8080))
    assert look(str(tmp_path), first).loaded.objects == services(a=80, b=8080, c=80)
    assert read == ["b.yaml"]


def test_a_write_that_looks_the_same_is_read_where_an_event_names_it(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(text("a", 80))
    first, status = look(str(tmp_path)), path.stat()
    path.write_text(text("a", 81))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert look(str(tmp_path), first, frozenset({str(path)})).loaded.objects == services(a=81)


def test_a_file_renamed_during_a_look_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "ab":
        edit(tmp_path / f"{name}.yaml", text(name))
    first = look(str(tmp_path))

    def renaming(path: str, *rest: Any) -> File:
        """While a.yaml is read, after the directory was listed."""
        monkeypatch.undo()
        (tmp_path / "b.yaml").rename(tmp_path / "aa.yaml")
        return read_file(path, *rest)

    monkeypatch.setattr(manifests, "read_file", renaming)
    edit(tmp_path / "a.yaml", text("a", 81))
    found = look(str(tmp_path), first)
    assert found.loaded == Loaded(services(a=81, b=80))
    assert files_of(found, tmp_path) == {"a.yaml": "", "aa.yaml": ""}


def test_links_are_followed_and_each_directory_is_read_once(tmp_path: Path) -> None:
    edit(tmp_path / "real" / "a.yaml", text("a"))
    (tmp_path / "real" / "loop").symlink_to(tmp_path)
    (tmp_path / "same").symlink_to(tmp_path / "real")
    edit(tmp_path / ".away" / "b.yaml", text("b"))
    (tmp_path / "b.yaml").symlink_to(".away/b.yaml")
    assert files_of(look(str(tmp_path)), tmp_path) == {"real/a.yaml": "", "b.yaml": ""}


def _dangle(path: Path) -> None:
    path.symlink_to("nowhere")


def _circle(path: Path) -> None:
    path.symlink_to(path.name)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(os.path.relpath(path))


@pytest.mark.parametrize(
    ("make", "error"),
    [
        pytest.param(_dangle, "can't be read: No such file or directory", id="a link to nowhere"),
        pytest.param(_circle, "can't be read: Too many levels of symbolic links", id="a link to itself"),
        pytest.param(os.mkfifo, "expected a regular file of at most 64 MiB", id="a pipe"),
        pytest.param(
            lambda path: (path.touch(), os.truncate(path, (64 << 20) + 1)), "at most 64 MiB", id="a huge file"
        ),
        pytest.param(
            lambda path: (path.touch(), os.truncate(path, 1 << 42)), "at most 64 MiB", id="a huge file without blocks"
        ),
        pytest.param(lambda path: path.symlink_to("/dev/zero"), "expected a regular file", id="a device"),
        pytest.param(_socket, "expected a regular file", id="a socket"),
        pytest.param(lambda path: path.symlink_to("/proc/self/mem"), "can't be read: Input/output", id="an I/O error"),
    ],
)
def test_a_file_that_cannot_be_read_keeps_what_it_said(tmp_path: Path, make: Callable[[Path], Any], error: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(text("a"))
    first = look(str(tmp_path))
    path.unlink()
    make(path)
    found = look(str(tmp_path), first).loaded
    assert found.objects == services(a=80)
    assert [error in each and str(path) in each and "stays in force" in each for each in found.errors] == [True]


def _turns_into_a_pipe(path: str | Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.stat

    def swapped(what: Any, **options: Any) -> os.stat_result:
        found = real(what, **options)
        if what == str(path):
            monkeypatch.undo()
            os.unlink(what)
            os.mkfifo(what)
        return found

    monkeypatch.setattr(os, "stat", swapped)


def test_a_file_that_turns_into_a_pipe_under_our_eyes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.yaml").write_text(text("a"))
    _turns_into_a_pipe(tmp_path / "a.yaml", monkeypatch)
    assert "expected a regular file" in look(str(tmp_path)).loaded.errors[0]


ODD_NAMES = [
    pytest.param(b"a\nb.yaml", "a\\nb.yaml", id="a line's end"),
    pytest.param(b"\x1b[31mred.yaml", "\\x1b[31mred.yaml", id="a terminal's command"),
    pytest.param(b"\xc2\x9b31m.yaml", "\\x9b31m.yaml", id="a terminal's command of one byte"),
    pytest.param("\u202elmay.yaml".encode(), "\\u202elmay.yaml", id="right to left"),
    pytest.param(b"x" * 250 + b".yaml", "x" * 250 + ".yaml", id="as long as can be"),
    pytest.param("中文 é.yaml".encode(), "中文 é.yaml", id="other letters"),
]
NOT_UTF8 = [
    pytest.param(b"\xff\xfe.yaml", "\\xff\\xfe.yaml", id="no letter at all"),
    pytest.param(b"caf\xe9.json", "caf\\xe9.json", id="Latin-1"),
    pytest.param(b"\xed\xa0\x80.yml", "\\xed\\xa0\\x80.yml", id="a surrogate"),
]


@pytest.mark.parametrize(("name", "shown"), ODD_NAMES)
@pytest.mark.parametrize("within", [False, True], ids=["file", "directory"])
def test_an_odd_name_is_read_and_shown_so_that_nobody_obeys_it(
    tmp_path: Path, name: bytes, shown: str, within: bool
) -> None:
    path = os.path.join(os.fsencode(tmp_path), name) + (b"/a.yaml" if within else b"")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    Path(os.fsdecode(path)).write_text(text("a"))
    assert look(str(tmp_path)).loaded == Loaded(services(a=80))
    Path(os.fsdecode(path)).write_text("kind: [")
    (error,) = look(str(tmp_path)).loaded.errors
    assert error.startswith(f"{tmp_path}/{shown}{'/a.yaml' if within else ''}: document 1, line 1: ")
    assert error.isprintable()


@pytest.mark.parametrize(("name", "shown"), NOT_UTF8)
@pytest.mark.parametrize("within", [False, True], ids=["file", "directory"])
@pytest.mark.parametrize("content", [text("b"), "kind: ["], ids=["whole", "broken"])
def test_a_name_that_is_not_utf8_is_one_error(
    tmp_path: Path, name: bytes, shown: str, within: bool, content: str
) -> None:
    edit(tmp_path / "a.yaml", text("a"))
    path = os.path.join(os.fsencode(tmp_path), name) + (b"/b.yaml" if within else b"")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    Path(os.fsdecode(path)).write_text(content)
    found = look(str(tmp_path))
    where = f"{tmp_path}/{shown}{'/b.yaml' if within else ''}"
    assert found.loaded == Loaded(services(a=80), (f"{where}: the name is not UTF-8: rename it; it is not read",))
    assert look(str(tmp_path), found) is found
    msgspec.json.encode(found.loaded.errors)


def test_a_directory_that_cannot_be_read_keeps_what_it_held(tmp_path: Path) -> None:
    directory = tmp_path / "m"
    edit(directory / "a.yaml", text("a"))
    first = look(str(directory))
    directory.rename(tmp_path / "away")
    missing = look(str(directory), first)
    assert missing.loaded.objects == services(a=80)
    assert missing.loaded.errors == (
        f"{directory}: can't be read: No such file or directory; its last content stays in force",
    )
    assert look(str(directory), missing) is missing
    directory.mkdir()
    assert look(str(directory), missing).loaded == Loaded({})


def test_a_directory_that_never_was(tmp_path: Path) -> None:
    assert look(f"{tmp_path}/m").loaded == Loaded({}, (f"{tmp_path}/m: can't be read: No such file or directory",))


# --- a watch -----------------------------------------------------------------------------------


class Watched:
    """The changes that were submitted, one by one, and what they add up to."""

    def __init__(self, source: Manifests, objects: Mapping[ObjectKey, Object]) -> None:
        self.source = source
        self.objects = dict(objects)
        self.batches: asyncio.Queue[KubeStateChange] = asyncio.Queue()

    async def submit(self, event: Event) -> None:
        if isinstance(event, Resync):  # nothing is broken any more: what is listed is what the changes add up to
            assert event.objects == self.source.loaded.objects
            assert event.whole
        else:
            assert isinstance(event, KubeStateChange)
            self.batches.put_nowait(event)

    async def batch(self) -> dict[ObjectKey, Object | None]:
        event = await self.batches.get()
        for changed, now in event.changes:
            self.objects.pop(changed, None)
            if now is not None:
                self.objects[changed] = now
        return dict(event.changes)

    async def until(self, **ports: int) -> None:
        while self.objects != services(**ports):
            await self.batch()


@asynccontextmanager
async def watched(directory: Path, look_seconds: float = 60.0) -> AsyncIterator[Watched]:
    """A watch that stands. The look without an event is far away: what is seen was seen by an event.

    Only what hangs meets the timeout.
    """
    source = Manifests(directory, look_seconds)
    seen = Watched(source, await source.listing())
    looked, loop = asyncio.Event(), asyncio.get_running_loop()

    def noted(*arguments: Any) -> Look:
        found = look(*arguments)
        loop.call_soon_threadsafe(looked.set)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifests, "look", noted)
        running = asyncio.create_task(source.run(seen.submit))
        await looked.wait()
    try:
        async with asyncio.timeout(60):
            yield seen
        assert not running.done()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_files_come_change_and_go(tmp_path: Path) -> None:
    edit(tmp_path / "a.yaml", text("a"))
    async with watched(tmp_path) as seen:
        assert seen.objects == services(a=80)
        edit(tmp_path / "b.yaml", text("b"))
        assert await seen.batch() == {key("b"): value()}
        edit(tmp_path / "a.yaml", text("a", 81))
        assert await seen.batch() == {key("a"): value(81)}
        (tmp_path / "a.yaml").unlink()
        assert await seen.batch() == {key("a"): None}


async def test_what_changed_since_the_listing_is_told(tmp_path: Path) -> None:
    source = Manifests(tmp_path)
    await source.listing()
    edit(tmp_path / "a.yaml", text("a"))
    submitted: asyncio.Queue[KubeStateChange] = asyncio.Queue()
    running = asyncio.create_task(source.run(submitted.put))
    assert await submitted.get() == KubeStateChange(((key("a"), value()),))
    running.cancel()


async def test_one_batch_for_what_happens_at_once(tmp_path: Path) -> None:
    prepared = tmp_path / ".prepared"
    for name in "abc":
        edit(prepared / f"{name}.yaml", text(name))
    async with watched(tmp_path) as seen:
        prepared.rename(tmp_path / "shown")
        assert await seen.batch() == services(a=80, b=80, c=80)


async def test_many_changes_come_in_several_events(tmp_path: Path) -> None:
    names = [f"s{n}" for n in range(2 * MOST_CHANGES + 1)]
    async with watched(tmp_path) as seen:
        edit(tmp_path / "a.yaml", "---\n".join(map(text, names)))
        sizes = [len(await seen.batch()) for _ in range(3)]
        assert sizes == [MOST_CHANGES, MOST_CHANGES, 1]
        assert seen.objects == services(**dict.fromkeys(names, 80))


async def test_a_file_replaced_whole(tmp_path: Path) -> None:
    edit(tmp_path / "a.yaml", text("a"))
    async with watched(tmp_path) as seen:
        edit(tmp_path / "a.yaml.tmp", text("a", 81))
        os.replace(tmp_path / "a.yaml.tmp", tmp_path / "a.yaml")
        assert await seen.batch() == {key("a"): value(81)}


async def test_a_file_rewritten_in_steps(tmp_path: Path) -> None:
    """Between the steps it is empty, then broken: what it said stays until it is whole."""
    edit(tmp_path / "a.yaml", text("a"))
    async with watched(tmp_path) as seen, aclosing(Manifests(tmp_path, 60.0).watch()) as other:
        assert (await anext(other)).objects == services(a=80)
        with (tmp_path / "a.yaml").open("w") as file:
            assert "is empty" in (await anext(other)).errors[0]
            file.write("kind: [")
            file.flush()
            assert "document 1" in (await anext(other)).errors[0]
            file.seek(0)
            file.write(text("a", 81))
        assert await seen.batch() == {key("a"): value(81)}


async def test_a_mounted_config_map(tmp_path: Path) -> None:
    """The kubelet's way: `a.yaml` → `..data/a.yaml`, and `..data` is replaced as a whole."""
    edit(tmp_path / "..1" / "a.yaml", text("a"))
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "a.yaml").symlink_to("..data/a.yaml")
    async with watched(tmp_path) as seen:
        assert seen.objects == services(a=80)
        edit(tmp_path / "..2" / "a.yaml", text("a", 81))
        (tmp_path / "..data_tmp").symlink_to("..2")
        os.replace(tmp_path / "..data_tmp", tmp_path / "..data")
        shutil.rmtree(tmp_path / "..1")
        assert await seen.batch() == {key("a"): value(81)}


async def test_a_directory_that_vanishes_and_comes_back(tmp_path: Path) -> None:
    """Meanwhile there is an error, and what it held stays in force."""
    directory = tmp_path / "m"
    edit(directory / "a.yaml", text("a"))
    async with watched(directory) as seen, aclosing(Manifests(directory, 60.0).watch()) as other:
        await anext(other)
        for port in (81, 82):
            directory.rename(tmp_path / str(port))
            gone = await anext(other)
            assert gone.errors == (
                f"{directory}: can't be read: No such file or directory; its last content stays in force",
            )
            assert list(gone.objects) == [key("a")]
            edit(directory / "a.yaml", text("a", port))
            assert await seen.batch() == {key("a"): value(port)}
            while await anext(other) != Loaded(services(a=port)):
                pass


async def test_a_directory_deleted_with_the_one_above_it(tmp_path: Path) -> None:
    directory = tmp_path / "above" / "m"
    edit(directory / "a.yaml", text("a"))
    async with watched(directory) as seen, aclosing(Manifests(directory, 60.0).watch()) as other:
        for port in (81, 82):
            shutil.rmtree(tmp_path / "above")
            while not (await anext(other)).errors:
                pass
            edit(directory / "a.yaml", text("a", port))
            await seen.until(a=port)
            while await anext(other) != Loaded(services(a=port)):
                pass


async def test_a_directory_that_comes_later(tmp_path: Path) -> None:
    directory = tmp_path / "x" / "y" / "m"
    async with watched(directory) as seen:
        assert seen.source.loaded.errors == (f"{directory}: can't be read: No such file or directory",)
        edit(directory / "a.yaml", text("a"))
        await seen.until(a=80)
        edit(directory / "sub" / "b.yaml", text("b"))
        await seen.until(a=80, b=80)
        assert seen.source.loaded.errors == ()


async def test_another_directory_under_the_same_name(tmp_path: Path) -> None:
    directory = tmp_path / "m"
    edit(directory / "a.yaml", text("a"))
    edit(tmp_path / "next" / "b.yaml", text("b"))
    async with watched(directory) as seen:
        directory.rename(tmp_path / "last")
        (tmp_path / "next").rename(directory)
        await seen.until(b=80)
        edit(directory / "b.yaml", text("b", 81))
        await seen.until(b=81)


async def test_a_link_to_another_directory_is_seen_without_an_event(tmp_path: Path) -> None:
    for name in "ab":
        edit(tmp_path / name / f"{name}.yaml", text(name))
    (tmp_path / "m").symlink_to("a")
    async with watched(tmp_path / "m", look_seconds=0.1) as seen:
        assert seen.objects == services(a=80)
        (tmp_path / "other").symlink_to("b")
        os.replace(tmp_path / "other", tmp_path / "m")
        await seen.until(b=80)


async def test_nothing_is_submitted_where_nothing_changed_in_meaning(tmp_path: Path) -> None:
    edit(tmp_path / "a.yaml", f"{text('a')}---\n{text('b')}")
    async with watched(tmp_path) as seen:
        edit(tmp_path / "a.yaml", f"# the other way round\n{text('b')}---\n{text('a')}")
        (tmp_path / "a.yaml").rename(tmp_path / "b.yaml")
        edit(tmp_path / "c.yaml", f"a: [ # broken\n{text('c')}")
        edit(tmp_path / "d.yaml", text("d"))
        assert await seen.batch() == {key("d"): value()}
        assert len(seen.source.loaded.errors) == 1


async def test_the_next_batch_waits_for_the_last(tmp_path: Path) -> None:
    source, entered, leave = Manifests(tmp_path, 60.0), asyncio.Event(), asyncio.Event()
    batches: list[KubeStateChange] = []

    async def submit(event: KubeStateChange) -> None:
        batches.append(event)
        entered.set()
        await leave.wait()

    running = asyncio.create_task(source.run(submit))
    edit(tmp_path / "a.yaml", text("a"))
    await entered.wait()
    entered.clear()
    for port in (81, 82):
        edit(tmp_path / "a.yaml", text("a", port))
    leave.set()
    await entered.wait()
    running.cancel()
    assert [batch.changes for batch in batches] == [((key("a"), value()),), ((key("a"), value(82)),)]


async def test_without_file_events_the_clock_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def refused(*paths: Path, **options: Any) -> AsyncIterator[Any]:
        raise OSError("OS file watch limit reached")
        yield

    monkeypatch.setattr(watchfiles, "awatch", refused)
    async with watched(tmp_path, look_seconds=0.01) as seen:
        edit(tmp_path / "a.yaml", text("a"))
        await seen.until(a=80)
        edit(tmp_path / "a.yaml", text("a", 81))
        await seen.until(a=81)
    assert caplog.text.count("no file events (OS file watch limit reached): a look every 0.01 s instead") == 1


@pytest.mark.parametrize("name", [*(each.values[0] for each in (*ODD_NAMES, *NOT_UTF8)), b"caf\xe9.txt"], ids=ascii)
async def test_whatever_name_comes_the_watch_goes_on(tmp_path: Path, name: bytes) -> None:
    odd = os.path.join(os.fsencode(tmp_path), name)
    async with watched(tmp_path) as seen:
        for port in (81, 82):  # again and again
            edit(Path(os.fsdecode(odd)), "kind: [")
            edit(tmp_path / "a.yaml", text("a", port))
            await seen.until(a=port)
        os.unlink(odd)
        edit(tmp_path / "a.yaml", text("a", 83))
        await seen.until(a=83)


async def test_each_error_and_each_unknown_kind_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "podwire")
    edit(tmp_path / "a.yaml", "a: [")
    edit(tmp_path / "b.yaml", "apiVersion: apps/v1\nkind: Deployment\n")
    async with watched(tmp_path) as seen:
        edit(tmp_path / "c.yaml", text("c"))
        await seen.until(c=80)
        edit(tmp_path / "a.yaml", text("a"))
        await seen.until(a=80, c=80)
    told = [record.getMessage() for record in caplog.records if record.name.startswith("podwire")]
    assert [line.split(": ")[0] for line in told] == [f"{tmp_path}/a.yaml", "ignored", "no longer"]
