"""The fabric, the nodes with their agents, and the clients beside the cluster.

Invariants: the nodes' network is made once and in full. An agent that ends, by whatever hand, is reported and stays
ended until it is started. A node that is off has no agent and no cable.
"""

import asyncio
import signal
from asyncio.subprocess import Process
from collections.abc import Callable, Collection
from pathlib import Path

from podwire.lab import agents, spaces, topology
from podwire.lab.layout import Lab, LabError
from podwire.lab.topology import Station, next_client, station_space
from podwire.model.addresses import Address, show_address


class Machines:
    def __init__(self, lab: Lab, say: Callable[[str], None]) -> None:
        self.lab, self._say = lab, say
        self.nodes = {station.name: station for station in lab.stations}
        self.clients: dict[str, Station] = {}
        self.off: set[str] = set()
        self._agents: dict[str, Process] = {}
        self._routes: dict[str, dict[str, str]] = {}
        """Of each client, destination → gateway."""
        self._watching: dict[str, asyncio.Task[None]] = {}

    async def set_up(self) -> None:
        """Raises ProgramError or OSError."""
        await spaces.make_fabric(self.lab.name, self.lab.links, self.lab.by_bgp)
        for station in self.nodes.values():
            await spaces.plug_in(self.lab.name, station)
            agents.prepare(self.lab, station.name)

    def admin_sockets(self) -> dict[str, Path]:
        """Of the agents that run."""
        return {name: self.lab.node(name).admin_socket for name in self.nodes if self.pid(name) is not None}

    def on(self) -> list[Station]:
        """The nodes that are not off."""
        return [it for name, it in self.nodes.items() if name not in self.off]

    def spaces(self) -> dict[str, str]:
        """The nodes' network namespaces."""
        return {name: station_space(self.lab.name, name) for name in self.nodes}

    def pid(self, node: str) -> int | None:
        child = self._agents.get(node)
        return child.pid if child is not None and child.returncode is None else None

    def agent_in_words(self, node: str) -> str:
        child = self._agents.get(node)
        if child is None:
            return "not started"
        return "running" if child.returncode is None else _ended(child.returncode)

    async def start_agent(self, node: str) -> None:
        """Raises LabError or ProgramError."""
        self._check(node)
        if node in self.off:
            raise LabError(f"{node} is off: `podwire lab start-node {node}` starts it")
        if self.pid(node) is not None:
            raise LabError(f"the agent of {node} runs already")
        child = await agents.start(self.lab, node)
        self._agents[node] = child
        self._watching[node] = asyncio.create_task(self._report_end(node, child))
        self._say(f"{node}: agent ready (process {child.pid})")

    async def kill_agent(self, node: str) -> None:
        """By SIGKILL. Raises LabError."""
        self._check(node)
        if self.pid(node) is None:
            raise LabError(f"the agent of {node} does not run: {self.agent_in_words(node)}")
        self._agents[node].kill()
        await self._watching[node]

    async def kill_node(self, node: str) -> None:
        """Raises LabError or ProgramError."""
        self._check(node)
        if node in self.off:
            raise LabError(f"{node} is off already")
        if self.pid(node) is not None:
            await self.kill_agent(node)
        await spaces.set_wire(self.lab.name, self.nodes[node], up=False)
        self.off.add(node)
        self._say(f"{node}: off")

    async def start_node(self, node: str) -> None:
        """Raises LabError or ProgramError."""
        self._check(node)
        if node not in self.off:
            raise LabError(f"{node} is on")
        await spaces.set_wire(self.lab.name, self.nodes[node], up=True)
        self.off.discard(node)
        await self.start_agent(node)

    async def make_client(self, name: str, behind: bool = False) -> Station:
        """`name` "": by its number. `behind`: the router. Raises LabError or ProgramError."""
        number = next_client(frozenset(station.number for station in self.clients.values()))
        if number is None:
            raise LabError("the fabric has no address left for another client")
        station = Station(name or f"client{number - 200}", number, link=topology.BEHIND if behind else 0)
        if not topology.LAB_NAME.fullmatch(station.name):
            raise LabError(f"{name!r}: expected a client's name of at most 15 letters and digits, a letter first")
        if station.name in self.clients or station.name in self.nodes or station.name in ("fabric", "pod"):
            raise LabError(f"there is a {station.name} already")
        if behind and not any(it.link == topology.BEHIND for it in self.clients.values()):
            await spaces.make_behind(self.lab.name)
        await spaces.plug_in(self.lab.name, station)
        self.clients[station.name] = station
        return station

    async def route(self, external: Collection[Address]) -> None:
        """Tells the clients the ways to pods and external IPs. Raises ProgramError."""
        nodes = self.nodes.values()
        near = [node for node in nodes if not node.link]
        entry = next((node for node in near if node.name not in self.off), near[0])
        ways = topology.ways_to_pods(nodes) | topology.ways_to_external(entry, external)
        for client in (it for it in self.clients.values() if it.link != topology.BEHIND):
            await spaces.route(self.lab.name, client, self._routes.get(client.name, {}), ways)
            self._routes[client.name] = ways

    async def add_address(self, node: str) -> Station:
        """Gives a node another place on the fabric, and keeps the old one, which is answered, for now.

        Raises LabError or ProgramError.
        """
        self._check(node)
        host = topology.next_host(self.nodes.values())
        if host is None:
            raise LabError("the fabric has no address left for a node")
        before = self.nodes[node]
        self.nodes[node] = before._replace(host=host)
        await spaces.add_addresses(self.lab.name, self.nodes[node])
        return before

    async def drop_address(self, before: Station) -> None:
        """Raises ProgramError."""
        await spaces.remove_addresses(self.lab.name, before)
        now = self.nodes[before.name]
        self._say(f"{now.name}: now at {' and '.join(map(show_address, now.addresses))}")

    def _check(self, node: str) -> None:
        if node not in self.nodes:
            raise LabError(f"there is no node {node}; there is {', '.join(self.nodes)}")

    async def _report_end(self, node: str, child: Process) -> None:
        self._say(f"{node}: agent {_ended(await child.wait())}")


def _ended(status: int) -> str:
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
