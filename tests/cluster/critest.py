"""Kubernetes' own tests of container runtimes (cri-tools' critest), of what they say about the network: on one node.

Invariants: they speak to the runtime alone, as a kubelet would; one that runs meanwhile would end their pods, of which
it knows nothing.
"""

import json
import subprocess

from tests.cluster.conformance import Spec, specs_of
from tests.cluster.machine import CommandFailed
from tests.cluster.node import SOCKET, Node
from tests.cluster.parts import images, programs

FOCUS = "Networking runtime should support networking"
PREFIX = f"[k8s.io] {FOCUS} "
"""Of the specs' names."""
CONTAINER_PORT = "runtime should support port mapping with only container port [Conformance]"
SPECS = frozenset(
    (
        "runtime should support DNS config [Conformance]",
        "runtime should support set hostname [Conformance]",
        CONTAINER_PORT,
        "runtime should support port mapping with host port and container port [Conformance]",
    )
)
"""All that there are at this version."""


def run(node: Node, left_out: frozenset[str] = frozenset()) -> dict[str, Spec]:
    """What became of each spec that was not left out, by name. Raises CommandFailed where critest itself fails."""
    own = node.machine.own
    listed, report = own / "critest-images.yaml", own / "critest.json"
    listed.write_text(f"defaultTestContainerImage: {images.BUSYBOX}\nwebServerTestImage: {images.WEB_SERVER}\n")
    report.unlink(missing_ok=True)
    command = [
        programs.path("critest"),
        f"-runtime-endpoint=unix://{SOCKET}",
        f"-test-images-file={listed}",
        f"-ginkgo.focus={FOCUS}",
        *(f"-ginkgo.skip={name.partition(' [')[0]}" for name in sorted(left_out)),
        f"-ginkgo.json-report={report}",
        "-ginkgo.no-color",
    ]
    with (node.machine.cluster / "log" / f"{node.name}-critest.log").open("ab") as log:
        done = subprocess.run(node.machine.inside(*command), stdout=log, stderr=log, check=False)
    if not report.exists():
        raise CommandFailed(f"critest: exit code {done.returncode} and no report; its log is {log.name}")
    specs = specs_of(json.loads(report.read_text(encoding="utf-8")))
    return {spec.name.removeprefix(PREFIX): spec for spec in specs}
