"""A lab as a user has it: by its commands, on the real kernel."""

import json
import os
import resource
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from time import monotonic

import pytest

from podwire.lab import control, layout, lifecycle, process, spaces
from podwire.lab.layout import Lab, LabError
from podwire.lab.paths import questions
from podwire.lab.probe import ask, open_socket, put
from podwire.lab.questions import REFUSED, Answer, judge, name_of, names_of, parse_port
from podwire.lab.topology import path_of, station_space
from podwire.lab.views import LabView
from podwire.model.objects import Protocol
from tests.kernel import labs
from tests.kernel.labs import EXAMPLES, PODWIRE, all_right, backends, directory, environment, podwire

GUESTBOOK = EXAMPLES / "guestbook"
NAME = f"t{os.getpid()}"
AT_REST = f"r{os.getpid()}"

MORE = """
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: monitor}
spec:
  selector: {matchLabels: {app: monitor}}
  template:
    metadata: {labels: {app: monitor}}
    spec:
      hostNetwork: true
      containers: [{name: main, ports: [{containerPort: 9100}, {containerPort: 9200, protocol: UDP}]}]
---
apiVersion: v1
kind: Service
metadata: {name: monitor}
spec:
  ipFamilyPolicy: PreferDualStack
  selector: {app: monitor}
  ports: [{name: tcp, port: 9100}, {name: udp, port: 9200, protocol: UDP}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
"""


PORTS = """
apiVersion: v1
kind: Pod
metadata: {name: door}
spec:
  containers:
  - name: main
    ports:
    - {containerPort: 8080, hostPort: 8001}
    - {containerPort: 8080, protocol: UDP, hostPort: 8002, hostIP: 127.0.0.1}
"""


DATABASE = """
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec: {containers: [{name: main, ports: [{containerPort: 5432}]}]}
"""


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    with directory() as found:
        try:
            yield found
        finally:
            for name in (NAME, AT_REST):
                lifecycle.down(found, name)


@pytest.fixture(scope="module")
def at_rest(root: Path) -> Iterator[Lab]:
    """For tests that change nothing."""
    with labs.lab(root, AT_REST, GUESTBOOK, 1) as found:
        yield found


@pytest.fixture
def manifests(tmp_path: Path) -> Path:
    """A copy of the example, to change."""
    return shutil.copytree(GUESTBOOK, tmp_path / "guestbook")


@pytest.fixture
def lab(root: Path, manifests: Path) -> Iterator[Lab]:
    with labs.lab(root, NAME, manifests, 1) as found:
        yield found


@pytest.fixture
def two_nodes(root: Path, manifests: Path) -> Iterator[Lab]:
    with labs.lab(root, NAME, manifests, 2) as found:
        yield found


def replicas(manifests: Path, count: int) -> None:
    """Rewrites the frontend's file as an editor does: a new file takes the old one's name."""
    file = manifests / "frontend.yaml"
    lines = file.read_text(encoding="utf-8").splitlines()
    changed = [f"  replicas: {count}" if line.startswith("  replicas:") else line for line in lines]
    draft = manifests / ".frontend.yaml.new"
    draft.write_text("\n".join(changed) + "\n", encoding="utf-8")
    draft.rename(file)


def asked(seen: LabView, source: str, service: str, count: int, family: int = 0) -> list[Answer]:
    """Questions from a pod (by the beginning of its name) or node to a Service's first port."""
    places = {it.name: it.space for it in seen.nodes} | {it.name: it.space for it in seen.pods}
    space = next(space for name, space in places.items() if name.startswith(source))
    held = next(it for it in seen.services if it.name == service)
    number, _, protocol = parse_port(held.ports[0])
    return [ask(path_of(space), held.cluster_ips[family], number, protocol) for _ in range(count)]


# --- a lab at work -----------------------------------------------------------------------------


def test_every_service_answers_from_everywhere_and_what_should_is_refused(at_rest: Lab) -> None:
    seen = control.view(at_rest)
    assert not seen.problems
    assert [it.problem for it in seen.pods] == [""] * 10
    all_right(seen)


def test_a_pod_is_wired_by_the_plugin_and_its_client_is_seen_as_it_is(at_rest: Lab) -> None:
    seen = control.view(at_rest)
    leader = next(it for it in seen.pods if it.name.startswith("leader"))
    for family, answer in enumerate(asked(seen, "frontend", "leader", 1, family)[0] for family in (0, 1)):
        assert (answer.pod, answer.node, answer.port) == (name_of(leader), "node1", 6379)
        assert answer.client == answer.asked_from
        assert answer.client in {it.addresses[family] for it in seen.pods if it.name.startswith("frontend")}


