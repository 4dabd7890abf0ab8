"""The certificates and keys of a cluster, by openssl; and the kubeconfigs that name them."""

import subprocess
from collections.abc import Iterable
from ipaddress import ip_address
from pathlib import Path

_CONFIGURATION = "[req]\ndistinguished_name = name\n[name]\n"
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


class Authority:
    """One for all: clients, kubelets and the API server."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir()
        self._configuration = directory / "openssl.cnf"
        self._configuration.write_text(_CONFIGURATION)
        self._certificate("ca", "/CN=podwire-test", ("basicConstraints=critical,CA:true", "keyUsage=keyCertSign"), ())
        _openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", self / "sa.key")
        _openssl("pkey", "-in", self / "sa.key", "-pubout", "-out", self / "sa.pub")

    def __truediv__(self, file: str) -> Path:
        return self.directory / file

    def issue(self, name: str, subject: str, names: Iterable[str] = ()) -> None:
        """NAME.crt and NAME.key, of a client and a server that is known by `names` (host names and addresses)."""
        known = ",".join(f"{'IP' if _is_address(known) else 'DNS'}:{known}" for known in (name, *names))
        extensions = (f"subjectAltName={known}", "extendedKeyUsage=serverAuth,clientAuth")
        self._certificate(name, subject, extensions, ("-CA", self / "ca.crt", "-CAkey", self / "ca.key"))

    def kubeconfig(self, name: str, server: str) -> Path:
        """NAME.kubeconfig, by the certificate of that name."""
        file = self / f"{name}.kubeconfig"
        file.write_text(
            f"""\
apiVersion: v1
kind: Config
clusters: [{{name: c, cluster: {{server: "{server}", certificate-authority: {self / "ca.crt"}}}}}]
users: [{{name: u, user: {{client-certificate: {self / name}.crt, client-key: {self / name}.key}}}}]
contexts: [{{name: c, context: {{cluster: c, user: u}}}}]
current-context: c
"""
        )
        return file

    def _certificate(self, name: str, subject: str, extensions: Iterable[str], by: Iterable[str | Path]) -> None:
        added = [part for extension in extensions for part in ("-addext", extension)]
        out = ("-keyout", self / f"{name}.key", "-out", self / f"{name}.crt", "-days", "30")
        _openssl("req", "-x509", "-config", self._configuration, *_KEY, *out, "-subj", subject, *added, *by)


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
