"""A trace in words, from what a kernel told, and from events of every kind that a node has."""

from collections.abc import Iterable
from typing import Any

import pytest

from podwire.cli.traces import show_trace
from podwire.explain.packets import explain_packet
from podwire.explain.places import places
from podwire.model.addresses import parse_address
from podwire.model.network import Backend
from podwire.trace import events, flow, texts
from podwire.trace.answer import Answer, Outcome
from podwire.trace.events import Header, Kind, Packet, TraceEvent
from podwire.trace.table import ANSWERS, ARRIVING, BEGIN, FORWARDING, LEAVING, OWN_ANSWERS, TABLE, Probe
from podwire.trace.views import TraceView
from podwire.trace.words import Seen, told
from tests.unit import trace_told
from tests.unit.screen import lines
from tests.unit.served_agent import frontend, node

NOW = node()
TO = frontend("10.96.0.10")
A, B, FAR, OWN = (parse_address(text) for text in ("10.1.1.2", "10.1.1.3", "203.0.113.7", "10.1.1.1"))
PROBE = Probe(A, trace_told.PORT, TO, trace_told.LINK)
NAMES = {trace_told.LINK: "pwa", 5: "pwb", 2: "eth0"}
LISTINGS = {chain: texts.read(text) for chain, text in trace_told.TEXTS.items()}
CONNECTED, SILENCE = Answer(Outcome.CONNECTED, 1.25), Answer(Outcome.SILENCE, 3000)


def seen(
    packets: Iterable[Packet] | None, entry: flow.Entry | None = None, answer: Answer = SILENCE, **more: Any
) -> Seen:
    listings = LISTINGS | more.pop("listings", {})
    return Seen(PROBE, None if packets is None else list(packets), entry, answer, "pwa", NAMES, listings)._replace(
        **more
    )


def tell(it: Seen) -> TraceView:
    return told(it, places(NOW), explain_packet(NOW, A, TO), "pod shop/front on this node, by pwa")


def sent(*some: TraceEvent, answer: bool = False) -> Packet:
    return Packet(answer, some)


def event(table: str, chain: str, verdict: str, handle: int = 0, **more: Any) -> TraceEvent:
    kind = Kind.RULE if handle else Kind.POLICY
    return TraceEvent("ip", table, chain, kind, verdict, handle=handle, **more)


def mark(chain: str, header: Header, handle: int = 0, came: int = trace_told.LINK, goes: int = 0) -> TraceEvent:
    return event(TABLE, chain, "continue" if handle else "accept", handle, header=header, came=came, goes=goes)


ASKED, DRAWN = Header(A, TO.address, 6, PROBE.port, 80), Header(A, B, 6, PROBE.port, 8080)
BEGAN = mark(BEGIN, ASKED, 7)
FOUND = event("podwire", "pre", "goto", 54, target="c2", header=ASKED)
DREW = event("podwire", "draw2", "accept", 85)
FORWARDED, LEFT = mark(FORWARDING, DRAWN, goes=5), mark(LEAVING, DRAWN, goes=5)
ENTRY = flow.Entry(Backend(B, 8080), Backend(A, PROBE.port), True, "ESTABLISHED")


def test_what_a_kernel_told() -> None:
    read = [event for notice in trace_told.TOLD if (event := events.read(notice)) is not None]
    entry = flow.entry(PROBE, trace_told.ENTRY)
    view = tell(seen(events.packets(PROBE, read), entry, CONNECTED, interfaces={trace_told.LINK: "pwa"}))
    assert [step.words for step in view.way.steps if step.words] == [
        "comes from the pod by pwa",
        "a frontend of Service shop/web: its only slot is drawn",
        "backend 10.1.1.3:8080, pod shop/back on this node, by pwdca5101df343, pending",
        "forwarded, to go out by interface 401032305",
        "the client's address is kept: the answer comes by this node anyway",
        "leaves by interface 401032305 to pod shop/back on this node",
    ]
    assert view.answer_way is not None
    assert [step.words for step in view.answer_way.steps if step.words] == [
        "the answer comes in by interface 401032305",
        "forwarded, to go out by pwa",
        "leaves by pwa to pod shop/front on this node",
    ]
    assert (view.way.fate, view.answer_way.fate, view.agrees) == ("left the node", "left the node", True)
    assert view.flow is not None
    assert (view.flow.server, view.flow.client, view.flow.masqueraded) == ("10.1.1.3:8080", "10.1.1.2:51799", False)
    assert {step.hook for step in view.way.steps} == {"prerouting", "forward", "postrouting"}
    shown = lines(show_trace(view, rules=True))
    assert any(line.endswith("rule 54: ip daddr . meta l4proto . th dport vmap @svc") for line in shown)
    assert "result: connected after 1.2 ms" in shown
    assert shown[-1] == "as `podwire explain` says: balanced: one of 2 backends, each about as likely"


