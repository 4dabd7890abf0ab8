"""The text of others' chains, by nft's own library, in a process of its own: it may take seconds, and waits for nobody.

Invariants: reads only. The process gets chains as JSON on standard input, a list of [family, table, chain], and prints
one line of JSON for each, "" for what can't be listed (gone, or with a name that nft's language has no form for). The
library (1.0.6) fetches all elements of the chain's table, whatever it then prints: never asked for our own table.
"""

import asyncio
import json
import os
import re
import sys
from collections.abc import Sequence

from podwire.dataplane.nftables import libnftables

PATIENCE = 5.0
"""Seconds."""
_LONGEST = 8 << 20
"""Bytes of a chain's text."""
_NAME = re.compile(r"[A-Za-z_.][A-Za-z0-9/_.\\-]*\Z")
Chain = tuple[str, str, str]
"""Family, table, chain, as nft writes them."""


async def texts(chains: Sequence[Chain]) -> dict[Chain, str]:
    """In this order, as far as they come in time; none where the library is missing. In the network namespace of the
    calling thread."""
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
        limit=_LONGEST,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    found: dict[Chain, str] = {}
    try:
        async with asyncio.timeout(PATIENCE):
            process.stdin.write(json.dumps(chains).encode())
            process.stdin.close()
            for chain in chains:
                found[chain] = json.loads(await process.stdout.readline())
    except (TimeoutError, ValueError):  # too slow, ended early, or a chain that is too long
        return found
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return found


def _main() -> None:
    os.nice(10)
    for chain in json.load(sys.stdin):
        print(json.dumps(_text(*chain)), flush=True)  # noqa: T201 - it is what this process is for


def _text(family: str, table: str, chain: str) -> str:
    if not all(map(_NAME.match, (family, table, chain))):
        return ""
    return libnftables.listed(f"list chain {family} {table} {chain}")


if __name__ == "__main__":
    _main()
