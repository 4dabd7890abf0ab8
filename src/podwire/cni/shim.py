#!/usr/bin/env -S python3 -IS
"""The CNI plugin: hands one call of the runtime to the node's agent, and answers alone where no agent does.

Invariants: nothing is parsed here that the agent can parse. Only what Python has loaded already, and _socket, is
imported: json or socket would double the time of every call. An answer counts only when a whole message came with the
end of its stream; anything else is "no agent". Then VERSION is answered, DEL is written durably into the spool, STATUS
succeeds where the agent was ready since the node's boot and is 50 where it was not, and all else is 11, "try again
later" (CNI spec 1.1.0, section 5). The file beside the plugin, <its path>.conf, says `socket=PATH`, `spool=PATH` and
`ready=PATH` (the mark that the agent leaves), and may set limits, such as `add_seconds=20`.
"""

import posix
from _socket import AF_UNIX, SOCK_STREAM, socket
from time import monotonic, time_ns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

VERSIONS = ("0.4.0", "1.0.0", "1.1.0")
COMMANDS = ("ADD", "CHECK", "DEL", "GC", "STATUS", "VERSION")
SECONDS = {"DEL": 3.0, "STATUS": 2.0, "VERSION": 1.0}
SECONDS_OF_OTHERS = 50.0
BOOT_ID, NAMESPACE = "/proc/sys/kernel/random/boot_id", "/proc/self/ns/net"

# HTTP/2 (RFC 9113): types of frames, flags, and what a client says first.
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM = ACK = 1
END_HEADERS, PADDED = 4, 8
FRAME, WINDOW, MOST = 16_384, 65_535, 2**31 - 1


def main() -> None:
    command = posix.environ.get(b"CNI_COMMAND", b"").decode(errors="replace")
    stdin = b"".join(iter(lambda: posix.read(0, 65_536), b""))
    variables = sorted(name + b"=" + value for name, value in posix.environ.items() if name.startswith(b"CNI_"))
    request = b"".join(field(1, variable) for variable in variables) + field(2, stdin)
    settings: dict[str, str] = {}
    try:
        settings = read_settings(__file__)
        seconds = float(settings.get(command.lower() + "_seconds") or SECONDS.get(command, SECONDS_OF_OTHERS))
        stdout, code = reply(call(settings["socket"], request, monotonic() + seconds))
    except Exception as error:  # whatever it is, the runtime gets an answer that it can read
        stdout, code = alone(command, stdin, request, settings, str(error) or repr(error))
    write(1, stdout)
    posix._exit(code)


def read_settings(path: str) -> dict[str, str]:
    """From beside the plugin as it was called, else from beside what that links to."""
    while True:
        try:
            lines = content(path + ".conf").decode().splitlines()
            break
        except FileNotFoundError as missing:
            try:
                target = posix.readlink(path)
            except OSError:
                raise missing from None
            path = target if target.startswith("/") else path[: path.rfind("/") + 1] + target
    settings = {
        name.strip(): value.strip() for name, equals, value in (line.partition("=") for line in lines) if equals
    }
    for name in ("socket", "spool"):
        if not settings.get(name, "").startswith("/"):
            raise ValueError(f"{path}.conf: expected a line {name}=/PATH")
    return settings


def content(path: str) -> bytes:
    file = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC)
    return b"".join(iter(lambda: posix.read(file, 65_536), b""))


def write(file: int, data: bytes) -> None:
    while data:
        data = data[posix.write(file, data) :]


# --- one gRPC call -----------------------------------------------------------------------------


def call(path: str, message: bytes, deadline: float) -> bytes:
    """The message that answers. Raises OSError or ValueError where none came whole before the deadline."""
    connection = socket(AF_UNIX, SOCK_STREAM)
    try:
        connection.settimeout(left(deadline))
        connection.connect(path)
        return converse(connection, message, deadline)
    finally:
        connection.close()


