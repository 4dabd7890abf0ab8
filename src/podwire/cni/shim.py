#!/usr/bin/env -S python3 -IS
"""The CNI plugin: hands one call of the runtime to the node's agent, and answers alone where no agent does.

Invariants: native/ is the same program in C: the same bytes and exit codes, and the tests run both. Nothing is parsed
here that the agent can parse. Only what Python has loaded already, and _socket, is imported: json would double the time
of every call. Names and texts are bytes, as the kernel has them. An answer counts only when a whole message
came with the end of its stream; anything else is "no agent". Then VERSION is answered, DEL is written durably into the
spool, STATUS succeeds where the agent was ready since the node's boot and is 50 where it was not, and all else is 11,
"try again later" (CNI spec 1.1.0, section 5). The file beside the plugin, <its path>.conf, says `socket=PATH`,
`spool=PATH` and `ready=PATH` (the mark that the agent leaves), and may set limits, such as `add_seconds=20`.
"""

import posix
from _socket import AF_UNIX, SOCK_STREAM, socket
from time import monotonic, time_ns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

VERSIONS = (b"0.4.0", b"1.0.0", b"1.1.0")
COMMANDS = (b"ADD", b"CHECK", b"DEL", b"GC", b"STATUS", b"VERSION")
MISLEADING = ((b"not found", b"missing"), (b"no such file or directory", b"missing file or directory"))
"""In a DEL's error go-cni takes these for success, whatever else it says; the second where CNI_NETNS is empty."""
SECONDS = {b"DEL": 3.0, b"STATUS": 2.0, b"VERSION": 1.0}
SECONDS_OF_OTHERS, LONGEST = 50.0, 86_400.0
LARGEST = 16 << 20
"""Bytes of standard input, of an answer and of the file of settings. An agent takes as much (cni/request.py)."""
BOOT_ID, NAMESPACE = "/proc/sys/kernel/random/boot_id", "/proc/self/ns/net"

# HTTP/2 (RFC 9113): types of frames, flags, and what a client says first.
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM = ACK = 1
END_HEADERS, PADDED = 4, 8
FRAME, WINDOW, MOST = 16_384, 65_535, 2**31 - 1


def main() -> None:
    stdout, code = answer(posix.environ.get(b"CNI_COMMAND", b""))
    try:
        write(1, stdout)
    except OSError:
        code = 1
    posix._exit(min(code, 255))


def answer(command: bytes) -> tuple[bytes, int]:
    """What to print, and the exit code."""
    try:
        stdin = whole(0)
    except (OSError, ValueError) as error:  # half of it says nothing: no DEL is made of it
        return failure(VERSIONS[0], 5, b"standard input can't be read", words(error))
    variables = sorted(name + b"=" + value for name, value in posix.environ.items() if name.startswith(b"CNI_"))
    request = b"".join(field(1, variable) for variable in variables) + field(2, stdin)
    settings: dict[bytes, bytes] = {}
    try:
        settings = read_settings(__file__.encode(errors="surrogateescape"))
        seconds = limit(command, settings)
        return reply(call(settings[b"socket"], request, monotonic() + seconds))
    except Exception as error:  # whatever it is, the runtime gets an answer that it can read
        return alone(command, stdin, request, settings, words(error))


def words(error: Exception) -> bytes:
    """The system's own words for an error of the system."""
    return str(getattr(error, "strerror", None) or error).encode(errors="surrogateescape")


def read_settings(path: bytes) -> dict[bytes, bytes]:
    """From beside the plugin as it was called, else from beside what that links to. Raises ValueError."""
    while True:
        try:
            text = content(path + b".conf")
            break
        except (OSError, ValueError) as error:
            unread = ValueError((path + b".conf: " + words(error)).decode(errors="surrogateescape"))
            if not isinstance(error, FileNotFoundError):
                raise unread from None
            try:
                target = posix.readlink(path)
            except OSError:
                raise unread from None
            path = target if target.startswith(b"/") else path[: path.rfind(b"/") + 1] + target
    lines = [line.partition(b"=") for line in text.split(b"\n")]
    settings = {name.strip(): value.strip() for name, equals, value in lines if equals and b"\0" not in value}
    for name in (b"socket", b"spool"):
        if not settings.get(name, b"").startswith(b"/"):
            expected = path + b".conf: expected a line " + name + b"=/PATH"
            raise ValueError(expected.decode(errors="surrogateescape"))
    return settings


def limit(command: bytes, settings: dict[bytes, bytes]) -> float:
    """Seconds for the call of an agent. Raises ValueError."""
    name = command.lower() + b"_seconds"
    told = settings.get(name)
    if not told:
        return SECONDS.get(command, SECONDS_OF_OTHERS)
    if not told.replace(b".", b"", 1).isdigit():
        raise ValueError(f"{name.decode(errors='surrogateescape')}: expected a number of seconds")
    return min(float(told), LONGEST)


