"""Figures of this machine, into build/bench.json: how the work grows with the number of Services.

    python -m tests.bench

as root. Sizes take turns, each run in a process and a namespace of its own; a figure is the median of the rounds. What
is compared is compared within one run: absolute times are of this machine only.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

SIZES = (10, 1_000, 10_000)
ROUNDS, CHANGES = 3, 300
RESULT = Path("build/bench.json")


def run(services: int) -> dict[str, Any]:
    space = f"pwbench{os.getpid()}"
    subprocess.run(["ip", "netns", "add", space], check=True)
    try:
        with tempfile.TemporaryDirectory() as directory:
            command = [sys.executable, "-m", "tests.bench.services", directory, str(services), str(CHANGES)]
            ran = subprocess.run(
                ["ip", "netns", "exec", space, *command], check=True, stdout=subprocess.PIPE, text=True
            )
    finally:
        subprocess.run(["ip", "netns", "del", space], check=True)
    found: dict[str, Any] = json.loads(ran.stdout)
    times = sorted(found.pop("change_ms"))
    return found | {"change_p50_ms": median(times), "change_p99_ms": times[int(len(times) * 0.99)]}


def main() -> None:
    samples: dict[int, list[dict[str, Any]]] = {size: [] for size in SIZES}
    for number in range(ROUNDS):
        for size in SIZES:
            print(f"round {number + 1} of {ROUNDS}: {size} Services", flush=True)
            samples[size].append(run(size))
    figures = [
        figure(f"services_{name}_{size}", [sample[name] for sample in samples[size]], unit)
        for size in SIZES
        for name, unit in (
            ("load_s", "s"),
            ("restart_s", "s"),
            ("restart_writes", "writes"),
            ("change_p50_ms", "ms"),
            ("change_p99_ms", "ms"),
            ("rss_mb", "MB"),
        )
    ]
    few, many = samples[SIZES[0]], samples[SIZES[-1]]
    ratios = [b["change_p50_ms"] / a["change_p50_ms"] for a, b in zip(few, many, strict=True)]
    figures.append(figure("services_change_growth", ratios, "ratio", f"{SIZES[-1]} against {SIZES[0]} Services"))
    RESULT.parent.mkdir(exist_ok=True)
    others = json.loads(RESULT.read_text()) if RESULT.exists() else []
    names = {each["name"] for each in figures}
    RESULT.write_text(json.dumps([*(o for o in others if o["name"] not in names), *figures], indent=2) + "\n")
    for each in figures:
        print(f"{each['name']:32} {each['value']:10.3f} {each['unit']}")


def figure(name: str, samples: list[float], unit: str, against: str = "") -> dict[str, Any]:
    return {
        "name": name,
        "value": median(samples),
        "unit": unit,
        "better": "lower",
        "against": against,
        "samples": samples,
    }


if __name__ == "__main__":
    main()
