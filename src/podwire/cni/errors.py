"""CNI's errors: the codes, the exception that carries one, and its JSON.

Invariants: an error has one code of the specification (CNI spec 1.1.0, section 5, "Error") or one of ours from 100 on,
and one sentence that names the variable or field, what was found, and the right form.
"""

import re
from enum import IntEnum

import msgspec

VERSIONS = ("0.4.0", "1.0.0", "1.1.0")
"""The versions of the specification that are spoken, oldest first."""


class ErrorCode(IntEnum):
    """Below 100: the specification's. INTERNAL is the number that libcni gives to errors without one."""

    INCOMPATIBLE_VERSION = 1
    UNSUPPORTED_FIELD = 2
    UNKNOWN_CONTAINER = 3
    INVALID_ENVIRONMENT = 4
    IO_FAILURE = 5
    DECODING_FAILURE = 6
    INVALID_CONFIG = 7
    TRY_AGAIN_LATER = 11
    NOT_AVAILABLE = 50
    LIMITED_CONNECTIVITY = 51
    DIFFERS = 100
    INTERNAL = 999


_GONE = re.compile("not found|no such file or directory", re.IGNORECASE)


class CniError(Exception):
    def __init__(self, code: ErrorCode, text: str, details: str = "") -> None:
        super().__init__(text)
        self.code, self.text, self.details = code, text, details


def encode_error(error: CniError, version: str, command: str) -> bytes:
    """The JSON that goes to standard output with exit code 1.

    A version that isn't spoken is answered in the oldest one, which every runtime reads. Runtimes take a DEL whose
    error says that something was not found (go-cni; where CNI_NETNS is empty, that there is no such file either) for
    one that succeeded, and would then leak the pod: such words never leave with a DEL.
    """
    said = {
        "cniVersion": version if version in VERSIONS else VERSIONS[0],
        "code": int(error.code),
        "msg": error.text,
        "details": error.details,
    }
    if command == "DEL":
        said |= {name: _GONE.sub("missing", str(said[name])) for name in ("msg", "details")}
    return msgspec.json.encode(said) + b"\n"
