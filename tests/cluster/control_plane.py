"""etcd, API server, controllers and scheduler, on a machine of their own: the fabric, to which all nodes are plugged.

Invariants: the fabric is the nodes' gateway, and knows the pods' ranges by way of their nodes, as the router of a site
would: the API server reaches pods by it.
"""

import subprocess
import time
from pathlib import Path

from tests.cluster.machine import PATIENCE, CommandFailed, Machine, Program
from tests.cluster.parts import programs
from tests.cluster.pki import Authority
from tests.cluster.variant import HOSTS, PODS, SERVICES, Variant

_BRIDGE = "fabric"
_ETCD = "http://127.0.0.1:2379"
_ASK_AGAIN = 0.1


class ControlPlane:
    def __init__(self, variant: Variant, machine: Machine) -> None:
        self.variant, self.machine = variant, machine
        self.authority = Authority(machine.own / "pki")
        self._running: list[Program] = []
        self._lay_fabric()
        names = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")
        self.authority.issue("apiserver", "/CN=kube-apiserver", (*names, "127.0.0.1", *self._addresses()))
        self.authority.issue("kubelet-client", "/O=system:masters/CN=kubelet-client")
        for name, subject in (
            ("admin", "/O=system:masters/CN=admin"),
            ("kube-controller-manager", "/CN=system:kube-controller-manager"),
            ("kube-scheduler", "/CN=system:kube-scheduler"),
        ):
            self.authority.issue(name, subject)
            self.authority.kubeconfig(name, variant.api_server())
        self.admin = self.authority / "admin.kubeconfig"

    def start(self) -> None:
        """Answers once the API server does. Raises DidNotStart."""
        data = self.machine.own / "etcd"
        self.machine.start(
            "etcd",
            "etcd",
            f"--data-dir={data}",
            f"--listen-client-urls={_ETCD}",
            f"--advertise-client-urls={_ETCD}",
            "--listen-peer-urls=http://127.0.0.1:2380",
            "--unsafe-no-fsync",
            notifies=True,
        )
        self.resume()

    def pause(self) -> None:
        """As if its machine had gone: no API server, no controllers. What etcd holds stays."""
        for program in self._running:
            program.kill()
        self._running = []

    def resume(self) -> None:
        """Answers once the API server does. Raises DidNotStart."""
        self._start_api_server()
        self._start_controllers()

    def _start_api_server(self) -> None:
        pki, families = self.authority, self.variant.families
        api = self.machine.start(
            "kube-apiserver",
            programs.path("kube-apiserver"),
            f"--etcd-servers={_ETCD}",
            f"--service-cluster-ip-range={self.variant.joined(SERVICES)}",
            f"--bind-address={'::' if 6 in families else '0.0.0.0'}",
            f"--advertise-address={self.variant.router(families[0])}",
            "--secure-port=6443",
            f"--tls-cert-file={pki / 'apiserver.crt'}",
            f"--tls-private-key-file={pki / 'apiserver.key'}",
            f"--client-ca-file={pki / 'ca.crt'}",
            f"--service-account-key-file={pki / 'sa.pub'}",
            f"--service-account-signing-key-file={pki / 'sa.key'}",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            "--authorization-mode=Node,RBAC",
            "--allow-privileged=true",
            f"--kubelet-client-certificate={pki / 'kubelet-client.crt'}",
            f"--kubelet-client-key={pki / 'kubelet-client.key'}",
            "--kubelet-preferred-address-types=InternalIP",
            notifies=True,
        )
        self._running.append(api)
        # It says so once it listens, which is before its first objects are there: nothing but asking tells of those.
        until = time.monotonic() + PATIENCE
        while subprocess.run(self.kubectl("get", "--raw", "/readyz"), capture_output=True).returncode:
            assert time.monotonic() < until, f"the API server does not get ready: {api.log}"
            time.sleep(_ASK_AGAIN)

    def kubectl(self, *arguments: str | Path) -> list[str]:
        """The command line."""
        return self.machine.inside(programs.path("kubectl"), f"--kubeconfig={self.admin}", *arguments)

    def _start_controllers(self) -> None:
        pki = self.authority
        controllers = self.machine.start(
            "kube-controller-manager",
            programs.path("kube-controller-manager"),
            f"--kubeconfig={pki / 'kube-controller-manager.kubeconfig'}",
            f"--service-account-private-key-file={pki / 'sa.key'}",
            f"--root-ca-file={pki / 'ca.crt'}",
            "--use-service-account-credentials",
            "--allocate-node-cidrs",
            f"--cluster-cidr={self.variant.joined(PODS)}",
            f"--service-cluster-ip-range={self.variant.joined(SERVICES)}",
            "--leader-elect=false",
        )
        scheduler = self.machine.start(
            "kube-scheduler",
            programs.path("kube-scheduler"),
            f"--kubeconfig={pki / 'kube-scheduler.kubeconfig'}",
            "--leader-elect=false",
        )
        self._running += [controllers, scheduler]

    def _addresses(self) -> tuple[str, ...]:
        return (*self.variant.routers(), *self.variant.kubernetes())

    # --- the fabric ------------------------------------------------------------------------------

    def _lay_fabric(self) -> None:
        lines = [f"link add {_BRIDGE} type bridge forward_delay 0 mcast_snooping 0"]
        lines += [_address(self.variant.router(family), family, _BRIDGE) for family in self.variant.families]
        ip(self.machine, [*lines, f"link set {_BRIDGE} up"])
        forward(self.machine, self.variant)

    def plug_in(self, node: Machine, number: int) -> None:
        """A wire to a node, with the node's addresses and the fabric as its gateway."""
        ip(
            self.machine,
            [
                f"link add {node.name} type veth peer name eth0 netns {node.pid}",
                f"link set {node.name} master {_BRIDGE} up",
            ],
        )
        addresses = [_address(self.variant.node(number, family), family, "eth0") for family in self.variant.families]
        routes = [f"route add default via {router}" for router in self.variant.routers()]
        ip(node, [*addresses, "link set eth0 up", *routes])

    def route_to(self, blocks: list[str], number: int) -> None:
        lines = [f"route replace {block} via {self.variant.node(number, 6 if ':' in block else 4)}" for block in blocks]
        ip(self.machine, lines)


def ip(machine: Machine, lines: list[str]) -> None:
    """Lines of ip(8), in one process. In the machine's network alone: a process has the number that it has here."""
    command = ["nsenter", "--target", str(machine.pid), "--net", "--", "ip", "-batch", "-"]
    done = subprocess.run(command, input="".join(f"{line}\n" for line in lines), capture_output=True, text=True)
    if done.returncode:
        raise CommandFailed(f"{machine.name}: ip: {done.stderr.strip()}")


def forward(machine: Machine, variant: Variant) -> None:
    settings = {4: "net/ipv4/ip_forward", 6: "net/ipv6/conf/all/forwarding"}
    machine.run("sh", "-c", "".join(f"echo 1 >/proc/sys/{settings[family]}\n" for family in variant.families))


def _address(address: str, family: int, interface: str) -> str:
    length = HOSTS[family].partition("/")[2]
    # nodad: nobody else is there, and an address under test can't be used for a second.
    return f"address add {address}/{length} dev {interface}" + (" nodad" if family == 6 else "")
