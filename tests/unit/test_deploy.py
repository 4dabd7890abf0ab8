"""The manifest that users apply: its parts agree with each other, and with what the agent takes."""

import tomllib
from pathlib import Path
from typing import Any

import yaml

from podwire.config import NODE_NAME, parse_config
from podwire.model.addresses import parse_host_port
from podwire.preflight import LOCKS

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "deploy" / "podwire.yaml").read_text(encoding="utf-8")


def of_kind(kind: str, name: str = "podwire") -> dict[str, Any]:
    all_of_them = [document for document in yaml.safe_load_all(TEXT) if document["kind"] == kind]
    (found,) = [it for it in all_of_them if it["metadata"]["name"] == name]
    assert isinstance(found, dict)
    return found


def test_the_agent_takes_the_configuration() -> None:
    config = parse_config(of_kind("ConfigMap")["data"]["agent.toml"], "agent.toml", "node1")
    pod = of_kind("DaemonSet")["spec"]["template"]["spec"]
    environment = {variable["name"]: variable for variable in pod["containers"][0]["env"]}
    assert config.node_name == "node1"
    assert NODE_NAME in environment
    assert environment["PODWIRE_STATE_DIR"]["value"] == str(config.state_dir)
    state = next(volume for volume in pod["volumes"] if volume["name"] == "state")
    assert state["hostPath"]["path"] == str(config.state_dir), "the plugin is on the node, the agent in a container"


def test_every_mount_has_its_volume_and_every_volume_a_use() -> None:
    pod = of_kind("DaemonSet")["spec"]["template"]["spec"]
    mounted = {
        mount["name"]
        for container in (*pod["initContainers"], *pod["containers"])
        for mount in container["volumeMounts"]
    }
    assert mounted == {volume["name"] for volume in pod["volumes"]}


def test_the_locks_are_those_of_the_node() -> None:
    """Else an agent that runs outside of a container would not be seen."""
    pod = of_kind("DaemonSet")["spec"]["template"]["spec"]
    (name,) = [it["name"] for it in pod["containers"][0]["volumeMounts"] if it["mountPath"] == str(LOCKS)]
    (path,) = [volume["hostPath"]["path"] for volume in pod["volumes"] if volume["name"] == name]
    assert path == str(LOCKS)


def test_the_image_is_that_of_this_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    pod = of_kind("DaemonSet")["spec"]["template"]["spec"]
    images = {container["image"] for container in (*pod["initContainers"], *pod["containers"])}
    speaker = yaml.safe_load((ROOT / "deploy" / "podwire-bgp.yaml").read_text(encoding="utf-8"))
    images |= {container["image"] for container in speaker["spec"]["template"]["spec"]["containers"]}
    assert images == {f"localhost/podwire:{version}"}


def test_rights_are_to_read_for_blocks_and_for_one_condition() -> None:
    writing = {
        rule["resources"][0]: set(rule["verbs"]) - {"get", "list", "watch"}
        for rule in of_kind("ClusterRole")["rules"]
        if set(rule["verbs"]) - {"get", "list", "watch"}
    }
    own = {"create", "patch", "delete"}
    assert writing == {"podblocks": own, "bgpsessions": own, "nodes/status": {"patch"}}
    assert all("secrets" not in rule["resources"] for rule in of_kind("ClusterRole")["rules"])
    assert of_kind("Role")["metadata"]["namespace"] == "podwire"
    assert of_kind("Role")["rules"] == [
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "list", "watch"]}
    ]


def test_the_controller_may_write_statuses_events_and_its_lease() -> None:
    """And runs the same image."""
    writing = {
        name: set(rule["verbs"]) - {"get", "list", "watch"}
        for kind in ("ClusterRole", "Role")
        for rule in of_kind(kind, "podwire-controller")["rules"]
        for name in rule["resources"]
    }
    assert {name: verbs for name, verbs in writing.items() if verbs} == {
        "addresspools/status": {"patch"},
        "bgppeers/status": {"patch"},
        "bgpadvertisements/status": {"patch"},
        "l2advertisements/status": {"patch"},
        "services/status": {"patch"},
        "events": {"create"},
        "leases": {"create", "patch"},
    }
    assert all("secrets" not in rule["resources"] for rule in of_kind("ClusterRole", "podwire-controller")["rules"])
    (container,) = of_kind("Deployment", "podwire-controller")["spec"]["template"]["spec"]["containers"]
    assert {container[name]["httpGet"]["port"] for name in ("readinessProbe", "livenessProbe")} == {"metrics"}
    listens = parse_host_port(container["command"][container["command"].index("--metrics-listen") + 1])
    assert container["ports"] == [{"name": "metrics", "containerPort": listens[1]}]
    assert container["image"] == of_kind("DaemonSet")["spec"]["template"]["spec"]["containers"][0]["image"]


def test_what_follows_metallb_s_objects_is_the_controller_and_may_write_no_more_than_that() -> None:
    text = (ROOT / "deploy" / "podwire-import-metallb.yaml").read_text(encoding="utf-8")
    documents = list(yaml.safe_load_all(text))
    subjects = [it for document in documents for it in document.get("subjects", ())]
    assert {(it["kind"], it["name"], it["namespace"]) for it in subjects} == {
        ("ServiceAccount", "podwire-controller", "podwire")
    }
    writing = {
        (document["metadata"].get("namespace", ""), name)
        for document in documents
        for rule in document.get("rules", ())
        for name in rule["resources"]
        if set(rule["verbs"]) - {"get", "list", "watch"}
    }
    own = ("addresspools", "bgppeers", "bgpadvertisements", "l2advertisements")
    assert writing == {("podwire", "secrets"), *(("", name) for name in own)}
