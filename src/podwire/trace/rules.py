"""What a matched rule of our own tables means: the chains of dataplane/nftables/layout.py in words. Pure."""

import re
from enum import Enum

from podwire.dataplane.nftables import hostports
from podwire.dataplane.nftables.affinity import seconds_of
from podwire.trace.steps import Step

_CLASS = re.compile(r"([ci])([0-9]+)\Z")
_DRAW = re.compile(r"draw(?:in)?[0-9]+\Z")
_REMEMBERED = re.compile(r"affine(?:in)?[0-9]+\Z")


class Stop(Enum):
    """What a rule of ours does to a packet that it stops."""

    REFUSED = "refused"
    DROPPED = "dropped"


_RESTRICTED = (
    "@restricted",
    Stop.DROPPED,
    "dropped: the client is in none of the source ranges that may use this frontend",
)
_STOPS = (
    ("@tunnel", Stop.DROPPED, "dropped: VXLAN's port takes packets from the other ends of tunnels only"),
    ("127.0.0.0/8", Stop.DROPPED, "dropped: the node's loopback is reached from the node only"),
    _RESTRICTED,
    (
        "@dropped",
        Stop.DROPPED,
        "dropped: this node has no backend of the frontend, others have, and the traffic policy is Local",
    ),
    ("@refused", Stop.REFUSED, "refused: the frontend has no ready backend"),
    ("@service_ranges", Stop.REFUSED, "refused: no Service has this port and protocol of a Service's address"),
    ("@external_ips", Stop.REFUSED, "refused: no Service has this port and protocol of its external address"),
)
"""By the set that the rule asks."""


_WHY = {"remote": "client and backend are both elsewhere", "post": "the node itself reaches that pod by VXLAN"}
"""Why it is masqueraded, by the chain."""
_OWN = {False: "a pod that reaches itself", True: "outside of the cluster nobody knows the way to a pod"}
"""Why what a pod sends is masqueraded, by whether the rule asks who is outside."""


def stop(step: Step, rule: str) -> tuple[Stop | None, str]:
    """Of a rule that stops packets; None where its text is not known."""
    if step.event.chain in ("unplaced", "stray"):
        return Stop.DROPPED, "dropped: connection tracking knows no connection that it belongs to"
    found = next((each for each in _STOPS if each[0] in rule), None)
    if found is None and step.event.chain in ("guard", "guardout"):
        found = _RESTRICTED
    return found[1:] if found is not None else (None, "stopped by a rule that is not known any more")


def meaning(step: Step, rule: str, service: str, where: str) -> str:
    """`service`: whose frontend it is; `where`: what is at the backend that was drawn, "" where neither is known. ""
    where the rule decides nothing that people would ask for."""
    event = step.event
    if event.stops:
        return stop(step, rule)[1]
    if event.chain in ("pre", "out"):
        return _found(event.target, service)
    if _REMEMBERED.match(event.chain) and event.target:
        size = _size(event.target)
        return f"the client is not remembered: {_draw(size)}" if size else ""
    if _REMEMBERED.match(event.chain) and event.verdict == "continue":
        return ""  # what was remembered of a client, if anything, is forgotten
    if _DRAW.match(event.chain) or _REMEMBERED.match(event.chain):
        drawn = f"{_backend(step)}{f', {where}' if where else ''}"
        return f"backend {drawn}" if _DRAW.match(event.chain) else f"the client is remembered: its backend is {drawn}"
    if event.chain == hostports.CHAIN:
        return f"a pod's host port: {_backend(step)}{f', {where}' if where else ''}"
    if event.chain.startswith("learn") and (seconds := seconds_of(event.chain)):
        return f"the client is remembered with this backend for {seconds} s"
    if event.chain in ("own", "post", "remote"):
        return _source(step, rule, service)
    return ""


def _found(target: str, service: str) -> str:
    of = f"a frontend of Service {service}" if service else "a frontend"
    seconds, size = seconds_of(target), _size(target)
    if seconds:
        inside = ", of the list for clients in the cluster" if target.startswith("affinein") else ""
        return f"{of} with affinity: is the client remembered for {seconds} s{inside}?"
    if not size:
        return ""
    return f"{of}: {_draw(size)}{', of the list for clients in the cluster' if target.startswith('i') else ''}"


def _draw(size: int) -> str:
    return f"one of {size} slots is drawn" if size > 1 else "its only slot is drawn"


def _size(chain: str) -> int:
    """The slots of a capacity class; 0: no such chain."""
    found = _CLASS.match(chain)
    return int(found[2]) if found else 0


def _backend(step: Step) -> str:
    return str(step.after).partition(" → ")[2] if step.after is not None else "not seen"


def _source(step: Step, rule: str, service: str) -> str:
    if "masquerade" in rule or (step.event.chain == "remote" and step.event.verdict == "accept"):
        if "127.0.0.0/8" in rule:
            return "masqueraded: to the node's loopback no answer would come back"
        why = _WHY.get(step.event.chain) or _OWN["@unmasqueraded" in rule]
        return f"masqueraded: {why}, the answer has to come back by this node"
    if step.event.verdict == "return" or (service and step.event.verdict == "accept"):
        return "the client's address is kept: the answer comes by this node anyway"
    return ""
