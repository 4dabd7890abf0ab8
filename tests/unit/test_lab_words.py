"""What the lab understands and says: names a user types, and what is recorded."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from podwire.cli.client import Failed
from podwire.config import SOCKET_PATH_LIMIT
from podwire.lab.changes import change_port
from podwire.lab.expand import ManifestsError
from podwire.lab.layout import Lab, LabError, claim
from podwire.lab.places import find, find_workload
from podwire.lab.process import Process, end, identify, record, recorded, runs
from podwire.lab.topology import MOST_NODES, next_host, pod_space, stations, ways_to_external, ways_to_pods
from podwire.lab.userfiles import files_in, read_directory
from podwire.lab.views import ClientView, LabView, NodeView, PodView, ServiceView, WorkloadView
from podwire.model.addresses import parse_address
from podwire.model.objects import PodKey
from podwire.sources.documents import read_documents


def pod(name: str, namespace: str = "default", problem: str = "", number: int = 2) -> PodView:
    workload = f"Deployment/{namespace}/{name.partition('-')[0]}"
    return PodView(
        namespace, name, workload, "node1", (f"10.244.1.{number}",), ("8080/TCP",), f"space-{namespace}-{name}", problem
    )


LAB = LabView(
    name="lab",
    manifests="/m",
    nodes=(NodeView("node1", True, "running", 1, ("192.168.99.1",), ("10.244.1.0/24",), "space-node1", 4, "/s"),),
    services=(
        ServiceView(
            "default",
            "web",
            "ClusterIP",
            ("IPv4",),
            ("10.96.1.1",),
            (),
            ("80/TCP",),
            ("default/web-1", "default/web-2"),
        ),
    ),
    workloads=(
        WorkloadView("Deployment/default/web", 2, 2),
        WorkloadView("StatefulSet/default/db", 1, 1),
        WorkloadView("DaemonSet/default/db", 1, 1),
    ),
    pods=(
        pod("web-1"),
        pod("web-2", number=3),
        pod("db-0", "shop"),
        pod("db-0", "test"),
        pod("sick", problem="no node"),
    ),
    clients=(ClientView("client1", ("192.168.99.201",), "space-client1"),),
    notes=(),
    error="",
    problems=(),
)


@pytest.mark.parametrize(
    ("words", "space"),
    [
        ("web-1", "space-default-web-1"),
        ("default/web-2", "space-default-web-2"),
        ("shop/db-0", "space-shop-db-0"),
        ("shop/", "space-shop-db-0"),
        ("node1", "space-node1"),
        ("client1", "space-client1"),
    ],
)
def test_a_place_by_its_name_or_the_beginning_of_it(words: str, space: str) -> None:
    assert find(LAB, words).space == space


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("web", "web can be default/web-1, default/web-2: write more of it"),
        ("db-0", "db-0 can be shop/db-0, test/db-0: write more of it"),
        ("sick", "default/sick does not run: no node"),
        ("none", "there is no pod, node or client none; there is"),
    ],
)
def test_a_place_that_is_none(words: str, said: str) -> None:
    with pytest.raises(LabError, match=said):
        find(LAB, words)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("web", "Deployment/default/web"),
        ("deploy/web", "Deployment/default/web"),
        ("StatefulSet/db", "StatefulSet/default/db"),
        ("sts/db", "StatefulSet/default/db"),
    ],
)
def test_a_workload_by_its_name(words: str, found: str) -> None:
    assert find_workload(LAB, words, "default") == found


@pytest.mark.parametrize(
    ("words", "namespace", "said"),
    [("db", "default", "write KIND/NAME"), ("web", "shop", "no workload web"), ("sts/web", "default", "no workload")],
)
def test_a_workload_that_is_none(words: str, namespace: str, said: str) -> None:
    with pytest.raises(LabError, match=said):
        find_workload(LAB, words, namespace)


def test_each_mistake_of_manifests_is_a_line_and_of_one_line_no_other_becomes_two() -> None:
    assert LabError("a.yaml: one\nb.yaml: another").lines == ("a.yaml: one", "b.yaml: another")
    assert Failed("one\nline", 1).lines == ("one\nline",)


# --- processes and files -----------------------------------------------------------------------


@pytest.fixture
def short_path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


def test_a_lab_whose_sockets_have_no_room_is_refused_before_anything_is_made(short_path: Path) -> None:
    root, tail = short_path, len("/n/nodes/node2/state/admin.sock")
    deep = root / ("x" * (SOCKET_PATH_LIMIT - len(os.fsencode(root)) - 1 - tail))
    claim(Lab("n", deep / "n", root, 2))
    with pytest.raises(LabError, match=r"too long by 1 bytes: .*; expected a shorter --run-dir"):
        claim(Lab("nn", deep / "nn", root, 2))
    assert [path.name for path in deep.iterdir()] == ["n"]


def test_a_process_is_ended_by_its_record_and_a_stranger_with_its_number_is_not(tmp_path: Path) -> None:
    file = tmp_path / "processes"
    wait = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(wait, stdin=subprocess.PIPE) as mine, subprocess.Popen(wait, stdin=subprocess.PIPE) as other:
        kept = record(file, mine.pid, "mine")
        assert recorded(file) == [kept]
        stranger = identify(other.pid, "other")
        assert stranger is not None
        end([*recorded(file), Process(other.pid, stranger.born - 1, "a process long gone")])
        assert mine.wait() == -15
        assert runs(stranger)
        other.kill()
    end(recorded(file))  # a second time: nothing to do
    assert not runs(stranger)


def test_a_process_that_does_not_listen_is_made_to_end() -> None:
    deaf = "import signal,sys; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", deaf], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"deaf\n"
        found = identify(child.pid, "deaf")
        assert found is not None
        end([found], patience=0.1)
        assert child.wait() == -9


def test_a_record_cut_short_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "processes"
    kept = record(file, os.getpid(), "mine")
    with file.open("ab") as out:
        out.write(b'{"pid":1,"bo')
    assert recorded(file) == [kept]


def test_a_pod_s_namespace_has_a_name_that_a_file_can_have() -> None:
    assert pod_space("lab", PodKey("default", "web-1")) == "pw-lab-pod-default.web-1"
    long = [pod_space("lab", PodKey("default", "x" * 240 + letter)) for letter in "ab"]
    assert max(map(len, long)) <= 255
    assert len(set(long)) == 2


def test_a_directory_s_files(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    for name in ("b.yaml", "a.yml", "below/c.json", ".hidden.yaml", "#edit.yaml", "notes.txt"):
        (tmp_path / name).write_text("# nothing\n", encoding="utf-8")
    assert [str(file.relative_to(tmp_path)) for file in files_in(tmp_path)] == ["a.yml", "b.yaml", "below/c.json"]


def test_an_empty_or_broken_file_makes_the_directory_wrong(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("", encoding="utf-8")
    (tmp_path / "b.yaml").write_text("kind: [\n", encoding="utf-8")
    with pytest.raises(ManifestsError) as caught:
        read_directory(tmp_path)
    assert [
        line.partition("/b.yaml")[1] or line.partition("/a.yaml")[1] for line in str(caught.value).splitlines()
    ] == [
        "/a.yaml",
        "/b.yaml",
    ]


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ManifestsError, match="expected a directory"):
        read_directory(tmp_path / "nowhere")


SERVICES = """
apiVersion: v1
kind: List
items:
  - {apiVersion: v1, kind: ConfigMap, metadata: {name: web}}
  - {apiVersion: v1, kind: Service, metadata: {name: web}, spec: {ports: [{port: 80}, {port: 81}]}}
