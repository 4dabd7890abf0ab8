"""Those who announce, put together: what is decided goes to the BGP speaker and to layer 2, and what became of it comes
back for people.

Invariants: they keep a pace of their own and hold up nobody. Nodes are listened to only where there is an
L2Advertisement, and FRR is missed only where there is a BGPPeer. An agent that ends withdraws nothing: FRR goes
on, and layer 2 is missed after a second.
"""

import logging
from collections.abc import Mapping

from podwire.announcing.decisions import NEVER_BY_L2
from podwire.announcing.follower import Follower
from podwire.announcing.views import ESTABLISHED, NO_SESSION, AddressView, L2View, PeerView
from podwire.bgp import driver as frr
from podwire.bgp.routes import Routes
from podwire.bgp.sessions import State
from podwire.config import Config
from podwire.controller.events import NodesHeard
from podwire.controller.loop import Controller
from podwire.controller.transaction import Result
from podwire.l2.driver import L2, read_key
from podwire.model.addresses import show_address
from podwire.model.announcements import Answers, Liveness, SessionReport
from podwire.model.objects import NodeKey
from podwire.model.snapshot import Snapshot

log = logging.getLogger(__name__)
_SHOWN = 3


class Announcers:
    def __init__(self, config: Config, controller: Controller) -> None:
        """Raises OSError where the heartbeats' key can't be read."""
        self._controller = controller
        self.bgp = frr.Driver(config.frr, controller.snapshot.local.boot)
        key = read_key(config.heartbeat_key_file) if config.heartbeat_key_file is not None else b""
        self.l2 = L2(config.node_name, self._heard, config.heartbeat_port, key)
        self.follower = Follower(controller, self.bgp.want, self._answer)
        self._port = config.heartbeat_port
        self._seen: Snapshot | None = None
        self._last_heard = NodesHeard(frozenset())
        controller.followers.append(self.follow)

    def follow(self, result: Result) -> None:
        """An event has ended, and the snapshot knows it."""
        self.follower.follow(result)
        now, seen = self._controller.snapshot, self._seen
        if seen is None or now.nodes is not seen.nodes or bool(now.announcing.l2) != bool(seen.announcing.l2):
            nodes = now.nodes if now.announcing.l2 else {}
            self.l2.peers({key.name: node.addresses for key, node in nodes.items()})
        self._tell_ready()
        self._seen = now

    def _answer(self, answers: Answers) -> None:
        self.l2.want(answers)
        self._tell_ready()  # the first time it is ready now, and no event may follow

    def _tell_ready(self) -> None:
        self.l2.ready(self.follower.ready and "nftables" not in self._controller.broken)

    async def take_leave(self) -> None:
        """Before an end. The others answer at once for what this node did, where it was cordoned: then it won't come
        back soon. Else they wait for it for a second, since whatever moves breaks connections."""
        if self._controller.snapshot.node.cordoned:
            await self.l2.leave()

    def _heard(self, liveness: Mapping[str, Liveness]) -> None:
        by = {state: frozenset(name for name, it in liveness.items() if it is state) for state in Liveness}
        event = NodesHeard(by[Liveness.DEAD], by[Liveness.UNREADY])
        if event != self._last_heard:  # and not the snapshot: what it knows may be about to change
            self._last_heard = event
            self._controller.submit(event)

    # --- for people ----------------------------------------------------------------------------

    @property
    def errors(self) -> tuple[str, ...]:
        """What is not as the cluster's objects want it."""
        found = [f"{key}: has no session here: {why}" for key, why in self.follower.sessions.unfit]
        if self.follower.sessions.sessions:
            found += [f"BGP: {it}" for it in (*self.bgp.troubles, *self.bgp.foreign)]
            states = self.bgp.sessions().items()
            found += [f"bgppeer/{name}: {it.state}: {it.error}" for name, it in sorted(states) if it.error]
        return (*found, *(f"layer 2: {it}" for it in self.l2.troubles), *self._unable(), *self._unheard())

    def _unheard(self) -> tuple[str, ...]:
        """Who should be heard, and never was: then others take over from it as late as the API server notices."""
        nodes = self._controller.snapshot.nodes
        names = [name for name in self.l2.unheard if (node := nodes.get(NodeKey(name))) is not None and node.ready]
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        if not names:
            return ()
        port = f"UDP port {self._port} is closed between the nodes, or their agents are older or have another key"
        return (f"layer 2: never heard of {', '.join(names[:_SHOWN])}{more}: {port}",)

    def _unable(self) -> tuple[str, ...]:
        return tuple(
            f"layer 2: {show_address(address)}: {why}"
            for address, it in sorted(self.l2.answered.items())
            for why in (*it.unable, *((f"another host claims it: {it.also}",) if it.also else ()))
        )

    def peers(self) -> tuple[PeerView, ...]:
        """All BGPPeers, by name: those that have no session here, too."""
        mine, states = self.follower.sessions, self.bgp.sessions()
        found = []
        for it in mine.sessions:
            address = show_address(it.address)
            now = states.get(it.name) or State(it.name, address, error="; ".join(self.bgp.troubles))
            received = {family: each.received for family, each in now.prefixes.items()}
            sent = {family: each.sent for family, each in now.prefixes.items()}
            found.append(PeerView(it.name, address, it.asn, now.state, now.since, received, sent, now.bfd, now.error))
        peers = self._controller.snapshot.announcing.peers
        for key, why in (*mine.unfit, *mine.elsewhere):
            if (peer := peers.get(key)) is not None:
                found.append(PeerView(key.name, show_address(peer.address), peer.asn, NO_SESSION, error=why))
        return tuple(sorted(found, key=lambda it: it.peer))

    async def routes(self, peer: str) -> Routes:
        """Raises KeyError where there is no such session, Gone where bgpd can't be asked, MsgspecError where it
        answers something else."""
        return await self.bgp.routes(peer)

    def layer2(self) -> L2View:
        """Without the addresses that nobody would ask for here: BGP may tell thousands of cluster IPs."""
        answered = self.l2.answered
        addresses = tuple(
            AddressView(
                show_address(address),
                it.pool,
                it.owner,
                answered[address].interfaces if address in answered else (),
                answered[address].since if address in answered else None,
                answered[address].requests if address in answered else 0,
                it.no_answers,
            )
            for address, it in sorted(self.follower.decided.items(), key=lambda each: (len(each[0]), each[0]))
            if it.owner or it.no_answers not in ("", NEVER_BY_L2)
        )
        nodes = {name: it.value for name, it in sorted(self.l2.liveness.items())}
        return L2View(addresses, nodes, dict(self.l2.ignored), self.l2.late)

    def reports(self) -> dict[str, SessionReport]:
        """Of this node's sessions, for the cluster."""
        found = {}
        for it in self.peers():
            if it.state != NO_SESSION:
                error = it.error if it.state != ESTABLISHED else ""
                received, sent = (tuple(sorted(some.items())) for some in (it.received, it.sent))
                found[it.peer] = SessionReport(it.state, it.since, error, received, sent)
        return found
