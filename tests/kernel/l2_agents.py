"""Whole agents on a link, which announce one load balancer's address by ARP; its backend is a machine beside them."""

import json
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from podwire.announcing.views import L2View
from podwire.cli.client import Failed, ask
from podwire.views import HistoryView, StatusView
from tests.kernel.lan import ECHO, Lan, mac_of
from tests.kernel.rig import Space, respond

ADDRESS, BACKEND = "192.0.2.100", "192.0.2.150"


class Agents:
    def __init__(self, lan: Lan, directory: Path, first: Callable[[Space], object] = lambda _: None) -> None:
        """`first`: done in each node's namespace before its agent begins."""
        self.lan, self.directory = lan, directory
        self.running: dict[int, subprocess.Popen[bytes]] = {}
        respond(lan.plug("backend", 150, f"{BACKEND}/24"), "backend", ECHO)
        self.spaces = {n: lan.plug(f"n{n}", n, f"192.0.2.{n}/24") for n in (1, 2)}
        (directory / "manifests").mkdir()
        self.cordoned: set[int] = set()
        self.write()
        for number, space in self.spaces.items():
            first(space)
            self.start(number)

    def write(self) -> None:
        """The cluster's objects."""
        items = [*(_node(n, n in self.cordoned) for n in self.spaces), *_OBJECTS]
        aside = self.directory / "aside"
        aside.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        aside.rename(self.directory / "manifests" / "all.json")

    def start(self, number: int) -> None:
        home = self.directory / f"n{number}"
        home.mkdir(exist_ok=True)
        settings = {
            "node_name": f"n{number}",
            "state_dir": str(home),
            "manifests": str(self.directory / "manifests"),
            "service_cidrs": ["10.96.0.0/16"],
        }
        lines = (f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
        (home / "podwire.toml").write_text("".join(lines))
        command = ("ip", "netns", "exec", self.spaces[number].name, str(Path(sysconfig.get_path("scripts"), "podwire")))
        with (home / "log").open("ab") as log:
            self.running[number] = subprocess.Popen(
                (*command, "agent", "--config", str(home / "podwire.toml")), stdout=log, stderr=log
            )

    def owner(self) -> int:
        """As the client has it."""
        return next((n for n in self.spaces if self.lan.neighbour(ADDRESS) == mac_of(n)), 0)

    def seen_by(self, number: int) -> L2View:
        """Nothing at all where the agent does not answer yet."""
        try:
            body = ask(self.directory / f"n{number}" / "admin.sock", "GET", "/l2")
        except Failed:
            return L2View(())
        return msgspec.json.decode(body, type=L2View)

    def events(self, number: int) -> list[str]:
        """All that its agent has heard of, in words."""
        body = ask(self.directory / f"n{number}" / "admin.sock", "GET", "/history")
        return [it.event for it in msgspec.json.decode(body, type=HistoryView).records]

    def errors(self, number: int) -> list[str]:
        """Of its status; none where it does not answer yet."""
        try:
            body = ask(self.directory / f"n{number}" / "admin.sock", "GET", "/status")
        except Failed:
            return []
        return list(msgspec.json.decode(body, type=StatusView).source_errors)

    def end(self) -> None:
        for agent in self.running.values():
            agent.kill()
            agent.wait()


def _own(kind: str, spec: dict[str, Any]) -> Any:
    return {"apiVersion": "podwire.io/v1alpha1", "kind": kind, "metadata": {"name": "public"}, "spec": spec}


_PORT = {"name": "p", "protocol": "UDP", "port": ECHO}
_OBJECTS = [
    {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web"},
        "spec": {"type": "LoadBalancer", "ports": [_PORT], "clusterIPs": ["10.96.0.80"], "clusterIP": "10.96.0.80"},
        "status": {"loadBalancer": {"ingress": [{"ip": ADDRESS, "ipMode": "VIP"}]}},
    },
    {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4",
        "ports": [_PORT],
        "endpoints": [{"addresses": [BACKEND], "conditions": {"ready": True}}],
    },
    _own("AddressPool", {"addresses": [f"{ADDRESS}/32"]}),
    _own("L2Advertisement", {}),
]


def _node(number: int, cordoned: bool) -> Any:
    addresses = [{"type": "InternalIP", "address": f"192.0.2.{number}"}]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": f"n{number}"},
        "spec": {"podCIDRs": [f"10.244.{number}.0/24"], "unschedulable": cordoned},
        "status": {"addresses": addresses, "conditions": [{"type": "Ready", "status": "True"}]},
    }
