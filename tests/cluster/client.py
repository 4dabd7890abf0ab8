"""What asks the test pods (agnhost netexec): run by this machine's Python in a network namespace, without this package.

    client.py ask    questions as JSON lines on stdin, one line of JSON for each on stdout, in order
    client.py go-on  flows as one line of JSON on stdin; asks them without a break until stdin ends

Invariants: standard library only. A question is {"protocol": "TCP", "address", "port", "expected": [names], "most"},
asked up to `most` times until all names have answered; its answer is {"names": [...], "errors": [...]}. The flows' last
line is {"asked": {label: count}, "lost": {label: [what, …]}}; before it, one comes each second.
"""

import json
import socket
import sys
import threading
import time

SECONDS = 10.0
"""Without an answer a datagram counts as lost: a server may have to wait for its turn on a busy machine."""
PAUSE = 0.02
_GET = b"GET /hostname HTTP/1.1\r\nHost: a\r\n\r\n"


def connect(protocol: str, address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    it = socket.socket(family, socket.SOCK_STREAM if protocol == "TCP" else socket.SOCK_DGRAM)
    it.settimeout(SECONDS)
    try:
        it.connect((address, port))
    except OSError:
        it.close()
        raise
    return it


def asked_on(it: socket.socket, protocol: str) -> str:
    """The name of the pod, or of the node for pods of the host's network."""
    if protocol == "UDP":
        it.send(b"hostname")
        return it.recv(1000).decode().strip()
    it.sendall(_GET)
    answer = b""
    while b"\r\n\r\n" not in answer:
        more = it.recv(4096)
        if not more:
            raise ConnectionError("closed without an answer")
        answer += more
    head, _, body = answer.partition(b"\r\n\r\n")
    length = next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
    while len(body) < length:
        body += it.recv(4096)
    return body.decode().strip()


def ask(question: "dict[str, object]") -> "dict[str, list[str]]":
    names: set[str] = set()
    errors: list[str] = []
    expected = set(question["expected"])  # type: ignore[call-overload]
    for _ in range(int(question["most"])):  # type: ignore[call-overload]
        try:
            with connect(question["protocol"], question["address"], question["port"]) as it:  # type: ignore[arg-type]
                names.add(asked_on(it, question["protocol"]))  # type: ignore[arg-type]
        except OSError as error:
            errors.append(type(error).__name__)
            break
        if expected <= names:
            break
    return {"names": sorted(names), "errors": errors}


class Flow(threading.Thread):
    """`kept`: all on one connection, else each question has its own."""

    def __init__(self, label: str, protocol: str, address: str, port: int, kept: bool) -> None:
        super().__init__(daemon=True)
        self.label, self.where, self.kept = label, (protocol, address, port), kept
        self.asked = 0
        self.lost: list[str] = []
        self.stopping = threading.Event()

    def run(self) -> None:
        held = connect(*self.where) if self.kept else None
        while not self.stopping.wait(PAUSE):
            try:
                if held is not None:
                    asked_on(held, self.where[0])
                else:
                    with connect(*self.where) as it:
                        asked_on(it, self.where[0])
                self.asked += 1
            except OSError as error:
                self.lost.append(f"{time.strftime('%H:%M:%S')} {type(error).__name__}: {error}")
                if held is not None:
                    held.close()
                    held = connect(*self.where)


def go_on() -> None:
    flows = [Flow(**flow) for flow in json.loads(sys.stdin.readline())]
    for flow in flows:
        flow.start()
    ended = threading.Event()

    def await_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=await_end, daemon=True).start()
    while not ended.wait(1.0):
        print(json.dumps({"asked": {flow.label: flow.asked for flow in flows}}), flush=True)
    for flow in flows:
        flow.stopping.set()
    for flow in flows:
        flow.join(2 * SECONDS)
    found = {"asked": {flow.label: flow.asked for flow in flows}, "lost": {flow.label: flow.lost for flow in flows}}
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    if sys.argv[-1] == "go-on":
        go_on()
    else:
        for line in sys.stdin:
            print(json.dumps(ask(json.loads(line))), flush=True)
