"""The driver where FRR is not there: what it looks for, and what it says. All else is told by real daemons."""

import asyncio
from pathlib import Path

import pytest

from podwire.bgp import driver as module
from podwire.bgp.driver import Driver
from podwire.bgp.ours import DAEMONS
from podwire.bgp.vty import Gone, Vty
from tests.unit.bgp_speakers import many, session


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
