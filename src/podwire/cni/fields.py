"""The fields of an object that a runtime gives for a capability (CNI conventions). Pure."""

from collections.abc import Callable, Mapping
from typing import Any

from podwire.cni.errors import CniError, ErrorCode

Wrong = Callable[[str, str, Any], CniError]
"""From a place, what is expected there and what was found."""


def as_go_reads(where: str, told: Mapping[str, Any], known: Mapping[str, str], wrong: Wrong) -> dict[str, Any]:
    """Names in any case of letters: containerd's have a capital. `known`: how they are written, by their small letters.
    Others are passed over, as everywhere in a configuration. Raises what `wrong` makes of a field that is there twice.
    """
    found: dict[str, Any] = {}
    for name, value in told.items():
        field = known.get(name.lower())
        if field in found:
            raise wrong(f"{where}.{field}", "expected it once", sorted(told))
        if field is not None:
            found[field] = value
    return found


def shown(found: Any) -> str:
    """What was found, for an error: never more than a line's part."""
    text = "nothing" if found is None else repr(found)
    return text if len(text) <= 80 else text[:80] + "…"


def misconfigured(where: str, expected: str, found: Any) -> CniError:
    """Of a field of the network configuration."""
    return CniError(ErrorCode.INVALID_CONFIG, f"network configuration: {where}: {expected}; found {shown(found)}")
