"""Communities of BGP routes, as people write them and as FRR does.

Invariants: pure; a community has one spelling: its name where it has one, else its numbers without leading zeros.
"""

import re
from sys import intern

from podwire.sources.fields import Invalid, shown

LARGEST_ASN = (1 << 32) - 1
WELL_KNOWN = {
    "65535:0": "graceful-shutdown",  # RFC 8326
    "65535:1": "accept-own",  # RFC 7611
    "65535:6": "llgr-stale",  # RFC 9494
    "65535:7": "no-llgr",
    "65535:666": "blackhole",  # RFC 7999
    "65535:65281": "no-export",  # RFC 1997
    "65535:65282": "no-advertise",
    "65535:65283": "local-AS",
    "65535:65284": "no-peer",  # RFC 3765
}
"""Communities with names (IANA, BGP Well-known Communities), as FRR spells them."""
_NAMES = {name.lower(): name for name in WELL_KNOWN.values()}
_COMMUNITY = re.compile(r"[0-9]{1,10}(:[0-9]{1,10}){1,2}")


def read_community(text: str) -> str:
    """`64512:100` (RFC 1997), `64512:1:2` (a large one, RFC 8092), or a well-known one's name. Raises Invalid."""
    if (name := _NAMES.get(text.lower())) is not None:
        return intern(name)
    numbers = [int(it) for it in text.split(":")] if _COMMUNITY.fullmatch(text) else []
    if not numbers or max(numbers) > (65535 if len(numbers) == 2 else LARGEST_ASN):
        forms = "64512:100 with numbers to 65535, 64512:1:2 with numbers to 4294967295"
        raise Invalid("", f"expected {forms}, or one of {', '.join(WELL_KNOWN.values())}; not {shown(text)}")
    plain = ":".join(map(str, numbers))
    return intern(WELL_KNOWN.get(plain, plain))
