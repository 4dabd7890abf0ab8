"""The end of a certificate's time (X.509, RFC 5280, section 4.1), as the standard library can't tell it of one that is
not trusted. Pure."""

import base64
import binascii
import re
from collections.abc import Iterator
from datetime import UTC, datetime

_SEQUENCE, _UTC_TIME, _GENERALIZED_TIME, _VERSION = 0x30, 0x17, 0x18, 0xA0


class NotACertificate(ValueError):
    pass


def from_pem(text: bytes) -> bytes:
    """The first certificate's DER. Raises NotACertificate."""
    found = re.search(rb"-----BEGIN CERTIFICATE-----(.*?)-----END CERTIFICATE-----", text, re.DOTALL)
    try:
        return base64.b64decode(b"".join(found[1].split()), validate=True) if found is not None else _none()
    except binascii.Error:
        raise NotACertificate("expected base64") from None


def ends(der: bytes) -> float:
    """notAfter, in seconds since the epoch. Raises NotACertificate."""
    try:
        (certificate,) = _of(_SEQUENCE, _items(der))
        body = next(iter(_of(_SEQUENCE, _items(certificate))))
        # version (optional), serialNumber, signature, issuer, validity
        fields = [item for item in _items(body) if item[0] != _VERSION]
        (_, last) = _items(fields[3][1])
        return _time(*last)
    except (IndexError, ValueError, StopIteration):
        raise NotACertificate("expected a certificate of X.509") from None


def _none() -> bytes:
    raise NotACertificate("expected a certificate in PEM form")


def _of(kind: int, items: Iterator[tuple[int, bytes]]) -> Iterator[bytes]:
    return (content for found, content in items if found == kind)


def _items(data: bytes) -> Iterator[tuple[int, bytes]]:
    """DER: tag, length, content (X.690, section 8.1)."""
    at = 0
    while at < len(data):
        kind, length, at = data[at], data[at + 1], at + 2
        if length & 0x80:
            size = length & 0x7F
            length, at = int.from_bytes(data[at : at + size], "big"), at + size
        if at + length > len(data):
            raise ValueError
        yield kind, data[at : at + length]
        at += length


def _time(kind: int, text: bytes) -> float:
    """RFC 5280: two digits of the year from 50 on are of the last century."""
    form = {_UTC_TIME: "%y%m%d%H%M%SZ", _GENERALIZED_TIME: "%Y%m%d%H%M%SZ"}.get(kind)
    if form is None:
        raise ValueError
    written = text.decode("ascii")
    if kind == _UTC_TIME:
        written, form = ("19" if int(written[:2]) >= 50 else "20") + written, "%Y%m%d%H%M%SZ"
    return datetime.strptime(written, form).replace(tzinfo=UTC).timestamp()
