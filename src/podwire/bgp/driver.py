"""Keeps FRR's daemons at what a node has to announce, and says what became of its sessions.

Invariants: the newest wish counts, and until there is one nothing is touched. What a daemon holds is read once it is
reached, and after every failure; the difference is applied and nothing else, so that an agent that is started again
finds nothing to say. A daemon that ends is noticed by its connection, and told anew within a second of its return.
What it would begin with is on disk as soon as it has been told. `run` does not end and raises nothing: what fails is
told, and tried again, later each time. No password is in anything that is logged or told.
"""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic, time

import msgspec

from podwire.bgp import files, signatures
from podwire.bgp.change import END, Change, at_once, change, lacking
from podwire.bgp.config import Plan, plan
from podwire.bgp.lines import without_secrets
from podwire.bgp.ours import DAEMONS, ROUTER, found
from podwire.bgp.routes import Routes, advertised, received
from podwire.bgp.sessions import ESTABLISHED, Neighbor, State, asn_in_open, neighbors, state, steady
from podwire.bgp.tree import EMPTY, Block, parse
from podwire.bgp.vty import Answer, Gone, Vty
from podwire.model.addresses import show_address
from podwire.model.announcements import Session, Speaker

log = logging.getLogger(__name__)

LOOK_SECONDS, UNREACHED_SECONDS, UNWANTED_SECONDS = 1.0, 0.25, 5.0
"""Between two looks at the sessions, and between two tries to reach a daemon that is not there: where nothing is to be
announced it is to be told only that, should it come."""
VERIFY_SECONDS = 30.0
"""Between two readings of what a daemon holds, where nothing has failed."""
AGAIN_SECONDS = (1.0, 5.0, 30.0)
"""After each failure in a row; the last one repeats."""
PATIENCE_SECONDS = 10.0
"""That a session may take to come up, before it is a matter for the log."""
_SHOWN = 3
"""Refused commands that are told; the rest is counted."""


class _Daemon:
    """`held`: what it holds of ours; None: not known. `stuck`: what it does not show, though it was told. `away`: why
    it can't be reached; `missed`: the same, once it was logged; `refused`: what it does not take. `one_by_one`: a
    transaction has failed there."""

    def __init__(self, directory: Path, name: str) -> None:
        self.name, self.path = name, directory / f"{name}.vty"
        self.vty: Vty | None = None
        self.held: Block | None = None
        self.shared = False
        self.foreign: tuple[str, ...] = ()
        self.stuck = Change()
        self.away = self.missed = self.refused = ""
        self.one_by_one = False

    @property
    def reached(self) -> Vty | None:
        return self.vty if self.vty is not None and not self.vty.lost else None


