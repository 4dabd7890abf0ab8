"""nft's own language, through its library (libnftables.so.1, by ctypes): for the constant rules only.

Invariants: a call is one transaction, in the network namespace of the calling thread. An element through here costs
0.2 ms; in bulk they go as packed messages (`render.py`).
"""

import ctypes
from functools import cache

_ERROR_BYTES = 500


class NftablesMissing(OSError):
    """The library is not installed."""


@cache
def _library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL("libnftables.so.1")
    except OSError as error:
        raise NftablesMissing(f"libnftables.so.1 is not installed (Debian: libnftables1): {error}") from error
    library.nft_ctx_new.restype = ctypes.c_void_p
    library.nft_ctx_get_error_buffer.restype = ctypes.c_char_p
    return library


def run(commands: str) -> str:
    """Runs the commands; answers the error, "" for none. Raises NftablesMissing."""
    library = _library()
    context = ctypes.c_void_p(library.nft_ctx_new(0))
    library.nft_ctx_buffer_error(context)
    try:
        failed = library.nft_run_cmd_from_buffer(context, commands.encode())
        said = library.nft_ctx_get_error_buffer(context).decode(errors="replace")[:_ERROR_BYTES]
        return (said or "nft failed without a word") if failed else ""
    finally:
        library.nft_ctx_free(context)
