"""How fast one namespace sends to another, told by what arrives after the burst of a bucket."""

import socket
import threading
import time
from contextlib import suppress

from tests.kernel.rig import Space, in_space


def measured(sender: Space, receiver: Space, to: str, seconds: float = 1.5) -> float:
    """Bits per second that arrive, by TCP, once half a second has gone."""
    family = socket.AF_INET6 if ":" in to else socket.AF_INET
    with in_space(receiver, family, socket.SOCK_STREAM) as listener:
        listener.bind((to, 0))
        listener.listen()
        ended = threading.Event()

        def send() -> None:
            with in_space(sender, family, socket.SOCK_STREAM) as client:
                client.connect(listener.getsockname()[:2])
                client.settimeout(0.2)
                with suppress(BrokenPipeError, ConnectionResetError):  # the other end has heard enough
                    while not ended.is_set():
                        with suppress(TimeoutError):
                            client.send(bytes(16384))

        thread = threading.Thread(target=send)
        thread.start()
        try:
            with listener.accept()[0] as connection:
                begun = time.monotonic() + 0.5
                count, first = 0, begun
                while (now := time.monotonic()) < begun + seconds:
                    size = len(connection.recv(1 << 20))
                    if now < begun:
                        first = now
                    else:
                        count += size
                return count * 8 / (now - first)
        finally:
            ended.set()
            thread.join()
