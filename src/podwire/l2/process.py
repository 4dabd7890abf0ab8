"""The layer-2 process of a node: one loop of heartbeats and answers. `python -m podwire.l2.process FD`, where FD is the
number of a stream socket to the agent.

Invariants: it ends with its agent, however that ends: whoever can't be told what to answer for answers for nothing. An
agent that lives but says nothing for `STUCK` seconds is as good as dead: the process answers no more, and tells the
other nodes, until it hears of it. No signal for a whole service ends it before its agent has had it take leave.
"""

import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from selectors import EVENT_READ, EVENT_WRITE, DefaultSelector

from podwire.l2.beats import INTERVAL
from podwire.l2.channel import (
    TOLD,
    Begin,
    Frames,
    FromProcess,
    Heard,
    Leave,
    Left,
    Nodes,
    Ready,
    State,
    ToProcess,
    Want,
    frame,
    to_process,
)
from podwire.l2.heartbeat import Heartbeats
from podwire.l2.liveness import TICK, Awake
from podwire.l2.responder import Responder
from podwire.model.addresses import Address
from podwire.model.announcements import Liveness

STUCK = 5.0
"""Seconds for which the agent may be silent. It says something every second, and is late by a fraction of one."""
_FAREWELLS = (0.0, 0.05, 0.1)
"""Seconds after it was told to leave at which the others are told."""
_REPORT = 0.5
"""Seconds between two reports for people, where there is something new."""
_MEND = 1.0
_URGENT = -20
_NOTHING: Mapping[Address, tuple[str, ...]] = {}


class Ended(Exception):
    """The agent has closed the channel."""


class Process:
    def __init__(self, channel: socket.socket) -> None:
        """Raises OSError."""
        self._channel, self._frames, self._out = channel, Frames(), bytearray()
        channel.setblocking(False)
        self._selector = DefaultSelector()
        self._selector.register(channel, EVENT_READ, self._listen)
        self._responder = Responder(self._selector)
        self._beats: Heartbeats | None = None
        self._known: Mapping[str, Liveness] = {}
        self._wanted = _NOTHING
        self._ready, self._leaving, self._stuck, self._mute = False, False, False, True
        self._farewells: list[float] = []
        self._told: dict[str, Liveness] | None = None
        self._reported = State()
        now = time.monotonic()
        self._awake = Awake(now)
        self._heard_agent = 0.0
        self._next_beat = self._next_report = self._next_mend = self._silent_until = now

    def run(self) -> None:
        """Until the agent closes the channel. Raises OSError."""
        with suppress(Ended):
            while True:
                self._turn()
        self._responder.close()
        if self._beats is not None:
            self._beats.close()

    def _turn(self) -> None:
        for key, events in self._selector.select(self._wait()):
            if key.fileobj is self._channel and events & EVENT_WRITE:
                self._flush()
            if key.data is not None and events & EVENT_READ:
                key.data()
        now = time.monotonic()
        awake = self._awake.look(now)
        self._look_at_agent(awake)
        if self._beats is not None:
            self._beats.hear(awake)  # before anybody is judged
            self._beat(self._beats, now, awake)
        self._responder.work(now)
        self._report(now)

    def _wait(self) -> float:
        """Seconds to the next look."""
        times = [self._next_beat, *self._farewells[:1]]
        if (announcement := self._responder.due()) is not None:
            times.append(announcement)
        return max(0.0, min(TICK, min(times) - time.monotonic()))

    def _beat(self, beats: Heartbeats, now: float, awake: float) -> None:
        liveness = beats.judge(awake)
        if liveness != self._told:
            self._told = liveness
            self._tell(Heard(liveness))
        farewell = bool(self._farewells) and now >= self._farewells[0]
        if now >= self._next_beat or farewell:
            beats.ready = self._ready and not self._stuck
            beats.send(awake)
            late = now - self._next_beat > INTERVAL
            if now >= self._next_beat:
                self._next_beat = now + INTERVAL if late else self._next_beat + INTERVAL
        if farewell:
            self._farewells.pop(0)
            if not self._farewells:
                self._tell(Left())

    def _look_at_agent(self, awake: float) -> None:
        """Whoever tells the others that it isn't ready answers for nothing: else two would."""
        stuck = awake - self._heard_agent > STUCK
        if stuck != self._stuck:
            self._stuck = stuck
            self._next_beat = time.monotonic()
        mute = stuck or not (self._ready or self._leaving)
        if mute != self._mute:
            self._mute = mute
            self._responder.want(_NOTHING if mute else self._wanted)

    def _report(self, now: float) -> None:
        if now >= self._next_mend:
            self._next_mend = now + _MEND
            self._responder.mend()
            if self._beats is not None:
                self._beats.mend()
        if now < self._next_report:
            return
        self._next_report = now + _REPORT
        answers, troubles = self._responder.report()
        beats = self._beats
        ignored = dict(sorted(beats.ignored.items())) if beats is not None else {}
        troubles += beats.troubles if beats is not None else ()
        state = State(answers, troubles, ignored, round(self._awake.late, 2))
        if state != self._reported or now >= self._silent_until:
            self._reported, self._silent_until = state, now + TOLD
            self._tell(state)

    # --- the channel ---------------------------------------------------------------------------

    def _listen(self) -> None:
        with suppress(BlockingIOError):
            try:
                data = self._channel.recv(1 << 20)
            except ConnectionError:
                data = b""
            if not data:
                raise Ended
            self._frames.feed(data)
            self._heard_agent = self._awake.seconds
            for message in to_process(self._frames):
                self._obey(message)

    def _obey(self, message: ToProcess) -> None:
        match message:
            case Begin():
                self._known = message.known
                self._beats = Heartbeats(message.node, message.port, message.key, time.time_ns(), self._selector)
            case Nodes() if self._beats is not None:
                addresses = {name: tuple(map(Address, those)) for name, those in message.addresses.items()}
                self._beats.know(addresses, self._known, self._awake.seconds)
                self._known = {}
            case Want():
                self._wanted = {Address(address): names for address, names in message.answers.items()}
                if not self._mute:
                    self._responder.want(self._wanted)
            case Ready():
                if self._ready != message.ready:
                    self._next_beat = time.monotonic()  # at once
                self._ready = message.ready
            case Leave():
                self._ready, self._leaving = False, True
                now = time.monotonic()
                self._farewells = [now + later for later in _FAREWELLS]

    def _tell(self, message: FromProcess) -> None:
        self._out += frame(message)
        self._flush()

    def _flush(self) -> None:
        try:
            sent = self._channel.send(self._out) if self._out else 0
        except BlockingIOError:
            sent = 0
        except ConnectionError:
            raise Ended from None
        del self._out[:sent]
        self._selector.modify(self._channel, EVENT_READ | (EVENT_WRITE if self._out else 0), self._listen)


def main(descriptor: int) -> None:
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    with suppress(OSError):  # without CAP_SYS_NICE it is as urgent as all others
        os.setpriority(os.PRIO_PROCESS, 0, _URGENT)
    with socket.socket(fileno=descriptor) as channel:
        Process(channel).run()


if __name__ == "__main__":
    main(int(sys.argv[1]))
