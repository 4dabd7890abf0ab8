"""An agent that notes, for each change, how long it took from a watch's read to the kernel's commit.

    python -m tests.bench.watched_agent OUT CONFIG

It is `podwire agent` itself, with a clock at both ends; when it is ended it writes the milliseconds into OUT.
"""

import json
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp

from podwire import agent, config
from podwire.dataplane.messages import Message
from podwire.dataplane.nftables.driver import NFTables
from podwire.sources import kube_api


def main(out: Path, configuration: Path) -> None:
    read, times = [0.0], []
    whole_lines, commit = kube_api.whole_lines, NFTables.commit

    async def timed_lines(content: aiohttp.StreamReader) -> AsyncIterator[list[bytes]]:
        async for lines in whole_lines(content):
            read[0] = time.perf_counter()
            yield lines

    def timed_commit(driver: NFTables, messages: list[Message]) -> dict[int, int]:
        errors = commit(driver, messages)
        if read[0]:
            times.append((time.perf_counter() - read[0]) * 1e3)
            read[0] = 0.0  # a later commit is not that event's
        return errors

    kube_api.whole_lines = timed_lines
    NFTables.commit = timed_commit  # type: ignore[method-assign]
    try:
        agent.run(config.read_config(configuration))
    finally:
        out.write_text(json.dumps(times))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
