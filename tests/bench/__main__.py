"""Figures of this machine beside kube-proxy's, into build/bench.json (docs/benchmarks.md says what they mean).

    python -m tests.bench [NAME-PREFIX …] [--quick] [--rounds N] [--out FILE]

as root. Planes and sizes take turns, each sample in a process and namespaces of its own; what is compared is compared
within one round, since absolute times are of this machine only. NAME-PREFIX measures only what figures of such names
need. Where kube-proxy or a compiler is missing, the figures that need it are left out, and it is said.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any, NamedTuple

from tests.bench import cni, planes, pod_to_pod, wires
from tests.bench.figures import RESULT, Figure, figure, percentile, ratio, show, write

GOALS = {
    "services_load_time_ratio_10000": 0.1,
    "services_change_p99_ms_10000": 1.0,
    "services_change_growth": 1.5,
    "services_rss_ratio_10000": 0.4,
    "services_cpu_ratio_1000_changes": 0.2,
    "clusterip_cps_ratio_kube_proxy": 1.0,
    "clusterip_rr_ratio_kube_proxy": 1.0,
    "clusterip_cps_growth": 0.97,
    "restart_kernel_writes_10000": 0.0,
    "restart_ready_s_10000": 1.5,
    "cni_add_p50_ratio": 1.0,
    "cni_add_p50_ratio_native": 0.3,
    "cni_add_p99_ratio": 1.0,
    "cni_adds_per_second_ratio_16": 2.0,
    "cni_add_growth_200": 1.2,
    "pod_to_pod_rr_ratio_veth": 0.95,
    "pod_to_pod_throughput_ratio_veth": 0.95,
    "lb_allocate_growth_10000": 1.5,
    "lb_failover_l2_s": 1.5,
    "lb_failover_bfd_s": 1.5,
    "bgp_announce_5000_ratio_frr": 1.2,
    "bgp_withdraw_5000_ratio_frr": 1.2,
}
ROUTES = 5_000
OURS, THEIRS = planes.Podwire.name, planes.KubeProxy.name
Sample = dict[str, Any]


class Plan(NamedTuple):
    """How much is done. The last of `sizes` is the one that costs and packets are measured at."""

    sizes: tuple[int, ...]
    rounds: int
    changes: dict[str, int]
    paced: int
    few: int
    packet_rounds: int
    packet_seconds: float
    clients: int
    adds: int
    pods: int
    callers: int


FULL = Plan((100, 1_000, 10_000), 3, {OURS: 300, THEIRS: 60}, 1_000, 10, 15, 0.7, 100_000, 60, 200, 16)
QUICK = Plan((20, 40), 1, {OURS: 20, THEIRS: 5}, 20, 10, 1, 0.2, 200, 3, 10, 4)
"""To see that all of it works; the figures mean nothing."""


class Bench:
    """What was asked for, what can be measured here, and how far it is."""

    def __init__(self, plan: Plan, prefixes: Sequence[str], out: Path = RESULT) -> None:
        self._out = out
        self.plan, self._prefixes = plan, tuple(prefixes)
        self.names = (OURS,) if planes.missing() else (OURS, THEIRS)
        self.found: list[Figure] = []
        self._began = monotonic()

    def wanted(self, *names: str) -> bool:
        """Whether any of these names, or beginnings of names, is asked for."""
        return not self._prefixes or any(
            name.startswith(prefix) or prefix.startswith(name) for name in names for prefix in self._prefixes
        )

    def say(self, text: str) -> None:
        print(f"[bench {monotonic() - self._began:5.0f} s] {text}", flush=True)

    def add(self, *some: Figure) -> None:
        """Kept at once: what is measured is not lost where a later part fails."""
        asked = [each for each in some if self.wanted(each["name"])]
        self.found += asked
        write(asked, self._out)

    def sample(self, kind: str, *arguments: object) -> Any:
        command = [sys.executable, "-m", f"tests.bench.{kind}", *map(str, arguments)]
        ran = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if ran.returncode:
            raise SystemExit(f"bench: {' '.join(command[2:])} failed: see above")
        return json.loads(ran.stdout.splitlines()[-1])


def services(bench: Bench) -> None:
    for size in bench.plan.sizes:
        last = size == bench.plan.sizes[-1]
        prefixes = [f"services_load_time_ratio_{size}", f"services_load_s_{size}", f"services_rss_mb_{size}"]
        prefixes += [f"services_change_p99_ms_{size}", f"services_change_p50_ms_{size}", f"restart_ready_s_{size}"]
        prefixes += [f"services_change_kube_proxy_p99_ms_{size}", f"services_rss_ratio_{size}"]
        prefixes += [f"restart_kernel_writes_{size}", f"restart_ready_kube_proxy_s_{size}"]
        prefixes += ["services_change_growth"] if size in (bench.plan.sizes[0], bench.plan.sizes[-1]) else []
        prefixes += ["services_cpu_"] if last else []
        if not bench.wanted(*prefixes):
            continue
        samples: dict[str, list[Sample]] = {name: [] for name in bench.names}
        for number in range(bench.plan.rounds):
            for name in bench.names if number % 2 == 0 else reversed(bench.names):
                bench.say(f"{size} Services, round {number + 1} of {bench.plan.rounds}: {name}")
                paced = bench.plan.paced if last else 0
                samples[name].append(bench.sample("services", name, size, bench.plan.changes[name], paced))
        _p50s.setdefault(size, [median(it["change_ms"]) for it in samples[OURS]])
        bench.add(*_of_podwire(size, samples[OURS]))
        if THEIRS in samples:
            bench.add(*_beside(size, samples[OURS], samples[THEIRS]))
    smallest, largest = bench.plan.sizes[0], bench.plan.sizes[-1]
    if smallest in _p50s and largest in _p50s:
        against = f"{largest} against {smallest} Services, medians"
        bench.add(ratio("services_change_growth", _p50s[largest], _p50s[smallest], against))


_p50s: dict[int, list[float]] = {}


def _of_podwire(size: int, ours: list[Sample]) -> list[Figure]:
    return [
        figure(f"services_load_s_{size}", _each(ours, "load_s"), "s"),
        figure(f"services_rss_mb_{size}", _each(ours, "rss_mb"), "MB"),
        figure(f"services_change_p50_ms_{size}", [median(it["change_ms"]) for it in ours], "ms"),
        figure(f"services_change_p99_ms_{size}", [percentile(it["change_ms"], 0.99) for it in ours], "ms"),
        figure(f"restart_ready_s_{size}", _each(ours, "restart_s"), "s"),
        figure(f"restart_kernel_writes_{size}", _each(ours, "restart_writes"), "writes"),
    ]


def _beside(size: int, ours: list[Sample], theirs: list[Sample]) -> list[Figure]:
    against = f"kube-proxy in nftables mode, {size} Services of 10 backends"
    p99s = [percentile(it["change_ms"], 0.99) for it in theirs]
    found = [
        ratio(f"services_load_time_ratio_{size}", _each(ours, "load_s"), _each(theirs, "load_s"), against),
        ratio(f"services_rss_ratio_{size}", _each(ours, "rss_mb"), _each(theirs, "rss_mb"), against),
        figure(f"services_load_kube_proxy_s_{size}", _each(theirs, "load_s"), "s"),
        figure(f"services_rss_kube_proxy_mb_{size}", _each(theirs, "rss_mb"), "MB"),
        figure(f"services_change_kube_proxy_p99_ms_{size}", p99s, "ms"),
        figure(f"restart_ready_kube_proxy_s_{size}", _each(theirs, "restart_s"), "s"),
    ]
    if "paced_cpu_s" in ours[0]:
        mine, its = _each(ours, "paced_cpu_s"), _each(theirs, "paced_cpu_s")
        found += [
            ratio("services_cpu_ratio_1000_changes", mine, its, against),
            figure("services_cpu_s_1000_changes", mine, "s"),
            figure("services_cpu_kube_proxy_s_1000_changes", its, "s"),
        ]
    return found


def packets(bench: Bench) -> None:
    if not bench.wanted("clusterip_"):
        return
    if why := wires.missing():
        bench.say(f"left out: clusterip_*: {why}")
        return
    plan, size = bench.plan, bench.plan.sizes[-1]
    bench.say(f"connections and requests through a cluster IP among {size} Services: {', '.join(bench.names)}")
    rates = bench.sample("packets", size, plan.few, plan.packet_rounds, plan.packet_seconds, *bench.names)
    ours, few = rates[OURS], rates["few"]
    bench.add(
        figure("clusterip_cps", ours["cps"], "1/s", better="higher"),
        figure("clusterip_rr", ours["rr"], "1/s", better="higher"),
        ratio("clusterip_cps_growth", ours["cps"], few["cps"], f"{size} against {plan.few} Services", better="higher"),
    )
    if THEIRS in rates:
        for kind in ("cps", "rr"):
            against = f"kube-proxy in nftables mode, {size} Services"
            name = f"clusterip_{kind}_ratio_kube_proxy"
            bench.add(ratio(name, ours[kind], rates[THEIRS][kind], against, better="higher"))


def between_pods(bench: Bench) -> None:
    if not bench.wanted("pod_to_pod_"):
        return
    if why := wires.missing():
        bench.say(f"left out: pod_to_pod_*: {why}")
        return
    plan = bench.plan
    bench.say("requests and a stream from pod to pod beside a bare routed pair of veths")
    rates = bench.sample("pod_to_pod", plan.few, plan.packet_rounds, plan.packet_seconds)
    ours, theirs, against = rates[pod_to_pod.PODWIRE], rates[pod_to_pod.VETH], "a bare routed pair of veths"
    bench.add(
        *(ratio(f"pod_to_pod_{kind}_ratio_veth", ours[kind], theirs[kind], against, better="higher") for kind in ours),
        figure("pod_to_pod_rr", ours["rr"], "1/s", better="higher"),
        figure("pod_to_pod_throughput", [it * 8e-9 for it in ours["throughput"]], "Gbit/s", better="higher"),
    )


def affinity(bench: Bench) -> None:
    clients = bench.plan.clients
    if not bench.wanted(f"affinity_cleanup_s_{clients}", f"affinity_cleanup_cpu_s_{clients}"):
        return
    if why := wires.missing():
        bench.say(f"left out: affinity_cleanup_*: {why}")
        return
    samples: dict[str, list[Sample]] = {name: [] for name in bench.names}
    for number in range(bench.plan.rounds):
        for name in bench.names if number % 2 == 0 else reversed(bench.names):
            bench.say(f"{clients} remembered clients, round {number + 1} of {bench.plan.rounds}: {name}")
            samples[name].append(bench.sample("affinity", name, clients))
    for name, infix in ((OURS, ""), (THEIRS, "_kube_proxy")):
        if name in samples:
            bench.add(
                figure(f"affinity_cleanup{infix}_s_{clients}", _each(samples[name], "seconds"), "s"),
                figure(f"affinity_cleanup{infix}_cpu_s_{clients}", _each(samples[name], "cpu_s"), "s"),
            )


def pods(bench: Bench) -> None:
    """All of them together: they come from the same samples."""
    if not bench.wanted("cni_add"):
        return
    if why := cni.missing():
        bench.say(f"left out: cni_add*: {why}")
        return
    plan, samples = bench.plan, []
    for number in range(plan.rounds):
        bench.say(f"ADDs of pods beside bridge and host-local, round {number + 1} of {plan.rounds}")
        samples.append(bench.sample("cni", plan.adds, plan.pods, plan.callers))
    times = {name: [it[name] for it in samples] for name in (cni.PYTHON, cni.NATIVE, cni.REFERENCE, "few", "many")}
    p50 = {name: list(map(median, its)) for name, its in times.items()}
    p99 = {name: [percentile(its, 0.99) for its in of] for name, of in times.items()}
    rates = {name: [it["rates"][name] for it in samples] for name in (cni.NATIVE, cni.REFERENCE)}
    against, last = "bridge and host-local, IPv4 alone", f"after {plan.pods} other pods against before them"
    parallel = f"cni_adds_per_second_ratio_{plan.callers}"
    bench.add(
        ratio("cni_add_p50_ratio", p50[cni.PYTHON], p50[cni.REFERENCE], against),
        ratio("cni_add_p50_ratio_native", p50[cni.NATIVE], p50[cni.REFERENCE], against),
        ratio("cni_add_p99_ratio", p99[cni.PYTHON], p99[cni.REFERENCE], against),
        ratio("cni_add_p99_ratio_native", p99[cni.NATIVE], p99[cni.REFERENCE], against),
        ratio(parallel, rates[cni.NATIVE], rates[cni.REFERENCE], against, better="higher"),
        ratio(f"cni_add_growth_{plan.pods}", p50["many"], p50["few"], last),
        figure("cni_add_p50_ms", p50[cni.PYTHON], "ms"),
        figure("cni_add_native_p50_ms", p50[cni.NATIVE], "ms"),
        figure("cni_add_reference_p50_ms", p50[cni.REFERENCE], "ms"),
    )


def balancers(bench: Bench) -> None:
    few, many = bench.plan.sizes[0], bench.plan.sizes[-1]
    if not bench.wanted("lb_allocate_"):
        return
    bench.say(f"addresses for {few} and {many} Services of type LoadBalancer")
    found = bench.sample("balancers", bench.plan.packet_rounds, few, many)
    bench.add(
        ratio(f"lb_allocate_growth_{many}", found["many"], found["few"], f"a Service of {many} against one of {few}"),
        figure(f"lb_allocate_us_{many}", found["many"], "µs"),
        figure(f"lb_allocate_held_us_{many}", found["many_held"], "µs"),
    )


def failover(bench: Bench) -> None:
    if not bench.wanted("lb_failover_"):
        return
    samples = []
    for number in range(bench.plan.rounds):
        bench.say(f"a node dies that answers for an address by ARP, round {number + 1} of {bench.plan.rounds}")
        samples.append(bench.sample("failover"))
    bench.add(figure("lb_failover_l2_s", _each(samples, "gap_s"), "s"))
    for how in ("bfd", "hold"):
        bench.say(f"a node dies that a router sends packets to, found out by {how}")
        samples = [bench.sample("failover_bgp", how) for _ in range(bench.plan.rounds if how == "bfd" else 1)]
        bench.add(figure(f"lb_failover_{how}_s", _each(samples, "gap_s"), "s"))


def announcements(bench: Bench) -> None:
    count = ROUTES if bench.plan is not QUICK else 50
    if not bench.wanted("bgp_"):
        return
    bench.say(f"{count} routes by BGP, told and taken back")
    found = bench.sample("bgp", count, bench.plan.rounds * 2 + 1)
    for what in ("announce", "withdraw"):
        ours, by_hand, gobgp = (found[f"{what}_{name}"] for name in ("ours", "hand", "gobgp"))
        bench.add(
            ratio(f"bgp_{what}_{count}_ratio_frr", ours, by_hand, "FRR told by hand, vtysh -f"),
            ratio(f"bgp_{what}_{count}_ratio_gobgp", ours, gobgp, "GoBGP told by its API"),
            figure(f"bgp_{what}_{count}_ms", [1e3 * it for it in ours], "ms"),
        )
    bench.add(
        figure("bgp_first_route_s", [found["first_route_s"]], "s"),
        figure(f"bgp_frr_rss_mb_{count}", [found["rss_full"]], "MB"),
        figure("bgp_frr_rss_mb_idle", [found["rss_idle"]], "MB"),
    )


def _each(samples: list[Sample], name: str) -> list[float]:
    return [float(it[name]) for it in samples]


PARTS: tuple[Callable[[Bench], None], ...] = (
    services,
    packets,
    between_pods,
    affinity,
    pods,
    balancers,
    failover,
    announcements,
)


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m tests.bench", description="See docs/benchmarks.md.")
    options.add_argument("prefixes", nargs="*", metavar="NAME-PREFIX", help="of the figures wanted (default: all)")
    options.add_argument("--quick", action="store_true", help="tiny sizes: whether it works, not how fast")
    options.add_argument("--rounds", type=int, help="of each sample (default: 3)")
    options.add_argument("--out", type=Path, default=RESULT, metavar="FILE", help="instead of build/bench.json")
    asked = options.parse_args()
    if os.geteuid():
        sys.exit("bench: this needs root: it makes network namespaces")
    plan = QUICK if asked.quick else FULL
    bench = Bench(plan._replace(rounds=asked.rounds) if asked.rounds else plan, asked.prefixes, asked.out)
    if why := planes.missing():
        bench.say(f"left out: all that is compared with kube-proxy: {why}")
    try:
        for part in PARTS:
            part(bench)
    except KeyboardInterrupt:
        sys.exit(130)
    if not bench.found:
        sys.exit(f"bench: no figure's name begins with any of: {' '.join(asked.prefixes)}")
    print(*show(bench.found, {} if asked.quick else GOALS), sep="\n")
    bench.say(f"in {os.path.relpath(asked.out)}")


if __name__ == "__main__":
    main()
