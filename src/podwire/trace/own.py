"""Our own rules by their handles: what the layout says, without asking nft. Pure.

Invariants: a chain whose rules are not as many as they should be, with packets counted or without, was altered by hand,
and tells nothing.
"""

from collections.abc import Iterable

from podwire.dataplane.messages import attrs, text
from podwire.dataplane.nftables.affinity import seconds_of
from podwire.dataplane.nftables.layout import LOOKS, PROTOCOLS, hook_of, keyword, rules_of
from podwire.dataplane.nftables.wire import table
from podwire.model.addresses import Family
from podwire.trace.texts import NOTHING, Listing

_HANDLE = 3


def request(family: Family, chain: str) -> bytes:
    """The body of the GETRULE dump of a chain of our table."""
    return table(family) + text(2, chain)


def handles(bodies: Iterable[bytes]) -> list[int]:
    """Of a chain's rules, in their order."""
    return [int.from_bytes(attrs(body, 4).get(_HANDLE, b""), "big") for body in bodies]


def listing(family: Family, chain: str, held: list[int]) -> Listing:
    forms = [rules_of(family, traffic).get(chain) or _remembering(family, chain) for traffic in (False, True)]
    rules = next((it for it in forms if len(it) == len(held)), None)
    return NOTHING if rules is None else Listing(dict(zip(held, rules, strict=True)), hook_of(chain))


def _remembering(family: Family, chain: str) -> list[str]:
    """As nft lists what affinity.py makes."""
    seconds, ip = seconds_of(chain), keyword(family)
    if chain.startswith("learn"):
        first = f"ct original {ip} daddr . meta l4proto . ct original proto-dst"
        return [f"update @affinity{seconds} {{ {ip} saddr . {first} : {ip} daddr . th dport }}"]
    if chain.startswith("affine"):
        which = "_internal" if chain.startswith("affinein") else ""
        frontend = f"{ip} daddr . meta l4proto"
        serves = f". ct reply {ip} saddr . ct reply proto-src @serving{which}"
        known = [
            f"{frontend} . {p} dport {serves} dnat {ip} to {ip} saddr . {frontend} . {p} dport map @affinity{seconds}"
            for p in PROTOCOLS
        ]
        forget = f"delete @affinity{seconds} {{ {ip} saddr . {frontend} . th dport : {ip} daddr . th dport }}"
        return [*known, forget, *[f"{frontend} . th dport vmap @drawn{which}"] * LOOKS, "goto refuse"]
    return []
