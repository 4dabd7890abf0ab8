"""The bench itself, on tiny sizes: that all of it works, not how fast anything is."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench import cni, planes, wires


def test_each_part_measures_what_can_be_measured_here(tmp_path: Path) -> None:
    """Without kube-proxy or a compiler it says what is left out, and the rest is measured."""
    out = tmp_path / "bench.json"
    ran = subprocess.run(
        [sys.executable, "-m", "tests.bench", "--quick", "--out", str(out)], capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = {each["name"]: each for each in json.loads(out.read_text())}
    assert all(set(it) == {"name", "value", "unit", "better", "against", "samples"} for it in found.values())
    assert found["restart_kernel_writes_40"]["value"] == 0
    assert found["services_change_growth"]["samples"]
    assert found["lb_failover_l2_s"]["value"] > 0
    missing = {"kube-proxy": bool(planes.missing()), "cc": bool(wires.missing())}
    assert ("clusterip_cps" in found) == (not missing["cc"]) == ("affinity_cleanup_s_200" in found)
    assert ("pod_to_pod_throughput_ratio_veth" in found) == (not missing["cc"])
    assert ("services_load_time_ratio_40" in found) == (not missing["kube-proxy"])
    assert ("cni_add_p50_ratio_native" in found) == (not cni.missing())
    for what, is_missing in missing.items():
        assert (f"{what} is " in ran.stdout) == is_missing


@pytest.mark.parametrize(
    ("prefix", "names"),
    [
        ("restart_kernel_writes_20", {"restart_kernel_writes_20"}),
        ("services_load_s", {"services_load_s_20", "services_load_s_40"}),
    ],
)
def test_a_part_is_asked_for_by_the_beginning_of_a_name(prefix: str, names: set[str], tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    subprocess.run([sys.executable, "-m", "tests.bench", "--quick", "--out", str(out), prefix], check=True)
    assert {each["name"] for each in json.loads(out.read_text())} == names


def test_a_name_that_no_figure_has_is_told(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.bench", "--quick", "--out", str(tmp_path / "bench.json"), "speed"]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 1
    assert "no figure's name begins with" in ran.stderr
