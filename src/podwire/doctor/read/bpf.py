"""BPF programs that see this node's packets and connects: at the root of the cgroups, and at interfaces.

Rules: bpf(2), BPF_PROG_QUERY of a cgroup, BPF_OBJ_GET_INFO_BY_FD for a program's name; tc-bpf(8) over rtnetlink.
Invariants: nothing is attached, and every descriptor is closed.
"""

import ctypes
import errno
import os
import platform
from struct import pack, pack_into, unpack_from

from podwire.dataplane import netlink
from podwire.dataplane.linux import links
from podwire.dataplane.linux import rtnetlink as rt
from podwire.dataplane.messages import attrs
from podwire.doctor.findings import Unseen

_CGROUP = "/sys/fs/cgroup"
_CALL = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "ppc64le": 361, "s390x": 351}
_BY_ID, _INFO, _QUERY = 13, 15, 16
_CONNECTS = {10: "connect4", 11: "connect6", 14: "sendmsg4", 15: "sendmsg6"}
"""Attach types: what rewrites a Service's address before there is a packet."""
_MOST = 64
_NAME_AT, _NAME_BYTES, _INFO_BYTES = 64, 16, 256
_GETTFILTER = 46
_HOOKS = {0xFFFFFFF2: "ingress", 0xFFFFFFF3: "egress"}  # TC_H_CLSACT with TC_H_MIN_INGRESS, TC_H_MIN_EGRESS
_LIBC = ctypes.CDLL(None, use_errno=True)


def read() -> tuple[str, ...] | Unseen:
    """As `PLACE: NAME`, sorted."""
    number = _CALL.get(platform.machine())
    if number is None:
        return Unseen(f"BPF is not understood on {platform.machine()}")
    try:
        return tuple(sorted({*_at_cgroup(number), *_at_interfaces()}))
    except OSError as error:
        return Unseen(f"BPF programs can't be listed: {error.strerror}")


def _at_cgroup(number: int) -> list[str]:
    try:
        group = os.open(_CGROUP, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return []
    try:
        return [
            f"cgroup {kind}: {_name(number, program)}"
            for attach, kind in _CONNECTS.items()
            for program in _programs(number, group, attach)
        ]
    finally:
        os.close(group)


def _programs(number: int, group: int, attach: int) -> list[int]:
    """The IDs of those attached. A cgroup of the first version has none."""
    ids = (ctypes.c_uint32 * _MOST)()
    asked = bytearray(128)
    pack_into("=IIIIQI", asked, 0, group, attach, 0, 0, ctypes.addressof(ids), _MOST)
    code = _bpf(number, _QUERY, asked)
    if code in (errno.EBADF, errno.EINVAL):
        return []
    if code:
        raise OSError(code, os.strerror(code))
    return list(ids[: unpack_from("=I", asked, 24)[0]])


def _name(number: int, program: int) -> str:
    asked = bytearray(128)
    pack_into("=I", asked, 0, program)
    descriptor = _call(number, _BY_ID, asked)
    if descriptor < 0:
        return f"number {program}"
    try:
        info = (ctypes.c_char * _INFO_BYTES)()
        asked = bytearray(128)
        pack_into("=IIQ", asked, 0, descriptor, _INFO_BYTES, ctypes.addressof(info))
        if _bpf(number, _INFO, asked):
            return f"number {program}"
        return bytes(info)[_NAME_AT : _NAME_AT + _NAME_BYTES].rstrip(b"\0").decode(errors="replace")
    finally:
        os.close(descriptor)


def _bpf(number: int, command: int, asked: bytearray) -> int:
    """The errno, 0 for none."""
    return ctypes.get_errno() if _call(number, command, asked) < 0 else 0


def _call(number: int, command: int, asked: bytearray) -> int:
    held = (ctypes.c_char * len(asked)).from_buffer(asked)
    return int(_LIBC.syscall(number, command, ctypes.byref(held), len(asked)))


def _at_interfaces() -> list[str]:
    there = netlink.Socket(netlink.ROUTE, reader=True)
    try:
        told = links.by_index(there.dump(rt.GETLINK, links.get_links()))
        found = []
        for index, link in told.items():
            for parent, hook in _HOOKS.items():
                for body in _filters(there, index, parent):
                    seen = attrs(body, 20)
                    if seen.get(1, b"").rstrip(b"\0") == b"bpf" and (name := attrs(seen.get(2, b"")).get(7, b"")):
                        text = name.rstrip(b"\0").decode(errors="replace")
                        found.append(f"{links.name_of(link)} {hook}: {text.partition('.')[0]}")
        return found
    finally:
        there.close()


def _filters(there: netlink.Socket, index: int, parent: int) -> list[bytes]:
    try:
        return there.dump(_GETTFILTER, pack("=BxxxiIII", 0, index, 0, parent, 0))
    except OSError:  # a kernel without traffic control, or a link that has gone
        return []