def test_exec_runs_in_the_pod_s_network_and_gives_its_status(at_rest: Lab, root: Path) -> None:
    leader = next(it for it in control.view(at_rest).pods if it.name.startswith("leader"))
    found = podwire(root, AT_REST, "exec", "leader", "--", "ip", "-j", "address", "show", "dev", "eth0")
    held = {it["local"] for it in json.loads(found.stdout)[0]["addr_info"]}
    assert set(leader.addresses) <= held
    assert podwire(root, AT_REST, "exec", "default/leader", "--", "sh", "-c", "exit 7").returncode == 7
    assert "no pod, node or client" in podwire(root, AT_REST, "exec", "nobody", "--", "true").stderr


@pytest.mark.parametrize("name", ["frontend", "frontend.default", "frontend.default.svc.cluster.local"])
@pytest.mark.parametrize("family", ["-4", "-6"])
def test_a_pod_knows_services_by_their_names(at_rest: Lab, root: Path, name: str, family: str) -> None:
    before = Path("/etc/resolv.conf").read_bytes()
    found = podwire(root, AT_REST, "exec", "leader", "--", "curl", "-sS", family, f"http://{name}/")
    assert json.loads(found.stdout)["pod"].startswith("default/frontend-"), found.stderr
    assert Path("/etc/resolv.conf").read_bytes() == before


def test_a_name_that_nobody_has_is_none_in_a_pod_either(at_rest: Lab, root: Path) -> None:
    found = podwire(root, AT_REST, "exec", "leader", "--", "getent", "hosts", "nobody.example.org")
    assert (found.returncode, found.stdout) == (2, "")


def test_an_http_client_is_answered_and_may_go_on(at_rest: Lab, root: Path) -> None:
    address = next(it.cluster_ips[1] for it in control.view(at_rest).services if it.name == "frontend")
    url = f"http://[{address}]/"
    # Two URLs in one call: curl keeps the connection, so that the same pod answers.
    found = podwire(root, AT_REST, "exec", "leader", "--", "curl", "-s", url, f"{url}again")
    first, second = map(json.loads, found.stdout.splitlines())
    assert first == second
    assert first["pod"].startswith("default/frontend-")


def test_the_host_network_answers_by_the_address_that_was_asked(root: Path, manifests: Path, lab: Lab) -> None:
    (manifests / "more.yaml").write_text(MORE, encoding="utf-8")
    seen = control.view(lab, control.Sync())
    assert seen.notes == ("not used here: ConfigMap: default/settings",)
    monitor = next(it for it in seen.pods if it.name.startswith("monitor"))
    assert monitor.addresses == seen.nodes[0].addresses
    leader = path_of(next(it.space for it in seen.pods if it.name.startswith("leader")))
    (service,) = (it for it in seen.services if it.name == "monitor")
    for address in (*service.cluster_ips, *monitor.addresses):
        for port, protocol in ((9100, Protocol.TCP), (9200, Protocol.UDP)):
            answer = ask(leader, address, port, protocol)
            assert (str(answer), answer.port) == (name_of(monitor), port), (address, protocol, answer)


def test_ports_of_the_node_lead_to_pods_as_the_manifests_say(root: Path, manifests: Path, two_nodes: Lab) -> None:
    (manifests / "ports.yaml").write_text(PORTS, encoding="utf-8")
    assert podwire(root, NAME, "client").returncode == 0
    seen = control.view(two_nodes, control.Sync())
    pod = next(it for it in seen.pods if it.name == "door")
    assert (pod.problem, pod.host_ports) == ("", ("8001/TCP to 8080", "127.0.0.1:8002/UDP to 8080"))
    leader = path_of(next(it.space for it in seen.pods if it.name.startswith("leader")))
    node = next(it for it in seen.nodes if it.name == pod.node)
    for address in node.addresses:
        assert str(ask(leader, address, 8001, Protocol.TCP)) == name_of(pod)
    assert str(ask(path_of(node.space), "127.0.0.1", 8002, Protocol.UDP)) == name_of(pod)
    asked = [it for it in questions(seen) if "host port" in it.path]
    ways = {f"{source} to host port, {whose} node" for source in ("pod", "node") for whose in ("own", "other")}
    assert {it.path for it in asked} == ways | {"client to host port"}
    for question in asked:
        told = judge(question, list(put(question)), names_of(seen.nodes))
        assert told.right, told
    row = next(line for line in podwire(root, NAME, "status").stdout.splitlines() if " door " in line)
    assert row.rstrip().endswith("8001/TCP to 8080, 127.0.0.1:8002/UDP to 8080")


