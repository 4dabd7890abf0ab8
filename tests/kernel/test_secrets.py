"""Passwords of BGP sessions reach FRR and nobody else: no answer, log or error of an agent has one."""

import re
import signal
import time
from pathlib import Path

import pytest

from podwire.cli.client import Failed, ask
from tests.kernel.process import PATIENCE, AgentProcess

PASSWORDS = ("Zebra1Crossing", "Zebra2Crossing", "7777333311", "Zebra4Crossing", "Zebra5Crossing")
PEER = """\
apiVersion: podwire.io/v1alpha1
kind: BGPPeer
metadata: {name: tor}
spec: {peerAddress: 192.0.2.254, peerASN: 64512, myASN: 64600, passwordSecret: {name: tor}}
"""
SECRET = """\
apiVersion: v1
kind: Secret
metadata: {name: %s, namespace: podwire}
stringData: {password: %s}
"""
UNFIT = (SECRET % ("long", PASSWORDS[3] * 9), (SECRET % ("encoded", PASSWORDS[4])).replace("stringData", "data"))
"""Of these nothing is said, since nobody need mean them for passwords."""
WRONG = (
    SECRET % ("number", PASSWORDS[2]),
    SECRET % ("tag", f"!{PASSWORDS[4]} x"),
    SECRET % ("digits", PASSWORDS[2] * 3),
    SECRET % ("alias", f"*{PASSWORDS[4]}"),
    SECRET % ("broken", f'"{PASSWORDS[4]}'),
    (SECRET % ("list", f"[{PASSWORDS[4]}]")),
)
ASKED = re.compile(r'web\.get\("(/[^"{]*)"')
"""Paths of the admin API without a part that names an object."""


def paths() -> list[str]:
    source = Path(ask.__code__.co_filename).parents[1] / "admin"
    return [path for it in sorted(source.glob("*.py")) for path in ASKED.findall(it.read_text())]


def told(socket: Path) -> str:
    """All that the admin API answers."""
    found = []
    for path in (*paths(), "/bgp/routes?peer=tor", "/metrics"):
        try:
            found.append(ask(socket, "GET", path).decode())
        except Failed as refused:
            found.append(str(refused))
    return "\n".join(found)


@pytest.mark.usefixtures("node")
def test_no_answer_log_or_error_has_a_password(tmp_path: Path) -> None:
    agent = AgentProcess(tmp_path)
    with agent.config.open("a") as config:
        config.write('log_level = "debug"\n')
    agent.start()
    try:
        at = tmp_path / "manifests"
        heard = [told(agent.state / "admin.sock")]
        texts = [PEER, SECRET % ("tor", PASSWORDS[0]), SECRET % ("tor", PASSWORDS[1]), *UNFIT, *WRONG]
        for number, text in enumerate(texts):
            name = "secret" if "name: tor," in text else f"wrong{number}" if text in WRONG else f"other{number}"
            (at / f"{name}.yaml").write_text(text)
            heard.append(told(agent.state / "admin.sock"))
        end = time.monotonic() + PATIENCE
        while len(named := set(re.findall(r"/wrong[0-9]+", told(agent.state / "admin.sock")))) < len(WRONG):
            assert time.monotonic() < end, f"of the wrong files only these are told: {named}"
        heard += [told(agent.state / "admin.sock"), agent.say("status").stdout, agent.say("verify").stdout]
    finally:
        agent.stop(signal.SIGKILL)
    shown = "\n".join((*heard, agent.log.read_text()))
    assert "bgppeer/tor" in shown
    assert "192.0.2.254" in shown
    assert [it for it in PASSWORDS if it in shown] == []
