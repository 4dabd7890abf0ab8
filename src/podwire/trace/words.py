"""A traced packet told hop by hop. Pure.

Invariants: words are those of the glossary; what is at an address is said by explain's places, so that both commands
name the same thing alike. Every event is told of in the view, in words where it decided something.
"""

from collections.abc import Mapping
from typing import NamedTuple

from podwire.explain.packets import PacketWhy
from podwire.explain.places import Places, node_of, where
from podwire.explain.services import pods_of
from podwire.model.addresses import Address, show_address, show_host_port
from podwire.model.objects import PodKey, ServiceKey
from podwire.model.text import printable
from podwire.nodes.own import is_own
from podwire.trace import agreement, rules, texts
from podwire.trace.answer import Answer, Outcome, in_words
from podwire.trace.events import Header, Kind, Packet, TraceEvent
from podwire.trace.flow import Entry
from podwire.trace.steps import Fate, Step, Way, first, repeats
from podwire.trace.table import ANSWERS, ARRIVING, BEGIN, FORWARDING, LEAVING, OWN_ANSWERS, Probe, hook_of
from podwire.trace.views import FlowView, StepView, TraceView, WayView


class Seen(NamedTuple):
    """What a trace found. `probe` None: the packet could not even be addressed. `packets` None: the kernel told more
    than could be taken. `link`: by which a pod's packet comes, "" for the node's own; `interfaces`: names by index."""

    probe: Probe | None
    packets: list[Packet] | None
    entry: Entry | None
    answer: Answer
    link: str
    interfaces: Mapping[int, str]
    listings: Mapping[tuple[str, str, str], texts.Listing]


class _Teller(NamedTuple):
    seen: Seen
    known: Places
    why: PacketWhy
    pods: Mapping[Address, PodKey]


def told(seen: Seen, known: Places, why: PacketWhy, source: str) -> TraceView:
    """`known`: the snapshot by which `why` was said. `source`: who sends, in words."""
    of = ServiceKey(*why.service.split("/", 1)) if why.service is not None else None
    teller = _Teller(seen, known, why, pods_of(known.now, of) if of is not None and of in known.now.services else {})
    packets = seen.packets or []
    there, back = first(packets, answer=False), first(packets, answer=True)
    view, answer_view = _way(teller, there), _way(teller, back) if back.steps else None
    alien = next((v.steps[-1] for v, w in ((view, there), (answer_view, back)) if v is not None and _alien(w)), None)
    stopped_back = answer_view.told if answer_view is not None and _alien(back) else ""
    differences = tuple(agreement.differences(why, _happened(teller, there, view, stopped_back)))
    return TraceView(
        node=known.now.local.name,
        source=source,
        packet=_packet(seen, why),
        service=why.service,
        way=view,
        answer_way=answer_view,
        flow=_flow(teller) if seen.probe is not None and seen.entry is not None else None,
        stopped_by=alien,
        outcome=seen.answer.outcome.value,
        told=in_words(seen.answer, seen.probe.to.protocol if seen.probe is not None else None),
        milliseconds=seen.answer.milliseconds,
        repeats=repeats(packets),
        predicted=why,
        agrees=not differences,
        differences=differences,
        notes=tuple(_notes(teller, there, back)),
    )


def _alien(way: Way) -> bool:
    return way.fate is Fate.STOPPED and way.last is not None and not way.last.event.ours


def _happened(teller: _Teller, there: Way, view: WayView, stopped_back: str) -> agreement.Happened:
    seen, last = teller.seen, there.last
    stop: rules.Stop | None = None
    if last is not None and there.fate is Fate.STOPPED and last.event.ours:
        stop = rules.stop(last, _rule(teller, last.event))[0]
    server, client = _ends(seen, there)
    return agreement.Happened(
        fate=there.fate,
        told=view.told,
        stop=stop,
        foreign=_alien(there),
        server=show_host_port(*server) if server is not None else None,
        client=show_address(client) if client is not None else None,
        tracked=seen.entry is not None,
        back=stopped_back,
    )


def _ends(seen: Seen, there: Way) -> tuple[tuple[Address, int] | None, Address | None]:
    """Where it went and whom that sees as its client, by connection tracking; before that by the packet itself."""
    if seen.entry is not None:
        return (seen.entry.server.address, seen.entry.server.port), seen.entry.client.address
    header = there.header
    return ((header.destination, header.port), None) if header is not None else (None, None)


def _packet(seen: Seen, why: PacketWhy) -> str:
    if seen.probe is None:
        return f"to {why.destination}"
    return f"{show_host_port(seen.probe.source, seen.probe.port)} → {why.destination}"


# --- the way -----------------------------------------------------------------------------------


def _way(teller: _Teller, way: Way) -> WayView:
    steps: list[StepView] = []
    for step in way.steps:
        steps.append(_step(teller, step, steps[-1].hook if steps else ""))
    return WayView(way.fate.value, _fate(teller, way), tuple(steps))


def _fate(teller: _Teller, way: Way) -> str:
    link = teller.seen.link
    if teller.seen.packets is None:
        return "the kernel told more than could be taken: the way is not known"
    match way.fate:
        case Fate.UNSEEN if teller.seen.probe is None:
            return "no packet was sent"
        case Fate.UNSEEN if link:
            return f"nothing came to the node by {link}: look at routes and packet filters in the pod's own namespace"
        case Fate.UNSEEN:
            return "nothing was sent by the node: look at its routes"
        case Fate.LOST if way.last is not None:
            routed = "while it was forwarded" if way.routed_on else "where the node chooses a route for it"
            return (
                f"lost from sight after chain {way.last.event.chain} of table {_table(way.last.event)}, {routed}: no "
                "route, the check of its source (rp_filter), or a filter that is not nftables (iptables-legacy, eBPF)"
            )
        case Fate.STOPPED if way.last is not None:
            return _words(teller, way.last)
    ended: str = way.fate.value
    return ended