def test_thousands_of_connections_at_once_are_all_answered(at_rest: Lab) -> None:
    seen = control.view(at_rest)
    frontend = next(it for it in seen.services if it.name == "frontend")
    leader = path_of(next(it.space for it in seen.pods if it.name.startswith("leader")))
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    pods: set[str] = set()
    try:
        with ExitStack() as opened:
            connections = [opened.enter_context(open_socket(leader, frontend.cluster_ips[0])) for _ in range(3000)]
            for connection in connections:
                connection.settimeout(30)
                connection.connect((frontend.cluster_ips[0], 80))
            for connection in connections:
                connection.sendall(b"who?\n")
            pods = {json.loads(connection.recv(4096))["pod"] for connection in connections}
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert pods == set(frontend.backends)


# --- changes -----------------------------------------------------------------------------------


def test_a_change_of_the_manifests_is_followed(lab: Lab, manifests: Path) -> None:
    address = next(it.cluster_ips[0] for it in control.view(lab).services if it.name == "frontend")
    for count in (5, 0, 3):
        replicas(manifests, count)
        seen = control.view(lab, control.Sync())
        held = backends(seen, "frontend")
        assert len(held) == count
        answers = {str(it) for it in asked(seen, "leader", "frontend", 100 if count else 1)}
        assert answers == (set(held) or {REFUSED})
        assert next(it.cluster_ips[0] for it in seen.services if it.name == "frontend") == address


def test_a_change_is_noticed_without_being_told(lab: Lab, manifests: Path) -> None:
    replicas(manifests, 4)
    until = monotonic() + 30
    while len(backends(control.view(lab), "frontend")) != 4:  # each look is a question to the supervisor
        assert monotonic() < until


def test_scaling_under_traffic_loses_nothing(lab: Lab, manifests: Path) -> None:
    seen = control.view(lab)
    done = threading.Event()
    answers: list[Answer] = []

    def traffic() -> None:
        while not done.is_set():
            answers.extend(asked(seen, "leader", "frontend", 10))

    client = threading.Thread(target=traffic)
    client.start()
    try:
        for count in (5, 1, 3):
            control.view(lab, control.Scale("Deployment/default/frontend", count))
    finally:
        done.set()
        client.join()
    assert {it.error for it in answers} == {""}


def test_wrong_manifests_change_nothing_until_they_are_right(lab: Lab, manifests: Path) -> None:
    before = control.view(lab)
    wrong = manifests / "wrong.yaml"
    wrong.write_text("apiVersion: v1\nkind: Service\nmetadata: {name: bad}\nspec: {ports: [{port: 0}]}\n", "utf-8")
    with pytest.raises(LabError, match=r"wrong.yaml: document 1, line 4: Service/default/bad: spec.ports\[0\].port"):
        control.ask(lab, control.Sync())
    seen = control.view(lab)
    assert "wrong.yaml" in seen.error
    assert (seen.pods, seen.services) == (before.pods, before.services)
    wrong.unlink()
    assert control.view(lab, control.Sync()) == before


def test_a_pod_whose_spec_changes_is_another_pod(lab: Lab, manifests: Path) -> None:
    before = {it.name for it in control.view(lab).pods if it.name.startswith("leader")}
    file = manifests / "leader.yaml"
    file.write_text(file.read_text("utf-8").replace("containerPort: 6379", "containerPort: 6380"), "utf-8")
    file.write_text(file.read_text("utf-8").replace("- port: 6379", "- port: 6379\n      targetPort: 6380"), "utf-8")
    seen = control.view(lab, control.Sync())
    assert not before & {it.name for it in seen.pods}
    assert asked(seen, "frontend", "leader", 1)[0].port == 6380


def test_a_pod_that_keeps_its_name_is_attached_anew(lab: Lab, manifests: Path) -> None:
    file = manifests / "db.yaml"
    file.write_text(DATABASE, "utf-8")
    (before,) = (it for it in control.view(lab, control.Sync()).pods if it.name == "db-0")
    file.write_text(DATABASE.replace("5432", "5433"), "utf-8")
    (after,) = (it for it in control.view(lab, control.Sync()).pods if it.name == "db-0")
    assert (before.ports, after.ports) == (("5432/TCP",), ("5433/TCP",))
    assert not set(before.addresses) & set(after.addresses)
    assert ask(path_of(lab_node(lab)), after.addresses[0], 5433).pod == "default/db-0"