def content(path: str | bytes) -> bytes:
    return whole(posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC))


def whole(file: int) -> bytes:
    """Raises OSError, and ValueError where there is more than LARGEST."""
    parts, size = [], 0
    while part := posix.read(file, 65_536):
        parts.append(part)
        size += len(part)
        if size > LARGEST:
            raise ValueError(f"expected at most {LARGEST >> 20} MiB")
    return b"".join(parts)


def write(file: int, data: bytes) -> None:
    unwritten = memoryview(data)
    while unwritten:
        unwritten = unwritten[posix.write(file, unwritten) :]


# --- one gRPC call -----------------------------------------------------------------------------


def call(path: bytes, message: bytes, deadline: float) -> bytes:
    """The message that answers. Raises OSError or ValueError where none came whole before the deadline."""
    connection = socket(AF_UNIX, SOCK_STREAM)
    try:
        connection.settimeout(left(deadline))
        connection.connect(path)
        return converse(connection, message, deadline)
    finally:
        connection.close()


def converse(connection: socket, message: bytes, deadline: float) -> bytes:
    out, body, sent = OPENING, b"\0" + len(message).to_bytes(4, "big") + message, 0
    parts: list[bytes] = []
    size = 0
    all_streams = stream = initial = WINDOW  # what the agent is ready to take (RFC 9113, 5.2)
    arriving = frames(connection, deadline)
    while True:
        while part := body[sent : sent + max(0, min(all_streams, stream, FRAME))]:
            sent += len(part)
            all_streams, stream = all_streams - len(part), stream - len(part)
            out += frame(DATA, END_STREAM if sent == len(body) else 0, 1, part)
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
            all_streams += int.from_bytes(payload, "big") & MOST
        elif kind == WINDOW_UPDATE and number == 1:
            stream += int.from_bytes(payload, "big") & MOST
        elif (kind == RST_STREAM and number == 1) or (
            kind == GOAWAY and int.from_bytes(payload[:4], "big") & MOST == 0
        ):
            raise ValueError("the agent dropped the call")
        elif kind == DATA and number == 1:
            parts.append(unpadded(payload) if flags & PADDED else payload)
            size += len(parts[-1])
            if size > LARGEST:
                raise ValueError(f"the agent's answer has more than {LARGEST >> 20} MiB")
        if kind in (DATA, HEADERS) and number == 1 and flags & END_STREAM:
            return message_of(b"".join(parts))


def message_of(answer: bytes) -> bytes:
    """A gRPC error comes without a message: no need to read its status out of packed headers."""
    if len(answer) < 5 or answer[0] != 0 or int.from_bytes(answer[1:5], "big") != len(answer) - 5:
        raise ValueError("the agent refused the call")
    return answer[5:]


def frames(connection: socket, deadline: float) -> "Iterator[tuple[int, int, int, bytes]]":
    """Type, flags, stream and payload of each frame that arrives. Raises OSError, ValueError."""
    held = b""
    while True:
        while len(held) < 9:
            held += more(connection, deadline)
        size, kind = int.from_bytes(held[:3], "big"), held[3]
        if not fits(kind, size):
            raise ValueError("the agent does not speak HTTP/2")
        while len(held) < 9 + size:
            held += more(connection, deadline)
        yield kind, held[4], int.from_bytes(held[5:9], "big") & MOST, held[9 : 9 + size]
        held = held[9 + size :]


def fits(kind: int, size: int) -> bool:
    """Whether a frame of this type may have this size (RFC 9113, 4.2 and 6)."""
    if kind == SETTINGS:
        return size <= FRAME and size % 6 == 0
    if kind == GOAWAY:
        return 8 <= size <= FRAME
    return size == {PING: 8, RST_STREAM: 4, WINDOW_UPDATE: 4}.get(kind, size) and size <= FRAME


def more(connection: socket, deadline: float) -> bytes:
    connection.settimeout(left(deadline))
    part = connection.recv(65_536)
    if not part:
        raise ValueError("the agent closed the connection")
    return part


def unpadded(payload: bytes) -> bytes:
    """Of a frame that begins with the length of its padding (RFC 9113, 6.1)."""
    if not payload or payload[0] >= len(payload):
        raise ValueError("the agent does not speak HTTP/2")
    return payload[1 : len(payload) - payload[0]]


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
    """A protobuf number, and where it ends. Raises ValueError."""
    number = 0
    for shift in range(0, 70, 7):
        if at == len(message):
            break
        number, at = number | (message[at] & 127) << shift, at + 1
        if message[at - 1] < 128:
            return number & 2**64 - 1, at
    raise ValueError("the agent's answer can't be read")


