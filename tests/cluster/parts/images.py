"""The images that the cluster and its tests run, as one archive: each is made here, since no registry is at hand.

Invariants: the archive is kept by the digest of what it is made from. The tags are those that Kubernetes' own tests at
this version ask for.
"""

import shutil
import tempfile
from pathlib import Path

from deploy.image import archive, debian
from deploy.image.archive import Image
from tests.cluster.parts import programs
from tests.cluster.parts.places import CACHE, CannotBuild, digest, say

PAUSE = "registry.k8s.io/pause:3.10.2"
AGNHOST = "registry.k8s.io/e2e-test-images/agnhost:2.66.1"
BUSYBOX = "registry.k8s.io/e2e-test-images/busybox:1.37.0-2"
WEB_SERVER = "podwire.test/web:1"
"""Answers HTTP at port 80, as the one does that critest would fetch."""
COREDNS = "registry.k8s.io/coredns/coredns:v1.15.0"

# What the tests execute in agnhost and its kin: sh, curl, dig, nc, iperf, conntrack and the like.
_TOOLS = (
    "bash",
    "bind9-dnsutils",
    "busybox-static",
    "conntrack",
    "coreutils",
    "curl",
    "dash",
    "grep",
    "iperf",
    "iproute2",
    "iptables",
    "iputils-ping",
    "libc-bin",
    "netcat-openbsd",
    "nftables",
    "procps",
    "socat",
    "wget",  # that of a static busybox crashes as it asks glibc for a name service
)
# What the packages' own scripts would link.
_ALTERNATIVES = {
    "usr/bin/nc": "nc.openbsd",
    **{
        f"usr/sbin/{ip}tables{verb}": f"{ip}tables-nft{verb}"
        for ip in ("ip", "ip6")
        for verb in ("", "-save", "-restore")
    },
}


def build() -> Path:
    """The archive. Raises CannotBuild."""
    recipe = (Path(__file__), Path(archive.__file__), Path(debian.__file__))
    groups = [programs.place(group).name for group in programs.GROUPS]
    done = CACHE / "images" / f"cluster-{digest(*(file.read_text(encoding='utf-8') for file in recipe), *groups)}.tar"
    if done.exists():
        return done
    say(f"images of the cluster: Debian's {', '.join(_TOOLS)} …")
    done.parent.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix=".trees-", dir=done.parent) as directory:
            _write(done, Path(directory))
    except debian.CannotBuild as error:
        raise CannotBuild(str(error)) from None
    say(f"images of the cluster: {done.stat().st_size >> 20} MB in {done.parent}")
    return done


def _write(done: Path, directory: Path) -> None:
    tools, busybox = directory / "tools", directory / "busybox"
    tools.mkdir()
    debian.make(tools, _TOOLS, directory / "packages")
    for link, target in _ALTERNATIVES.items():
        (tools / link).symlink_to(target)
    debian.applets(tools)
    (busybox / "bin").mkdir(parents=True)
    (busybox / "tmp").mkdir()
    shutil.copy2(tools / "bin/busybox", busybox / "bin/busybox")
    debian.applets(busybox)
    agnhost = {"/agnhost": programs.path("agnhost")}
    # One of its commands serves TLS with these, and its Dockerfile puts them there.
    certificates = programs.module("kubernetes", "k8s.io/kubernetes") / "test/images/agnhost/porter"
    agnhost |= {f"/{file}": certificates / file for file in ("localhost.crt", "localhost.key")}
    e2e = "registry.k8s.io/e2e-test-images"
    archive.write(
        done,
        Image([PAUSE], {"Entrypoint": ["/pause"]}, [{"/pause": programs.path("pause")}]),
        Image([COREDNS], {"Entrypoint": ["/coredns"]}, [{"/coredns": programs.path("coredns")}]),
        Image(
            [
                AGNHOST,
                f"{e2e}/agnhost:2.55",
                f"{e2e}/glibc-dns-testing:2.1.1",
                "registry.k8s.io/build-image/distroless-iptables:v0.9.9",
            ],
            {"Entrypoint": ["/agnhost"], "Cmd": ["pause"]},
            [{"/": tools}, agnhost],
        ),
        Image([WEB_SERVER], {"Entrypoint": ["/agnhost", "netexec", "--http-port=80"]}, [agnhost]),
        Image([BUSYBOX, f"{e2e}/busybox:1.36.1-1"], {"Cmd": ["sh"]}, [{"/": busybox}]),
        Image(
            [f"{e2e}/regression-issue-74839:1.5"],
            {"Entrypoint": ["/regression-issue-74839"]},
            [{"/regression-issue-74839": programs.path("regression-issue-74839")}],
        ),
    )
