"""`python -m tests.cluster.conformance`: Kubernetes' own conformance tests of the network, on nodes with Podwire; with
`--services` all of its tests of Services that need no cloud, conformance or not, on six nodes in three zones.

Invariants: a spec that fails and is not expected to makes this fail, and so does one that is expected to and passes:
the lists below are the truth. All outcomes are in build/conformance.json, or
build/services-e2e.json:

    {"network": "podwire", "specs": [{"name", "state", "seconds", "reason"}]}

`state`: passed, failed, "expected" for a failure on the list, or "skipped" for what finds by itself that it can't run;
`reason`: of the list, or the first line of the failure.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from tests.cluster import podwire, reference
from tests.cluster.cluster import LOGS, Cluster, cluster
from tests.cluster.machine import CommandFailed, DidNotStart
from tests.cluster.parts import programs
from tests.cluster.parts.places import ROOT, CannotBuild, say
from tests.cluster.variant import VARIANTS

OUT, SERVICES_OUT = ROOT / "build" / "conformance.json", ROOT / "build" / "services-e2e.json"
FOCUS = r"\[sig-network\].*\[Conformance\]"
SERVICES = (
    r"\[sig-network\] (Services|EndpointSlice|EndpointSliceMirroring|Endpoints|EndpointsController|Conntrack|KubeProxy"
    r"|Traffic Distribution|Service endpoints latency|Service CIDRs|Networking Granular Checks)"
)
LEFT_OUT = {
    r"\[Disruptive\]": "they log in to nodes and restart what runs there, as tests/cluster/test_resilience.py does",
    r"\[Feature:SCTPConnectivity\]": "they need a kernel with SCTP sockets: the packet table sends its packets raw",
    r"\[Feature:KubeProxyNFAcct\]": "it reads kube-proxy's own counters",
}
"""Of the tests of Services: what they need, by a regular expression of their names."""
AT_ONCE = 4
"""Specs that run at the same time: most of their time is waiting."""

EXPECTED: dict[str, str] = {
    "[sig-network] Services should fallback to local terminating endpoints when there are no ready endpoints with "
    "externalTrafficPolicy=Local": "it wants another node's pod refused at this node's port, as kube-proxy does where "
    "the network hides the pod behind its node; Podwire narrows clients from outside only",
}
"""Why a spec fails, by its name."""


class Spec(NamedTuple):
    name: str
    state: str
    seconds: float
    reason: str


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m tests.cluster.conformance", description="See the module's text.")
    options.add_argument("--variant", choices=sorted(VARIANTS), default="ipv4")
    options.add_argument("--network", choices=("podwire", "reference"), default="podwire")
    options.add_argument("--services", action="store_true", help="all tests of Services, on six nodes")
    options.add_argument("--focus", help=f"a regular expression of names (default: {FOCUS})")
    options.add_argument("--skip", default="", help="a regular expression of names")
    asked = options.parse_args()
    focus = asked.focus or (SERVICES if asked.services else FOCUS)
    left_out = LEFT_OUT if asked.services else {}
    skip = "|".join(filter(None, (asked.skip, *left_out)))
    try:
        programs.build()
        archives = [podwire.image()] if asked.network == "podwire" else []
        with cluster(VARIANTS[asked.variant], 6 if asked.services else 2, archives) as it:
            for node in it.nodes:
                it.kubectl("label", f"node/{node.name}", f"topology.kubernetes.io/zone=zone-{node.number % 3}")
            (podwire if asked.network == "podwire" else reference).install(it)
            it.install_dns()
            report = run(it, focus, skip)
            expected = EXPECTED if asked.network == "podwire" else {}
            specs = [judged(spec, expected) for spec in specs_of(report)]
            wrong = [*(spec for spec in specs if spec.state == "failed"), *needless(specs, expected)]
            if wrong:
                it.keep_logs(LOGS / "conformance")
    except (CannotBuild, DidNotStart, CommandFailed) as error:
        sys.exit(f"conformance: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    write(SERVICES_OUT if asked.services else OUT, asked.network, specs)
    for names, reason in left_out.items():
        print(f"left out: {names}: {reason}")
    tell(specs, wrong)
    sys.exit(bool(wrong) or not specs)


def run(it: Cluster, focus: str, skip: str) -> Any:
    """Ginkgo's report (its types.Report)."""
    machine = it.plane.machine
    out = machine.own / "conformance"
    out.mkdir()
    command = machine.inside(
        programs.path("ginkgo"),
        "--no-color",
        "-v",
        f"--procs={AT_ONCE}",
        f"--focus={focus}",
        *([f"--skip={skip}"] if skip else []),
        "--timeout=40m",
        f"--output-dir={out}",
        "--json-report=report.json",
        programs.path("e2e.test"),
        "--",
        f"--kubeconfig={it.plane.admin}",
        f"--kubectl-path={programs.path('kubectl')}",
        "--provider=local",
        f"--num-nodes={len(it.nodes)}",
        "--disable-log-dump",
    )
    with (machine.cluster / "log" / "conformance.log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=out)
        assert process.stdout is not None
        follow(process.stdout, log)
        process.wait()
    report = out / "report.json"
    if not report.exists():
        raise CommandFailed(
            f"ginkgo: exit code {process.returncode} and no report:\n{Path(log.name).read_text()[-4000:]}"
        )
    return json.loads(report.read_text(encoding="utf-8"))


def follow(lines: Iterable[str], log: Any) -> None:
    """A line of progress for each spec that has ended: ginkgo's own say everything that a spec did."""
    ended = 0
    bullet = ""
    for line in lines:
        log.write(line)
        log.flush()
        if line.startswith("• ["):
            bullet = line.strip()
        elif bullet and line.startswith("[sig-"):
            ended += 1
            say(f"spec {ended}: {bullet.removeprefix('• ')} {line.strip()}")
            bullet = ""


def specs_of(report: Any) -> list[Spec]:
    """Those that began, by name."""
    found = []
    for suite in report:
        for spec in suite["SpecReports"]:
            message = spec.get("Failure", {}).get("Message", "").strip()
            # One that was never asked for is skipped too, without a word.
            if spec["LeafNodeType"] == "It" and (spec["State"] not in {"skipped", "pending"} or message):
                name = " ".join([*(spec["ContainerHierarchyTexts"] or ()), spec["LeafNodeText"]])
                state = spec["State"] if spec["State"] in {"passed", "skipped"} else "failed"
                found.append(Spec(name, state, round(spec["RunTime"] / 1e9, 1), message.partition("\n")[0]))
    return sorted(found)


def judged(spec: Spec, expected: dict[str, str]) -> Spec:
    if spec.state == "failed" and spec.name in expected:
        return spec._replace(state="expected", reason=expected[spec.name])
    return spec


def needless(specs: Iterable[Spec], expected: dict[str, str]) -> list[Spec]:
    """On the list, and passed all the same."""
    return [
        spec._replace(reason="passes: take it off the list")
        for spec in specs
        if spec.state == "passed" and spec.name in expected
    ]


def write(out: Path, network: str, specs: list[Spec]) -> None:
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps({"network": network, "specs": [spec._asdict() for spec in specs]}, indent=1) + "\n")


def tell(specs: list[Spec], wrong: list[Spec]) -> None:
    for spec in specs:
        if spec.state in {"expected", "skipped"}:
            print(f"{'expected to fail' if spec.state == 'expected' else 'skipped'}: {spec.name}: {spec.reason}")
    for spec in wrong:
        print(f"WRONG: {spec.name}: {spec.reason}")
    count = {state: sum(spec.state == state for spec in specs) for state in ("passed", "failed", "expected", "skipped")}
    print(
        f"conformance: {count['passed']} passed, {count['failed']} failed, {count['expected']} expected failures, "
        f"{count['skipped']} skipped"
    )


if __name__ == "__main__":
    main()
