"""Both CNI plugins as a runtime executes them, and the agents, real or broken, that they meet.

Invariants: what a test asks of one is asked of both. The native one is built from the source as it is now, once for
each state of it, and left out where the machine has no compiler.
"""

import asyncio
import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from grpc import aio

from podwire.cni import shim
from podwire.cni.cni_pb2 import CniReply, CniRequest
from podwire.sources.cni_spool import spooled

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "scripts" / "shim"
CONFIG = b'{"cniVersion":"1.0.0","name":"podwire","type":"podwire","prevResult":{"cniVersion":"0.4.0"}}'
ENVIRONMENT = {"CNI_CONTAINERID": "c1", "CNI_IFNAME": "eth0", "CNI_NETNS": "/run/netns/x", "CNI_PATH": "/opt/cni/bin"}
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
PYTHON, NATIVE = "python", "native"
KINDS = (PYTHON, NATIVE)
SANITIZED = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")

Handler = Callable[[bytes, Any], Awaitable[bytes]]


def native(*flags: str) -> Path:
    """The native plugin, built with these flags more. Skips the test where there is no compiler."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is missing (apt-get install gcc libc6-dev)")
    return _built(flags)


@functools.cache
def _built(flags: tuple[str, ...]) -> Path:
    sources = sorted((ROOT / "src/podwire/cni/native").glob("*.[ch]"))
    content = b"\0".join([" ".join(flags).encode(), *(file.read_bytes() for file in (BUILD, *sources))])
    built = ROOT / "build" / "shims" / hashlib.sha256(content).hexdigest()[:16]
    if not built.exists():
        built.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([BUILD, "--out", built, *flags], check=True)
    return built


class Answer(NamedTuple):
    code: int
    stdout: bytes
    stderr: bytes

    @property
    def said(self) -> Any:
        return json.loads(self.stdout)


class Installed(NamedTuple):
    """A plugin with its file of settings in a directory of its own."""

    directory: Path

    @property
    def plugin(self) -> Path:
        return self.directory / "podwire"

    @property
    def socket(self) -> Path:
        return self.directory / "cni.sock"

    @property
    def spool(self) -> Path:
        return self.directory / "spool"

    @property
    def ready(self) -> Path:
        return self.directory / "ready"

    @property
    def settings(self) -> Path:
        return self.directory / "podwire.conf"

    def configure(self, *lines: str) -> None:
        own = (f"socket={self.socket}", f"spool={self.spool}", f"ready={self.ready}")
        self.settings.write_text("\n".join((*own, *lines)) + "\n")

    async def run(
        self,
        command: str,
        stdin: bytes = CONFIG,
        *interpreter: str | Path,
        plugin: Path | None = None,
        environment: dict[str, str] | None = None,
    ) -> Answer:
        process = await asyncio.create_subprocess_exec(
            *interpreter,
            plugin or self.plugin,
            env=(ENVIRONMENT | {"PATH": PATH, "CNI_COMMAND": command, "HOME": "/"}) | (environment or {}),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        stdout, stderr = await process.communicate(stdin)
        assert process.returncode is not None
        return Answer(process.returncode, stdout, stderr)

    def left(self) -> list[CniRequest]:
        """The DELs in the spool."""
        assert not list(self.spool.glob("*.tmp"))
        return [CniRequest.FromString(path.read_bytes()) for path in spooled(self.spool)]


def place(directory: Path, kind: str, *flags: str) -> Installed:
    it = Installed(directory)
    if kind == NATIVE:
        shutil.copyfile(native(*flags), it.plugin)
    else:
        source = Path(shim.__file__).read_text(encoding="utf-8").partition("\n")[2]
        it.plugin.write_text(f"#!{sys.executable} -IS\n{source}", encoding="utf-8")
    it.plugin.chmod(0o755)
    it.configure()
    return it


@asynccontextmanager
async def agent(socket: Path, handler: Handler) -> AsyncIterator[aio.Server]:
    server = aio.server()
    methods = {"Call": grpc.unary_unary_rpc_method_handler(handler)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("podwire.v1.Cni", methods),))
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    try:
        yield server
    finally:
        await server.stop(None)


@asynccontextmanager
async def raw_agent(socket: Path, said: bytes, then_close: bool) -> AsyncIterator[None]:
    """Says these bytes once it has been spoken to; not more, ever."""
    writers = []

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await reader.read(1)
        writer.write(said)
        await writer.drain()
        if then_close:
            writer.close()

    server = await asyncio.start_unix_server(speak, socket)
    try:
        yield
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
        await server.wait_closed()


def reply(stdout: bytes, code: int = 0) -> bytes:
    return CniReply(stdout=stdout, exit_code=code).SerializeToString()


async def echo(body: bytes, _context: Any) -> bytes:
    """All that was forwarded."""
    request = CniRequest.FromString(body)
    return reply("\n".join(request.environment).encode() + b"\n" + request.stdin)
