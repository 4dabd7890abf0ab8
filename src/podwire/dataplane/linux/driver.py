"""Links, addresses, routes and neighbours, in the node's namespace and in the pods'; the node's kernel settings.

Invariants: one datagram for each namespace. A socket in a pod's namespace is closed at once. A path that leads to
another namespace than it did when the pod was attached leads nowhere, and nothing is done behind it. A link whose other
end could not be looked for is never made anew. A link that goes is moved to the group of the doomed, and the whole
group is deleted later (`collect`), outside the event's transaction.
"""

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import chain
from threading import Lock
from typing import Any, NamedTuple

from podwire.controller.difference import Change, Difference, Outcome, Scope
from podwire.dataplane import netlink
from podwire.dataplane.linux import carrier, ipv6, links, neighbours, notices, render, routes, shaping, sysctl, vxlan
from podwire.dataplane.linux import rtnetlink as rt
from podwire.dataplane.messages import Message
from podwire.model.addresses import FAMILIES
from podwire.model.network import (
    LOOPBACK,
    AddressKey,
    EgressKey,
    Link,
    LinkKey,
    RouteKey,
    Space,
    SysctlKey,
    TunnelKey,
    UpKey,
    path_of,
)
from podwire.nodes.own import SYSCTLS
from podwire.pods.names import shaper_of

GONE = {errno.ENOENT, errno.ESRCH, errno.ENODEV, errno.EADDRNOTAVAIL, errno.ENXIO}


LOOK = 256
"""Datagrams of which one look hears at most, some 10 ms: pods make as many as they like in their namespaces."""
_OPEN = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
"""A pipe in the place of a namespace must not hold the agent up."""


class Inside(NamedTuple):
    """A way into a namespace; `descriptor` is -1 for the node's own."""

    socket: netlink.Socket
    descriptor: int