def lab_node(lab: Lab) -> str:
    return control.view(lab).nodes[0].space


def test_replicas_by_hand_hold_until_the_manifest_says_another_number(lab: Lab, manifests: Path, root: Path) -> None:
    assert podwire(root, NAME, "scale", "deploy/frontend", "2").returncode == 0
    assert len(backends(control.view(lab, control.Sync()), "frontend")) == 2
    replicas(manifests, 4)
    assert len(backends(control.view(lab, control.Sync()), "frontend")) == 4


# --- nodes -------------------------------------------------------------------------------------


def test_every_node_reaches_every_pod_and_a_client_every_node_port(two_nodes: Lab, manifests: Path) -> None:
    file = manifests / "frontend.yaml"
    file.write_text(
        file.read_text("utf-8").replace("  ipFamilyPolicy:", "  type: NodePort\n  ipFamilyPolicy:"), "utf-8"
    )
    control.ask(two_nodes, control.Sync())
    seen = control.view(two_nodes, control.MakeClient())
    asked_from = {question.source.words for question in questions(seen)}
    assert {"client1", "node1", "node2"} < asked_from
    all_right(seen)


def test_a_node_that_is_cut_off_has_no_backends_until_it_is_back(two_nodes: Lab) -> None:
    seen = control.view(two_nodes)
    there = {name_of(it) for it in seen.pods if it.node == "node2"}
    held = set(backends(seen, "frontend"))
    assert held & there
    assert held - there
    seen = control.view(two_nodes, control.KillNode("node2"))
    assert [(it.name, it.on, it.agent) for it in seen.nodes] == [
        ("node1", True, "running"),
        ("node2", False, "killed by SIGKILL"),
    ]
    assert {str(it) for it in asked(seen, "node1", "frontend", 50)} == held - there
    seen = control.view(two_nodes, control.StartNode("node2"))
    assert [it.on for it in seen.nodes] == [True, True]
    assert not seen.problems
    with pytest.raises(LabError, match="there is no node mars; there is node1, node2"):
        control.ask(two_nodes, control.KillNode("mars"))


def test_a_client_on_the_fabric_reaches_pods_and_is_seen_as_it_is(lab: Lab, root: Path) -> None:
    assert podwire(root, NAME, "client").stdout.startswith("client1 is on the fabric")
    seen = control.view(lab)
    (client,) = seen.clients
    leader = next(it for it in seen.pods if it.name.startswith("leader"))
    for family, address in enumerate(leader.addresses):
        answer = ask(path_of(client.space), address, 6379)
        assert (answer.pod, answer.client) == (name_of(leader), client.addresses[family])


# --- beginning and end -------------------------------------------------------------------------


def left() -> tuple[list[str], list[str]]:
    """What a lab may leave behind: namespaces, and processes that speak of it."""
    mentioned = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and process.identify(int(entry.name), ""):
            try:
                if NAME.encode() in (entry / "cmdline").read_bytes():
                    mentioned.append(entry.name)
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended meanwhile
    return spaces.spaces_of(NAME), mentioned


def test_up_and_down_by_their_commands_leave_nothing(root: Path) -> None:
    before = left()
    links = sorted(os.listdir("/sys/class/net"))
    up = podwire(root, NAME, "up", str(GUESTBOOK))
    assert up.returncode == 0, up.stderr
    assert "10 of 10 pods run" in up.stdout
    assert sorted(os.listdir("/sys/class/net")) == links
    again = podwire(root, NAME, "up", str(GUESTBOOK))
    assert (again.returncode, again.stderr) == (
        1,
        f"podwire: lab {NAME} exists ({root / NAME}): `podwire lab down --name {NAME}` ends it\n",
    )
    assert json.loads(podwire(root, NAME, "status", "-o", "json").stdout)["name"] == NAME
    assert "frontend" in podwire(root, NAME, "status").stdout
    started = process.recorded(layout.processes_of(root / NAME))
    assert all(map(process.runs, started))
    sleeper = subprocess.Popen([PODWIRE, "lab", "exec", "leader", "--", "sleep", "600"], env=environment(root, NAME))
    try:
        until_in_pod(sleeper.pid, root)
        assert podwire(root, NAME, "down").returncode == 0
        assert sleeper.wait() == -signal.SIGTERM
    finally:
        sleeper.kill()
        sleeper.wait()
    assert not any(map(process.runs, started))
    assert left() == before
    assert not (root / NAME).exists()
    assert podwire(root, NAME, "down").stdout == f"there is no lab {NAME}: nothing to do\n"