def converse(connection: socket, message: bytes, deadline: float) -> bytes:
    out, unsent, answer = OPENING, b"\0" + len(message).to_bytes(4, "big") + message, b""
    all_streams = stream = initial = WINDOW  # what the agent is ready to take (RFC 9113, 5.2)
    arriving = frames(connection, deadline)
    while True:
        while part := unsent[: max(0, min(all_streams, stream, FRAME))]:
            unsent = unsent[len(part) :]
            all_streams, stream = all_streams - len(part), stream - len(part)
            out += frame(DATA, 0 if unsent else END_STREAM, 1, part)
        if out:
            connection.settimeout(left(deadline))
            connection.sendall(out)
        out = b""
        kind, flags, number, payload = next(arriving)
        if kind == SETTINGS and not flags & ACK:
            out = frame(SETTINGS, ACK, 0, b"")
            for at in range(0, len(payload), 6):
                if payload[at : at + 2] == b"\0\4":  # SETTINGS_INITIAL_WINDOW_SIZE moves open windows too
                    before, initial = initial, int.from_bytes(payload[at + 2 : at + 6], "big")
                    stream += initial - before
        elif kind == PING and not flags & ACK:
            out = frame(PING, ACK, 0, payload)
        elif kind == WINDOW_UPDATE and number == 0:
            all_streams += int.from_bytes(payload, "big")
        elif kind == WINDOW_UPDATE:
            stream += int.from_bytes(payload, "big")
        elif kind == RST_STREAM or (kind == GOAWAY and int.from_bytes(payload[:4], "big") == 0):
            raise ValueError("the agent dropped the call")
        elif kind == DATA:
            answer += payload[1 : len(payload) - payload[0]] if flags & PADDED else payload
        if kind in (DATA, HEADERS) and flags & END_STREAM:
            break
    # A gRPC error comes without a message: no need to read its status out of packed headers.
    if len(answer) < 5 or answer[0] != 0 or int.from_bytes(answer[1:5], "big") != len(answer) - 5:
        raise ValueError("the agent refused the call")
    return answer[5:]


def frames(connection: socket, deadline: float) -> "Iterator[tuple[int, int, int, bytes]]":
    """Type, flags, stream and payload of each frame that arrives."""
    held = b""
    while True:
        while len(held) < 9 or len(held) < 9 + int.from_bytes(held[:3], "big"):
            connection.settimeout(left(deadline))
            more = connection.recv(65_536)
            if not more:
                raise ValueError("the agent closed the connection")
            held += more
        end = 9 + int.from_bytes(held[:3], "big")
        yield held[3], held[4], int.from_bytes(held[5:9], "big") & MOST, held[9:end]
        held = held[end:]


def left(deadline: float) -> float:
    seconds = deadline - monotonic()
    if seconds <= 0:
        raise TimeoutError("timed out")
    return seconds


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def header(name: bytes, value: bytes) -> bytes:
    """A literal field, not indexed (RFC 7541, 6.2.2)."""
    return b"\0" + bytes((len(name),)) + name + bytes((len(value),)) + value


OPENING = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    + frame(SETTINGS, 0, 0, b"\0\4" + MOST.to_bytes(4, "big"))  # an answer of any size needs no window from us
    + frame(WINDOW_UPDATE, 0, 0, (MOST - WINDOW).to_bytes(4, "big"))
    + frame(
        HEADERS,
        END_HEADERS,
        1,
        b"\x83\x86"  # :method POST, :scheme http (RFC 7541, appendix A)
        + header(b":path", b"/podwire.v1.Cni/Call")
        + header(b":authority", b"localhost")
        + header(b"content-type", b"application/grpc")
        + header(b"te", b"trailers"),
    )
)


# --- its messages (cni.proto) ------------------------------------------------------------------


def field(number: int, value: bytes) -> bytes:
    """A protobuf field of bytes."""
    size, out = len(value), bytes((number << 3 | 2,))
    while size > 127:
        size, out = size >> 7, out + bytes((size & 127 | 128,))
    return out + bytes((size,)) + value