class Driver:
    """`directory`: where FRR's daemons have their sockets (`bgpd.vty` …), and read what they begin with
    (`bgpd.conf` …). `boot`: its ID."""

    def __init__(self, directory: Path, boot: str = "") -> None:
        self.directory, self._boot = directory, boot
        self._daemons = {name: _Daemon(directory, name) for name in DAEMONS}
        self._wanted: Speaker | None = None
        self._is_told = self._is_settled = self._is_steady = False
        self._plan = Plan()
        self._news, self._told = asyncio.Event(), asyncio.Condition()
        self._states: Mapping[str, State] = {}
        self._trouble = ""
        self._down: dict[str, tuple[float, str]] = {}
        self._md5 = signatures.Seen()
        self._verified = self._due = 0.0
        self._failures = 0

    def want(self, speaker: Speaker | None) -> None:
        """The newest counts. None: nothing is announced, and nobody has a session. Of one that is no other nothing is
        done, and what failed waits as long as it would."""
        if self._is_told and speaker == self._wanted:
            return
        self._wanted, self._is_told, self._is_settled, self._due = speaker, True, False, 0.0
        self._news.set()

    def sessions(self) -> Mapping[str, State]:
        """By name, as they were at the last look, at most a second ago."""
        return self._states

    @property
    def troubles(self) -> tuple[str, ...]:
        """What is not as it should be, beside what sessions tell of themselves."""
        found = [self._trouble, *(why for it in self._daemons.values() for why in (it.away, it.refused))]
        return tuple(dict.fromkeys(filter(None, found)))

    @property
    def foreign(self) -> tuple[str, ...]:
        """What others have said to FRR's daemons. It stays."""
        return tuple(f"{it.name}: {line}" for it in self._daemons.values() for line in it.foreign)

    async def changed(self) -> None:
        """Returns after the next look."""
        async with self._told:
            await self._told.wait()

    async def routes(self, name: str) -> Routes:
        """Of that session. Raises Gone, and KeyError where there is none of the name."""
        speaker, bgpd = self._wanted, self._daemons["bgpd"].reached
        session = next((it for it in (speaker.sessions if speaker else ()) if it.name == name), None)
        if session is None or speaker is None:
            raise KeyError(name)
        if bgpd is None:
            raise Gone(self._daemons["bgpd"].away or "FRR's bgpd was not reached yet")
        who = show_address(session.address)
        told, taken = [], []
        for family in session.families:
            head = f"show bgp {family.name.lower()} unicast neighbors {who}"
            told += advertised(await bgpd.show(f"{head} advertised-routes json"), session, speaker.routes)
            taken += received(await bgpd.show(f"{head} routes json"))
        return Routes(tuple(taken), tuple(told))

    # --- at work -----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until it is cancelled."""
        try:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._pause()):
                        await self._news.wait()
                self._news.clear()
                if self._is_told:
                    await self._work()
                async with self._told:
                    self._told.notify_all()
        finally:
            for daemon in self._daemons.values():
                if daemon.vty is not None:
                    daemon.vty.close()

    def _pause(self) -> float:
        if self._wanted is None and not any(it.reached for it in self._daemons.values()):
            return UNWANTED_SECONDS
        return LOOK_SECONDS if self._is_steady else UNREACHED_SECONDS

    def _ended(self) -> None:
        """A connection. Once, or else one that can't be had would be tried without a pause."""
        if self._is_steady:
            self._is_steady = False
            self._news.set()

    def _forget(self) -> None:
        self._is_settled = False
        for daemon in self._daemons.values():
            daemon.held = None

    async def _work(self) -> None:
        try:
            for daemon in self._daemons.values():
                if daemon.reached is None:
                    await self._reach(daemon)
            if monotonic() - self._verified >= VERIFY_SECONDS:
                self._verified = monotonic()
                self._forget()
            if not self._is_settled and monotonic() >= self._due:
                await self._settle(self._wanted)
            await self._look()
        except Exception as error:  # ours; told, and tried again
            log.exception("BGP can't be configured")
            self._trouble = f"internal error: {type(error).__name__}: {without_secrets(str(error))}"
            self._forget()
            self._fail()
        self._is_steady = all(it.reached for it in self._daemons.values())

    async def _settle(self, speaker: Speaker | None) -> None:
        self._is_settled = True  # until the next wish, which may come meanwhile
        if await self._reconcile(speaker):
            self._failures = 0
        elif self._wanted is speaker:
            self._fail()

    def _fail(self) -> None:
        """Before the next try, but not before another wish."""
        self._is_settled = False
        self._due = monotonic() + AGAIN_SECONDS[min(self._failures, len(AGAIN_SECONDS) - 1)]
        self._failures += 1

    async def _reach(self, daemon: _Daemon) -> None:
        daemon.held, daemon.stuck, daemon.refused = None, Change(), ""
        try:
            daemon.vty = await Vty.connected(daemon.path, self._ended)
            self._is_settled, self._due = False, 0.0
            if daemon.missed:
                log.info("FRR's %s runs", daemon.name)
            daemon.away = daemon.missed = ""
        except Gone as gone:
            daemon.vty, daemon.away = None, str(gone)
            if self._wanted is not None and daemon.missed != daemon.away:
                daemon.missed = daemon.away
                log.warning("%s", gone)

    async def _reconcile(self, speaker: Speaker | None) -> bool:
        """Whether all daemons that are there hold what they should."""
        raw = {it.name: await self._read(it) for it in self._daemons.values() if it.held is None and it.reached}
        numbered = raw.get("bgpd", self._daemons["bgpd"].held)
        if numbered is None:
            numbered = await asyncio.to_thread(files.read, self.directory, "bgpd")
        try:
            self._plan = await asyncio.to_thread(plan, speaker, numbered)
            self._trouble = ""
        except ValueError as error:
            self._trouble = str(error)
            return False
        changes = {it.name: await self._compare(it, raw.get(it.name)) for it in self._daemons.values()}
        failed = {name: await self._say(self._daemons[name], changes[name].make) for name in DAEMONS}
        for name in reversed(DAEMONS):
            failed[name] += await self._say(self._daemons[name], changes[name].remove)
        for daemon in self._daemons.values():
            self._conclude(daemon, failed[daemon.name])
            if daemon.held is not None and raw.get(daemon.name) is not None and any(changes[daemon.name]):
                await self._confirm(daemon)
        await self._keep()
        return not self._trouble and all(it.held is not None for it in self._daemons.values() if it.reached)

    async def _read(self, daemon: _Daemon) -> Block | None:
        try:
            assert daemon.vty is not None
            return await asyncio.to_thread(parse, await daemon.vty.show("show running-config"))
        except Gone as gone:
            daemon.away = str(gone)
            return None

    async def _compare(self, daemon: _Daemon, raw: Block | None) -> Change:
        """What to say to it. `raw`: as it was read just now; None: it was not."""
        wanted = self._plan.held[daemon.name]
        if daemon.reached is None:
            return Change()
        if raw is None:
            return await asyncio.to_thread(change, daemon.held or EMPTY, wanted, daemon.shared)
        parted = await asyncio.to_thread(found, daemon.name, raw, wanted)
        if parted.foreign and parted.foreign != daemon.foreign:
            lines = "; ".join(parted.foreign)
            log.warning("FRR's %s was told what Podwire has not said; it stays: %s", daemon.name, lines)
        daemon.foreign, daemon.shared, daemon.held = parted.foreign, parted.shared, parted.ours
        due = await asyncio.to_thread(change, parted.ours, wanted, parted.shared)
        return Change() if due == daemon.stuck else due

    async def _say(self, daemon: _Daemon, commands: tuple[str, ...]) -> list[Answer]:
        """Route maps first: no route is told by one that is not whole."""
        if not commands or (vty := daemon.reached) is None:
            return []
        at = next((number for number, it in enumerate(commands) if it.startswith(ROUTER)), len(commands))
        maps, rest = commands[:at], commands[at:]
        try:
            # Of a transaction that fails nothing is done: then each by itself.
            said = tuple if daemon.one_by_one else at_once
            failed = await vty.configure(said(maps)) if maps else []
            refused = {it.command for it in failed}
            if END in refused:
                daemon.one_by_one = True
                return failed
            if entries := lacking(maps, refused):
                await vty.configure(entries)
            return failed + (await vty.configure(said(rest)) if rest else [])
        except Gone as gone:
            daemon.held, daemon.away = None, str(gone)
            return []

    def _conclude(self, daemon: _Daemon, failed: list[Answer]) -> None:
        why = _refused(daemon.name, failed) or (daemon.refused if any(daemon.stuck) else "")
        if why and why != daemon.refused:
            log.warning("%s", why)
        daemon.refused = why
        if failed:
            daemon.held = None
        elif daemon.held is not None:
            daemon.one_by_one = False
            daemon.held = self._plan.held[daemon.name]

    async def _confirm(self, daemon: _Daemon) -> None:
        """That it shows what it was told. If not, to say it again would change nothing, for ever."""
        daemon.stuck = Change()
        daemon.stuck = await self._compare(daemon, await self._read(daemon))
        if any(daemon.stuck):
            lines = without_secrets("\n".join((*daemon.stuck.make, *daemon.stuck.remove)[:_SHOWN])).split("\n")
            daemon.refused = f"FRR's {daemon.name} does not show what it was told: {'; '.join(lines)}"
            log.warning("%s", daemon.refused)

    async def _keep(self) -> None:
        if not self.directory.is_dir():
            return  # that nobody answers there is told already
        try:
            for name in DAEMONS:
                await asyncio.to_thread(files.write, self.directory, name, self._plan.held[name], self._boot)
        except OSError as error:
            self._trouble = f"what FRR begins with can't be written: {error}"
            log.warning("%s", self._trouble)

    # --- what became of it -------------------------------------------------------------------------

    async def _look(self) -> None:
        speaker, bgpd = self._wanted, self._daemons["bgpd"]
        told: dict[str, Neighbor] = {}
        asns: dict[str, int] = {}
        why = bgpd.away
        if bgpd.reached is not None:
            try:
                told = neighbors(await bgpd.reached.show("show bgp neighbors json"))
                for who in sorted(it for it in told if told[it].is_wrong_asn and told[it].bgp_state != ESTABLISHED):
                    said = asn_in_open(await bgpd.reached.show(f"show bgp neighbors {who}"))
                    asns |= {who: said} if said is not None else {}
                self._md5.look(bgpd.reached.process(), monotonic())
            except (Gone, msgspec.MsgspecError) as error:
                why = str(error)
        sessions = sorted(speaker.sessions, key=lambda it: it.name) if speaker is not None else []
        states = {it.name: self._state(it, told, asns, why) for it in sessions}
        for it in states.values():
            self._log(it)
        self._down = {name: it for name, it in self._down.items() if name in states}
        self._states = states

    def _log(self, now: State) -> None:
        """A session that comes up, goes down, or is not up for a while; that once for each reason."""
        before, (since, said) = self._states.get(now.name), self._down.get(now.name, (monotonic(), ""))
        if now.state == ESTABLISHED:
            self._down.pop(now.name, None)
            if before is None or before.state != ESTABLISHED:
                log.info("BGP session %s with %s is up", now.name, now.address)
            return
        if before is not None and before.state == ESTABLISHED:
            log.warning("BGP session %s with %s is down: %s", now.name, now.address, now.lost or now.error)
        elif now.error != said and monotonic() - since >= PATIENCE_SECONDS:
            log.warning("BGP session %s with %s: %s", now.name, now.address, now.error)
            said = now.error
        self._down[now.name] = since, said

    def _state(self, session: Session, told: Mapping[str, Neighbor], asns: Mapping[str, int], why: str) -> State:
        who = show_address(session.address)
        refused = self._plan.refused.get(session.name)
        if refused is not None or not told.get(who):
            return State(session.name, who, error=refused or why or "FRR's bgpd was not told of it")
        unsigned = self._md5.words(bool(session.password), monotonic())
        before = next((it for it in self._states.values() if it.address == who), None)
        now = steady(before, state(session, told[who], time(), asns.get(who), unsigned))
        limit = self._plan.limits.get(session.name, "")
        return msgspec.structs.replace(now, error=limit) if limit and not now.error else now


def _refused(name: str, failed: list[Answer]) -> str:
    if not failed:
        return ""
    more = f", and {len(failed) - _SHOWN} more" if len(failed) > _SHOWN else ""
    return f"FRR's {name} refuses {'; '.join(map(str, failed[:_SHOWN]))}{more}"
