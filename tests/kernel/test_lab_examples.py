"""The example applications, run as they are: everybody reaches everybody, by address and by name, from every node."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from podwire.lab import control
from podwire.lab.layout import Lab
from podwire.lab.paths import questions
from podwire.lab.views import LabView
from tests.kernel import labs
from tests.kernel.labs import EXAMPLES, all_right, podwire

NAME = f"x{os.getpid()}"


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    with labs.directory() as found:
        yield found


@pytest.fixture(scope="module")
def shop(root: Path) -> Iterator[Lab]:
    with labs.lab(root, f"{NAME}s", EXAMPLES / "online-shop", 2) as found:
        yield found


@pytest.fixture(scope="module")
def votes(root: Path) -> Iterator[Lab]:
    with labs.lab(root, f"{NAME}v", EXAMPLES / "voting-app", 2) as found:
        yield found


@pytest.fixture(scope="module")
def guestbook(root: Path) -> Iterator[Lab]:
    with labs.lab(root, f"{NAME}g", EXAMPLES / "guestbook", 2) as found:
        yield found


def at_work(lab: Lab) -> LabView:
    seen = control.view(lab, control.MakeClient())
    assert (seen.problems, [it.problem for it in seen.pods if it.problem]) == ((), [])
    return seen


def asked_from(seen: LabView, service: str) -> set[str]:
    return {it.source.node for it in questions(seen) if it.target.split(",")[0] == f"Service {service}"}


@pytest.mark.parametrize("application", ["guestbook", "votes", "shop"])
def test_every_service_answers_from_every_node(application: str, request: pytest.FixtureRequest) -> None:
    seen = at_work(request.getfixturevalue(application))
    for service in seen.services:
        if service.cluster_ips and "None" not in service.cluster_ips:
            assert {"node1", "node2"} <= asked_from(seen, service.name)
    all_right(seen)


@pytest.mark.parametrize(
    ("asker", "name", "pods"),
    [
        pytest.param("worker", "redis", {"redis"}, id="a Service of the own namespace"),
        pytest.param("worker", "db-0.db", {"db-0"}, id="a pod of a StatefulSet"),
        pytest.param("worker", "db", {"db-0", "db-1"}, id="a headless Service"),
        pytest.param("worker", "db-1.db.vote.svc.cluster.local", {"db-1"}, id="by its whole name"),
    ],
)
def test_pods_find_each_other_by_name(votes: Lab, root: Path, asker: str, name: str, pods: set[str]) -> None:
    found = podwire(root, votes.name, "exec", f"vote/{asker}", "--", "getent", "ahosts", name)
    addresses = {line.split()[0] for line in found.stdout.splitlines()}
    seen = control.view(votes)
    services = {address for it in seen.services if it.name in pods for address in it.cluster_ips if address != "None"}
    assert addresses == services or addresses == {it.addresses[0] for it in seen.pods if it.name in pods}


def test_a_program_in_a_pod_uses_names_as_its_author_meant(shop: Lab, root: Path) -> None:
    for url, pod in (
        ("http://frontend/", "default/frontend-"),
        ("http://cart:7070/", "default/cart-"),
        ("http://redis-cart-1.redis-cart:6379/", "default/redis-cart-1"),
    ):
        found = podwire(root, shop.name, "exec", "visitors", "--", "curl", "-sS", url)
        assert json.loads(found.stdout)["pod"].startswith(pod), found.stderr


def test_what_the_lab_has_no_use_for_is_said(shop: Lab) -> None:
    notes = {line.rpartition(":")[0] for line in control.view(shop).notes}
    kinds = (
        "ConfigMap",
        "HorizontalPodAutoscaler",
        "Ingress",
        "NetworkPolicy",
        "PodDisruptionBudget",
        "ServiceAccount",
    )
    assert notes == {f"not used here: {kind}" for kind in kinds}
