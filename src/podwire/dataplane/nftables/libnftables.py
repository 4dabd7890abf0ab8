"""nft's own language, through its library (libnftables.so.1, by ctypes): for the constant rules only.

Invariants: a call is one transaction, in the network namespace of the calling thread. An element through here costs
0.2 ms; in bulk they go as packed messages (`render.py`). The library waits by select(2), which ends the process where
a descriptor is beyond 1,023: one below is kept for it.
"""

import ctypes
import os
from functools import cache

_ERROR_BYTES = 500
_STATELESS, _HANDLE, _TERSE = 4, 8, 2048


class NftablesMissing(OSError):
    """The library is not installed."""


@cache
def load() -> ctypes.CDLL:
    """Raises NftablesMissing."""
    try:
        library = ctypes.CDLL("libnftables.so.1")
    except OSError as error:
        raise NftablesMissing(f"libnftables.so.1 is not installed (Debian: libnftables1): {error}") from error
    library.nft_ctx_new.restype = ctypes.c_void_p
    library.nft_ctx_get_error_buffer.restype = ctypes.c_char_p
    library.nft_ctx_get_output_buffer.restype = ctypes.c_char_p
    return library


_kept = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


def run(commands: str) -> str:
    """Runs the commands; answers the error, "" for none. Raises NftablesMissing."""
    global _kept
    library = load()
    os.close(_kept)  # its number is the lowest that is free: the library's socket gets it
    context = ctypes.c_void_p(library.nft_ctx_new(0))
    library.nft_ctx_buffer_error(context)
    try:
        failed = library.nft_run_cmd_from_buffer(context, commands.encode())
        said = library.nft_ctx_get_error_buffer(context).decode(errors="replace")[:_ERROR_BYTES]
        return (said or "nft failed without a word") if failed else ""
    finally:
        library.nft_ctx_free(context)
        _kept = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


def listed(command: str) -> str:
    """What a `list` prints, with handles and without counters and elements; "" where it fails. It may take seconds on a
    node with many rules, and no other call may go on meanwhile: for a process of its own. Raises NftablesMissing."""
    library = load()
    context = ctypes.c_void_p(library.nft_ctx_new(0))
    library.nft_ctx_output_set_flags(context, ctypes.c_uint(_STATELESS | _HANDLE | _TERSE))
    library.nft_ctx_buffer_output(context)
    library.nft_ctx_buffer_error(context)
    try:
        failed = library.nft_run_cmd_from_buffer(context, command.encode())
        return "" if failed else str(library.nft_ctx_get_output_buffer(context).decode(errors="replace"))
    finally:
        library.nft_ctx_free(context)