class Linux:
    name = "linux"
    apart = True
    slice = 0
    by = ""  # the kernel doesn't tell who

    def __init__(self, doomed: Callable[[], None] = lambda: None, listens: bool = True) -> None:
        """`doomed` is called when a link was moved to the group of the doomed: call `collect` some time later. One that
        doesn't listen can only be read."""
        self.writes = 0
        self._node = netlink.Socket(netlink.ROUTE)
        with open("/proc/thread-self/ns/net", "rb") as own:
            self._own = _identity(own.fileno())
        self._collector, self._collecting = netlink.Socket(netlink.ROUTE), Lock()
        self._listener = netlink.Listener(netlink.ROUTE, notices.GROUPS if listens else (), everywhere=listens)
        self._spaces: dict[int, str] = {}
        """The pods' namespaces by the numbers that the kernel has given them in the node's, as far as was seen."""
        self._doomed: dict[str, str] = {}
        """By the name of a link that waits for its deletion: the namespace of its other end, "" where unknown."""
        self._dying: dict[str, int] = {}
        """By the name of a link that the kernel is about to delete with its pod's namespace: its index."""
        self._unseen: dict[str, Outcome] = {}
        """By namespace that the last look found no way into: why."""
        self._when_doomed = doomed

    def weight(self, change: Any) -> int:  # noqa: ARG002 - never sliced
        return 1

    def rank(self, key: Any, _: Change) -> Any:
        return render.rank(key)

    def place(self, wanted: Any, actual: Any) -> Any:
        return render.place(wanted, actual)

    def settle(self, wanted: Mapping[Any, Any], actual: Mapping[Any, Any]) -> Mapping[Any, Any]:
        return render.settle(wanted, actual)

    # --- read ----------------------------------------------------------------------------------

    def read(self, scope: Scope) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        ends: links.Ends = {}
        pods: dict[str, dict[int, rt.Seen]] = {}
        for space in sorted(scope.spaces):
            pods[space], objects = self._inside(space, ends)
            found |= objects
        told = links.by_index(self._node.dump(rt.GETLINK, links.get_links()))
        doomed = {index for index, seen in told.items() if links.is_doomed(seen) or shaping.is_doomed(seen)}
        dying = {index for index, seen in told.items() if links.is_dying(seen)}
        self._doomed = {links.name_of(told[index]): "" for index in doomed} | self._doomed
        self._dying = {links.name_of(told[index]): index for index in dying}
        living = {index: seen for index, seen in told.items() if index not in doomed | dying}
        tunnels = {index: key for index, seen in living.items() if (key := vxlan.key_of(seen)) is not None}
        ours = {index for index, seen in living.items() if index in tunnels or links.is_ours(seen)}
        found |= links.up("", living, ours)
        inner = links.inner(living, ends)
        for space, seen in pods.items():
            found |= links.up(space, seen, inner.get(space, set()))
        settings = {path: sysctl.read(path) for path in SYSCTLS}
        # A kernel that has no such setting, as one without IPv6, has nothing to be set.
        found |= {SysctlKey(path): SYSCTLS[path] if value is None else value for path, value in settings.items()}
        off = frozenset(name for name, path in sysctl.FORWARDS.items() if found.get(SysctlKey(path)) == "0")
        found.update(links.link_of(index, seen, ends, off) for index, seen in living.items() if links.is_ours(seen))
        found.update(vxlan.device_of(index, living[index], key, off) for index, key in tunnels.items())
        found.update(_forwards(self._node, tunnels))
        if scope.keys is None or any(isinstance(key, shaping.Key) for key in scope.keys):
            found.update(self._limits(living))
        found.update(_objects("", self._node))
        return {key: value for key, value in found.items() if key in scope}

    def _limits(self, living: dict[int, rt.Seen]) -> Iterator[tuple[Any, Any]]:
        try:
            buckets = shaping.Buckets(self._node.dump(shaping.GETQDISC, shaping.get_qdiscs()))
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:  # a kernel without queueing disciplines has no buckets
                return
            raise
        hooked = (index for index in buckets.hooked if index in living and links.is_ours(living[index]))
        leads = {it: shaping.lead(self._node.dump(shaping.GETFILTER, shaping.get_filters(it))) for it in hooked}
        yield from shaping.limits(living, buckets, leads)

    def _inside(self, space: str, ends: links.Ends) -> tuple[dict[int, rt.Seen], dict[Any, Any]]:
        """A pod's namespace: its interfaces, and what it holds of ours; adds its ends of links. Nothing where no way
        leads into it."""
        self._unseen.pop(space, None)
        with self._opened(space) as (there, why):
            if there is None:
                self._unseen[space] = why
                return {}, {}
            number = links.number_of(self._node.dump(rt.GETNSID, links.get_number(there.descriptor), 0))
            told = links.by_index(there.socket.dump(rt.GETLINK, links.get_links()))
            ends |= links.ends(space, number, told)
            if number != rt.NO_NUMBER:
                self._spaces[number] = space
            return told, dict(_objects(space, there.socket))

    def identities(self, paths: Mapping[str, str]) -> dict[str, tuple[int, int]]:
        """`paths`: where a link's other end was said to be, by the link's name. Of those links that do end there,
        device and inode of that namespace. Raises OSError."""
        told = links.by_index(self._node.dump(rt.GETLINK, links.get_links()))
        named = {links.name_of(seen): seen for seen in told.values()}
        found = {}
        for name, path in sorted(paths.items()):
            try:
                with _file(path) as descriptor:
                    number = links.number_of(self._node.dump(rt.GETNSID, links.get_number(descriptor), 0))
                    if name in named and links.ends_in(named[name], number):
                        found[name] = _identity(descriptor)
            except OSError:
                continue
        return found

    # --- others' hands -------------------------------------------------------------------------

    def fileno(self) -> int:
        """Readable when anything has changed."""
        return self._listener.fileno()

    def changed(self, held: Mapping[Any, Any]) -> frozenset[Any] | None:
        """The keys that since the last look were changed to something else than was last reported (`held`); None: any
        may be. To be asked between transactions: what one does is told to all."""
        datagrams = self._listener.datagrams(LOOK)
        if datagrams is None:
            return None
        own = [notice for data, nsid in datagrams if nsid is None for notice in netlink.parsed(data, nsid)]
        self._spaces |= notices.numbers(own, held)
        # Of others' namespaces nothing is even parsed.
        theirs = (notice for each in datagrams if each[1] in self._spaces for notice in netlink.parsed(*each))
        return notices.disturbed(chain(own, theirs), held, self._spaces)

    @property
    def behind(self) -> bool:
        return self._listener.behind

    # --- apply ---------------------------------------------------------------------------------

    def apply(self, difference: Difference) -> dict[Any, Outcome]:
        settings = {key: change for key, change in difference.items() if isinstance(key, SysctlKey)}
        outcomes: dict[Any, Outcome] = {key: self._set(key, change) for key, change in settings.items()}
        rest = [(key, change) for key, change in difference.items() if key not in settings]
        goes = sorted((key for key, change in rest if change.after is None), key=render.rank, reverse=True)
        comes = sorted((key for key, change in rest if change.after is not None), key=render.rank)
        last = [key for key in goes if render.outlasts(key)]
        goes = [key for key in goes if not render.outlasts(key)]
        if any(isinstance(key, LinkKey) and self._in_the_way(key, difference[key].after) for key in comes):
            self.collect()
        if any(isinstance(key, EgressKey) and shaper_of(key.link) in self._doomed for key in comes):
            self.collect()
        # Space by space, the node's first: a link brings its pod's end along.
        spaces: dict[str, list[Any]] = {"": []}
        for key in goes + comes + last:
            spaces.setdefault(getattr(key, "space", ""), []).append(key)
        for space, keys in spaces.items():
            with self._opened(space) as (there, missing):
                outcomes |= self._send(there, missing, keys, difference)
        outcomes |= self._silent(comes, outcomes)
        doomed = [key for key in goes if isinstance(key, LinkKey) and outcomes[key].error is None]
        shapers = [key for key in goes if isinstance(key, EgressKey) and outcomes[key].error is None]
        if doomed or shapers:
            self._doomed |= {shaper_of(key.link): "" for key in shapers}
            self._doomed |= {key.name: difference[key].before.space for key in doomed}
            left = {difference[key].before.space for key in doomed}
            self._spaces = {number: space for number, space in self._spaces.items() if space not in left}
            self._when_doomed()
        return outcomes

    def _silent(self, comes: list[Any], outcomes: Mapping[Any, Outcome]) -> dict[Any, Outcome]:
        """Waits until the links' ends that came up here send what they are given. One that doesn't is an error. A VXLAN
        device has no carrier to wait for."""
        ends = [key for key in comes if isinstance(key, UpKey) and not key.space and outcomes[key].error is None]
        up = {key.index: key for key in ends if key.index != LOOPBACK and vxlan.key_by(key.index) is None}
        silent = carrier.silent(self._node, up)
        return {up[index]: Outcome(error=f"{up[index]}: it has its carrier, but sends nothing") for index in silent}

    @property
    def doomed(self) -> frozenset[str]:
        """Links that wait for their deletion."""
        return frozenset(self._doomed)

    def delete_doomed(self) -> None:
        """All at once, whoever is among them by now. May run in another thread than the rest; raises OSError."""
        with self._collecting:
            errors = self._collector.send(links.delete_doomed())
        code = next(iter(errors.values()), 0)
        if code and code not in GONE:
            raise OSError(code, f"links can't be deleted: {os.strerror(code)}")

    def forget_doomed(self, names: frozenset[str]) -> None:
        """They were doomed before the last deletion, so they are gone."""
        self.writes += 1
        self._doomed = {name: space for name, space in self._doomed.items() if name not in names}

    def collect(self) -> None:
        """Deletes the doomed links now."""
        names = self.doomed
        if names:
            self.delete_doomed()
            self.forget_doomed(names)

    def close(self) -> None:
        self._node.close()
        with self._collecting:  # a deletion in another thread has its socket to its end
            self._collector.close()
        self._listener.close()

    def _in_the_way(self, key: LinkKey, wanted: Link) -> bool:
        """Whether a doomed link may still hold a name that a new one is to have, on the node or in the pod."""
        return key.name in self._doomed or not {wanted.space, ""}.isdisjoint(self._doomed.values())

    def _put_right(self, key: LinkKey | TunnelKey, change: Change) -> Outcome | None:
        """Settings that no message can change; an error, if any."""
        for path in change.before.astray if change.before is not None else ():
            if path.startswith("ipv6/"):
                try:
                    self.writes += 1
                    sysctl.write(f"net/{path}", str(links.WANTED_SETTINGS[path.rpartition("/")[2]]))
                except OSError as error:
                    return Outcome(error=f"{key}: sysctl net/{path}: {error.strerror}")
        return None

    def _set(self, key: SysctlKey, change: Change) -> Outcome:
        if change.after is None:
            return Outcome(change.before)
        try:
            self.writes += 1
            sysctl.write(key.path, change.after)
        except OSError as error:
            return Outcome(error=f"{key}: {error.strerror}")
        return Outcome(change.after)

    def _send(
        self, there: Inside | None, missing: Outcome, keys: list[Any], difference: Difference
    ) -> dict[Any, Outcome]:
        messages: list[Message] = []
        owners: list[Any] = []
        behind: list[tuple[Any, Message]] = []
        outcomes: dict[Any, Outcome] = {}
        with ExitStack() as opened:
            for key in keys:
                change = difference[key]
                outcomes[key] = Outcome(change.after)
                descriptor = -1
                if there is None:
                    if change.after is not None:  # with its namespace a key is gone by itself
                        outcomes[key] = missing
                    continue
                if isinstance(key, LinkKey) and change.after is not None:
                    descriptor, absent = self._end(change)
                    if absent is not None:
                        outcomes[key] = absent
                        continue
                    opened.callback(os.close, descriptor)
                    outcomes[key] = Outcome(change.after, again=links.disturbs(change) or key.name in self._dying)
                    if key.name in self._dying:
                        messages += links.delete_link(self._dying.pop(key.name))
                    outcomes[key] = self._put_right(key, change) or outcomes[key]
                if isinstance(key, TunnelKey) and change.after is not None:
                    outcomes[key] = Outcome(change.after, again=vxlan.disturbs(change))
                    outcomes[key] = self._put_right(key, change) or outcomes[key]
                if isinstance(key, shaping.Key):
                    with_link = (link := difference.get(LinkKey(key.link))) is not None and link.after is None
                    made = shaping.render(key, change, with_link)
                else:
                    made = render.render(key, change, descriptor)
                if isinstance(key, AddressKey):  # a route to itself needs its interface up, which the address doesn't
                    behind += [(key, message) for message in made[1:]]
                    made = made[:1]
                messages += made
                owners += [None] * (len(messages) - len(owners) - len(made)) + [key] * len(made)
            owners += [key for key, _ in behind]
            messages += [message for _, message in behind]
            self.writes += len(messages)
            errors = there.socket.send(messages) if there is not None else {}
        for position, code in sorted(errors.items()):
            key, kind = owners[position], messages[position].kind
            # To find gone what should go is no failure, and what is in a new link's way the new link will tell.
            if key is None or (code in GONE and (difference[key].after is None or kind == rt.DELLINK)):
                continue
            if outcomes[key].error is None:  # a key's first error; the rest are its consequences
                text = f"{key}: {os.strerror(code)} ({errno.errorcode.get(code, code)})"
                if code == errno.EEXIST and isinstance(key, RouteKey) and there is not None:
                    text += _in_the_way(there.socket, key)
                if code in (errno.ENOENT, errno.EOPNOTSUPP) and isinstance(key, shaping.Key):
                    text += f": the kernel may lack {shaping.NEEDS}"
                text = self._tunnel_refused(key, code, difference) or ipv6.why_refused(key, code) or text
                outcomes[key] = Outcome(error=text, again=outcomes[key].again)
            if there is not None and kind == rt.NEWADDR and key.space and code == errno.EACCES:
                named = links.by_index(there.socket.dump(rt.GETLINK, links.get_link(key.index), 0)).values()
                # What was refused is read again and tried once more.
                self.writes += sum(ipv6.switch_on(there.descriptor, links.name_of(seen)) for seen in named)
        return outcomes

    def _tunnel_refused(self, key: Any, code: int, difference: Difference) -> str | None:
        """Why there can be no such VXLAN device, where more is known than the error's own words."""
        it = key if isinstance(key, TunnelKey) else vxlan.key_by(key.index) if isinstance(key, UpKey) else None
        if it is None:
            return None
        there = links.by_index(self._node.dump(rt.GETLINK, links.get_links()))
        made = there.get(key.index) if isinstance(key, UpKey) else None
        wanted = difference[it].after if it in difference else vxlan.device_of(key.index, made, it)[1] if made else None
        return vxlan.why_refused(it, wanted, code, there) if wanted is not None else None

    def _end(self, change: Change) -> tuple[int, Outcome | None]:
        """The namespace of a pod's end, opened, or why it can't be. Nobody knows whether a link has its end where the
        last look found no way in."""
        space = change.after.space
        if change.before is not None and space in self._unseen:
            return -1, self._unseen[space]
        return self._open(space)

    def _open(self, space: str) -> tuple[int, Outcome | None]:
        """A descriptor of that namespace, or why there is none."""
        path = path_of(space)
        said = f"network namespace {path}"
        try:
            descriptor = os.open(path, _OPEN)
        except OSError as error:
            return -1, Outcome(error=f"{said}: {error.strerror}", gone=error.errno in (errno.ENOENT, errno.ENOTDIR))
        found = _identity(descriptor)
        if found != self._own and Space(path, *found) == space:
            return descriptor, None
        os.close(descriptor)
        leads = "the node's own" if found == self._own else "not where it led when the pod was attached"
        return -1, Outcome(error=f"{said}: {leads}", gone=True)

    @contextmanager
    def _opened(self, space: str) -> Iterator[tuple[Inside | None, Outcome]]:
        """A way into that namespace, or why there is none. An open one would keep a pod's namespace alive."""
        if space == "":
            yield Inside(self._node, -1), Outcome()
            return
        descriptor, absent = self._open(space)
        if absent is not None:
            yield None, absent
            return
        with ExitStack() as opened:
            opened.callback(os.close, descriptor)
            try:
                with netlink.inside(descriptor):
                    there = netlink.Socket(netlink.ROUTE)
            except OSError as error:
                yield None, Outcome(error=f"network namespace {path_of(space)}: {error.strerror}")
                return
            opened.callback(there.close)
            yield Inside(there, descriptor), Outcome()


