"""Figures of this machine in build/bench.json: a list of name, value, unit, better, against, samples.

Invariants: a value is the median of its samples; a ratio's samples are the rounds' own ratios, of what ran one right
after the other. Figures of another run stay unless they are measured again.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

RESULT = Path(__file__).resolve().parents[2] / "build" / "bench.json"
Figure = dict[str, Any]


def figure(name: str, samples: Sequence[float], unit: str, against: str = "", better: str = "lower") -> Figure:
    """`against`: what a ratio's other side is."""
    return {
        "name": name,
        "value": median(samples),
        "unit": unit,
        "better": better,
        "against": against,
        "samples": list(samples),
    }


def ratio(name: str, ours: Sequence[float], theirs: Sequence[float], against: str, *, better: str = "lower") -> Figure:
    return figure(name, [a / b for a, b in zip(ours, theirs, strict=True)], "ratio", against, better=better)


def percentile(times: Iterable[float], share: float) -> float:
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def resident(pid: int | str) -> float:
    """MB of memory that a process has now; "self" for this one."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


def write(found: Sequence[Figure], result: Path = RESULT) -> None:
    """In the place of earlier figures of these names, beside all others."""
    result.parent.mkdir(parents=True, exist_ok=True)
    before = json.loads(result.read_text(encoding="utf-8")) if result.exists() else []
    names = {each["name"] for each in found}
    kept = [each for each in before if each["name"] not in names]
    result.write_text(json.dumps([*kept, *found], indent=2) + "\n", encoding="utf-8")


def show(found: Iterable[Figure], goals: dict[str, float]) -> list[str]:
    """A line for each, and whether it is as good as wanted."""
    lines = []
    for each in found:
        goal = goals.get(each["name"])
        said = ""
        if goal is not None:
            reached = each["value"] <= goal if each["better"] == "lower" else each["value"] >= goal
            said = f"goal {'≤' if each['better'] == 'lower' else '≥'} {goal:g}{'' if reached else ': MISSED'}"
        lines.append(f"{each['name']:44} {each['value']:12.3f} {each['unit']:8} {said}".rstrip())
    return lines


def record(*figures: Figure) -> None:
    """Written, and on the screen."""
    write(figures)
    print(*show(figures, {}), sep="\n")
