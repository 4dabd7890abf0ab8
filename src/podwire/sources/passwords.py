"""Secrets to the passwords of BGP sessions.

Invariants: pure, one direction. No message repeats anything of a Secret's content.
"""

from binascii import Error as NotBase64
from binascii import a2b_base64

from podwire.model.announcements import PasswordKey, SecretKey
from podwire.sources.fields import Invalid, Unfit, read_at, read_label, read_name
from podwire.sources.kube_objects import NameMeta, Wire

LONGEST_PASSWORD = 80
"""Bytes (Linux, TCP_MD5SIG_MAXKEYLEN; RFC 2385)."""


class SecretObject(Wire, frozen=True):
    """`data` in base64; `string_data`, of manifests, goes before it as at the API server."""

    metadata: NameMeta
    data: dict[str, str] | None = None
    string_data: dict[str, str] | None = None


def secret_key(namespace: str, name: str) -> SecretKey:
    """Raises Invalid."""
    return SecretKey(read_label(namespace, "metadata.namespace"), read_name(name, "metadata.name"))


def read_secret(thing: SecretObject, left_out: list[Invalid] | None = None) -> dict[PasswordKey, str]:
    """The items that are passwords. Those that can't be are Unfit, and nobody's where nobody names them: `left_out`
    takes the errors. Raises Invalid."""
    name = read_name(thing.metadata.name, "metadata.name")
    items = {item: ("data", text) for item, text in (thing.data or {}).items()}
    items |= {item: ("stringData", text) for item, text in (thing.string_data or {}).items()}
    found: dict[PasswordKey, str] = {}
    for item, (where, text) in sorted(items.items()):
        try:
            found[PasswordKey(name, item)] = read_at(f"{where}[{item}]", text, _encoded if where == "data" else _text)
        except Unfit as wrong:
            if left_out is None:
                raise
            left_out.append(wrong)
    return found


def _encoded(text: str) -> str:
    try:
        plain = a2b_base64(text, strict_mode=True).decode() if text else ""
    except (NotBase64, UnicodeDecodeError):
        raise Unfit("", "expected a password in base64") from None
    return _text(plain)


def _text(text: str) -> str:
    """A line's end, as `kubectl create secret --from-file` takes it along, is not meant."""
    text = text.removesuffix("\n").removesuffix("\r")
    if not text or not text.isascii() or not text.isprintable() or " " in text or len(text) > LONGEST_PASSWORD:
        raise Unfit("", f"expected a password of 1 to {LONGEST_PASSWORD} printable ASCII characters without blanks")
    return text
