"""Figures of this machine in build/bench.json: each says what it was measured against, and keeps its samples.

    [{"name", "value", "unit", "better", "against", "samples"}]

Invariants: a figure's value is the median of its samples; what is not measured again stays.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, Literal

RESULT = Path(__file__).parents[2] / "build" / "bench.json"


def figure(
    name: str, samples: Sequence[float], unit: str, against: str = "", better: Literal["lower", "higher"] = "lower"
) -> dict[str, Any]:
    value = median(samples)
    return {"name": name, "value": value, "unit": unit, "better": better, "against": against, "samples": list(samples)}


def record(*figures: dict[str, Any]) -> None:
    """In the place of those with the same name, and on the screen."""
    RESULT.parent.mkdir(exist_ok=True)
    others = json.loads(RESULT.read_text()) if RESULT.exists() else []
    names = {each["name"] for each in figures}
    RESULT.write_text(json.dumps([*(it for it in others if it["name"] not in names), *figures], indent=2) + "\n")
    for each in figures:
        print(f"{each['name']:40} {each['value']:12.3f} {each['unit']}")
