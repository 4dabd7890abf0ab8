"""The admin API's answers about what is announced.

GET  /bgp/peers                    the BGPPeers, and what became of this node's sessions
GET  /bgp/routes?peer=NAME         what one session has told and taken
GET  /l2                           who answers for which address, and what is heard of other nodes
"""

from typing import Protocol

import msgspec
from aiohttp import web

from podwire import replies
from podwire.announcing.views import NO_SESSION, L2View, PeerList, PeerView
from podwire.bgp.routes import Routes
from podwire.bgp.vty import Gone


class Announcers(Protocol):
    """As `podwire.announcers.Announcers`."""

    def peers(self) -> tuple[PeerView, ...]: ...
    async def routes(self, peer: str) -> Routes: ...
    def layer2(self) -> L2View: ...


def routes(announcers: Announcers) -> list[web.RouteDef]:
    async def peers(_: web.Request) -> web.Response:
        return replies.json(PeerList(announcers.peers()))

    async def of_peer(request: web.Request) -> web.Response:
        peer = request.query.get("peer", "")
        try:
            return replies.json(await announcers.routes(peer))
        except KeyError:
            known = ", ".join(it.peer for it in announcers.peers() if it.state != NO_SESSION) or "none"
            text = f"peer: this node has no session with {peer!r}; it has: {known}"
            raise web.HTTPNotFound(text=text) from None
        except (Gone, msgspec.MsgspecError) as error:
            raise web.HTTPServiceUnavailable(text=f"FRR can't be asked: {error}") from None

    async def layer2(_: web.Request) -> web.Response:
        return replies.json(announcers.layer2())

    return [web.get("/bgp/peers", peers), web.get("/bgp/routes", of_peer), web.get("/l2", layer2)]
