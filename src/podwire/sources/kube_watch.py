"""One kind of the API's objects, listed and then watched for ever.

Invariants: `objects` is what the API server last said, whole: a list takes its place at once, and only with its last
page. A watch that breaks changes nothing. `tell` hears of each change and of nothing that is equal. An object that
breaks the API's rules is one error, and keeps its last good form; of one that only names an address that nobody can
have the rest is taken. It never holds up the others. Decoding and translating go in slices, so that everybody else
gets a turn.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from random import random
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw, Struct, field

from podwire.model.kinds import Object, ObjectKey
from podwire.sources import kube_position as position
from podwire.sources.fields import Invalid, invalid
from podwire.sources.kube_api import Api, ApiError, Status, status_error
from podwire.sources.kube_position import Age, Failure, Position
from podwire.sources.kubernetes import Resource, translate

log = logging.getLogger(__name__)

SLICE_BYTES = 128 << 10
"""Of JSON, between two turns of the event loop: about 3 ms."""
MOST_DENIED = 3
"""So often in a row an API server may refuse to list a kind that it need not have, before that counts as none of it.
One that has just started refuses what it is about to allow."""
SILENCE_SECONDS = 30.0
"""How much longer than asked a watch may last before it is given up."""

Tell = Callable[[ObjectKey, Object | None, Object | None], None]
"""A change: the key, and its object before and after (None: there is none)."""


class Odd(Exception):
    """What came can't be understood, or breaks the order of a watch."""


class State(NamedTuple):
    """For people. `since`, in seconds since the epoch: when `error` came, or ("") when the API last began to answer."""

    resource: str
    listed: bool
    version: str
    since: float
    error: str


class Chance(NamedTuple):
    """What is not decided by the API: time (`clock` in seconds since whenever, `now` since the epoch) and luck."""

    pause: Callable[[float], Awaitable[None]] = asyncio.sleep
    luck: Callable[[], float] = random
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time


CHANCE = Chance()


# --- the API's forms ---------------------------------------------------------------------------


class ListMeta(Struct, frozen=True, rename="camel"):
    resource_version: str | None = None
    next: str | None = field(default=None, name="continue")


class Page(Struct, frozen=True):
    metadata: ListMeta
    items: list[Raw] | None = None


class Happening(Struct, frozen=True):
    type: str
    object: Raw


class Meta(Struct, frozen=True, rename="camel"):
    name: str = ""
    namespace: str = ""
    resource_version: str = ""


class Anything(Struct, frozen=True):
    metadata: Meta


_page = msgspec.json.Decoder(Page)
_happening = msgspec.json.Decoder(Happening)
_anything = msgspec.json.Decoder(Anything)
_status = msgspec.json.Decoder(Status)


# --- one kind ----------------------------------------------------------------------------------