def test_without_rules_only_what_decides_is_shown() -> None:
    view = tell(
        seen([sent(BEGAN, FOUND, DREW, event("podwire", "entry", "accept", header=DRAWN), FORWARDED, LEFT)], ENTRY)
    )
    shown = lines(show_trace(view, rules=False))
    assert not [line for line in shown if "chain's end" in line or "rule 54" in line or TABLE in line]
    assert any(
        line.split()
        == [
            "prerouting",
            "ip",
            "podwire",
            "draw2",
            "backend",
            "10.1.1.3:8080,",
            "pod",
            "shop/back",
            "on",
            "this",
            "node,",
            "by",
            "pwdca5101df343,",
            "pending",
        ]
        for line in shown
    )


@pytest.mark.parametrize(
    ("some", "said"),
    [
        pytest.param([mark(BEGIN, ASKED, 7, came=0)], "is sent by the node itself", id="the node's own"),
        pytest.param(
            [FOUND._replace(target="i4")],
            "a frontend of Service shop/web: one of 4 slots is drawn, of the list for clients in the cluster",
            id="another list in the cluster",
        ),
        pytest.param(
            [FOUND._replace(target="affine60")],
            "a frontend of Service shop/web with affinity: is the client remembered for 60 s?",
            id="affinity",
        ),
        pytest.param(
            [FOUND._replace(chain="affinein60", target="i2")],
            "the client is not remembered: one of 2 slots is drawn",
            id="not remembered",
        ),
        pytest.param([FOUND._replace(chain="affine60", target="", verdict="continue")], "", id="forgotten"),
        pytest.param(
            [DREW._replace(chain="affine60"), FORWARDED],
            "the client is remembered: its backend is 10.1.1.3:8080, "
            "pod shop/back on this node, by pwdca5101df343, pending",
            id="remembered",
        ),
        pytest.param(
            [event("podwire", "learn60", "continue", 9)],
            "the client is remembered with this backend for 60 s",
            id="learnt",
        ),
        pytest.param([DREW], "backend not seen", id="a draw that was the last that was seen"),
        pytest.param(
            [event("podwire", "guard", "drop", 3)],
            "dropped: the client is in none of the source ranges that may use this frontend",
            id="source ranges",
        ),
        pytest.param(
            [event("podwire", "entry", "drop", 3)],
            "stopped by a rule that is not known any more",
            id="a rule of ours that is gone",
        ),
        pytest.param(
            [event("podwire", "own", "accept", 63)],
            "masqueraded: a pod that reaches itself, the answer has to come back by this node",
            id="hairpin",
        ),
        pytest.param(
            [event("podwire", "own", "accept", 64)],
            "masqueraded: outside of the cluster nobody knows the way to a pod, "
            "the answer has to come back by this node",
            id="out of the cluster",
        ),
        pytest.param(
            [event("podwire", "own", "accept", 65)],
            "the client's address is kept: the answer comes by this node anyway",
            id="a pod of this node",
        ),
        pytest.param(
            [event("podwire", "remote", "accept", 72)],
            "masqueraded: client and backend are both elsewhere, the answer has to come back by this node",
            id="far to far",
        ),
        pytest.param(
            [mark(LEAVING, Header(A, FAR, 6, 1, 2), goes=2)],
            "leaves by eth0 to 203.0.113.7, outside of the cluster, by the node's own routes: "
            "its way from there is not seen here",
            id="out",
        ),
        pytest.param(
            [mark(LEAVING, Header(A, OWN, 6, 1, 2), goes=2)], "leaves by eth0 to this node itself", id="to the node"
        ),
        pytest.param([mark(ARRIVING, Header(A, OWN, 6, 1, 22))], "given to the node itself, at port 22", id="arrived"),
        pytest.param([mark(ANSWERS, ASKED, 8, came=5)], "the answer comes in by pwb", id="an answer"),
        pytest.param([mark(OWN_ANSWERS, ASKED, 9)], "the node itself answers", id="the node answers"),
        pytest.param(
            [event("filter", "FORWARD", "drop")],
            "dropped by the policy of table ip filter, chain FORWARD",
            id="a policy",
        ),
        pytest.param(
            [event("filter", "DOCKER", "drop", 4)],
            "dropped by table ip filter, chain DOCKER: tcp dport 80 drop",
            id="another's drop",
        ),
        pytest.param(
            [event("filter", "DOCKER", "drop", 5)],
            "rejected by table ip filter, chain DOCKER: counter reject",
            id="another's reject",
        ),
        pytest.param(
            [event("filter", "DOCKER", "drop", 6)],
            "dropped or rejected by table ip filter, chain DOCKER: rule 6, which is gone by now",
            id="another's rule that is gone",
        ),
        pytest.param(
            [event("nat", "PRE", "accept", 1, header=ASKED), mark(FORWARDING, Header(A, FAR, 6, PROBE.port, 81))],
            "sent to 203.0.113.7:81 instead by table ip nat, chain PRE: ",
            id="another's translation",
        ),
        pytest.param(
            [event("nat", "POST", "accept", 1, header=ASKED), mark(LEAVING, ASKED._replace(source=FAR))],
            f"given the source 203.0.113.7:{PROBE.port} by table ip nat, chain POST: ",
            id="another's masquerade",
        ),
        pytest.param(
            [event("fil\x1bter", "x\n", "drop")],
            "dropped by the policy of table ip fil\\x1bter, chain x\\n",
            id="names that no terminal may obey",
        ),
    ],
)
def test_each_step_has_words(some: list[TraceEvent], said: str) -> None:
    docker = texts.Listing({4: "tcp dport 80 drop", 5: "counter reject"})
    view = tell(seen([sent(*some)], listings={("ip", "filter", "DOCKER"): docker}))
    assert view.way.steps[0].words == said


