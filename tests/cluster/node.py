"""A node: containerd and kubelet on a machine of their own, with the images that pods need.

Invariants: no network is installed, only the plugin "loopback" that containerd itself asks for. The pods' control
groups are below one that has the node's name.
"""

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.control_plane import ControlPlane
from tests.cluster.machine import DidNotStart, Machine, Program
from tests.cluster.parts import images, programs

SOCKET = "/run/containerd/containerd.sock"

# restrict_oom_score_adj: root may lack CAP_SYS_RESOURCE, and every sandbox would fail.
_CONTAINERD = """\
version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "{socket}"
[ttrpc]
  address = "{socket}.ttrpc"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "{pause}"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["/opt/cni/bin"]
    conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      SystemdCgroup = false
      BinaryName = "{runc}"
"""

# cgroupsPerQOS, failCgroupV1: for machines with control groups of version 1, or without all controllers.
# crashLoopBackOff: what is killed several times in a row is started again as soon as after the first time.
_KUBELET = """\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {{anonymous: {{enabled: false}}, webhook: {{enabled: true}}, x509: {{clientCAFile: {pki}/ca.crt}}}}
authorization: {{mode: Webhook}}
tlsCertFile: {pki}/{node}.crt
tlsPrivateKeyFile: {pki}/{node}.key
clusterDomain: cluster.local
clusterDNS: [{dns}]
cgroupDriver: cgroupfs
cgroupRoot: /{cgroup}
cgroupsPerQOS: false
enforceNodeAllocatable: []
failCgroupV1: false
failSwapOn: false
containerRuntimeEndpoint: unix://{socket}
resolvConf: {own}/resolv.conf
volumePluginDir: /var/lib/kubelet/volumeplugins
imageGCHighThresholdPercent: 100
crashLoopBackOff: {{maxContainerRestartPeriod: 1s}}
evictionHard: {{memory.available: 100Mi}}
"""


class Node:
    """`number` counts from 1. `cgroup`: the name of its control group."""

    def __init__(self, number: int, machine: Machine, plane: ControlPlane, cgroup: str) -> None:
        self.number, self.machine, self.plane, self.cgroup = number, machine, plane, cgroup
        self.name, self.addresses = machine.name, plane.variant.nodes_own(number)
        self._containerd: Program | None = None
        self._kubelet: Program | None = None

    def prepare(self, archives: Iterable[Path]) -> None:
        """All that needs no API server. Raises DidNotStart or CommandFailed."""
        own, pki = self.machine.own, self.plane.authority
        self.plane.plug_in(self.machine, self.number)
        pki.issue(self.name, f"/O=system:nodes/CN=system:node:{self.name}", self.addresses)
        pki.kubeconfig(self.name, self.plane.variant.api_server())
        self.machine.run("cp", programs.path("loopback"), "/opt/cni/bin/")
        runc = shutil.which("runc")
        if runc is None:
            raise DidNotStart("runc is missing: apt-get install runc")
        (own / "containerd.toml").write_text(_CONTAINERD.format(socket=SOCKET, pause=images.PAUSE, runc=runc))
        (own / "resolv.conf").write_text(f"nameserver {self.plane.variant.routers()[0]}\n")
        (own / "kubelet.yaml").write_text(
            _KUBELET.format(
                pki=pki.directory,
                node=self.name,
                dns=self.plane.variant.dns()[0],
                cgroup=self.cgroup,
                socket=SOCKET,
                own=own,
            )
        )
        self.start_containerd()
        for archive in archives:
            self.load(archive)

    def load(self, archive: Path) -> None:
        """The images of an archive."""
        # Read here: the node may not see the file.
        with archive.open("rb") as content:
            self.machine.pipe(content, programs.path("ctr"), "-a", SOCKET, "-n", "k8s.io", "images", "import", "-")

    def start_containerd(self) -> None:
        """Also once more, after `stop_containerd`: pods that ran go on."""
        where = programs.path("containerd")
        search = f"{where.parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        self._containerd = self.machine.start(
            f"{self.name}-containerd", where, "-c", self.machine.own / "containerd.toml", notifies=True, PATH=search
        )

    def stop_containerd(self) -> None:
        assert self._containerd is not None
        self._containerd.kill()

    def crictl(self, *arguments: str) -> str:
        return self.machine.run(programs.path("crictl"), "-r", f"unix://{SOCKET}", *arguments)

    def join(self) -> None:
        """The kubelet registers the node."""
        self._kubelet = self.machine.start(
            f"{self.name}-kubelet",
            programs.path("kubelet"),
            f"--config={self.machine.own / 'kubelet.yaml'}",
            f"--kubeconfig={self.plane.authority / f'{self.name}.kubeconfig'}",
            f"--hostname-override={self.name}",
            f"--node-ip={','.join(self.addresses)}",
            notifies=True,
        )

    def restart_kubelet(self) -> None:
        with self.without_kubelet():
            pass

    @contextmanager
    def without_kubelet(self) -> Iterator[None]:
        """What it has begun goes on. Raises DidNotStart where it does not come back."""
        assert self._kubelet is not None
        self._kubelet.kill()
        try:
            yield
        finally:
            self.join()
