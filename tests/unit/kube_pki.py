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

    def pair(self, name: str, subject: str, *names: str, days: int = 3650) -> Pair:
        """A certificate for servers and clients. `names`: such as `DNS:kubernetes`, `IP:127.0.0.1`."""
        made = Pair(self.directory / f"{name}.crt", self.directory / f"{name}.key")
        if not made.certificate.exists():
            request, extensions = self._request(name, subject, names)
            _openssl("x509", "-req", *self._signed(request, extensions, made), "-CAcreateserial", "-days", str(days))
        return made

    def ended(self, name: str, subject: str, *names: str) -> Pair:
        """One whose time was 2020 (openssl-ca(1): only this command sets an end in the past)."""
        made = Pair(self.directory / f"{name}.crt", self.directory / f"{name}.key")
        if not made.certificate.exists():
            request, extensions = self._request(name, subject, names)
            settings, listed = self.directory / "ca.conf", self.directory / "index.txt"
            settings.write_text(
                f"[ca]\ndefault_ca=d\n[d]\nrand_serial=yes\ndatabase={listed}\npolicy=p\n[p]\ncommonName=supplied\n"
            )
            listed.touch()
            _openssl(
                *("ca", "-batch", "-config", str(settings), "-md", "sha256", "-notext"),
                *("-startdate", "20200101000000Z", "-enddate", "20200201000000Z", "-outdir", str(self.directory)),
                *("-in", str(request), "-cert", str(self.authority), "-keyfile", str(self.directory / "ca.key")),
                *("-out", str(made.certificate), "-extfile", str(extensions)),
            )
        return made

    def _request(self, name: str, subject: str, names: tuple[str, ...]) -> tuple[Path, Path]:
        request, extensions = self.directory / f"{name}.csr", self.directory / f"{name}.ext"
        key = self.directory / f"{name}.key"
        _openssl("req", *_EC, "-nodes", "-subj", subject, "-keyout", str(key), "-out", str(request))
        wanted = ",".join(names or (f"DNS:{name}",))
        extensions.write_text(f"subjectAltName={wanted}\nextendedKeyUsage=serverAuth,clientAuth\n")
        return request, extensions

    def _signed(self, request: Path, extensions: Path, made: Pair) -> tuple[str, ...]:
        authority = ("-CA", str(self.authority), "-CAkey", str(self.directory / "ca.key"))
        return ("-in", str(request), *authority, "-out", str(made.certificate), "-extfile", str(extensions))

    def lock(self, name: str, locked: str) -> None:
        """A key once more, under a password."""
        key, made = self.directory / f"{name}.key", self.directory / f"{locked}.key"
        _openssl("ec", "-in", str(key), "-aes128", "-passout", "pass:x", "-out", str(made))

    def server(
        self, clients: bool = False, names: tuple[str, ...] = ("DNS:kubernetes",), ended: bool = False
    ) -> ssl.SSLContext:
        """A server's side. `clients`: only those with a certificate are let in. `ended`: its own has."""
        make = self.ended if ended else self.pair
        pair = make(f"server-{ended}-" + "-".join(names).replace(":", "-"), "/CN=server", *names)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.certificate, pair.key)
        if clients:
            context.load_verify_locations(self.authority)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


_EC = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")


def _openssl(*arguments: str) -> None:
    subprocess.run(("openssl", *arguments), check=True, capture_output=True)
