"""MetalLB's objects to Podwire's: the same pools, peers and advertisements in our words.

Invariants: pure. Names stay as they are but where one is taken already (`taken`): then it begins with `metallb-`, and
whoever names the object follows. Nothing is lost without a word: what has no counterpart is a warning, with the object
and the field, and an object that would not do the same without is left out. What comes out is right by our own rules.
No warning repeats a password.
"""

import re
from base64 import b64encode
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from podwire.model.addresses import family_of, parse_address, prefix_around
from podwire.model.announcements import NAMESPACE
from podwire.sources.declared import understood
from podwire.sources.fields import Invalid, invalid, shown
from podwire.sources.kube_objects import POOLS
from podwire.sources.passwords import SecretObject, read_secret

GROUP = "metallb.io"
LABEL, FROM = "podwire.io/imported-from", "metallb"
"""On all that was made of MetalLB's."""
PREFIX = "metallb-"
Thing = Mapping[str, Any]
Object = dict[str, Any]
Named = tuple[str, str]
"""A kind and a name."""
_TOOLS = ("app.kubernetes.io/", "helm.sh/", "argocd.argoproj.io/", "fluxcd.io/", "kubectl.kubernetes.io/")
"""Labels by which tools know what is theirs: our objects are not."""


class Imported(NamedTuple):
    """`objects` in the order in which they can be applied. `left_out`: of MetalLB's, by kind and name."""

    objects: tuple[Object, ...]
    warnings: tuple[str, ...]
    left_out: tuple[Named, ...]


class _Left(Exception):
    """The object can't do the same here; the text says why."""


class _Around:
    """What is looked up while objects are made, and what is said."""

    def __init__(self, things: Iterable[Thing], taken: Container[Named]) -> None:
        self.of: dict[str, dict[str, Thing]] = {}
        self.taken = taken
        self.warnings: list[str] = []
        self.secrets: dict[str, Object] = {}
        for thing in things:
            kind, name = str(thing.get("kind")), str(_mapping(thing, "metadata").get("name"))
            if name in self.of.setdefault(kind, {}):
                self.warn(f"{kind.lower()}/{name}", "it is there twice; the last one counts")
            self.of[kind][name] = thing
        self.communities = dict(self._aliases())

    def _aliases(self) -> Iterator[tuple[str, str]]:
        for _, thing in sorted(self.of.get("Community", {}).items()):
            listed = _spec(thing).get("communities")
            for it in listed if isinstance(listed, list) else ():
                if isinstance(it, Mapping):
                    yield str(it.get("name")), str(it.get("value"))

    def name(self, kind: str, name: str) -> str:
        """Ours."""
        return f"{PREFIX}{name}" if (kind, name) in self.taken else name

    def warn(self, where: str, words: str) -> None:
        self.warnings.append(f"{where}: {words}")

    def rest(self, where: str, spec: Thing, known: Container[str]) -> None:
        """What of the spec is said and was not looked at."""
        for field, value in sorted(spec.items()):
            if field not in known and value not in (None, False, "", 0, [], {}):
                self.warn(where, f"spec.{field} has no counterpart here, and is left out")


_Make = Callable[[_Around, str, Thing], tuple[str, Object]]


def convert(things: Iterable[Thing], taken: Container[Named] = ()) -> Imported:
    """`things`: objects of group metallb.io of any version, and the Secrets that peers name; all else is passed over.
    `taken`: names that others' objects have, by our kind."""
    at = _Around((it for it in things if _counts(it)), taken)
    found: list[Object] = []
    left_out: list[Named] = []
    for kind, make in _KINDS.items():
        for name, thing in sorted(at.of.get(kind, {}).items()):
            where, secrets = f"{kind.lower()}/{name}", dict(at.secrets)
            try:
                ours, spec = make(at, where, thing)
                found.append(_object(at, ours, name, spec, _labels(thing) if ours == "AddressPool" else {}))
            except (_Left, Invalid) as error:
                at.secrets = secrets
                at.warn(where, f"{error}; it is left out")
                left_out.append((kind, name))
    return Imported((*(at.secrets[it] for it in sorted(at.secrets)), *found), tuple(at.warnings), tuple(left_out))


def _counts(thing: Thing) -> bool:
    version, kind = str(thing.get("apiVersion")), str(thing.get("kind"))
    return version.startswith(f"{GROUP}/") or (version, kind) == ("v1", "Secret")


def _mapping(of: Thing, field: str) -> Thing:
    """What is none says nothing."""
    found = of.get(field)
    return found if isinstance(found, Mapping) else {}


def _spec(thing: Thing) -> Thing:
    return _mapping(thing, "spec")


def _texts(spec: Thing, field: str) -> list[str]:
    """Raises Invalid."""
    found = spec.get(field) or []
    if not isinstance(found, list) or not all(isinstance(it, str | int) for it in found):
        raise Invalid(f"spec.{field}", f"expected a list of texts, not {shown(found)}")
    return [str(it) for it in found]


