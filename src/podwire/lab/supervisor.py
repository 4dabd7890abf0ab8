"""A lab at work: API server, controllers and kubelets of one cluster, as one object.

Invariants: whatever happens ends in `_converge`, which makes pods and published objects what the last right manifests
say; one at a time. A pod leaves only after the agents have heard of it. What dies is reported and stays dead.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping

from podwire.lab import control, kubelet, nameserver
from podwire.lab.announced import Announced, announced, routes_of
from podwire.lab.attach import AttachError
from podwire.lab.expand import ManifestsError, ObjectKey, Plan, Scaled, expand, objects
from podwire.lab.forms import Fields
from podwire.lab.layout import Lab, LabError
from podwire.lab.machines import Machines
from podwire.lab.names import zone
from podwire.lab.process import ProgramError
from podwire.lab.publish import Published, publish, publish_resolver
from podwire.lab.report import report
from podwire.lab.routers import Routers
from podwire.lab.services import balancer_ips, external_ips
from podwire.lab.settle import await_owners, await_pods, await_routes, await_sessions, await_settled
from podwire.lab.slices import Listen, RunningPod, listens_on
from podwire.lab.system import DNS_SERVICE, SYSTEM
from podwire.lab.userfiles import read_directory
from podwire.lab.views import LabView
from podwire.lab.workloads import PlannedPod
from podwire.model.addresses import Address, Prefix, show_address
from podwire.model.objects import PodKey, ServiceKey
from podwire.sources.kube_time import time_of

_AT_ONCE = 8
"""Pods begun or ended at the same time."""


class Supervisor:
    def __init__(self, lab: Lab, say: Callable[[str], None]) -> None:
        self.lab, self._say = lab, say
        self.machines = Machines(lab, say)
        self.pods: dict[PodKey, kubelet.LivePod] = {}
        self.troubles: dict[PodKey, str] = {}
        """Why a pod doesn't run as it should."""
        self.unsettled: list[str] = []
        self.error = ""
        """What is wrong with the manifests now; the plan is of when they were right."""
        self._plan = expand([], lab.nodes, now=_now(), system=SYSTEM)
        self._scaled: dict[ObjectKey, Scaled] = {}
        self._published: Published = {}
        self._names = nameserver.Names()
        self._objects: tuple[Fields, ...] = ()
        """As last published."""
        self._announced: Mapping[Address, Announced] = {}
        self.routers = Routers(lab, say)
        self._due = False
        """Whether pods and objects may lag behind the plan."""
        self._turn = asyncio.Lock()

    async def start(self) -> None:
        """Answers once all pods run that can. Raises ManifestsError, ProgramError or OSError."""
        async with self._turn:
            self._plan = await self._read()
            for line in self._plan.notes:
                self._say(line)
            self._say(f"{self.lab.nodes} node{'s' * (self.lab.nodes > 1)} on a fabric")
            await self.machines.set_up()
            await self.routers.begin(self._plan.passed_on, self.machines.nodes)
            await self._publish(frozenset())
            await asyncio.gather(*map(self.machines.start_agent, self.machines.nodes))
            await self._converge()

    async def reread(self) -> None:
        """Wrong manifests change nothing but `error`."""
        async with self._turn:
            try:
                plan = await self._read()
            except ManifestsError as error:
                if str(error) != self.error:
                    self._say(f"the manifests are wrong, and stay as they were:\n{error}")
                self.error = str(error)
                return
            self.error = ""
            if plan != self._plan or self._due:
                for line in sorted(set(plan.notes) - set(self._plan.notes)):
                    self._say(line)
                self._plan = plan
                await self._converge()

    async def answer(self, request: control.Requests) -> control.Reply:
        try:
            name = await self._do(request)
        except (LabError, ProgramError, OSError) as error:
            return control.Reply(error=str(error))
        return control.Reply(lab=self.view(), name=name)

    def view(self) -> LabView:
        troubles = dict(self.troubles)
        router = f"FRR, AS {self.routers.plan.asn}" if self.routers.plan is not None else ""
        known = self._announced
        return report(
            self.lab, self._plan, self.pods, troubles, self.machines, self.error, self.unsettled, router, known
        )

    async def _do(self, request: control.Requests) -> str:
        """The name of what was made. Raises LabError, ProgramError or OSError."""
        match request:
            case control.Status():
                return ""
            case control.Sync():
                await self.reread()
                if self.error:
                    raise LabError(self.error)
                return ""
        async with self._turn:
            match request:
                case control.Scale(workload, replicas):
                    await self._scale(workload, replicas)
                case control.KillAgent(node):
                    await self.machines.kill_agent(node)
                    await self._await_owners()
                case control.StartAgent(node):
                    await self.machines.start_agent(node)
                    await self._converge()
                case control.KillNode(node):
                    await self.machines.kill_node(node)
                    await self._converge()
                case control.StartNode(node):
                    await self.machines.start_node(node)
                    await self._converge()
                case control.Readdress(node):
                    await self._readdress(node)
                case control.MakeClient(name, behind):
                    client = await self.machines.make_client(name, behind)
                    await self.machines.route(self._external_ips())
                    return client.name
        return ""

    async def _scale(self, workload: str, replicas: int) -> None:
        key = next((key for key in self._plan.declared if str(key) == workload), None)
        if key is None:
            known = ", ".join(map(str, self._plan.declared)) or "nothing that can be scaled"
            raise LabError(f"there is no {workload}; there is {known}")
        if replicas < 0:
            raise LabError(f"expected a number of replicas from 0, not {replicas}")
        self._scaled[key] = Scaled(self._plan.declared[key], replicas)
        try:
            self._plan = await self._read()
        except ManifestsError as error:
            del self._scaled[key]
            raise LabError(str(error)) from None
        await self._converge()

    async def _readdress(self, node: str) -> None:
        """The new address is there before anybody is told, and the old one until everybody has acted. But for the
        router: its session with the node goes on by the old one for as long as that is there."""
        before = await self.machines.add_address(node)
        for live in self.pods.values():
            if live.sandbox is None and live.pod.node == node:
                live.addresses = self.machines.nodes[node].addresses
        await self._converge(heard=False)
        if not self.lab.by_bgp:
            self.unsettled += await self._await_pods_routes()
        await self.machines.drop_address(before)
        self.unsettled += await self._await_router()

    async def _read(self) -> Plan:
        manifests = await asyncio.to_thread(read_directory, self.lab.manifests)
        plan = expand(manifests, self.lab.nodes, self._plan.given, self._scaled, _now(), SYSTEM)
        self._scaled = {key: it for key, it in self._scaled.items() if plan.declared.get(key) == it.instead_of}
        return plan

    # --- making it so ---

    async def _converge(self, heard: bool = True) -> None:
        """What can't be done is in `troubles` and `unsettled`, and tried again the next time. `heard`: the router can
        have heard of it. Raises OSError."""
        self._due = True
        await self.routers.begin(self._plan.passed_on, self.machines.nodes)
        wanted = self._plan.pods
        leaving = frozenset(
            key for key, live in self.pods.items() if key not in wanted or wanted[key].uid != live.pod.uid
        )
        renewed = leaving & wanted.keys()
        self.troubles = {}
        if renewed:  # two pods can't have one name, so the old one goes first
            await self._publish(leaving)
            await self._each(self._finish, renewed)
            leaving -= renewed
        coming = wanted.keys() - self.pods.keys()
        if coming and any(it.get("kind") == "PodPool" for it in self._plan.passed_on):
            await self._announce(leaving)
        await self._each(self._begin, coming)
        await self._each(self._listen, self.pods.keys() - leaving)
        await self._publish(leaving)
        await self.machines.route(self._external_ips())
        await self._await_owners()
        if heard:
            self.unsettled += await self._await_router()
        await self._each(self._finish, leaving)
        for key, trouble in sorted(self.troubles.items(), key=lambda item: str(item[0])):
            self._say(f"{key}: {trouble}")
        for line in self.unsettled:
            self._say(line)
        self._say(f"{len(self.pods)} of {len(wanted)} pods run, {len(self._plan.services)} Services")
        self._due = False

    async def _announce(self, leaving: frozenset[PodKey]) -> None:
        """What pods ask for of pools stands in their objects: the agents have to know these before."""
        await self._publish(leaving)
        count = len(self._plan.pods.keys() - leaving)
        self.unsettled += await await_pods(self.machines.admin_sockets(), count)

    async def _publish(self, leaving: frozenset[PodKey]) -> None:
        """Writes the objects as of now without the pods that leave, and waits until the agents have acted on them."""
        running = {
            key: RunningPod(self._plan.pods[key], live.addresses, live.pod.node not in self.machines.off)
            for key, live in self.pods.items()
            if key not in leaving
        }
        now = objects(self._plan, running, frozenset(self.machines.off), self.machines.nodes.values())
        self._objects = tuple(now.values())
        self._names.zone = zone(now)
        await asyncio.to_thread(publish_resolver, self.lab.resolver, self.lab.staging, now)
        self._published = await asyncio.to_thread(publish, self.lab.cluster, self.lab.staging, self._published, now)
        self.unsettled = await await_settled(self.machines.admin_sockets(), now.values())

    async def _each(self, do: Callable[[PodKey], Awaitable[None]], keys: Iterable[PodKey]) -> None:
        places = asyncio.Semaphore(_AT_ONCE)

        async def one(key: PodKey) -> None:
            async with places:
                try:
                    await do(key)
                except (ProgramError, AttachError, OSError) as error:
                    self.troubles[key] = str(error)

        await asyncio.gather(*(one(key) for key in sorted(keys, key=str)))

    async def _begin(self, key: PodKey) -> None:
        pod = self._plan.pods[key]
        if not pod.node:
            self.troubles[key] = "no node fits its nodeName or nodeSelector"
        elif pod.node in self.machines.off:
            self.troubles[key] = f"{pod.node} is off"
        else:
            self.pods[key] = await kubelet.begin(
                self.lab, pod, self.machines.nodes[pod.node], self._ports(pod), self._names
            )

    async def _listen(self, key: PodKey) -> None:
        await kubelet.listen(self.pods[key], self._ports(self._plan.pods[key]), self._names)

    async def _finish(self, key: PodKey) -> None:
        await kubelet.finish(self.lab, self.pods.pop(key))

    async def _await_owners(self) -> None:
        """Until somebody answers for the load balancers' addresses, also where a node has ended that did."""
        sockets, nodes = self.machines.admin_sockets(), self.machines.nodes.keys()
        absent = nodes - sockets.keys()
        self._announced = await asyncio.to_thread(announced, self._objects, nodes, absent, self.machines.off)
        self.unsettled += await await_owners(sockets, self._announced)

    async def _await_router(self) -> list[str]:
        """What the nodes tell it, by way of those that do."""
        on = self.machines.on()
        if self.routers.plan is None or any(self.machines.pid(it.name) is None for it in on):
            return []  # what a killed agent has told stays, whatever happens
        told: dict[Prefix, set[str]] = {}
        for station in on:
            for prefix in await asyncio.to_thread(routes_of, station.name, self._objects):
                hops = (show_address(it) for it in station.addresses if len(it) == prefix.family.size)
                told.setdefault(prefix, set()).update(hops)
        unsettled = [
            *await self.routers.await_routes(told),
            *await await_sessions(self.machines.admin_sockets()),
        ]
        return unsettled + (await self._await_pods_routes() if self.lab.by_bgp else [])

    async def _await_pods_routes(self) -> list[str]:
        return await await_routes(self.machines.on(), self.machines.admin_sockets(), self.machines.spaces())

    def _external_ips(self) -> list[Address]:
        """By way of a node, for clients on the fabric; load balancers' too, which only the router has learnt."""
        return [
            address
            for it in self._plan.services.values()
            for address in (*external_ips(it.form), *balancer_ips(it.object))
        ]

    def _ports(self, pod: PlannedPod) -> frozenset[Listen]:
        forms = {key: service.form for key, service in self._plan.services.items()}
        return listens_on(pod, forms.values(), forms.get(ServiceKey(DNS_SERVICE.namespace, DNS_SERVICE.name)))


def _now() -> str:
    return time_of(time.time())