def varint(message: bytes, at: int) -> tuple[int, int]:
    """A protobuf number, and where it ends."""
    number = shift = 0
    while message[at] > 127:
        number, shift, at = number | (message[at] & 127) << shift, shift + 7, at + 1
    return number | message[at] << shift, at + 1


def reply(message: bytes) -> tuple[bytes, int]:
    """CniReply: what to print, and the exit code."""
    stdout, code, at = b"", 0, 0
    while at < len(message):
        key, at = varint(message, at)
        number, at = varint(message, at)
        if key == 1 << 3 | 2:
            stdout = message[at : at + number]
        elif key == 2 << 3:
            code = number
        if key & 7 == 2:
            at += number
    return stdout, code


# --- without an agent --------------------------------------------------------------------------


def alone(command: str, stdin: bytes, request: bytes, settings: dict[str, str], reason: str) -> tuple[bytes, int]:
    """What to print, and the exit code."""
    version, spool = version_of(stdin), settings.get("spool")
    if command == "VERSION":
        listed = ",".join(map(quote, VERSIONS))
        return f'{{"cniVersion":{quote(version)},"supportedVersions":[{listed}]}}\n'.encode(), 0
    if command == "DEL" and spool is not None:
        try:
            leave(spool, request)
            return b"", 0
        except OSError as error:
            reason += f"; and the spool {spool} can't be written: {error}"
    if command == "STATUS" and was_ready(settings.get("ready", "")):
        return b"", 0
    code, text = 11, "podwire's agent on this node does not answer: try again later"
    if command == "STATUS":
        code, text = 50, "podwire's agent has not been ready since this node's boot: no pod can be attached"
    elif command not in COMMANDS:
        code, text = 4, f"CNI_COMMAND: expected one of {', '.join(COMMANDS)}; found {command!r}"
    start = f'{{"cniVersion":{quote(version)},"code":{code}'
    return f'{start},"msg":{quote(text)},"details":{quote(reason)}}}\n'.encode(), 1


def was_ready(mark: str) -> bool:
    """Whether the agent left its mark since this boot, in this network namespace (mark.py)."""
    try:
        return content(mark) == content(BOOT_ID) + posix.readlink(NAMESPACE).encode() + b"\n"
    except OSError:
        return False


def leave(spool: str, request: bytes) -> None:
    """Durably: the name appears with its whole content or not at all, and outlives a power loss."""
    try:  # noqa: SIM105 - contextlib would be one import too many
        posix.mkdir(spool, 0o700)
    except FileExistsError:
        pass
    path = f"{spool}/{time_ns():020d}-{posix.getpid()}"
    file = posix.open(path + ".tmp", posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_CLOEXEC, 0o600)
    try:
        write(file, request)
        posix.fsync(file)
        posix.rename(path + ".tmp", path + ".del")
    except OSError:
        posix.unlink(path + ".tmp")
        raise
    for directory in (spool, spool + "/.."):
        posix.fsync(posix.open(directory, posix.O_RDONLY | posix.O_DIRECTORY | posix.O_CLOEXEC))


def version_of(text: bytes) -> str:
    """The configuration's own "cniVersion" (prevResult has one too), else the lowest that every runtime reads."""
    depth, key, before, at = 0, b"", b"", 0
    while at < len(text):
        mark = text[at : at + 1]
        if mark == b'"':
            end = at + 1
            while end < len(text) and text[end : end + 1] != b'"':
                end += 2 if text[end : end + 1] == b"\\" else 1
            word, at = text[at + 1 : end], end
            if depth == 1 and before == b":" and key == b"cniVersion" and word.decode("latin-1") in VERSIONS:
                return word.decode("latin-1")
            key = key if before == b":" else word
        depth += (mark in b"{[") - (mark in b"}]")
        before = before if mark.isspace() else mark
        at += 1
    return VERSIONS[0]


def quote(text: str) -> str:
    """As a JSON string. "not found" is rewritten: go-cni takes a DEL's error with these words for success."""
    plain = "".join(letter if letter.isprintable() else "?" for letter in text).replace("not found", "missing")
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'


if __name__ == "__main__":
    main()
