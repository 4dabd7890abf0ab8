"""The agent, asked on its admin socket as every other command does."""

import os
from pathlib import Path

import msgspec

from podwire import drift, views
from podwire.cli.client import Failed, ask
from podwire.config import ADMIN_SOCKET
from podwire.doctor.facts import Absent, Agent, Disk
from podwire.doctor.findings import Unseen

_RECORDS, _FEW = 200, 3


def read(state_dir: Path) -> Agent | Absent:
    socket = state_dir / ADMIN_SOCKET
    try:
        status = msgspec.json.decode(ask(socket, "GET", "/status"), type=views.StatusView)
    except Failed as error:
        return Absent(str(error), refused="permission denied" in str(error))
    except msgspec.DecodeError as error:
        return Absent(f"an agent answers at {socket}, of another version: {error}")
    return Agent(status, _failures(socket), _drift(socket))


def _failures(socket: Path) -> tuple[str, ...]:
    try:
        held = msgspec.json.decode(ask(socket, "GET", f"/history?limit={_RECORDS}"), type=views.HistoryView)
    except (Failed, msgspec.DecodeError):
        return ()
    return tuple(f"#{it.number} {it.event}: {it.error}" for it in held.records if it.error is not None)[-_FEW:]


def _drift(socket: Path) -> tuple[drift.DriftView, ...] | Unseen:
    try:
        return msgspec.json.decode(ask(socket, "GET", "/verify"), type=drift.DriftList).drift
    except (Failed, msgspec.DecodeError) as error:
        return Unseen(str(error))


def disk(state_dir: Path) -> Disk | Unseen:
    """Of the directory, or where it will be made."""
    place = state_dir
    while not os.path.exists(place) and place != place.parent:
        place = place.parent
    try:
        held = os.statvfs(place)
    except OSError as error:
        return Unseen(f"{place}: {error.strerror}")
    return Disk(os.path.exists(state_dir), held.f_bavail * held.f_frsize, not held.f_flag & os.ST_RDONLY)
