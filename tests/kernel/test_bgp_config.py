"""What FRR's daemons are told, held against the real ones: from any configuration to any other, and from a file."""

import asyncio
import os
import signal
import sysconfig
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from podwire.bgp.change import LEAST, Change, at_once, change
from podwire.bgp.config import plan
from podwire.bgp.daemons import CannotStart, Daemons, answers
from podwire.bgp.ours import DAEMONS, Found, found
from podwire.bgp.tree import EMPTY, Block, parse, show
from podwire.bgp.vty import Gone, Vty
from podwire.model.announcements import Speaker
from tests.kernel.rig import Space, spaces
from tests.kernel.routers import until
from tests.unit.bgp_speakers import many, session, speakers


@pytest.fixture(scope="module")
def place() -> Iterator[tuple[Space, Path]]:
    """A namespace, and a directory that FRR's user can reach."""
    with spaces() as make, TemporaryDirectory(prefix="pwt-bgp-") as directory:
        Path(directory).chmod(0o755)
        yield make("node"), Path(directory) / "frr"


@asynccontextmanager
async def daemons(place: tuple[Space, Path]) -> AsyncIterator[dict[str, Vty]]:
    space, directory = place
    with (directory.parent / "log").open("ab") as log:
        frr = Daemons(directory, output=log, inside=("ip", "netns", "exec", space.name))
        task = asyncio.create_task(frr.run())
        try:
            await asyncio.wait_for(frr.started["bgpd"].wait(), 20)
            vtys = {name: await Vty.connected(directory / f"{name}.vty") for name in DAEMONS}
            yield vtys
            for vty in vtys.values():
                vty.close()
        finally:
            task.cancel()
            await asyncio.wait([task])


async def held(vty: Vty, name: str, wanted: Block) -> Found:
    return found(name, parse(await vty.show("show running-config")), wanted)


async def lead(vtys: dict[str, Vty], station: Speaker | None, least: int = LEAST) -> None:
    """Tells the daemons, and looks whether they hold it: then there is nothing more to say."""
    wanted = plan(station, (await held(vtys["bgpd"], "bgpd", EMPTY)).ours).held
    due = {name: change((await held(vty, name, wanted[name])).ours, wanted[name]) for name, vty in vtys.items()}
    failed = []
    for name in DAEMONS:
        failed += await vtys[name].configure(at_once(due[name].make, least))
    for name in reversed(DAEMONS):
        failed += await vtys[name].configure(at_once(due[name].remove, least))
    assert [str(it) for it in failed] == []
    for name, vty in vtys.items():
        now = await held(vty, name, wanted[name])
        assert now == Found(wanted[name])
        assert change(now.ours, wanted[name]) == Change()


@pytest.mark.parametrize("least", [LEAST, 1])
def test_real_daemons_come_from_any_configuration_to_any_other(place: tuple[Space, Path], least: int) -> None:
    with asyncio.Runner() as runner:
        parts = daemons(place)
        vtys = runner.run(parts.__aenter__())

        @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
        @given(st.lists(speakers(), min_size=1, max_size=4))
        def walk(stations: list[Speaker | None]) -> None:
            for station in (*stations, None):
                runner.run(lead(vtys, station, least))

        try:
            walk()
        finally:
            runner.run(parts.__aexit__(None, None, None))


async def test_what_they_begin_with_is_what_they_were_told(place: tuple[Space, Path]) -> None:
    """From the file, at once: bgpd has all routes before it speaks with anybody."""
    told = many(5000, (session("tor", "10.99.1.254", password="an!#other\"?$'"),))
    wanted = plan(told).held
    place[1].mkdir(exist_ok=True)
    for name in DAEMONS:
        (place[1] / f"{name}.conf").write_text(show(wanted[name]))
    async with daemons(place) as vtys:
        for name, vty in vtys.items():
            assert await held(vty, name, wanted[name]) == Found(wanted[name])
        await lead(vtys, None)
    for name in DAEMONS:
        (place[1] / f"{name}.conf").unlink()


async def test_an_answer_for_each_command_and_no_password_in_any(place: tuple[Space, Path]) -> None:
    async with daemons(place) as vtys:
        bad = ["router bgp 65001", "neighbor 10.0.0.1 password a hidden one", "nonsense", "exit"]
        failed = await vtys["bgpd"].configure(bad)
        assert [it.command for it in failed] == bad[1:3]
        assert "hidden" not in " ".join(map(str, failed))
        assert "Unknown command" in str(failed[1])
        answers = await vtys["bgpd"].ask(["show running-config"] * 50)
        assert len({it.text for it in answers}) == 1
        assert [it.code for it in answers] == [0] * 50
        with pytest.raises(Gone, match="refuses show nothing at all"):
            await vtys["bgpd"].show("show nothing at all")
        await lead(vtys, None)


async def test_who_is_not_there_is_told_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(Gone, match=f"FRR's bgpd does not run: nobody answers at {tmp_path}/bgpd.vty: No such file"):
        await Vty.connected(tmp_path / "bgpd.vty")


async def test_a_directory_that_frr_can_not_reach_is_told(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match="FRR's user can't reach"):
        await Daemons(tmp_path / "frr").run()


async def test_no_daemon_without_its_program(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match="nothing/zebra is missing: install FRR"):
        await Daemons(tmp_path / "frr", programs=tmp_path / "nothing").run()


async def test_what_a_killed_supervisor_has_left_is_ended_first(place: tuple[Space, Path]) -> None:
    """Its daemons go on, and nobody looks after them."""
    space, directory = place
    inside = ("ip", "netns", "exec", space.name)
    async with daemons(place):
        pass  # the directory is there
    left = [await asyncio.create_subprocess_exec(*Daemons(directory, inside=inside).command(it)) for it in DAEMONS]
    frr = Daemons(directory, inside=inside)
    for name, process in zip(DAEMONS, left, strict=True):
        await until(
            lambda n=name, p=process: (directory / f"{n}.pid").read_text().strip() == str(p.pid), f"{name} runs"
        )
    task = asyncio.create_task(frr.run())
    try:
        await asyncio.wait_for(frr.started["bgpd"].wait(), 20)
        assert [await it.wait() for it in left] == [-signal.SIGKILL] * len(DAEMONS)
        assert {int((directory / f"{name}.pid").read_text()) for name in DAEMONS} == set(frr.processes.values())
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_the_command_runs_them_and_ends_them(place: tuple[Space, Path]) -> None:
    space, directory = place
    command = (str(Path(sysconfig.get_path("scripts"), "podwire")), "bgp-daemons", "--directory", str(directory))
    with (directory.parent / "log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            "ip", "netns", "exec", space.name, *command, stdout=log, stderr=log
        )
    vty = directory / "bgpd.vty"
    await until(lambda: answers(vty), "bgpd answers")
    (killed, *others) = [int((directory / f"{name}.pid").read_text()) for name in DAEMONS]
    os.kill(killed, signal.SIGKILL)
    await until(lambda: int((directory / "zebra.pid").read_text()) != killed, "zebra is started again")
    assert [int((directory / f"{name}.pid").read_text()) for name in DAEMONS[1:]] == others
    running = [int((directory / f"{name}.pid").read_text()) for name in DAEMONS]
    process.terminate()
    assert await asyncio.wait_for(process.wait(), 20) == 0
    assert living(running) == []


def living(processes: list[int]) -> list[int]:
    return [it for it in processes if Path(f"/proc/{it}").exists()]
