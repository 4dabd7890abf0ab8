"""What a large piece of work leaves behind: memory that C's library keeps for the next one."""

import ctypes

_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)


def give_back() -> None:
    """Of all threads, to the kernel (malloc_trim(3)), where the library can: glibc takes a millisecond, musl has no
    such function. Python's own small objects stay."""
    if _trim is not None:
        _trim(0)