def until_in_pod(pid: int, root: Path) -> None:
    space = path_of(next(it.space for it in control.view(layout.load(root, NAME)).pods if it.name.startswith("leader")))
    until = monotonic() + 30
    while os.stat(f"/proc/{pid}/ns/net").st_ino != space.stat().st_ino:
        assert monotonic() < until


def test_an_up_that_fails_leaves_nothing(root: Path) -> None:
    subprocess.run(["ip", "netns", "add", f"pw-{NAME}-node1"], check=True)
    up = podwire(root, NAME, "up", str(GUESTBOOK))
    assert up.returncode == 1
    assert "File exists" in up.stderr
    assert left() == ([], [])
    assert not (root / NAME).exists()


def test_a_down_during_an_up_ends_both_and_leaves_nothing(root: Path) -> None:
    command = [PODWIRE, "lab", "up", str(GUESTBOOK)]
    with subprocess.Popen(command, env=environment(root, NAME), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as up:
        assert up.stdout is not None
        assert up.stdout.readline() == b"1 node on a fabric\n"
        assert podwire(root, NAME, "down").returncode == 0
        assert b"told to end" in up.communicate()[1]
        assert up.returncode == 1
    assert left() == ([], [])
    assert not (root / NAME).exists()


def test_wrong_manifests_are_told_before_anything_is_made(root: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        wrong = f"apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{}}\n"
        (tmp_path / f"{name}.yaml").write_text(wrong, "utf-8")
    up = podwire(root, NAME, "up", str(tmp_path))
    assert (up.returncode, up.stdout) == (1, "")
    assert up.stderr.splitlines() == [
        f"podwire: {tmp_path}/{name}.yaml: document 1, line 4: Pod/default/{name}: spec.containers: missing"
        for name in ("a", "b")
    ]
    assert not (root / NAME).exists()


def test_down_needs_no_supervisor(lab: Lab, root: Path) -> None:
    started = process.recorded(lab.processes)
    (supervisor,) = (it for it in started if it.role == "supervisor")
    os.kill(supervisor.pid, signal.SIGKILL)
    process.end([supervisor])
    with pytest.raises(LabError, match="does not answer"):
        control.view(lab)
    assert lifecycle.down(root, NAME)
    assert not any(map(process.runs, started))
    assert left() == ([], [])


def test_the_demonstration_is_right_and_cleans_up(root: Path) -> None:
    demo = podwire(root, NAME, "demo", str(GUESTBOOK), "--name", NAME)
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert "all as expected" in demo.stdout
    assert "WRONG" not in demo.stdout
    assert left() == ([], [])


@pytest.mark.parametrize("line", [b"agent ready", b"explain", b"pods ("], ids=["starting", "explaining", "changing"])
def test_the_demonstration_cleans_up_when_it_is_interrupted(root: Path, tmp_path: Path, line: bytes) -> None:
    own = {**environment(root, NAME), "TMPDIR": str(tmp_path)}
    with subprocess.Popen([PODWIRE, "lab", "demo", str(GUESTBOOK)], env=own, stdout=subprocess.PIPE) as demo:
        assert demo.stdout is not None
        for said in demo.stdout:
            if line in said:
                demo.send_signal(signal.SIGINT)
                break
        demo.stdout.read()
        assert demo.wait() != 0
    assert left() == ([], [])
    assert not (root / NAME).exists()
    assert not list(tmp_path.iterdir())


def test_the_doctor_finds_nothing_at_a_clean_node(at_rest: Lab) -> None:
    config = at_rest.node("node1").config
    inside = ("ip", "netns", "exec", station_space(at_rest.name, "node1"))
    command = [*inside, PODWIRE, "doctor", "--config", str(config), "-o", "json"]
    ran = subprocess.run(command, capture_output=True, text=True)
    report = json.loads(ran.stdout)
    assert [it for it in report["findings"] if it["state"] in ("warning", "wrong")] == []
    assert (ran.returncode, ran.stderr, report["node"]) == (0, "", "node1")
