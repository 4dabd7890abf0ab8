"""Whom a pod should ask for names: "dns" of a network configuration or of a result (CNI spec 1.1.0, sections 1 and 5),
and what a runtime gives for this pod (CNI conventions, the capability "dns"), which goes before, field by field. Pure.

Invariants: all is taken or all refused, with one error that names the field, what was found and the right form. Names
of fields are read as Go reads them, in any case of letters: containerd's have a capital; null is nothing. It is handed
on in the result, and applied by whoever writes the pod's resolv.conf.
"""

from collections.abc import Mapping
from typing import Any

from podwire.cni.fields import Wrong, as_go_reads, misconfigured
from podwire.cni.result import DNS
from podwire.model.addresses import parse_address

NAME, RUNTIME = "dns", "runtimeConfig.dns"
_FIELDS = ("nameservers", "domain", "search", "options")
_RUNTIME_FIELDS = ("servers", "", "searches", "options")
"""How a runtime calls the same; it gives no domain."""


def parse(configured: Any, told: Any) -> DNS:
    """Of a network configuration and its runtimeConfig. Raises CniError."""
    ours, theirs = read(NAME, configured, misconfigured), read(RUNTIME, told, misconfigured, _RUNTIME_FIELDS)
    return DNS(
        theirs.nameservers or ours.nameservers,
        ours.domain,
        theirs.search or ours.search,
        theirs.options or ours.options,
    )


def read(where: str, told: Any, wrong: Wrong, fields: tuple[str, str, str, str] = _FIELDS) -> DNS:
    """One such object. Raises what `wrong` makes."""
    if told is None:
        return DNS()
    if not isinstance(told, Mapping):
        raise wrong(where, f"expected an object with {', '.join(filter(None, fields))}", told)
    found = as_go_reads(where, told, {name: name for name in fields if name}, wrong)
    servers, domain, search, options = ((f"{where}.{name}", found.get(name)) for name in fields)
    if not isinstance(domain[1], str | None):
        raise wrong(*domain[:1], "expected a name", domain[1])
    return DNS(_servers(*servers, wrong), domain[1] or "", _texts(*search, wrong), _texts(*options, wrong))


def _servers(where: str, told: Any, wrong: Wrong) -> tuple[str, ...]:
    found = _texts(where, told, wrong)
    for number, each in enumerate(found):
        try:
            parse_address(each.partition("%")[0])  # a link-local one is nothing without its link
        except ValueError:
            raise wrong(f"{where}[{number}]", "expected an IP address", each) from None
    return found


def _texts(where: str, told: Any, wrong: Wrong) -> tuple[str, ...]:
    if told is None:
        return ()
    if not isinstance(told, list) or not all(isinstance(each, str) for each in told):
        raise wrong(where, "expected a list of strings", told)
    return tuple(told)
