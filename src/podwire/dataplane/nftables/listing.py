"""The text of chains, by nft's own library, in a process of its own: it may take seconds, and waits for nobody.

Invariants: reads only. The process gets chains as JSON on standard input, a list of [family, table, chain], and prints
a JSON list of their texts, "" for what can't be listed (gone, or with a name that nft's language has no form for).
"""

import asyncio
import json
import re
import sys
from collections.abc import Sequence

from podwire.dataplane.nftables import libnftables

PATIENCE = 5.0
"""Seconds."""
_NAME = re.compile(r"[A-Za-z_.][A-Za-z0-9/_.\\-]*\Z")
Chain = tuple[str, str, str]
"""Family, table, chain, as nft writes them."""


async def texts(chains: Sequence[Chain]) -> dict[Chain, str]:
    """Empty where it takes too long or the library is missing. In the calling thread's network namespace."""
    if not chains:
        return {}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-m",
        __name__,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(PATIENCE):
            told, _ = await process.communicate(json.dumps(chains).encode())
    except TimeoutError:
        return {}
    finally:
        if process.returncode is None:
            process.kill()
    return dict(zip(chains, json.loads(told), strict=True)) if process.returncode == 0 else {}


def _main() -> None:
    sys.stdout.write(json.dumps([_text(*chain) for chain in json.load(sys.stdin)]))


def _text(family: str, table: str, chain: str) -> str:
    if not all(map(_NAME.match, (family, table, chain))):
        return ""
    return libnftables.listed(f"list chain {family} {table} {chain}")


if __name__ == "__main__":
    _main()