def reply(message: bytes) -> tuple[bytes, int]:
    """CniReply: what to print, and the exit code. Raises ValueError."""
    stdout, code, at = b"", 0, 0
    while at < len(message):
        key, at = varint(message, at)
        number, at = varint(message, at)
        if key & 7 not in (0, 2) or (key & 7 == 2 and number > len(message) - at):
            raise ValueError("the agent's answer can't be read")
        if key == 1 << 3 | 2:
            stdout = message[at : at + number]
        elif key == 2 << 3:
            code = number
        if key & 7 == 2:
            at += number
    return stdout, code


# --- without an agent --------------------------------------------------------------------------


def alone(
    command: bytes, stdin: bytes, request: bytes, settings: dict[bytes, bytes], reason: bytes
) -> tuple[bytes, int]:
    """What to print, and the exit code."""
    version, spool = version_of(stdin), settings.get(b"spool")
    if command == b"VERSION":
        listed = b",".join(map(quote, VERSIONS))
        return b'{"cniVersion":' + quote(version) + b',"supportedVersions":[' + listed + b"]}\n", 0
    if command == b"DEL" and spool is not None:
        try:
            leave(spool, request)
            return b"", 0
        except OSError as error:
            reason += b"; and the spool " + spool + b" can't be written: " + words(error)
    if command == b"STATUS" and was_ready(settings.get(b"ready", b"")):
        return b"", 0
    if command == b"STATUS":
        text = b"podwire's agent has not been ready since this node's boot: no pod can be attached"
        return failure(version, 50, text, reason)
    if command not in COMMANDS:
        text = b"CNI_COMMAND: expected one of " + b", ".join(COMMANDS) + b'; found "' + command + b'"'
        return failure(version, 4, text, reason)
    return failure(version, 11, b"podwire's agent on this node does not answer: try again later", reason)


def failure(version: bytes, code: int, text: bytes, details: bytes) -> tuple[bytes, int]:
    start = b'{"cniVersion":' + quote(version) + b',"code":' + str(code).encode()
    return start + b',"msg":' + quote(text) + b',"details":' + quote(details) + b"}\n", 1


def was_ready(mark: bytes) -> bool:
    """Whether the agent left its mark since this boot, in this network namespace (mark.py)."""
    try:
        boot, here, teller = content(mark).partition(posix.readlink(NAMESPACE).encode() + b"\n")
        return here != b"" and boot == content(teller[:-1] or BOOT_ID)
    except (OSError, ValueError):
        return False


def leave(spool: bytes, request: bytes) -> None:
    """Durably: the name appears with its whole content or not at all, and outlives a power loss. Raises OSError."""
    try:  # noqa: SIM105 - contextlib would be one import too many
        posix.mkdir(spool, 0o700)
    except FileExistsError:
        pass
    path = spool + f"/{time_ns():020d}-{posix.getpid()}".encode()
    file = posix.open(path + b".tmp", posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_CLOEXEC, 0o600)
    try:
        write(file, request)
        posix.fsync(file)
        posix.rename(path + b".tmp", path + b".del")
    except OSError as error:
        try:  # noqa: SIM105
            posix.unlink(path + b".tmp")
        except OSError:
            pass
        raise error from None
    for directory in (spool, spool + b"/.."):
        posix.fsync(posix.open(directory, posix.O_RDONLY | posix.O_DIRECTORY | posix.O_CLOEXEC))


def version_of(text: bytes) -> bytes:
    """The configuration's own "cniVersion" (prevResult has one too), else the lowest that every runtime reads."""
    depth, key, before, at = 0, b"", b"", 0
    while at < len(text):
        mark = text[at : at + 1]
        if mark == b'"':
            end = at + 1
            while end < len(text) and text[end : end + 1] != b'"':
                end += 2 if text[end : end + 1] == b"\\" else 1
            word, at = text[at + 1 : end], end
            if depth == 1 and before == b":" and key == b"cniVersion" and word in VERSIONS:
                return word
            key = key if before == b":" else word
        depth += (mark in b"{[") - (mark in b"}]")
        before = before if mark.isspace() else mark
        at += 1
    return VERSIONS[0]


def quote(text: bytes) -> bytes:
    """As a JSON string of ASCII, without the words that a runtime takes for success."""
    plain = bytes(byte if 32 <= byte < 127 else 63 for byte in text)
    for words_of_success, others in MISLEADING:
        while (at := plain.lower().find(words_of_success)) >= 0:
            plain = plain[:at] + others + plain[at + len(words_of_success) :]
    return b'"' + plain.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'


if __name__ == "__main__":
    main()