class Watch:
    """`noted` is called when `state` has another error, or none any more."""

    def __init__(
        self, api: Api, resource: Resource, tell: Tell, noted: Callable[[], None], chance: Chance = CHANCE
    ) -> None:
        self.resource = resource
        self.objects: dict[ObjectKey, Object] = {}
        self.wrong: dict[Any, str] = {}
        """Why an object is not as the API server has it, in words; by its name where no key can be made of that."""
        self.listed = asyncio.Event()
        self.denied = False
        """Whether nothing is known of it since nobody has given us the right to ask."""
        self._api, self._tell, self._noted, self._chance = api, tell, noted, chance
        self._decoder = msgspec.json.Decoder(resource.form)
        self._translate = resource.read or _to_an_agent
        self._position = Position()
        self._found: dict[ObjectKey, Object] = {}
        self._found_wrong: dict[Any, str] = {}
        self._error: str | None = None  # not asked yet
        self._since = chance.now()

    @property
    def state(self) -> State:
        version = self._position.version
        return State(self.resource.name, self.listed.is_set(), version, self._since, self._error or "")

    async def run(self) -> None:
        """Never returns."""
        while True:
            delay = await self._step()
            if delay:
                await self._chance.pause(delay)

    async def _step(self) -> float:
        """One page, or one watch to its end. Returns the seconds to wait before the next step."""
        began, watching, retry_after = self._chance.clock(), self._position.watching, 0.0
        try:
            if not watching:
                await self._list()
                return 0.0
            await self._watch()
            seconds = self._chance.clock() - began
            self._position, delay = position.ended(self._position, seconds, self._chance.luck())
            return delay
        except ApiError as error:
            if error.status == 404 and self.resource.optional:
                self._position = Position()
                self._replace({}, {})
                self._note("")
                return self.resource.absent_seconds
            failure = Failure.EXPIRED if error.expired else Failure.LOST
            text, retry_after = str(error), error.retry_after
            if self._is_denied(error):
                self.denied = True
                self._replace({}, {})
        except Odd as error:
            failure, text = Failure.ODD, f"{self.resource.path}: {error}: listed again"
        except Exception as error:  # a bug: the other kinds go on, and this one tries again
            log.exception("%s", self.resource.path)
            failure, text = Failure.ODD, f"{self.resource.path}: internal error: {error!r}"
        if watching:
            self._position = position.lasted(self._position, self._chance.clock() - began)
        if failure is Failure.EXPIRED:
            log.info("%s", text)
        else:
            self._note(text)
        self._position, delay = position.failed(self._position, failure, self._chance.luck(), retry_after)
        return delay

    def _is_denied(self, error: ApiError) -> bool:
        """Whether nothing is known of a kind that need not be there, since nobody has given us the right to ask: that
        is told, and no reason to wait."""
        often = self._position.failures + 1 >= MOST_DENIED
        return error.status == 403 and self.resource.optional and often and not self.listed.is_set()

    def _note(self, error: str) -> None:
        if error != self._error:
            self._error, self._since = error, self._chance.now()
            self._noted()

    # --- list ----------------------------------------------------------------------------------

    async def _list(self) -> None:
        """One page. Raises ApiError, Odd."""
        query = dict(self.resource.selection) | position.query(self._position, 0.0)
        body = await self._api.get(self.resource.path, query)
        try:
            page = _page.decode(body)
        except msgspec.DecodeError as error:
            raise Odd(f"expected a list of objects: {error}") from None
        if not page.metadata.resource_version:
            raise Odd("a list without metadata.resourceVersion")
        if not self._position.token:
            self._found, self._found_wrong = {}, {}
        size = 0
        for raw in page.items or ():
            self._find(raw)
            size += memoryview(raw).nbytes
            if size > SLICE_BYTES:
                size = 0
                await asyncio.sleep(0)
        self._position = position.paged(self._position, page.metadata.resource_version, page.metadata.next or "")
        self._note("")
        if self._position.watching:
            self.denied = False
            self._replace(self._found, self._found_wrong)
            self._found, self._found_wrong = {}, {}

    def _find(self, raw: Raw) -> None:
        """An equal object stays the one that is held."""
        key, value, wrong = self._read(raw)
        held = self.objects.get(key)
        if wrong:
            self._found_wrong[key] = wrong
            value = held if value is None else value
        if value is not None:
            self._found[key] = held if held is not None and held == value else value

    def _replace(self, found: dict[ObjectKey, Object], wrong: dict[Any, str]) -> None:
        """All that there is, in place of all that there was."""
        before, self.objects = self.objects, found
        if wrong != self.wrong:
            self.wrong = wrong
            self._noted()
        for key, value in found.items():
            if (held := before.get(key)) is not value:
                self._tell(key, held, value)
        for key, held in before.items():
            if key not in found:
                self._tell(key, held, None)
        self.listed.set()

    # --- watch ---------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Until the server ends it. Raises ApiError, Odd."""
        query = dict(self.resource.selection) | position.query(self._position, self._chance.luck())
        silence = float(query["timeoutSeconds"]) + SILENCE_SECONDS
        async with self._api.lines(self.resource.path, query, silence) as batches:
            self._note("")
            async for lines in batches:
                for line in lines:
                    if line:
                        self._happen(line)

    def _happen(self, line: bytes) -> None:
        """One event of the watch. Raises ApiError, Odd."""
        try:
            kind, raw = _decoded(line)
            meta = _anything.decode(raw).metadata
        except msgspec.DecodeError as error:
            raise Odd(f"expected an event of a watch: {error}") from None
        if not meta.resource_version:
            raise Odd(f"{kind} without metadata.resourceVersion")
        came = position.age(self._position, meta.resource_version)
        if came is Age.EARLIER:
            raise Odd(f"{kind} of version {meta.resource_version} after version {self._position.version}")
        if kind in ("ADDED", "MODIFIED", "DELETED"):
            if came is Age.NEW:
                self._put(kind, meta, raw)
        elif kind != "BOOKMARK":
            raise Odd(f"unknown event {kind!r}")
        self._position = position.moved(self._position, meta.resource_version)

    def _put(self, kind: str, meta: Meta, raw: Raw) -> None:
        if kind == "DELETED":
            key, value, wrong = self._key(meta), None, ""
        else:
            key, value, wrong = self._read(raw)
        held = self.objects.get(key)
        if wrong != self.wrong.get(key, ""):
            self.wrong = {each: text for each, text in self.wrong.items() if each != key}
            if wrong:
                self.wrong[key] = wrong
            self._noted()
        if (wrong and value is None) or held == value:
            return
        if value is None:
            del self.objects[key]
        else:
            self.objects[key] = value
        self._tell(key, held, value)

    # --- objects -------------------------------------------------------------------------------

    def _read(self, raw: Raw) -> tuple[Any, Object | None, str]:
        """The last: why there is no value though there should be one, or what the value lacks. Raises Odd for what has
        no name."""
        left_out: list[Invalid] = []
        try:
            key, value = self._translate(self._decoder.decode(raw), left_out)
            return key, value, f"{key}: {left_out[0]}; it is left out{_more(left_out)}" if left_out else ""
        except msgspec.ValidationError as error:
            wrong = invalid(error)
        except Invalid as error:
            wrong = error
        except msgspec.DecodeError as error:
            raise Odd(f"expected an object: {error}") from None
        try:
            key = self._key(_anything.decode(raw).metadata)
        except msgspec.DecodeError as error:
            raise Odd(f"expected an object with metadata: {error}") from None
        return key, None, f"{key}: {wrong}" + ("; its last good form stays in force" if key in self.objects else "")

    def _key(self, meta: Meta) -> Any:
        """The name where no key can be made of it: no object of ours has it."""
        if not meta.name:
            raise Odd("an object without metadata.name")
        try:
            return self.resource.key(meta.namespace, meta.name)
        except Invalid:
            return f"{self.resource.name}/{meta.name}"


def _to_an_agent(thing: Any, left_out: list[Invalid]) -> tuple[ObjectKey, Object | None]:
    key, value, _ = translate(thing, left_out)
    return key, value


def _more(left_out: list[Invalid]) -> str:
    return f", and {len(left_out) - 1} more" if len(left_out) > 1 else ""


def _decoded(line: bytes) -> tuple[str, Raw]:
    """Raises msgspec.DecodeError; ApiError where the event tells of an expired version, Odd of any other error."""
    happening = _happening.decode(line)
    if happening.type == "ERROR":
        error = status_error(_status.decode(happening.object), 0, "the watch ended")
        raise error if error.expired else Odd(str(error))
    return happening.type, happening.object


def wrong_with(watches: Iterable[Watch]) -> list[str]:
    """What of it can't be followed, or is not as the API server has it, in words."""
    watches = tuple(watches)
    errors = [it.state.error for it in watches if it.state.error]
    return errors + [text for it in watches for text in it.wrong.values()]
