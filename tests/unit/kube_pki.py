"""Certificates for tests, made by openssl: an authority, a server at 127.0.0.1 named `kubernetes`, and clients."""

import shutil
import ssl
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the program openssl")


class Pair(NamedTuple):
    certificate: Path
    key: Path


class Pki:
    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.authority = directory / "ca.crt"
        if not self.authority.exists():
            _openssl(
                "req", "-x509", *_EC, "-nodes", "-days", "3650", "-subj", "/CN=test-ca",
                "-keyout", str(directory / "ca.key"), "-out", str(self.authority),
            )  # fmt: skip

    def pair(self, name: str, subject: str, *names: str) -> Pair:
        """A certificate for servers and clients. `names`: such as `DNS:kubernetes`, `IP:127.0.0.1`."""
        made = Pair(self.directory / f"{name}.crt", self.directory / f"{name}.key")
        if made.certificate.exists():
            return made
        request, extensions = self.directory / f"{name}.csr", self.directory / f"{name}.ext"
        _openssl("req", *_EC, "-nodes", "-subj", subject, "-keyout", str(made.key), "-out", str(request))
        wanted = ",".join(names or (f"DNS:{name}",))
        extensions.write_text(f"subjectAltName={wanted}\nextendedKeyUsage=serverAuth,clientAuth\n")
        _openssl(
            "x509", "-req", "-in", str(request), "-CA", str(self.authority), "-CAkey", str(self.directory / "ca.key"),
            "-CAcreateserial", "-out", str(made.certificate), "-days", "3650", "-extfile", str(extensions),
        )  # fmt: skip
        return made

    def lock(self, name: str, locked: str) -> None:
        """A key once more, under a password."""
        key, made = self.directory / f"{name}.key", self.directory / f"{locked}.key"
        _openssl("ec", "-in", str(key), "-aes128", "-passout", "pass:x", "-out", str(made))

    def server(self, clients: bool = False, names: tuple[str, ...] = ("DNS:kubernetes",)) -> ssl.SSLContext:
        """A server's side. `clients`: only those with a certificate are let in."""
        pair = self.pair("server-" + "-".join(names).replace(":", "-"), "/CN=server", *names)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.certificate, pair.key)
        if clients:
            context.load_verify_locations(self.authority)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


_EC = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")


def _openssl(*arguments: str) -> None:
    subprocess.run(("openssl", *arguments), check=True, capture_output=True)
