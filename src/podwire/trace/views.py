"""A trace as the admin API tells it, field by field. Pure."""

from msgspec import Struct

from podwire.explain.packets import PacketWhy


class StepView(Struct, frozen=True):
    """One rule that matched, or the end of a hook's chain. `table` has its family before it (`ip filter`); `words` is
    "" where it decided nothing that people would ask for; `rule` is its text in nft's language, "" for a chain's end
    and where it is gone; `packet` is what the packet looked like, "" where that was not told."""

    hook: str
    table: str
    chain: str
    verdict: str
    words: str
    packet: str
    rule: str = ""
    handle: int = 0


class WayView(Struct, frozen=True):
    """`fate`: left the node, delivered to the node itself, stopped by a rule, lost from sight, not seen."""

    fate: str
    told: str
    steps: tuple[StepView, ...]


class FlowView(Struct, frozen=True):
    """Connection tracking's entry. `server`: where the packet went, with what is there; `client`: whom that saw."""

    server: str
    where: str
    client: str
    translated: bool
    masqueraded: bool
    state: str


class TraceView(Struct, frozen=True):
    """`flow` None: connection tracking knows nothing of it. `stopped_by` is the rule of others that stopped the packet
    or its answer. `agrees`: what happened is what `predicted` says; else `differences` says where not."""

    node: str
    source: str
    packet: str
    service: str | None
    way: WayView
    answer_way: WayView | None
    flow: FlowView | None
    stopped_by: StepView | None
    outcome: str
    told: str
    milliseconds: float
    repeats: int
    predicted: PacketWhy
    agrees: bool
    differences: tuple[str, ...]
    notes: tuple[str, ...]
