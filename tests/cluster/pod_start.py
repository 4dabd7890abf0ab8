"""`python -m tests.cluster.pod_start`: how fast pods start with Podwire and with the reference network.

Invariants: two clusters of one node each run side by side on this machine, and take turns: while one starts pods, the
other is idle. A pod's time is from its creation to its readiness, both as the API server's watch tells them. Its
figures go into build/bench.json, as those of `make bench` do.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from time import monotonic
from typing import Any

from tests.bench.figures import figure, ratio, write
from tests.cluster import podwire, reference
from tests.cluster.cluster import Cluster, cluster
from tests.cluster.machine import CommandFailed, DidNotStart
from tests.cluster.parts import images, programs
from tests.cluster.parts.places import CannotBuild, say
from tests.cluster.variant import DUAL

LABEL = "app=pod-start"


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m tests.cluster.pod_start", description="See the module's text.")
    options.add_argument("--pods", type=int, default=50, help="in a round (default: %(default)s)")
    options.add_argument("--rounds", type=int, default=3, help="of each network (default: %(default)s)")
    asked = options.parse_args()
    try:
        programs.build()
        rounds = measure(asked.pods, asked.rounds)
    except (CannotBuild, DidNotStart, CommandFailed) as error:
        sys.exit(f"pod-start: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    found = figures(rounds)
    write(found)
    for each in found:
        print(f"{each['name']:32} {each['value']:8.3f} {each['unit']}")


def measure(pods: int, rounds: int) -> dict[str, list[list[float]]]:
    """By network, for each round the seconds of each pod."""
    times: dict[str, list[list[float]]] = {"podwire": [], "reference": []}
    with ExitStack() as stack:
        running = {
            "podwire": stack.enter_context(cluster(DUAL, 1, [podwire.image()])),
            "reference": stack.enter_context(cluster(DUAL, 1)),
        }
        podwire.install(running["podwire"])
        reference.install(running["reference"])
        for network, it in running.items():
            start(it, 5)  # what a first pod alone pays for
            say(f"{network} is warm")
        for number in range(1, rounds + 1):
            for network, it in running.items():
                times[network].append(start(it, pods))
                say(f"round {number}, {network}: all of {pods} in {max(times[network][-1]):.1f} s")
    return times


def start(it: Cluster, count: int) -> list[float]:
    """Makes pods and removes them; the seconds until each was ready."""
    made: dict[str, float] = {}
    ready: dict[str, float] = {}
    with watched(it) as changes:
        it.apply(*(pod(f"p{number}") for number in range(count)))
        while len(ready) < count:
            name, is_ready, is_there = next(changes)
            if is_there:
                made.setdefault(name, monotonic())
                if is_ready:
                    ready.setdefault(name, monotonic())
        it.kubectl("delete", "pods", "-l", LABEL, "--now", "--wait=false")
        gone: set[str] = set()
        while len(gone) < count:
            name, _, is_there = next(changes)
            if not is_there:
                gone.add(name)
    return [ready[name] - made[name] for name in made]


@contextmanager
def watched(it: Cluster) -> Iterator[Iterator[tuple[str, bool, bool]]]:
    """The changes of these pods: name, whether it is ready, whether it is there."""
    watch = it.plane.kubectl("get", "pods", "-l", LABEL, "--watch", "--output-watch-events", "-o", "json")
    process = subprocess.Popen(watch, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield changes(process.stdout)
    finally:
        process.kill()
        process.wait()


def changes(stream: Any) -> Iterator[tuple[str, bool, bool]]:
    """kubectl prints one JSON object after the other."""
    decoder, held = json.JSONDecoder(), ""
    for line in stream:
        held += line
        try:
            event, end = decoder.raw_decode(held)
        except json.JSONDecodeError:
            continue  # it goes on in the next line
        held = held[end:].lstrip()
        found = event["object"]
        conditions = {given["type"]: given["status"] for given in found.get("status", {}).get("conditions", ())}
        yield found["metadata"]["name"], conditions.get("Ready") == "True", event["type"] != "DELETED"
    raise CommandFailed("the watch of pods has ended")


def pod(name: str) -> dict[str, Any]:
    container = {"name": "pause", "image": images.PAUSE, "imagePullPolicy": "Never"}
    key, _, value = LABEL.partition("=")
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {key: value}},
        "spec": {"terminationGracePeriodSeconds": 0, "automountServiceAccountToken": False, "containers": [container]},
    }


def figures(rounds: dict[str, list[list[float]]]) -> list[dict[str, Any]]:
    """A sample is a round: the median of its pods, and the last of them."""
    medians = {network: [statistics.median(times) for times in some] for network, some in rounds.items()}
    slowest = {network: [max(times) for times in some] for network, some in rounds.items()}
    return [
        *(figure(f"pod_start_median_s_{network}", some, "s") for network, some in medians.items()),
        *(figure(f"pod_start_all_s_{network}", some, "s") for network, some in slowest.items()),
        ratio(
            "pod_start_ratio",
            medians["podwire"],
            medians["reference"],
            "bridge, host-local, portmap and kube-proxy",
        ),
    ]


if __name__ == "__main__":
    main()