"""


@pytest.mark.parametrize("name", ["b.yaml", "b.json"])
def test_a_port_is_changed_in_the_file_that_has_the_service(tmp_path: Path, name: str) -> None:
    other, own = tmp_path / "a.yaml", tmp_path / name
    other.write_text(SERVICES.replace("name: web", "name: web, namespace: other"))
    own.write_text(SERVICES if name.endswith(".yaml") else json.dumps(yaml.safe_load(SERVICES)))
    before = other.read_text()
    change_port(tmp_path, LAB.services[0], 80, 8000)
    assert other.read_text() == before
    config, web = (it.data for it in read_documents(name, own.read_bytes()))
    assert config["kind"] == "ConfigMap"
    assert web["spec"]["ports"] == [{"port": 8000, "targetPort": 80}, {"port": 81}]


# --- the fabric --------------------------------------------------------------------------------


def test_a_node_moves_to_a_place_where_nobody_is() -> None:
    first, second = stations(2)
    assert next_host([first, second]) == 3
    moved = second._replace(host=3)
    assert next_host([first, moved]) == 4  # its first place is kept for it
    assert next_host(stations(MOST_NODES)) is None
    assert ways_to_pods([moved]) == {"10.244.2.0/24": "192.168.99.3", "fd00:244:0:2::/64": "fd00:99::3"}


def test_external_ips_are_reached_by_one_node_and_those_on_the_fabric_by_none() -> None:
    (node,) = stations(1)
    addresses = map(parse_address, ("203.0.113.80", "2001:db8::80", "192.168.99.77"))
    assert ways_to_external(node, addresses) == {"203.0.113.80": "192.168.99.1", "2001:db8::80": "fd00:99::1"}