def _labels(thing: Thing) -> dict[str, str]:
    given = _mapping(_mapping(thing, "metadata"), "labels")
    return {str(key): str(value) for key, value in given.items() if not any(it in str(key) for it in _TOOLS)}


def _object(at: _Around, kind: str, name: str, spec: Object, labels: Mapping[str, str]) -> Object:
    """Raises Invalid where it is not right by our rules."""
    about = {"name": at.name(kind, name), "labels": {**labels, LABEL: FROM}}
    try:
        form, _ = understood(kind, about, spec)
    except msgspec.ValidationError as error:
        raise invalid(error) from None
    return {"apiVersion": POOLS, "kind": kind, "metadata": about, "spec": _said(msgspec.to_builtins(form))}


def _said(value: Any) -> Any:
    """Without what says nothing."""
    if isinstance(value, dict):
        return {key: _said(it) for key, it in value.items() if it is not None}
    return [_said(it) for it in value] if isinstance(value, list) else value


def _same(spec: Thing, fields: Iterable[str]) -> Object:
    """As they are, where they say anything."""
    return {it: spec[it] for it in fields if spec.get(it) not in (None, "", [], {})}


# --- pools -------------------------------------------------------------------------------------

_ALLOCATION = ("priority", "namespaces", "namespaceSelectors", "serviceSelectors")


def _pool(at: _Around, where: str, thing: Thing) -> tuple[str, Object]:
    spec = _spec(thing)
    allocation = _mapping(spec, "serviceAllocation")
    made: Object = {"addresses": [_range(it) for it in _texts(spec, "addresses")]}
    made |= _same(spec, ("autoAssign", "avoidBuggyIPs")) | _same(allocation, _ALLOCATION)
    at.rest(where, spec, ("addresses", "autoAssign", "avoidBuggyIPs", "serviceAllocation"))
    at.rest(f"{where}: spec.serviceAllocation", allocation, _ALLOCATION)
    return "AddressPool", made


def _range(text: str) -> str:
    """Blanks around the ends, and host bits, are let pass by MetalLB."""
    plain = "".join(text.split())
    head, slash, tail = plain.partition("/")
    try:
        return str(prefix_around(parse_address(head), int(tail))) if slash else plain
    except (ValueError, OverflowError):
        return text


# --- peers -------------------------------------------------------------------------------------

_PEER_SAME = ("peerAddress", "peerASN", "myASN", "sourceAddress", "peerPort", "routerID", "nodeSelectors")
_TIMES = {
    "holdTime": "holdTimeSeconds",
    "keepaliveTime": "keepaliveTimeSeconds",
    "connectTime": "connectRetryTimeSeconds",
}
_PEER_KNOWN = (
    *_PEER_SAME,
    *_TIMES,
    *("ebgpMultiHop", "password", "passwordSecret", "bfdProfile", "enableGracefulRestart"),
    *("disableMP", "dualStackAddressFamily"),
)


def _peer(at: _Around, where: str, thing: Thing) -> tuple[str, Object]:
    spec, name = _spec(thing), where.partition("/")[2]
    for field in ("dynamicASN", "interface", "vrf"):
        if spec.get(field):
            raise _Left(f"spec.{field} has no counterpart here, and without it the session would be another")
    made = {it: value for it, value in _same(spec, _PEER_SAME).items() if value != 0}
    for field, ours in _TIMES.items():
        if spec.get(field) not in (None, ""):
            made[ours] = _seconds(at, where, field, spec[field])
    if spec.get("ebgpMultiHop"):
        made["ebgpMultiHop"] = True
    # What is off there unless it is asked for is on here.
    made["gracefulRestart"] = {"enabled": bool(spec.get("enableGracefulRestart"))}
    families = _families(spec)
    if families:
        made["families"] = families
    if spec.get("bfdProfile"):
        made["bfd"] = _bfd(at, where, str(spec["bfdProfile"]))
    if (secret := _secret(at, where, name, spec)) is not None:
        made["passwordSecret"] = secret
    at.rest(where, spec, _PEER_KNOWN)
    return "BGPPeer", made


def _families(spec: Thing) -> list[str]:
    """Newer versions tell a peer the routes of its own family, unless asked for both; older ones both, unless asked
    for one."""
    both = spec["dualStackAddressFamily"] if "dualStackAddressFamily" in spec else not spec.get("disableMP")
    try:
        return [] if both else [str(family_of(parse_address(str(spec.get("peerAddress")))))]
    except ValueError:
        return []


_PART = re.compile(r"(\d+(?:\.\d+)?)(h|ms|m|s|us|µs|ns)")
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}


