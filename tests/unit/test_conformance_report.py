"""What the conformance run and the pod starts leave in build/, which others read."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.bench.figures import write
from tests.cluster import conformance, pod_start
from tests.cluster.conformance import Spec

EXPECTED = {"[sig-network] A does": "not yet", "[sig-network] B does": "not yet either"}


def ginkgo(name: str, state: str, message: str = "", kind: str = "It") -> dict[str, Any]:
    """A SpecReport, as its JSON report has it (types.SpecReport)."""
    failure = {"Failure": {"Message": message}} if message else {}
    hierarchy = ["[sig-network] " + name]
    return {
        "LeafNodeType": kind,
        "State": state,
        "ContainerHierarchyTexts": hierarchy,
        "LeafNodeText": "does",
        "RunTime": 1_250_000_000,
        **failure,
    }


def test_each_spec_that_began_is_written_with_what_became_of_it(tmp_path: Path) -> None:
    report = [
        {
            "SpecReports": [
                ginkgo("C", "failed", "no answer\nand a long story"),
                ginkgo("A", "panicked", "as known"),
                ginkgo("B", "passed"),
                ginkgo("D", "skipped"),
                ginkgo("E", "skipped", "Requires >= 3 zones"),
                ginkgo("before all", "passed", kind="BeforeSuite"),
            ]
        }
    ]
    specs = [conformance.judged(spec, EXPECTED) for spec in conformance.specs_of(report)]
    conformance.write(tmp_path / "build" / "conformance.json", "podwire", specs)
    assert json.loads((tmp_path / "build" / "conformance.json").read_text()) == {
        "network": "podwire",
        "specs": [
            {"name": "[sig-network] A does", "state": "expected", "seconds": 1.2, "reason": "not yet"},
            {"name": "[sig-network] B does", "state": "passed", "seconds": 1.2, "reason": ""},
            {"name": "[sig-network] C does", "state": "failed", "seconds": 1.2, "reason": "no answer"},
            {"name": "[sig-network] E does", "state": "skipped", "seconds": 1.2, "reason": "Requires >= 3 zones"},
        ],
    }
    needless = conformance.needless(specs, EXPECTED)
    assert needless == [Spec("[sig-network] B does", "passed", 1.2, "passes: take it off the list")]


def test_pod_starts_stand_among_the_other_figures(tmp_path: Path) -> None:
    out = tmp_path / "build" / "bench.json"
    out.parent.mkdir()
    other = {"name": "services_load_s_10", "value": 1.0}
    out.write_text(json.dumps([other, {"name": "pod_start_ratio", "value": 9.0}]))
    found = pod_start.figures({"podwire": [[1.0, 2.0, 3.0], [2.0, 2.0, 2.0]], "reference": [[4.0, 4.0], [5.0, 6.0]]})
    write(found, out)
    written = json.loads(out.read_text())
    assert written == [other, *found]
    assert [(each["name"], each["value"], each["unit"]) for each in found] == [
        ("pod_start_median_s_podwire", 2.0, "s"),
        ("pod_start_median_s_reference", 4.75, "s"),
        ("pod_start_all_s_podwire", 2.5, "s"),
        ("pod_start_all_s_reference", 5.0, "s"),
        ("pod_start_ratio", pytest.approx((2 / 4 + 2 / 5.5) / 2), "ratio"),
    ]
