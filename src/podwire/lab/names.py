"""What the cluster's DNS says, from the cluster's objects: Kubernetes DNS-Based Service Discovery 1.1.0. Pure.

Invariants: a record is text as in a zone file (RFC 1035, section 5), a name is lower-case and without its last dot. A
name below which there are others exists, whether or not it has records itself (RFC 8020). An address that a Service
publishes before its pod is ready counts as ready. No record where no address is: such a name does not exist.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from podwire.lab.allocation import HEADLESS
from podwire.lab.expand import ObjectKey
from podwire.lab.forms import Fields
from podwire.lab.system import DNS_SERVICE
from podwire.model.addresses import IPV4, family_of, parse_address, show_address
from podwire.sources.fields import Invalid, read_address

DOMAIN = "cluster.local"
ZONES = (DOMAIN, "in-addr.arpa", "ip6.arpa")
"""What is not below one of these is nobody's business here."""
_VERSION = '"1.1.0"'
_SERVER = f"ns.dns.{DOMAIN}"
_START = f"{_SERVER}. hostmaster.{DOMAIN}. 1 7200 1800 86400 5"
"""Serial, refresh, retry and expire mean nothing, since there is no other server; a negative answer holds for 5 s."""

Records = Mapping[str, Mapping[str, tuple[str, ...]]]
"""Name → type → data."""
_Record = tuple[str, str, str]


class Zone(NamedTuple):
    """`names`: all that exist, those without records included."""

    records: Records
    names: frozenset[str]


def zone(objects: Mapping[ObjectKey, Fields]) -> Zone:
    found: dict[str, dict[str, dict[str, None]]] = {}
    for name, kind, data in _records(objects):
        found.setdefault(name.lower(), {}).setdefault(kind, {})[data] = None
    records = {
        name: {kind: tuple(sorted(data)) for kind, data in sorted(kinds.items())}
        for name, kinds in sorted(found.items())
    }
    return Zone(records, frozenset(ancestor for name in records for ancestor in _with_ancestors(name)))


def resolv_conf(objects: Mapping[ObjectKey, Fields], namespace: str) -> str:
    """resolv.conf(5) as a kubelet writes it for the pods of a namespace (dnsPolicy ClusterFirst)."""
    servers = _cluster_ips(objects.get(DNS_SERVICE, {}))[:1]
    search = " ".join((f"{namespace}.svc.{DOMAIN}", f"svc.{DOMAIN}", DOMAIN))
    return f"search {search}\n" + "".join(f"nameserver {address}\n" for address in servers) + "options ndots:5\n"


def _records(objects: Mapping[ObjectKey, Fields]) -> Iterator[_Record]:
    for apex in ZONES:
        yield apex, "SOA", _START
        yield apex, "NS", f"{_SERVER}."
    yield f"dns-version.{DOMAIN}", "TXT", _VERSION
    for address in _cluster_ips(objects.get(DNS_SERVICE, {})):
        yield _SERVER, _kind(address), address
    headless = {key for key, it in objects.items() if key.kind == "Service" and HEADLESS in _listed(it)}
    named: set[str] = set()
    for key, thing in objects.items():
        if key.kind == "Service":
            yield from _of_service(thing, f"{key.name}.{key.namespace}.svc.{DOMAIN}")
        elif key.kind == "EndpointSlice":
            owner = (thing["metadata"].get("labels") or {}).get("kubernetes.io/service-name") or ""
            service = ObjectKey("Service", key.namespace, owner)
            if not owner:
                continue
            for record in _of_slice(thing, f"{service.name}.{service.namespace}.svc.{DOMAIN}", service in headless):
                yield record
                if record[1] == "PTR":
                    named.add(record[0])
    for key, thing in objects.items():
        if key.kind == "Pod" and not thing["spec"].get("hostNetwork"):
            yield from _of_pod(thing, key.namespace, named)


def _of_service(service: Fields, name: str) -> Iterator[_Record]:
    spec = service["spec"]
    if spec.get("type") == "ExternalName":
        yield name, "CNAME", f"{str(spec.get('externalName')).rstrip('.')}."
    addresses = _cluster_ips(service)
    for address in addresses:
        yield name, _kind(address), address
        yield _reverse(address), "PTR", f"{name}."
    for port in (spec.get("ports") or ()) if addresses else ():
        if port.get("name"):
            yield f"_{port['name']}._{port['protocol'].lower()}.{name}", "SRV", f"0 100 {port['port']} {name}."


def _of_slice(part: Fields, name: str, headless: bool) -> Iterator[_Record]:
    """A pod's own name is there for any Service that its subdomain names, as CoreDNS has it; the rest, for headless
    ones, is the specification's."""
    for member in part.get("endpoints") or ():
        if not (member.get("conditions") or {}).get("ready", True):
            continue
        for address in _readable(member["addresses"]) if headless or member.get("hostname") else ():
            own = f"{member.get('hostname') or _dashed(address)}.{name}"
            yield own, _kind(address), address
            if headless:
                yield name, _kind(address), address
                yield _reverse(address), "PTR", f"{own}."
                for port in part.get("ports") or ():
                    if port.get("name"):
                        protocol = (port.get("protocol") or "TCP").lower()
                        yield f"_{port['name']}._{protocol}.{name}", "SRV", f"0 100 {port['port']} {own}."


def _readable(texts: Iterable[str]) -> Iterator[str]:
    """A user's slice that no proxy serves may hold anything: names too (addressType FQDN)."""
    for text in texts:
        with suppress(Invalid):
            yield show_address(read_address(text))


def _of_pod(pod: Fields, namespace: str, named: Iterable[str]) -> Iterator[_Record]:
    """By its address (section 2.6); and back, where no headless Service has a better name."""
    for held in pod["status"].get("podIPs") or ():
        address = held["ip"]
        name = f"{_dashed(address)}.{namespace}.pod.{DOMAIN}"
        yield name, _kind(address), address
        if _reverse(address) not in named:
            yield _reverse(address), "PTR", f"{name}."


def _listed(service: Fields) -> tuple[str, ...]:
    return tuple(service["spec"].get("clusterIPs") or ())


def _cluster_ips(service: Fields) -> list[str]:
    spec: Mapping[str, Any] = service.get("spec") or {}
    return [address for address in spec.get("clusterIPs") or () if address != HEADLESS]


def _kind(address: str) -> str:
    return "AAAA" if ":" in address else "A"


def _dashed(address: str) -> str:
    """A label that names one address: as CoreDNS makes it."""
    return address.replace(".", "-").replace(":", "-")


def _reverse(text: str) -> str:
    """RFC 1035, section 3.5, and RFC 3596, section 2.5."""
    address = parse_address(text)
    if family_of(address) == IPV4:
        return ".".join(str(byte) for byte in reversed(address)) + ".in-addr.arpa"
    return ".".join(reversed(address.hex())) + ".ip6.arpa"


def _with_ancestors(name: str) -> Iterator[str]:
    labels = name.split(".")
    apex = next(apex for apex in ZONES if name == apex or name.endswith(f".{apex}"))
    for first in range(len(labels) - apex.count(".")):
        yield ".".join(labels[first:])
