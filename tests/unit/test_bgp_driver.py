"""The driver where FRR is not there: what it looks for, and what it says. All else is told by real daemons."""

import asyncio
from pathlib import Path

import pytest

from podwire.bgp import driver as module
from podwire.bgp.change import BEGIN, END
from podwire.bgp.config import Plan
from podwire.bgp.driver import Driver
from podwire.bgp.ours import DAEMONS
from podwire.bgp.vty import Gone, Vty
from podwire.model.announcements import Attributes
from tests.unit.bgp_speakers import many, session, speaker
from tests.unit.test_bgp_vty import daemon


async def test_frr_is_missed_only_where_there_is_something_to_announce(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sought: list[str] = []

    async def nobody(path: Path, _: object) -> Vty:
        sought.append(path.stem)
        raise Gone(f"no {path.stem}")

    monkeypatch.setattr(Vty, "connected", nobody)
    monkeypatch.setattr(module, "UNREACHED_SECONDS", 0.0)
    driver = Driver(tmp_path)
    running = asyncio.create_task(driver.run())
    driver.want(None)
    await driver.changed()
    for _ in range(100):
        await asyncio.sleep(0)
    assert (sought, caplog.messages) == (list(DAEMONS), [])
    driver.want(many(1, (session("tor", "10.99.1.254"),)))
    await driver.changed()
    await driver.changed()
    assert sorted(caplog.messages) == [f"no {it}" for it in sorted(DAEMONS)]
    assert len(sought) >= 3 * len(DAEMONS)
    running.cancel()


async def test_a_transaction_that_fails_is_said_again_command_by_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that what is right of it is done, and what is wrong is told by itself."""
    heard: list[str] = []

    def answer(command: str) -> tuple[bytes, int]:
        heard.append(command)
        return (b"% Configuration failed.", 0) if command == END else (b"", 0)

    monkeypatch.setattr(module, "AGAIN_SECONDS", (0.0,))
    async with daemon(answer) as path:
        driver = Driver(path.parent)
        running = asyncio.create_task(driver.run())
        routes = {f"10.0.0.{number}/32": Attributes((f"1:{number}",)) for number in range(60)}
        driver.want(speaker((session("tor", "10.99.1.254"),), routes))
        while heard.count("end") < 2:
            await driver.changed()
        first, second = " ".join(heard).split(" end ")[:2]
        assert (BEGIN in first, BEGIN in second) == (True, False)
        running.cancel()


async def test_an_equal_wish_is_no_news(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[object] = []

    async def nobody(*_: object) -> Vty:
        raise Gone("nobody")

    def counted(*about: object) -> Plan:
        planned.append(about)
        return Plan()

    monkeypatch.setattr(Vty, "connected", nobody)
    monkeypatch.setattr(module, "UNREACHED_SECONDS", 0.0)
    monkeypatch.setattr(module, "plan", counted)
    driver = Driver(tmp_path)
    running = asyncio.create_task(driver.run())
    for count, times in ((1, 1), (1, 1), (2, 2), (2, 2)):
        driver.want(many(count, (session("tor", "10.99.1.254"),)))
        await driver.changed()
        await driver.changed()
        assert len(planned) == times
    running.cancel()


@pytest.mark.parametrize("count", [2, 60])
async def test_no_entry_of_a_route_map_stays_without_what_was_refused(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would let a route go further than that may. It is taken away before any route can meet it."""
    heard: list[str] = []

    def answer(command: str) -> tuple[bytes, int]:
        heard.append(command)
        return (b"% Malformed communities attribute", 13) if command == "set community 1:1" else (b"", 0)

    monkeypatch.setattr(module, "AGAIN_SECONDS", (0.0,))
    async with daemon(answer) as path:
        driver = Driver(path.parent)
        running = asyncio.create_task(driver.run())
        routes = {f"10.0.0.{number}/32": Attributes((f"1:{number}",)) for number in range(count)}
        driver.want(speaker((session("tor", "10.99.1.254"),), routes))
        while "router bgp 65001" not in heard:
            await driver.changed()
        before = heard[: heard.index("router bgp 65001")]
        headers = {
            [it for it in before[:at] if it.startswith("route-map ")][-1]
            for at, command in enumerate(before)
            if command == "set community 1:1"
        }
        assert {it.rpartition("-")[0] for it in headers} == {"route-map podwire-out4", "route-map podwire-out6"}
        assert {it for it in before if it.startswith("no route-map")} == {f"no {it}" for it in headers}
        assert "refuses set community 1:1: % Malformed communities attribute" in driver.troubles[-1]
        while heard.count("router bgp 65001") < 2:
            await driver.changed()
        assert heard.count(BEGIN) == (2 if count == 60 else 0), "what is refused by itself makes nothing slow"
        running.cancel()
