"""An agent's tasks: none ends unseen."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from podwire import supervision
from podwire.supervision import Tasks, until_lost


async def _returns() -> str | None:
    return None


async def _says() -> str | None:
    return "a file is missing"


async def _raises() -> str | None:
    raise KeyError("bug")


async def _is_cancelled() -> str | None:
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("work", "why"),
    [
        pytest.param(_returns, "the loop has ended", id="returns"),
        pytest.param(_says, "the loop has ended: a file is missing", id="returns a reason"),
        pytest.param(_raises, "the loop has ended: internal error: KeyError('bug')", id="raises"),
        pytest.param(_is_cancelled, "the loop has ended: cancelled", id="is cancelled"),
    ],
)
async def test_with_an_essential_task_all_ends_and_says_why(
    work: Callable[[], Coroutine[Any, Any, str | None]], why: str
) -> None:
    tasks = Tasks()
    tasks.essential("the loop", work())
    assert await tasks.ended == why
    tasks.end("")  # what comes later is its consequence
    assert await tasks.ended == why


async def test_an_end_in_good_order_is_no_reason() -> None:
    tasks = Tasks()
    with tasks.at_work():
        task = tasks.essential("the loop", _says())
    await asyncio.wait([task])
    assert not tasks.ended.done()
    tasks.end("")
    assert await tasks.ended == ""


async def test_a_kept_task_is_started_again_and_people_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "AGAIN_SECONDS", (0.0,))
    tasks, starts, third = Tasks(), list[bool](), asyncio.Event()

    async def work(again: bool) -> None:
        starts.append(again)
        if len(starts) == 1:
            raise KeyError("bug")
        if len(starts) == 3:
            third.set()
            await asyncio.Event().wait()

    tasks.keep("the watch", work)
    await third.wait()
    assert starts == [False, True, True]
    assert tasks.troubles == {"the watch": "the watch has ended, and is started again: without a reason"}
    assert not tasks.ended.done()
    await tasks.stop()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_what_goes_on_again_is_no_longer_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "AGAIN_SECONDS", (0.0,))
    monkeypatch.setattr(supervision, "SETTLED_SECONDS", 0.0)
    tasks, second, forgotten = Tasks(), asyncio.Event(), asyncio.Event()

    class Noted(dict[str, str]):
        def pop(self, key: str, default: Any = None) -> Any:
            super().pop(key, default)
            if second.is_set():
                forgotten.set()

    tasks.troubles = Noted()

    async def work(again: bool) -> None:
        if again:
            second.set()
            await asyncio.Event().wait()
        raise KeyError("bug")

    tasks.keep("the watch", work)
    await second.wait()
    await forgotten.wait()
    assert tasks.troubles == {}
    await tasks.stop()


def _remove(path: Path) -> None:
    path.unlink()


def _replace(path: Path) -> None:
    path.rename(path.with_name("other"))
    path.touch()


def _remove_all(path: Path) -> None:
    path.unlink()
    path.parent.rmdir()


@pytest.mark.parametrize("hand", [_remove, _replace, _remove_all], ids=lambda hand: hand.__name__[1:])
async def test_a_file_that_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hand: Callable[[Path], None]
) -> None:
    monkeypatch.setattr(supervision, "LOOK_SECONDS", 0.0)
    path = tmp_path / "state" / "cni.sock"
    path.parent.mkdir()
    path.touch()
    lost = asyncio.create_task(until_lost((path,)))
    await asyncio.sleep(0)
    assert not lost.done()
    hand(path)
    assert await lost == f"{path} was removed or replaced"
