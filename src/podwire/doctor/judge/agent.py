"""The agent: whether it runs, is ready, and holds the network as it should be. Pure."""

from collections.abc import Iterator

from podwire.doctor.facts import Absent, Facts
from podwire.doctor.findings import Judgement, Unseen, note, ok, unseen, warning, wrong

FEW = 3
_START = "kubectl -n podwire get pods -o wide    # or: podwire agent --config FILE"


def running(facts: Facts) -> Iterator[Judgement]:
    it = facts.agent
    if not isinstance(it, Absent):
        yield ok(f"an agent answers, of version {it.status.version}")
    elif it.refused:
        yield note(f"not looked into: {it.why}", "sudo podwire doctor")
    elif facts.installed:
        yield wrong(it.why, _START)
    else:
        yield note(f"not installed yet: {it.why}", "kubectl apply -f deploy/podwire.yaml")


def ready(facts: Facts) -> Iterator[Judgement]:
    if isinstance(facts.agent, Absent):
        yield note("there is no agent to ask")
        return
    status = facts.agent.status
    if facts.setup.node and status.node != facts.setup.node:
        yield wrong(
            f"the agent is that of node {status.node}, and the configuration says {facts.setup.node}",
            "restart the agent",
        )
    if status.ready:
        yield ok(f"node {status.node} is ready")
    else:
        yield wrong(f"no pod can be attached: {status.not_ready}", "podwire status")


def version(facts: Facts) -> Iterator[Judgement]:
    if isinstance(facts.agent, Absent):
        yield note("there is no agent to ask")
    elif facts.agent.status.version == facts.setup.version:
        yield ok(f"agent and command are {facts.setup.version}")
    else:
        yield warning(
            f"the agent is {facts.agent.status.version}, this command {facts.setup.version}",
            "restart the agent with the version that is wanted",
        )


def errors(facts: Facts) -> Iterator[Judgement]:
    if isinstance(facts.agent, Absent):
        yield note("there is no agent to ask")
        return
    status = facts.agent.status
    found = [warning(f"source: {error}", "podwire status") for error in status.source_errors]
    found += [
        warning(f"{driver}: the last change of {count} keys failed", "podwire resync")
        for driver, count in sorted(status.unknown.items())
        if count
    ]
    found += [note(f"it failed, some time ago: {failure}", "podwire history") for failure in facts.agent.failures]
    yield from found or [ok("no errors")]


def drift(facts: Facts) -> Iterator[Judgement]:
    if isinstance(facts.agent, Absent):
        yield note("there is no agent to ask")
        return
    found = facts.agent.drift
    if isinstance(found, Unseen):
        yield unseen(found)
    elif found:
        few = "; ".join(f"{it.key} is {it.found or 'missing'}" for it in found[:FEW])
        more = f" and {len(found) - FEW} more" if len(found) > FEW else ""
        yield warning(f"the network differs from what it should be: {few}{more}", "podwire verify; podwire resync")
    else:
        yield ok("the network is as it should be")