def _seconds(at: _Around, where: str, field: str, given: object) -> int:
    """A time as Go writes it, such as `90s` or `1m30s`. Raises Invalid."""
    text = str(given)
    parts = _PART.findall(text)
    if "".join(f"{number}{unit}" for number, unit in parts) != text and text != "0":
        raise Invalid(f"spec.{field}", f"expected a time such as 90s, not {shown(given)}")
    exact = sum(float(number) * _UNITS[unit] for number, unit in parts)
    seconds = round(exact)
    if abs(exact - seconds) > 1e-6:
        at.warn(where, f"spec.{field}: {text} is taken for {seconds} s: times are whole seconds here")
    return seconds


_BFD = {
    "receiveInterval": "receiveIntervalMilliseconds",
    "transmitInterval": "transmitIntervalMilliseconds",
    "detectMultiplier": "detectMultiplier",
}
_BFD_DEFAULTS = (300, 300, 3)


def _bfd(at: _Around, where: str, name: str) -> Object:
    profile = at.of.get("BFDProfile", {}).get(name)
    if profile is None:
        raise _Left(f"spec.bfdProfile: there is no BFDProfile {name}")
    spec = _spec(profile)
    at.rest(f"{where}: bfdprofile/{name}", spec, _BFD)
    return {ours: spec.get(it) or usual for (it, ours), usual in zip(_BFD.items(), _BFD_DEFAULTS, strict=True)}


def _secret(at: _Around, where: str, peer: str, spec: Thing) -> Object | None:
    """Where the password is: a Secret that is made of MetalLB's, or of the peer's own field."""
    if spec.get("password"):
        name = f"bgp-{peer}"
        content = b64encode(str(spec["password"]).encode()).decode()
        return _copied(at, where, name, {"password": content})
    given = _mapping(spec, "passwordSecret").get("name")
    if not given:
        return None
    name, found = str(given), at.of.get("Secret", {}).get(str(given))
    if found is None:
        at.warn(where, f"spec.passwordSecret: Secret {name} is to be copied to namespace {NAMESPACE}")
        return {"name": at.name("Secret", name), "key": "password"}
    texts = {key: b64encode(str(it).encode()).decode() for key, it in _mapping(found, "stringData").items()}
    items = {**_mapping(found, "data"), **texts}
    return _copied(at, where, name, {"password": str(items["password"])} if "password" in items else {})


def _copied(at: _Around, where: str, name: str, data: Mapping[str, str]) -> Object:
    ours = at.name("Secret", name)
    about = {"name": ours, "namespace": NAMESPACE, "labels": {LABEL: FROM}}
    made = {"apiVersion": "v1", "kind": "Secret", "metadata": about, "type": "Opaque", "data": dict(data)}
    unfit: list[Invalid] = []
    read_secret(msgspec.convert(made, SecretObject), unfit)
    for error in (*unfit, *(() if data else (Invalid("data[password]", "missing"),))):
        at.warn(where, f"Secret {name}: {error}; there is no session with this password")
    at.secrets[ours] = made
    return {"name": ours, "key": "password"}


# --- advertisements ----------------------------------------------------------------------------

_CHOICE = ("ipAddressPools", "ipAddressPoolSelectors", "serviceSelectors", "nodeSelectors")
_BGP = ("peers", "communities", "localPref", "aggregationLength", "aggregationLengthV6")


def _choice(at: _Around, spec: Thing) -> Object:
    made = _same(spec, ("serviceSelectors", "nodeSelectors"))
    if spec.get("ipAddressPools"):
        made["addressPools"] = [at.name("AddressPool", it) for it in _texts(spec, "ipAddressPools")]
    if spec.get("ipAddressPoolSelectors"):
        made["addressPoolSelectors"] = spec["ipAddressPoolSelectors"]
    return made


def _bgp(at: _Around, where: str, thing: Thing) -> tuple[str, Object]:
    spec = _spec(thing)
    made = _choice(at, spec) | _same(spec, ("aggregationLength", "aggregationLengthV6"))
    if spec.get("peers"):
        made["peers"] = [at.name("BGPPeer", it) for it in _texts(spec, "peers")]
    if spec.get("communities"):
        given = (at.communities.get(it, it) for it in _texts(spec, "communities"))
        made["communities"] = [it.removeprefix("large:") for it in given]
    if spec.get("localPref"):
        made["localPref"] = spec["localPref"]
    at.rest(where, spec, (*_CHOICE, *_BGP))
    return "BGPAdvertisement", made


def _l2(at: _Around, where: str, thing: Thing) -> tuple[str, Object]:
    spec = _spec(thing)
    at.rest(where, spec, (*_CHOICE, "interfaces"))
    return "L2Advertisement", _choice(at, spec) | _same(spec, ("interfaces",))


_KINDS: dict[str, _Make] = {
    "IPAddressPool": _pool,
    "BGPPeer": _peer,
    "BGPAdvertisement": _bgp,
    "L2Advertisement": _l2,
}
