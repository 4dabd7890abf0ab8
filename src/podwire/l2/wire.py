"""The sockets with which addresses are answered for on one interface.

Invariants: an address is on no interface, so the kernel neither answers for it nor takes its packets for a duplicate.
Solicitations go to a multicast group made of the address: each is joined by an IPv6 membership, which needs no address
of that group; the kernel tells the network's snooping switches (MLD, RFC 3810), which a membership of a packet socket
does not, and has the card take the group's frames. A socket is there only while it has something to answer for.
"""

import ctypes
import errno
import socket
from collections.abc import Callable
from selectors import EVENT_READ, BaseSelector
from struct import pack

from podwire.l2 import filters, packets
from podwire.l2.interfaces import Interface
from podwire.model.addresses import IPV6, Address

_SO_ATTACH_FILTER = 26
_ETH_P_ARP, _ETH_P_IPV6 = 0x0806, 0x86DD
_MOST = 64
"""Packets of one look: whoever asks a lot must not hold up all others."""
Heed = Callable[[int, Address, bytes | None], None]
"""Told, with the interface's number, of each request that was answered (None), and of each host that claims an address
of ours (its MAC address)."""


class Wire:
    """One interface. `trouble`: why something can't be answered for, "": nothing."""

    def __init__(self, interface: Interface, selector: BaseSelector, heed: Heed) -> None:
        self.interface, self.trouble = interface, ""
        self._selector, self._heed = selector, heed
        self._served: frozenset[Address] = frozenset()
        self._arp: socket.socket | None = None
        self._nd: socket.socket | None = None
        self._groups = _Groups(interface.index)

    @property
    def served(self) -> frozenset[Address]:
        return self._served

    def serve(self, addresses: frozenset[Address]) -> None:
        """These and no other. What an earlier call could not do is tried again."""
        self._served, self.trouble = addresses, ""
        six = {it for it in addresses if len(it) == IPV6.size}
        try:
            self._arp = self._kept(self._arp, len(six) < len(addresses), _ETH_P_ARP, filters.arp, self._hear_arp)
            self._nd = self._kept(self._nd, bool(six), _ETH_P_IPV6, filters.neighbour_discovery, self._hear_nd)
            self._groups.join({packets.solicited_node(it) for it in six})
        except OSError as error:
            self.trouble = f"interface {self.interface.name}: {error.strerror or error}"

    def announce(self, address: Address) -> None:
        """Tells the link, unasked. What can't be sent is told again soon anyway."""
        six = len(address) == IPV6.size
        to = packets.group_mac(packets.ALL_NODES) if six else packets.BROADCAST
        for packet in packets.announcements(address, self.interface.mac):
            self._send(six, packet, to)

    def close(self) -> None:
        self.serve(frozenset())
        self._groups.close()

    def _kept(
        self,
        held: socket.socket | None,
        needed: bool,
        protocol: int,
        program: Callable[[int], bytes],
        hear: Callable[[], None],
    ) -> socket.socket | None:
        if held is None and needed:
            held = _packet_socket(self.interface, protocol, program(self.interface.index))
            self._selector.register(held, EVENT_READ, hear)
        elif held is not None and not needed:
            self._selector.unregister(held)
            held.close()
            held = None
        return held

    def _hear_arp(self) -> None:
        for data, _ in _received(self._arp):
            it = packets.parse_arp(data)
            if it is None:
                continue
            if it.operation == packets.REQUEST and it.sender != it.target and it.target in self._served:
                if self._send(False, packets.arp_reply(it, self.interface.mac), it.mac):
                    self._heed(self.interface.index, it.target, None)
            elif it.sender in self._served and it.mac != self.interface.mac:
                self._heed(self.interface.index, it.sender, it.mac)

    def _hear_nd(self) -> None:
        for data, sender in _received(self._nd):
            asked = packets.parse_solicitation(data)
            if asked is not None:
                if asked.target in self._served:
                    to_all = asked.source is None
                    to = packets.group_mac(packets.ALL_NODES) if to_all else asked.mac or sender
                    if self._send(True, packets.answer(asked, self.interface.mac), to):
                        self._heed(self.interface.index, asked.target, None)
                continue
            told = packets.parse_advertisement(data)
            if told is not None and told.target in self._served and told.mac != self.interface.mac:
                self._heed(self.interface.index, told.target, told.mac)

    def _send(self, six: bool, packet: bytes, to: bytes) -> bool:
        by, protocol = (self._nd, _ETH_P_IPV6) if six else (self._arp, _ETH_P_ARP)
        if by is None:
            return False
        try:
            by.sendto(packet, (self.interface.name, protocol, 0, 0, to))
        except OSError:
            return False  # the interface goes down, or its queue is full: whoever asks asks again
        return True


class _Groups:
    """Multicast groups of an interface. A socket has room for some hundred only (net.core.optmem_max)."""

    def __init__(self, interface: int) -> None:
        self._interface = interface
        self._joined: dict[Address, socket.socket] = {}
        self._sockets: list[socket.socket] = []

    def join(self, groups: set[Address]) -> None:
        """These and no other. Raises OSError, as where the interface has no IPv6."""
        for group in self._joined.keys() - groups:
            self._set(self._joined.pop(group), socket.IPV6_LEAVE_GROUP, group)
        for group in sorted(groups - self._joined.keys()):
            self._joined[group] = self._one(group)

    def _one(self, group: Address) -> socket.socket:
        for held in reversed(self._sockets):
            try:
                self._set(held, socket.IPV6_JOIN_GROUP, group)
            except OSError as error:
                if error.errno not in (errno.ENOBUFS, errno.ENOMEM):
                    raise
            else:
                return held
        new = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        self._sockets.append(new)
        self._set(new, socket.IPV6_JOIN_GROUP, group)
        return new

    def _set(self, by: socket.socket, how: int, group: Address) -> None:
        by.setsockopt(socket.IPPROTO_IPV6, how, group + pack("=I", self._interface))

    def close(self) -> None:
        for held in self._sockets:
            held.close()


def _packet_socket(interface: Interface, protocol: int, program: bytes) -> socket.socket:
    """Without the Ethernet header, which the kernel makes and takes away (packet(7))."""
    made = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK, 0)
    try:
        text = ctypes.create_string_buffer(program, len(program))
        made.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, pack("@HP", len(program) // 8, ctypes.addressof(text)))
        made.bind((interface.name, protocol))
    except OSError:
        made.close()
        raise
    return made


def _received(by: socket.socket | None) -> list[tuple[bytes, bytes]]:
    """Packets, and the MAC addresses that they came from."""
    found = []
    for _ in range(_MOST if by is not None else 0):
        assert by is not None
        try:
            data, (_, _, _, _, sender) = by.recvfrom(2048)
        except OSError:  # nothing more, or the interface has gone down (ENETDOWN), which a notice tells
            break
        found.append((data, sender))
    return found
