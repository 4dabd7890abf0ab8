"""The CNI plugin: its files, the configuration by which a runtime calls it, its socket, its spool. Pure.

Rules: CNI spec 1.1.0, section 1 (configurations: the first file of the directory by name counts, of .conf, .conflist
and .json), section 5 (STATUS, code 50).
"""

from collections.abc import Iterator
from posixpath import dirname

from podwire.cni.install import CONFLIST, PLUGIN
from podwire.doctor.facts import NATIVE, Agent, Conflist, Facts
from podwire.doctor.findings import Judgement, Unseen, note, ok, unseen, warning, wrong

_INSTALL = "podwire-cni install --config {config}    # the DaemonSet's init container does it"


def executable(facts: Facts) -> Iterator[Judgement]:
    it, path = facts.cni.plugin, facts.setup.plugin
    if isinstance(it, Unseen):
        yield unseen(it)
    elif not it.there:
        yield from _absent(facts, f"there is no {path}")
    elif not it.executable:
        yield wrong(f"{path} can't be executed", f"chmod 755 {path}")
    elif it.missing:
        yield wrong(f"{path}: beside it is no {', '.join(it.missing)}", _install(facts))
    elif not it.interpreter:
        yield wrong(f"{path}: the Python of its first line is not there", _install(facts))
    elif not it.same:
        yield note(f"{path} is of another version than this command", _install(facts))
    else:
        yield ok(f"{path}, native" if it.interpreter == NATIVE else f"{path}, in Python, with {it.interpreter}")


def settings(facts: Facts) -> Iterator[Judgement]:
    it, path = facts.cni.plugin, facts.setup.plugin
    expected = f"{facts.setup.state_dir}/cni.sock"
    if isinstance(it, Unseen):
        yield unseen(it)
    elif not it.there:
        yield from _absent(facts, f"there is no {path}.conf")
    elif it.error:
        yield wrong(it.error, _install(facts))
    elif facts.setup.state_dir and it.socket != expected:
        yield wrong(f"{path}.conf names the socket {it.socket}, and the agent's is {expected}", _install(facts))
    else:
        yield ok(f"{path}.conf: {it.socket}")


def loopback(facts: Facts) -> Iterator[Judgement]:
    """containerd and CRI-O execute it beside every network's own plugins."""
    it = facts.cni.plugin
    if isinstance(it, Unseen):
        yield unseen(it)
    elif it.loopback:
        yield ok("the plugin loopback is there")
    elif facts.setup.kubernetes:
        where = dirname(facts.setup.plugin)
        yield warning(
            f"there is no {where}/loopback, which containerd before 2.1 and CRI-O execute for every pod",
            f"apt-get install containernetworking-plugins; cp /usr/lib/cni/loopback {where}/",
        )
    else:
        yield note("there is no plugin loopback; only containerd and CRI-O ask for it")


def socket(facts: Facts) -> Iterator[Judgement]:
    answers = facts.cni.answers
    if isinstance(answers, Unseen):
        state = wrong if isinstance(facts.agent, Agent) else note
        yield state(f"the plugin's socket does not answer: {answers.why}", "podwire status")
        return
    for command, error in sorted(answers.items()):
        if error:
            yield wrong(f"{command} is answered by: {error}", "podwire status")
    if not any(answers.values()):
        yield ok(f"{' and '.join(sorted(answers))} are answered")


def configuration(facts: Facts) -> Iterator[Judgement]:
    held, directory = facts.cni.conflists, facts.setup.conf_dir
    if isinstance(held, Unseen):
        yield unseen(held)
        return
    ours = [it for it in held or () if PLUGIN in it.types]
    first = held[0] if held else None
    if first is None or (not ours and not facts.installed):
        yield from _absent(facts, f"there is no network configuration in {directory}", serious=facts.setup.kubernetes)
        for it in held or ():
            yield warning(f"{directory}/{it.name} , {_of(it)}, may go before Podwire's by its name", _move(facts, it))
        return
    if not ours:
        state = wrong if facts.setup.kubernetes else note
        yield state(f"{directory}/{first.name}, {_of(first)}, is in force, and none is Podwire's", _install(facts))
    elif first is ours[0]:
        yield ok(f"{directory}/{first.name} is in force")
    elif "multus" in first.types:
        yield note(f"{directory}/{first.name} is Multus: its default network has to be podwire")
    else:
        state = wrong if facts.setup.kubernetes else note
        yield state(f"{directory}/{first.name}, {_of(first)}, is in force instead of {CONFLIST}", _move(facts, first))
    for it in (held or ())[1:]:
        if it not in ours:
            yield note(f"{directory}/{it.name}, {_of(it)}, is not in force", _move(facts, it))


def spool(facts: Facts) -> Iterator[Judgement]:
    if isinstance(facts.cni.spool, Unseen):
        yield unseen(facts.cni.spool)
        return
    waiting, bad = facts.cni.spool
    if waiting and isinstance(facts.agent, Agent):
        yield warning(f"{waiting} DELs wait in the spool, though the agent works", "podwire history    # why they fail")
    elif waiting:
        yield note(f"{waiting} DELs wait in the spool for the agent")
    if bad:
        yield warning(f"{bad} DELs in the spool can't be read", f"ls {facts.setup.state_dir}/spool/*.bad")
    if not waiting and not bad:
        yield ok("no DEL waits")


def _absent(facts: Facts, seen: str, serious: bool = True) -> Iterator[Judgement]:
    """What an installation brings: missing is wrong only once there is one, and something else executes the plugin."""
    if facts.installed and serious and facts.setup.kubernetes:
        yield wrong(seen, _install(facts))
    elif facts.installed:
        yield note(f"{seen}; objects come from manifests, so no kubelet looks there", _install(facts))
    else:
        yield note(f"{seen}: not installed yet", "kubectl apply -f deploy/podwire.yaml")


def _install(facts: Facts) -> str:
    return _INSTALL.format(config=facts.setup.config or "/etc/podwire/agent.toml")


def _of(it: Conflist) -> str:
    return it.error or f"of {', '.join(it.types) or 'no plugin'}"


def _move(facts: Facts, it: Conflist) -> str:
    directory = facts.setup.conf_dir
    return f"mkdir -p {directory}/disabled; mv {directory}/{it.name} {directory}/disabled/"
