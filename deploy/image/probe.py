#!/opt/podwire/bin/python -IS
"""`probe readyz` and `probe healthz`: asks the agent of this container, for kubelet's probes.

Invariants: quick, since every node does it every few seconds: nothing is imported that Python has not loaded already.
"""

import posix
import sys
from _socket import AF_UNIX, SOCK_STREAM, socket

SECONDS = 5.0

try:
    connection = socket(AF_UNIX, SOCK_STREAM)
    connection.settimeout(SECONDS)
    connection.connect(posix.environ.get(b"PODWIRE_STATE_DIR", b"/var/lib/podwire") + b"/admin.sock")
    connection.sendall(f"GET /{sys.argv[1]} HTTP/1.0\r\n\r\n".encode())
    answer = b"".join(iter(lambda: connection.recv(65_536), b""))
except OSError as error:
    sys.exit(f"no agent answers: {error}")
if b" 200 " not in answer.partition(b"\r\n")[0]:
    sys.exit(answer.rpartition(b"\r\n\r\n")[2].decode())
