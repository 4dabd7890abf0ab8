"""How long a client waits for a load balancer's address when the node that answers for it by ARP dies:
`python -m tests.bench.failover`.

Two agents on a link with the client and the backend; the client sends a datagram every 10 ms. The node's agent is
killed and its cable pulled at once, as when a node loses its power: nobody says goodbye.
"""

import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.kernel.l2_agents import ADDRESS, Agents
from tests.kernel.lan import Lan, probing
from tests.kernel.rig import sh, spaces

INTERVAL = 0.01
_LONG = 60.0


def main() -> None:
    with spaces() as make, TemporaryDirectory() as directory:
        lan = Lan(make)
        agents = Agents(lan, Path(directory))
        try:
            with probing(lan.client, ADDRESS, INTERVAL) as prober:
                while {name for n in (1, 2) for name in agents.seen_by(n).nodes.values()} != {"alive"}:
                    time.sleep(0.1)
                prober.until("backend", _LONG)
                time.sleep(6)  # the announcements of the beginning are over
                owner, died = agents.owner(), time.monotonic()
                sh("ip", "-n", lan.bridge.name, "link", "set", f"p{owner}", "down")
                agents.running[owner].kill()
                prober.until("backend", _LONG, died + 0.1)
                time.sleep(2)  # it must also stay so
        finally:
            agents.end()
    print(json.dumps({"gap_s": prober.gap(died - 1)}))


if __name__ == "__main__":
    main()
