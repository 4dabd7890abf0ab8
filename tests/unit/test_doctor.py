"""The doctor's judgement: from facts of a node to findings, each of them in words, with a command."""

from pathlib import Path
from typing import Any

import pytest

from podwire.doctor.catalogue import CHECKS, examine
from podwire.doctor.facts import Absent, Facts
from podwire.doctor.findings import Finding, State, Unseen
from podwire.doctor.judge.api import RIGHTS
from podwire.doctor.page import page
from tests.unit.doctor_facts import changed, healthy
from tests.unit.doctor_table import NOT_THERE, TABLE
from tests.unit.test_deploy import of_kind

ROOT = Path(__file__).resolve().parents[2]
OK, NOTE, WARNING, WRONG = State.OK, State.NOTE, State.WARNING, State.WRONG


def found(facts: Facts, name: str) -> list[Finding]:
    return [it for it in examine(facts).findings if it.name == name]


ROWS = [pytest.param(*row, id=f"{row[0]}: {shown}") for shown, *row in TABLE]


@pytest.mark.parametrize(("name", "state", "seen", "fix", "changes"), ROWS)
def test_a_fact_is_named(name: str, state: State, seen: str, fix: str, changes: dict[str, Any]) -> None:
    findings = found(changed(healthy(), **changes), name)
    fit = [it for it in findings if it.state is state and seen in it.seen]
    assert len(fit) == 1, findings
    assert fix in fit[0].fix
    worst = max(findings, key=lambda it: list(State).index(it.state))
    assert worst.state is state, "nothing worse is said beside it"


def test_of_a_healthy_node_every_check_says_one_good_thing_at_least() -> None:
    seen = examine(healthy())
    assert {it.state for it in seen.findings} == {OK}
    assert list(dict.fromkeys(it.name for it in seen.findings)) == [check.name for check in CHECKS]
    assert seen.healthy
    assert seen.counts == {"ok": len(seen.findings), "note": 0, "warning": 0, "wrong": 0}


def test_every_check_has_a_row_in_which_it_finds_something() -> None:
    assert {row[1] for row in TABLE if row[2] is not OK} == {check.name for check in CHECKS}


def test_whatever_asks_for_something_says_what_to_do() -> None:
    for _, name, state, _, _, changes in TABLE:
        for it in found(changed(healthy(), **changes), name):
            assert it.why
            assert it.fix or it.state not in (WARNING, WRONG), it
            assert "\n" not in it.seen + it.fix, "a finding is a line"
            assert state is not None


def test_before_the_installation_nothing_is_wrong() -> None:
    facts = changed(healthy(), **NOT_THERE, filters__sealed={"IPv4": None, "IPv6": None}, disk__there=False)
    assert [it for it in examine(facts).findings if it.state in (WARNING, WRONG)] == []


def test_where_nothing_can_be_looked_into_nothing_is_wrong() -> None:
    blind = Unseen("nobody may")
    facts = changed(
        healthy(),
        setup__root=False,
        kernel__capabilities=("CAP_NET_ADMIN", "CAP_SYS_ADMIN"),
        kernel__trial=blind,
        kernel__python=blind,
        settings__boot=blind,
        filters=blind,
        others__processes=blind,
        others__programs=blind,
        api=blind,
        cluster=blind,
        cni__plugin=blind,
        cni__conflists=blind,
        cni__answers=blind,
        cni__spool=blind,
        agent=Absent("permission denied", refused=True),
        disk=blind,
    )
    assert {it.state for it in examine(facts).findings} == {OK, NOTE}


def test_names_are_for_programs() -> None:
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names)
    assert all(name == name.lower() and name.replace("-", "").isalnum() for name in names)


def test_the_page_is_made_from_the_checks() -> None:
    text = (ROOT / "docs" / "doctor.md").read_text(encoding="utf-8")
    assert text == page(), "write it anew: python -m podwire.doctor.page > docs/doctor.md"


def test_the_rights_are_those_that_the_manifest_grants() -> None:
    granted = {
        (verb, group, *(resource.split("/") if "/" in resource else (resource, "")))
        for rule in of_kind("ClusterRole")["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert {(it.verb, it.group, it.resource, it.subresource) for it in RIGHTS} == granted


def test_the_agent_s_container_sees_what_the_doctor_looks_at() -> None:
    pod = of_kind("DaemonSet")["spec"]["template"]["spec"]
    mounts = {it["mountPath"]: it for it in pod["containers"][0]["volumeMounts"]}
    assert mounts["/opt/cni/bin"]["readOnly"]
    assert mounts["/etc/cni/net.d"]["readOnly"]
    assert "/etc/podwire" in mounts, "where the doctor looks for the configuration"