FOREIGN = event("filter", "FORWARD", "drop", header=DRAWN)
OUR_REFUSAL = event("podwire", "entry", "drop", 3, header=ASKED)
REFUSES = {("ip", "podwire", "entry"): texts.Listing({3: "ip daddr @refused reject"})}
TO_FAR = [
    mark(FORWARDING, Header(A, FAR, 6, PROBE.port, 1), goes=2),
    mark(LEAVING, Header(A, FAR, 6, PROBE.port, 1), goes=2),
]


@pytest.mark.parametrize(
    ("it", "differs"),
    [
        pytest.param(seen([sent(BEGAN, FOUND, DREW, FORWARDED, LEFT)], ENTRY, CONNECTED), None, id="as said"),
        pytest.param(
            seen([sent(BEGAN, FOUND, DREW, FORWARDED, LEFT)], ENTRY), None, id="silence beyond is no difference"
        ),
        pytest.param(seen([sent(BEGAN, FOUND, DREW, FORWARDED, LEFT)]), None, id="a flow that is forgotten already"),
        pytest.param(
            seen([sent(BEGAN, FOUND, DREW, FORWARDED, FOREIGN)]),
            "knows nothing of others' rules; it was dropped by the policy of table ip filter",
            id="dropped by others",
        ),
        pytest.param(
            seen([sent(BEGAN, FOUND, DREW, FORWARDED, LEFT), sent(FOREIGN, answer=True)], ENTRY),
            "the answer was dropped by the policy of table ip filter",
            id="the answer dropped by others",
        ),
        pytest.param(
            seen([sent(BEGAN, OUR_REFUSAL)], listings=REFUSES),
            "it was refused: the frontend has no ready backend",
            id="refused by us",
        ),
        pytest.param(
            seen([sent(BEGAN, *TO_FAR)]),
            "explain says one of 10.1.1.2:8080, 10.1.1.3:8080; it went to 203.0.113.7:1",
            id="another backend",
        ),
        pytest.param(
            seen([sent(BEGAN, FOUND, DREW, FORWARDED, LEFT)], flow.Entry(ENTRY.server, Backend(OWN, 1), True)),
            "10.1.1.3:8080 sees 10.1.1.2; it sees 10.1.1.1",
            id="another client",
        ),
        pytest.param(
            seen([sent(BEGAN, FOUND, DREW)]),
            "lost from sight after chain draw2 of table ip podwire, where the node chooses a route",
            id="lost before its route",
        ),
        pytest.param(
            seen([sent(BEGAN, FOUND, DREW, FORWARDED)]),
            "lost from sight after chain forwarding of table ip podwire_trace, while it was forwarded",
            id="lost behind it",
        ),
        pytest.param(seen([]), "nothing came to the node by pwa", id="never came"),
        pytest.param(seen([], link=""), "nothing was sent by the node", id="never sent"),
        pytest.param(seen([], probe=None), "no packet was sent", id="could not be sent"),
        pytest.param(seen(None), "the kernel told more than could be taken", id="too much was told"),
    ],
)
def test_whether_it_is_what_explain_says(it: Seen, differs: str | None) -> None:
    view = tell(it)
    assert view.agrees is (differs is None)
    assert (differs is None and view.differences == ()) or differs in view.differences[0]
    assert any(
        ("otherwise than" if differs else "as `podwire explain` says") in line
        for line in lines(show_trace(view, rules=False))
    )


@pytest.mark.parametrize(
    ("back", "note"),
    [
        ((), "no answer came back to this node: whatever stopped it is beyond the last step"),
        ((sent(mark(LEAVING, ASKED), answer=True),), "an answer came back to this node, and did not reach the client"),
    ],
)
def test_silence_says_how_far_the_answer_came(back: tuple[Packet, ...], note: str) -> None:
    view = tell(seen([sent(BEGAN, FOUND, DREW, FORWARDED, LEFT), *back], ENTRY))
    assert note in view.notes
    assert f"note: {note}" in lines(show_trace(view, rules=False))


def test_how_often_it_was_sent() -> None:
    again = sent(BEGAN._replace(opens=True), FOREIGN)
    view = tell(seen([again, again, again]))
    assert view.repeats == 2
    assert "sent 3 times, as nothing came back" in lines(show_trace(view, rules=False))
