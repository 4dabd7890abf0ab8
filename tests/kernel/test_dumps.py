"""What is read of nftables while others commit: nothing is left out."""

from typing import Any

from podwire.controller.difference import Scope
from podwire.dataplane import netlink
from podwire.dataplane.messages import text
from podwire.dataplane.nftables import wire as w
from podwire.dataplane.nftables.elements import elements
from podwire.dataplane.nftables.reading import frontend_of
from podwire.dataplane.nftables.render import frontend_key
from podwire.model.addresses import IPV4, parse_address
from podwire.model.network import Frontend
from podwire.model.objects import Protocol
from tests.kernel.rig import Rig

MANY = 6000
FRONTENDS = [Frontend(parse_address(f"10.96.{n >> 8}.{n & 255}"), Protocol.TCP, 80) for n in range(MANY)]
EVERYTHING = Scope(None, frozenset())


class Meanwhile:
    """A socket between whose parts something happens."""

    def __init__(self, real: Any, happen: Any) -> None:
        self._real, self._happen = real, happen

    def recv(self, *some: int) -> bytes:
        data: bytes = self._real.recv(*some)
        self._happen(data)
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def commit(hands: netlink.Socket, some: list[Frontend], delete: bool = False) -> None:
    made = [w.element(frontend_key(it)) for it in some]
    assert not hands.send(w.batch(w.messages(IPV4, "refused", made, delete)))


async def test_an_element_that_goes_costs_no_other(rig: Rig) -> None:
    """The kernel counts how far a dump has come: each that goes before that place has another one left out."""
    await rig.start({})
    nftables, hands = rig.running.nftables, netlink.Socket(netlink.NETFILTER)
    commit(hands, FRONTENDS)
    walked = hands.dump(w.GETELEM, w.table(IPV4) + text(2, "refused"))
    before = [frontend_of(IPV4, it.key or b"") for it in elements(walked)]
    assert set(before) == set(FRONTENDS)
    gone, parts = [it for it in before[:10] if it is not None], 0

    def happen(data: bytes) -> None:
        nonlocal parts
        parts += b"refused" in data[:64]  # of its elements
        if parts == 2:
            commit(hands, gone, delete=True)
            parts += 1

    nftables._reading._socket = Meanwhile(nftables._reading._socket, happen)  # type: ignore[assignment]
    try:
        found = [it for it in nftables.read(EVERYTHING) if it in FRONTENDS]
    finally:
        hands.close()
    assert set(found) == set(FRONTENDS) - set(gone)


async def test_what_was_read_ahead_counts_until_anybody_commits(rig: Rig) -> None:
    await rig.start({})
    nftables, hands = rig.running.nftables, netlink.Socket(netlink.NETFILTER)
    asked = 0

    def happen(data: bytes) -> None:
        nonlocal asked
        asked += b"refused\0" in data[:64]

    def read() -> set[Frontend]:
        return {it for it in nftables.read(EVERYTHING) if isinstance(it, Frontend)}

    commit(hands, FRONTENDS[:10])
    nftables.look_ahead()
    nftables._reading._socket = Meanwhile(nftables._reading._socket, happen)  # type: ignore[assignment]
    try:
        assert (read(), asked) == ({*FRONTENDS[:10]}, 0)
        assert read() == {*FRONTENDS[:10]}
        assert asked, "once it was taken it counts no longer"
        nftables.look_ahead()
        commit(hands, FRONTENDS[10:20])
        assert read() == {*FRONTENDS[:20]}
    finally:
        hands.close()