def _in_the_way(there: netlink.Socket, key: RouteKey) -> str:
    """Whose route to the same destination there is."""
    told = links.by_index(there.dump(rt.GETLINK, links.get_links()))
    names = {index: links.name_of(seen) for index, seen in told.items()}
    there_are = there.dump(rt.GETROUTE, routes.request(key.destination.family, protocol=0))
    found = [routes.whose(body, names) for body in there_are if routes.is_to(key.destination, body)]
    return f": another's route is there: {found[0]}" if found else ""


def _forwards(there: netlink.Socket, tunnels: Iterable[int]) -> Iterator[tuple[Any, Any]]:
    for index in tunnels:
        for body in there.dump(rt.GETNEIGH, neighbours.forwards_request(index)):
            item = neighbours.forward_of(body)
            if item is not None and item[0].index == index:
                yield item


def _objects(space: str, there: netlink.Socket) -> Iterator[tuple[Any, Any]]:
    table = rt.ANY_TABLE if space else rt.MAIN_TABLE
    for family in FAMILIES:
        any_of_family = bytes((family.number,)) + bytes(11)
        asked: tuple[tuple[int, bytes, Callable[[str, bytes], tuple[Any, Any] | None]], ...] = (
            (rt.GETADDR, any_of_family[:8], routes.address_of),
            (rt.GETROUTE, routes.request(family, table=table), routes.route_of),
            (rt.GETNEIGH, any_of_family, neighbours.neighbour_of),
            *(((rt.GETRULE, any_of_family, routes.rule_of),) if space else ()),
        )
        for kind, request, parse in asked:
            for body in there.dump(kind, request):
                item = parse(space, body) if rt.is_marked(kind - 2, body) else None
                if item is not None:
                    yield item


@contextmanager
def _file(path: str) -> Iterator[int]:
    descriptor = os.open(path, _OPEN)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _identity(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino
