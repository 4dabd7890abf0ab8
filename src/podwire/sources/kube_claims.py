"""A node's blocks of pools, agreed with all others by the API: taken, given back and written down anew.

Invariants: what is due `ipam/claims.py` says; here it is done, beside the transactions, one request at a time. What the
API answered enters the loop as an event, as what a watch brings does: pods get addresses of a block only then. A block
goes out of use, by an event, before its record is deleted; only one of which the watch has told is, so that nothing
told later brings it back. An answer that was lost is asked for by the next try. What was learnt here and what the watch
tells come to be the same, or it is asked for again. Each failure is told once and tried again, later each time; nothing
of it is remembered elsewhere, so an agent may be killed at any line.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from math import inf
from typing import Any, NamedTuple

from podwire.cni.errors import CniError, ErrorCode
from podwire.controller.events import KubeStateChange
from podwire.controller.history import Record as Happened
from podwire.controller.loop import Controller
from podwire.ipam.allocation import Obstacle, Wish
from podwire.ipam.claims import NOTHING, Claim, Claims, Wishes, due
from podwire.ipam.pools import Source
from podwire.ipam.usage import uses
from podwire.model.addresses import Prefix
from podwire.model.kinds import Object, ObjectKey
from podwire.model.objects import PodBlock, PodBlockKey
from podwire.model.snapshot import Snapshot
from podwire.pods.readiness import granted
from podwire.sources import kube_blocks
from podwire.sources.kube_api import Api, ApiError
from podwire.sources.kube_position import backoff
from podwire.sources.kube_watch import CHANCE, Chance
from podwire.sources.pod_wishes import awaited
from podwire.sources.troubles import Troubles

log = logging.getLogger(__name__)

REST = 0.1
"""Seconds from one look at what is due to the next: what happens meanwhile shares one."""
PATIENCE = 3.0
"""Seconds that an ADD waits for what is being taken for it."""
DOUBT_SECONDS = 30.0
"""After so long a watch that has not told what was learnt here is behind, or has told of it before."""
MOST_TRIES = 5
"""Of one thing in a row, where each has had an answer and none has changed anything."""


class Job(NamedTuple):
    """`verb`: take, give or adopt."""

    verb: str
    cidr: Prefix
    pool: str = ""


class Claimer:
    """`run` does what is due; `held` is for an ADD."""

    def __init__(
        self,
        api: Api,
        controller: Controller,
        told: Callable[[ObjectKey], Object | None],
        chance: Chance = CHANCE,
    ) -> None:
        """`told`: what the watch has of a key."""
        self._api, self._controller, self._told, self._chance = api, controller, told, chance
        self._adds: list[Wish] = []
        """What the ADDs ask for that are under way."""
        self._stirred, self._ended = asyncio.Event(), asyncio.Condition()
        self._hurried = False
        """An ADD waits for the next round."""
        self._begun = self._done = 0
        """Rounds."""
        self._failures = 0
        self._learnt: dict[PodBlockKey, float] = {}
        """What the watch has yet to tell as it was learnt here, and when that was."""
        self._wrong: dict[Job, str] = {}
        self._conflicts: tuple[str, ...] = ()
        self._thought: tuple[tuple[object, ...], Claims] | None = None
        """From what the last claims followed, and these."""
        self._troubles = Troubles(log)

    @property
    def errors(self) -> tuple[str, ...]:
        """What is wrong now, for people: sorted, each line once."""
        return tuple(sorted({*self._wrong.values(), *self._conflicts}))

    @asynccontextmanager
    async def held(self, wish: Wish) -> AsyncIterator[None]:
        """Meanwhile what an ADD asks for is taken where it lacks, and kept though nobody lives in it yet. Waits for
        that, for seconds at most: what lacks then the ADD itself says, and this adds why."""
        self._adds.append(wish)
        try:
            if self._lacks(wish) and not self._failures:
                self._hurried = True
                self._stirred.set()
                with suppress(TimeoutError):
                    async with asyncio.timeout(PATIENCE), self._ended:
                        last = self._begun + 1
                        await self._ended.wait_for(lambda: self._done >= last or not self._lacks(wish))
            yield
        except CniError as error:
            if error.code == ErrorCode.TRY_AGAIN_LATER and self._wrong and self._lacks(wish):
                raise CniError(error.code, f"{error.text}; {self.errors[0]}", error.details) from None
            raise
        finally:
            self._adds.remove(wish)
            self._stirred.set()

    async def until_quiet(self) -> None:
        """What failed is waited for."""
        async with self._ended:
            await self._ended.wait_for(lambda: self.quiet)

    @property
    def quiet(self) -> bool:
        """Whether nothing is due, and the watch has told what was learnt."""
        return not (self._wrong or self._learnt) and next(self._due(), None) is None

    def _lacks(self, wish: Wish) -> bool:
        return isinstance(granted(self._controller.snapshot, wish), Obstacle)

    async def run(self) -> None:
        """Never returns."""
        while True:
            news = self._controller.next_of_pods()
            self._stirred.clear()
            self._hurried = False
            self._begun += 1
            failed = await self._round()
            self._troubles.tell(self.errors)
            self._failures = self._failures + 1 if failed else 0
            async with self._ended:
                self._done = self._begun
                self._ended.notify_all()
            if failed:
                news.cancel()
                await self._chance.pause(backoff(self._failures - 1, self._chance.luck()))
            else:
                await self._news(news)
                urgent = self._hurried or self._claims(self._controller.snapshot).renew
                await self._chance.pause(0.0 if urgent else REST)

    async def _news(self, news: "asyncio.Future[Happened]") -> None:
        """Until something has happened, or what was learnt is doubtful."""
        others: list[asyncio.Future[Any]] = [asyncio.ensure_future(self._stirred.wait())]
        if self._learnt:
            others.append(asyncio.ensure_future(self._chance.pause(DOUBT_SECONDS)))
        waiting: list[asyncio.Future[Any]] = [news, *others]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for it in waiting:
                it.cancel()

    # --- what is due -----------------------------------------------------------------------------

    async def _round(self) -> bool:
        """All that is due, until nothing more is; whether something has failed. What has, waits for the next."""
        tries: dict[Job, int] = {}
        wrong: dict[Job, str] = {}
        while job := next((it for it in self._due() if tries.get(it, 0) < MOST_TRIES), None):
            tries[job] = tries.get(job, 0) + 1
            try:
                await self._do(job)
            except ApiError as error:
                wrong[job] = f"{PodBlockKey(job.cidr)} ({job.verb}): {error}"
                tries[job] = MOST_TRIES
                if error.status == 0 or error.status >= 500:
                    break
            else:
                wrong.pop(job, None)
        else:
            for it in self._due():
                wrong.setdefault(it, f"{PodBlockKey(it.cidr)} ({it.verb}): still due, {MOST_TRIES} answers later")
        if not wrong:
            wrong = await self._ask_again()
        self._wrong = wrong
        return bool(wrong)

    def _due(self) -> Iterator[Job]:
        now = self._controller.snapshot
        claims = self._claims(now)
        self._conflicts = claims.conflicts
        for it in claims.renew:
            yield Job("take", *_of(it))
        if claims is not NOTHING:
            for cidr in disowned(now):
                yield Job("adopt", cidr)
        for cidr in claims.give:
            if self._told(PodBlockKey(cidr)) is not None:
                yield Job("give", cidr)
        for it in claims.take:
            yield Job("take", *_of(it))

    def _claims(self, now: Snapshot) -> Claims:
        """Thought about again only where something is other than it was: the most that happens is of Services."""
        if not (now.pools or now.blocks_of.get(now.local.key)):
            return NOTHING
        seen = _seen(now, self._adds)
        if self._thought is None or any(it is not was for it, was in zip(seen, self._thought[0], strict=True)):
            self._thought = seen, self._think(now)
        return self._thought[1]

    def _think(self, now: Snapshot) -> Claims:
        waiting = awaited(now)
        pools = {it.pool for it in self._adds if it.pool} | waiting.pools
        fixed = {address for it in self._adds for address in it.fixed} | waiting.fixed
        return due(now, Wishes(frozenset(pools), frozenset(fixed)))

    async def _do(self, job: Job) -> None:
        """Raises ApiError."""
        match job.verb:
            case "take":
                await self._take(job.cidr, job.pool)
            case "give":
                await self._give(job.cidr)
            case "adopt":
                await self._adopt(job.cidr)

    async def _take(self, cidr: Prefix, pool: str) -> None:
        """Ours, or whose it is."""
        local, node = self._controller.snapshot.local, self._controller.snapshot.node
        made = await kube_blocks.make(self._api, cidr, pool, local.name, node)
        if made is not None:
            log.info("%s of pool %s is this node's now", PodBlockKey(cidr), pool)
        await self._learn(cidr, made or await kube_blocks.find(self._api, cidr))

    async def _give(self, cidr: Prefix) -> None:
        """Where the record could not be deleted, or a pod came first, it is looked at again."""
        key, name = PodBlockKey(cidr), self._controller.snapshot.local.name
        await self._learn(cidr, None)
        if uses(self._controller.snapshot, (Source(cidr),))[0].pods:
            return
        self._learnt[key] = -inf  # unless all of the rest goes well
        record = await kube_blocks.find(self._api, cidr)
        if record is not None and record.block.node == name and await kube_blocks.delete(self._api, cidr, record):
            log.info("%s is given back", key)
            record = None
        elif record is not None:
            record = await kube_blocks.find(self._api, cidr)
        await self._learn(cidr, record)

    async def _adopt(self, cidr: Prefix) -> None:
        """Where it is not ours any more, that is learnt."""
        local, node = self._controller.snapshot.local, self._controller.snapshot.node
        record = await kube_blocks.find(self._api, cidr)
        if record is not None and record.block.node == local.name:
            record = await kube_blocks.adopt(self._api, cidr, record, local.name, node) or record
        await self._learn(cidr, record)

    async def _learn(self, cidr: Prefix, record: kube_blocks.Record | None) -> None:
        key = PodBlockKey(cidr)
        self._learnt[key] = self._chance.clock()
        await self._controller.submit(KubeStateChange(((key, record.block if record is not None else None),)))

    async def _ask_again(self) -> dict[Job, str]:
        """What was learnt is the watch's to tell, in the end. Answers what could not be asked for."""
        wrong: dict[Job, str] = {}
        for key, since in sorted(self._learnt.items()):
            if self._told(key) == self._controller.snapshot.blocks.get(key):
                del self._learnt[key]
            elif self._chance.clock() - since >= DOUBT_SECONDS:
                try:
                    await self._learn(key.cidr, await kube_blocks.find(self._api, key.cidr))
                except ApiError as error:
                    wrong[Job("ask", key.cidr)] = f"{key} (ask): {error}"
        return wrong


def _seen(now: Snapshot, adds: list[Wish]) -> tuple[object, ...]:
    """All that decides what is due, but for the addresses of nodes, by which pools are unfit."""
    asked = (now.pods, now.namespaces, tuple(adds) if adds else None)
    return now.pools, now.unfit_pools, now.blocks, now.attachments, now.node, now.contested, now.whole, *asked


def _of(claim: Claim) -> tuple[Prefix, str]:
    return claim.cidr, claim.pool


def disowned(now: Snapshot) -> tuple[Prefix, ...]:
    """This node's blocks that would not go with its Node object, or have gone with an earlier one; sorted."""
    uid, mine = now.node.uid, now.blocks_of.get(now.local.key, ())
    held = ((it, now.blocks[PodBlockKey(it)]) for it in mine)
    return tuple(cidr for cidr, block in held if uid and isinstance(block, PodBlock) and block.owner != uid)
