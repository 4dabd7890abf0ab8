"""The capability "bandwidth": the rates to which a runtime wants a pod's traffic kept (CNI conventions).

Invariants: all four numbers are taken or all refused, with one error that names the field, what was found and the
right form. Rates are in bits per second, bursts in bits; ingress is what goes to the pod. Names of fields are read as
Go reads them, in any case of letters: containerd's have a capital. 0 is no limit. A rate has a burst, and a burst a
rate.
"""

from collections.abc import Mapping
from typing import Any

from podwire.cni.errors import CniError, ErrorCode
from podwire.cni.fields import as_go_reads
from podwire.model.objects import NO_BANDWIDTH, Bandwidth, Rate

NAME = "runtimeConfig.bandwidth"
MOST = (1 << 63) - 1
_FIELDS = {name.lower(): name for name in ("ingressRate", "ingressBurst", "egressRate", "egressBurst")}


def parse(told: Any) -> Bandwidth:
    """Nothing is no limit. Raises CniError."""
    if not told:
        return NO_BANDWIDTH
    if not isinstance(told, Mapping):
        raise _wrong("", "expected an object with ingressRate, ingressBurst, egressRate and egressBurst", told)
    given = {field: _number(field, value) for field, value in as_go_reads("", told, _FIELDS, _wrong).items()}
    return Bandwidth(_rate(given, "ingress"), _rate(given, "egress"))


def _number(field: str, told: Any) -> int:
    if told is None:
        return 0
    if not isinstance(told, int) or isinstance(told, bool) or not 0 <= told <= MOST:
        raise _wrong(f".{field}", f"expected a number of bits from 0 to {MOST}", told)
    return told


def _rate(given: Mapping[str, int], direction: str) -> Rate | None:
    rate, burst = given.get(f"{direction}Rate", 0), given.get(f"{direction}Burst", 0)
    if bool(rate) != bool(burst):
        lacking, other = ("Burst", "Rate") if rate else ("Rate", "Burst")
        raise _wrong(f".{direction}{lacking}", f"expected one beside {direction}{other}", rate and 0)
    if 0 < rate < LEAST:
        raise _wrong(f".{direction}Rate", f"expected at least {LEAST} bits per second", rate)
    return Rate(rate, burst) if rate else None


LEAST = 8
"""The kernel counts whole bytes."""


def _wrong(where: str, expected: str, found: Any) -> CniError:
    return CniError(ErrorCode.INVALID_CONFIG, f"network configuration: {NAME}{where}: {expected}; found {found!r}")
