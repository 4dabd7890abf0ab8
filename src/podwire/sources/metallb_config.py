"""The one ConfigMap by which MetalLB up to 0.12 was configured, to the objects of its later versions.

Invariants: pure. What it says in its own spelling (`peer-asn`) is said in that of the objects (`peerASN`), and nothing
else is decided here: `metallb.py` knows what it means.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from podwire.sources.fields import Invalid, shown
from podwire.sources.metallb import GROUP, Thing
from podwire.sources.positions import Malformed, compose, plain

_SPELLINGS = {
    "peer-asn": "peerASN",
    "my-asn": "myASN",
    "router-id": "routerID",
    "avoid-buggy-ips": "avoidBuggyIPs",
    "aggregation-length-v6": "aggregationLengthV6",
    "localpref": "localPref",
    "ebgp-multihop": "ebgpMultiHop",
    "minimum-ttl": "minimumTtl",
}
_AGAIN = re.compile(r"-([a-z0-9])")


def is_config(thing: Thing) -> bool:
    """Whether it may be that ConfigMap."""
    data = thing.get("data")
    known = isinstance(data, Mapping) and isinstance(data.get("config"), str)
    return (thing.get("apiVersion"), thing.get("kind")) == ("v1", "ConfigMap") and known


def objects_of(thing: Thing) -> list[Thing]:
    """What it says, as objects. Raises Invalid."""
    try:
        said = [plain(it) for it in compose(thing["data"]["config"])]
    except Malformed as error:
        raise Invalid("data[config]", f"line {error.line}: {error}") from None
    config = said[0] if said else {}
    if not isinstance(config, dict):
        raise Invalid("data[config]", f"expected a mapping with address-pools, not {shown(config)}")
    found = [*_pools(config), *_peers(config), *_profiles(config)]
    communities = _mapping(config, "bgp-communities")
    if communities:
        pairs = [{"name": str(name), "value": str(value)} for name, value in communities.items()]
        found.append(_object("Community", "communities", {"communities": pairs}))
    known = ("address-pools", "peers", "bfd-profiles", "bgp-communities")
    for field in config:
        if field not in known:
            raise Invalid(f"data[config].{field}", f"expected one of {', '.join(known)}")
    return found


def _pools(config: Mapping[str, Any]) -> Iterator[Thing]:
    """Each with what announces it: a pool says that itself here."""
    for number, it in enumerate(_list(config, "address-pools")):
        path = f"data[config].address-pools[{number}]"
        name, protocol = _name(str(it.get("name") or f"pool-{number + 1}")), it.get("protocol")
        if protocol not in ("layer2", "bgp"):
            raise Invalid(f"{path}.protocol", f"expected layer2 or bgp, not {shown(protocol)}")
        spec = _spelled({field: value for field, value in it.items() if field not in _OF_THE_WAY})
        yield _object("IPAddressPool", name, spec)
        if protocol == "layer2":
            yield _object("L2Advertisement", name, {"ipAddressPools": [name]})
            continue
        for at, each in enumerate(_list(it, "bgp-advertisements", path) or [{}]):
            own = name if at == 0 else f"{name}-{at + 1}"
            yield _object("BGPAdvertisement", own, {**_spelled(each), "ipAddressPools": [name]})


_OF_THE_WAY = ("name", "protocol", "bgp-advertisements")


def _peers(config: Mapping[str, Any]) -> Iterator[Thing]:
    """They have no names: they are numbered from 1."""
    for number, it in enumerate(_list(config, "peers")):
        yield _object("BGPPeer", f"peer-{number + 1}", _spelled(it))


def _profiles(config: Mapping[str, Any]) -> Iterator[Thing]:
    for it in _list(config, "bfd-profiles"):
        yield _object("BFDProfile", str(it.get("name")), _spelled({k: v for k, v in it.items() if k != "name"}))


def _list(of: Mapping[str, Any], field: str, path: str = "data[config]") -> list[dict[str, Any]]:
    found = of.get(field) or []
    if not isinstance(found, list) or not all(isinstance(it, dict) for it in found):
        raise Invalid(f"{path}.{field}", "expected a list of mappings")
    return found


def _mapping(config: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    found = config.get(field) or {}
    if not isinstance(found, dict):
        raise Invalid(f"data[config].{field}", "expected a mapping")
    return found


def _object(kind: str, name: str, spec: Mapping[str, Any]) -> Thing:
    return {"apiVersion": f"{GROUP}/v1beta1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def _spelled(value: Any) -> Any:
    """Keys as the objects have them; labels, whose names are the user's, as they are."""
    if isinstance(value, list):
        return [_spelled(it) for it in value]
    if not isinstance(value, dict):
        return value
    return {
        _key(str(key)): dict(it) if key == "match-labels" and isinstance(it, dict) else _spelled(it)
        for key, it in value.items()
    }


def _key(text: str) -> str:
    return _SPELLINGS.get(text) or _AGAIN.sub(lambda found: found[1].upper(), text)


def _name(text: str) -> str:
    """In the form of an object's."""
    return re.sub(r"[^a-z0-9.-]+", "-", text.lower()).strip("-.") or "pool"
