"""IPv6 where it is switched off, by net.ipv6.conf.*.disable_ipv6 or in the whole kernel.

Invariants: looked at only after the kernel has refused something, so that it costs an ADD nothing. In a pod's namespace
it is switched on for our interface and the loopback, as the CNI project's own plugins do: runtimes switch it off there
by default. On the node it is the administrator's, and the error says what to do.
"""

import errno
import logging
from typing import Any

from podwire.dataplane import netlink
from podwire.dataplane.linux import sysctl
from podwire.model.addresses import IPV6, family_of
from podwire.model.network import AddressKey, NeighbourKey, RouteKey, RuleKey

log = logging.getLogger(__name__)

_REFUSALS = (errno.EACCES, errno.EINVAL, errno.EAFNOSUPPORT, errno.EOPNOTSUPP)


def why_refused(key: Any, code: int) -> str | None:
    """What to do where the node refused an IPv6 address, neighbour or route because IPv6 is off; else None."""
    if code not in _REFUSALS or getattr(key, "space", None) != "" or not _is_ipv6(key):
        return None
    found = {name: sysctl.read(_path(name)) for name in ("all", "default", "lo")}
    if found["all"] is None:
        off, fix = "this kernel runs without IPv6", "take ipv6.disable=1 out of its command line"
    elif "1" in found.values():
        names = [name for name, value in found.items() if value == "1"]
        off = " and ".join(f"net.ipv6.conf.{name}.disable_ipv6 = 1" for name in names)
        fix = "set that to 0"
    else:
        return None
    return f"{key}: IPv6 is switched off on this node ({off}): {fix}, or give the node no IPv6 pod CIDR"


def switch_on(descriptor: int, interface: str) -> int:
    """For an interface and the loopback in a pod's namespace; how many settings were written."""
    writes = 0
    try:
        with netlink.inside(descriptor):
            for name in ("lo", interface):
                if sysctl.read(_path(name)) == "1":
                    sysctl.write(_path(name), "0")
                    writes += 1
    except OSError as error:
        log.warning("IPv6 can't be switched on for %s in a pod: %s", interface, error)
    return writes


def _path(name: str) -> str:
    return f"net/ipv6/conf/{name}/disable_ipv6"


def _is_ipv6(key: Any) -> bool:
    match key:
        case AddressKey() | NeighbourKey() | RuleKey():
            return family_of(key.address) == IPV6
        case RouteKey():
            return key.destination.family == IPV6
    return False