def _step(teller: _Teller, step: Step, before: str) -> StepView:
    """`before`: the hook of the step before, whose chain may have led here."""
    event = step.event
    listing = teller.seen.listings.get((event.family, event.table, event.chain), texts.NOTHING)
    return StepView(
        hook=hook_of(event.chain, teller.seen.link) if event.marks else listing.hook or before,
        table=_table(event),
        chain=printable(event.chain),
        verdict=f"{event.verdict} {printable(event.target)}".strip(),
        words=_words(teller, step),
        packet=str(step.before) if step.before is not None else "",
        rule=printable(_rule(teller, event)),
        handle=event.handle,
    )


def _words(teller: _Teller, step: Step) -> str:
    event = step.event
    if event.marks:
        return _mark(teller, step)
    rule = _rule(teller, event)
    if event.ours and event.kind is not Kind.POLICY:
        at = where_to(teller, step.after.destination) if step.after is not None else ""
        return rules.meaning(step, rule, teller.why.service or "", at)
    place = f"table {_table(event)}, chain {printable(event.chain)}"
    if event.stops and event.kind is Kind.POLICY:
        return f"dropped by the policy of {place}"
    if event.stops:
        how = ("rejected" if texts.rejects(rule) else "dropped") if rule else "dropped or rejected"
        return f"{how} by {place}: {printable(rule) or f'rule {event.handle}, which is gone by now'}"
    changed = _changed(step)
    return f"{changed} by {place}: {printable(rule)}" if changed and event.kind is not Kind.POLICY else ""


def _changed(step: Step) -> str:
    """What a foreign rule that ended its chain made of the packet, as far as the next hook shows."""
    one, other = step.before, step.after
    if step.event.verdict != "accept" or one is None or other is None:
        return ""
    if (one.destination, one.port) != (other.destination, other.port):
        return f"sent to {show_host_port(other.destination, other.port)} instead"
    if (one.source, one.source_port) != (other.source, other.source_port):
        return f"given the source {show_host_port(other.source, other.source_port)}"
    return ""


def _mark(teller: _Teller, step: Step) -> str:
    event, header = step.event, step.before
    if event.kind is Kind.RULE:
        came = _interface(teller, event.came)
        match event.chain:
            case c if c == BEGIN:
                return f"comes from the pod by {came}" if event.came else "is sent by the node itself"
            case c if c == ANSWERS:
                return f"the answer comes in by {came}"
            case c if c == OWN_ANSWERS:
                return "the node itself answers"
    if event.kind is Kind.POLICY and header is not None:
        match event.chain:
            case c if c == FORWARDING:
                return f"forwarded, to go out by {_interface(teller, event.goes)}"
            case c if c == ARRIVING:
                return f"given to the node itself, at port {header.port}"
            case c if c == LEAVING:
                return _leaves(teller, event, header)
    return ""


def _leaves(teller: _Teller, event: TraceEvent, header: Header) -> str:
    by, to = _interface(teller, event.goes), header.destination
    now = teller.known.now
    if to in now.ledger:
        it = now.attachments[now.ledger[to]].pod
        return f"leaves by {by} to pod {it.namespace}/{it.name} on this node"
    if is_own(now, to):
        return f"leaves by {by} to this node itself"
    node = node_of(teller.known, to)
    if node is not None:
        gateway = next((way.address for block, (_, way) in teller.known.routed.items() if to in block), to)
        at = "" if to == gateway else f", for {where_to(teller, to).partition(' of node ')[0]}"
        at = f"node {node.name} ({show_address(gateway)}){at}"
        return f"leaves by {by} to {at}: what happens there is not seen here, ask there"
    return f"leaves by {by} to {show_address(to)}, {where_to(teller, to)}: its way from there is not seen here"


def where_to(teller: _Teller, address: Address) -> str:
    return where(teller.known, address, teller.pods.get(address))


def _rule(teller: _Teller, event: TraceEvent) -> str:
    listing = teller.seen.listings.get((event.family, event.table, event.chain), texts.NOTHING)
    return listing.rules.get(event.handle, "")


def _table(event: TraceEvent) -> str:
    return f"{event.family} {printable(event.table)}"


def _interface(teller: _Teller, index: int) -> str:
    return teller.seen.interfaces.get(index, f"interface {index}")


# --- what it came to ---------------------------------------------------------------------------


def _flow(teller: _Teller) -> FlowView:
    entry, probe = teller.seen.entry, teller.seen.probe
    assert entry is not None
    assert probe is not None
    translated = (entry.server.address, entry.server.port) != (probe.to.address, probe.to.port)
    state = entry.state or ("answered" if entry.answered else "unanswered")
    return FlowView(
        server=str(entry.server),
        where=where_to(teller, entry.server.address),
        client=str(entry.client),
        translated=translated,
        masqueraded=entry.client.address != probe.source,
        state=state,
    )


def _notes(teller: _Teller, there: Way, back: Way) -> list[str]:
    seen = teller.seen
    found = list(teller.why.notes)
    if seen.probe is not None and seen.answer.outcome is Outcome.SILENCE and there.fate in (Fate.LEFT, Fate.DELIVERED):
        if not back.steps:
            found.append("no answer came back to this node: whatever stopped it is beyond the last step")
        elif back.fate is not Fate.STOPPED:
            found.append("an answer came back to this node, and did not reach the client")
    if seen.entry is not None and not seen.packets:
        found.append("connection tracking knows the flow, but no rule told of it")
    return found
