"""The packet table's own SCTP: its checksum against known vectors, and no packet taken that was altered."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.lab.sctp import Chunk, Malformed, Packet, crc32c, decode, encode

UINT16, UINT32 = st.integers(0, 0xFFFF), st.integers(0, 0xFFFFFFFF)
PACKETS = st.builds(Packet, UINT16, UINT16, UINT32, st.sampled_from(list(Chunk)), st.binary(max_size=60))


@pytest.mark.parametrize(
    ("data", "checksum"),
    [
        pytest.param(b"123456789", "e3069283", id="the usual check value"),
        # RFC 3720 appendix B.4, which prints the bytes in the order of the wire.
        pytest.param(bytes(32), "8a9136aa", id="32 bytes of zeros"),
        pytest.param(b"\xff" * 32, "62a8ab43", id="32 bytes of ones"),
        pytest.param(bytes(range(32)), "46dd794e", id="32 bytes rising"),
        pytest.param(bytes(range(31, -1, -1)), "113fdb5c", id="32 bytes falling"),
    ],
)
def test_crc32c(data: bytes, checksum: str) -> None:
    assert f"{crc32c(data):08x}" == checksum


def test_an_abort_byte_by_byte() -> None:
    """RFC 9260, sections 3.1 and 3.3.7; the checksum is the least significant byte first (appendix A)."""
    packet = encode(Packet(40_000, 80, 0x01020304, Chunk.ABORT, b""))
    head, chunk = bytes.fromhex("9c40 0050 01020304"), bytes.fromhex("06 00 0004")
    assert packet == head + crc32c(head + bytes(4) + chunk).to_bytes(4, "little") + chunk


@given(PACKETS)
def test_what_is_encoded_is_decoded(packet: Packet) -> None:
    data = encode(packet)
    assert len(data) % 4 == 0
    assert decode(data) == packet


@given(PACKETS, st.data())
def test_a_changed_bit_is_noticed(packet: Packet, data: st.DataObject) -> None:
    whole = bytearray(encode(packet))
    bit = data.draw(st.integers(0, len(whole) * 8 - 1))
    whole[bit // 8] ^= 1 << bit % 8
    with pytest.raises(Malformed, match="checksum"):
        decode(bytes(whole))


@given(st.binary(max_size=15))
def test_what_is_too_short_is_no_packet(data: bytes) -> None:
    with pytest.raises(Malformed, match="no SCTP packet"):
        decode(data)


def test_a_chunk_longer_than_its_packet_is_refused() -> None:
    whole = bytearray(encode(Packet(1, 2, 3, Chunk.DATA, b"text")))
    whole[14:16] = (200).to_bytes(2, "big")
    whole[8:12] = bytes(4)
    whole[8:12] = crc32c(whole).to_bytes(4, "little")
    with pytest.raises(Malformed, match="a chunk of 200 bytes"):
        decode(bytes(whole))
