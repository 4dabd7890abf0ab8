"""Single objects of a fake API server: made, read, changed and deleted, each refused as the real one refuses it.

`CONTRACT` is what both must answer: tests/unit/test_kube_records.py asks the fake, tests/cluster/test_pool_objects.py
the real one.
"""

import ipaddress
import json
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

Thing = dict[str, Any]
POOLS, BLOCKS = "/apis/podwire.io/v1alpha1/podpools", "/apis/podwire.io/v1alpha1/podblocks"
VERSION = "podwire.io/v1alpha1"
MERGE = "application/merge-patch+json"


class Answer(NamedTuple):
    status: int
    body: Thing


class Refused(Exception):
    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason = status, reason


def pool(name: str, *cidrs: str, **spec: Any) -> Thing:
    """As the API server has it: with its defaults."""
    sizes = {"ipv4": 26, "ipv6": 122} | spec.pop("blockSizes", {})
    return {"metadata": {"name": name}, "spec": {"cidrs": list(cidrs), "blockSizes": sizes, "autoAssign": True} | spec}


def block(cidr: str, node: str, pool: str = "pods", uid: str = "") -> Thing:
    """`uid`: the Node's, that owns it."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}
    metadata = {"name": name_of_block(cidr)} | ({"ownerReferences": [owner]} if uid else {})
    return {"metadata": metadata, "spec": {"cidr": cidr, "pool": pool, "node": node}}


def name_of_block(cidr: str) -> str:
    """Written anew, so that a wrong one in the source is found."""
    network = ipaddress.ip_network(cidr)
    return f"{network.network_address.exploded.replace(':', '-')}-{network.prefixlen}"


# --- single objects ------------------------------------------------------------------------------


class Held(Protocol):
    """What is needed of a fake server."""

    objects: dict[str, dict[tuple[str, str], Thing]]

    def put(self, resource: str, thing: Thing) -> None: ...
    def remove(self, resource: str, name: tuple[str, str]) -> None: ...


def answer(held: Held, method: str, name: str, body: bytes, kind: str) -> Answer:
    """Of a PodBlock; `name` is "" for a POST."""
    try:
        return _answer(held, method, name, body, kind)
    except Refused as refused:
        status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": str(refused)}
        return Answer(refused.status, {**status, "reason": refused.reason, "code": refused.status})


def _answer(held: Held, method: str, name: str, body: bytes, kind: str) -> Answer:
    wanted = MERGE if method == "PATCH" else "application/json"
    if method != "GET" and kind != wanted:
        raise Refused(415, "UnsupportedMediaType", f"the body of the request was in an unknown format: {kind}")
    try:
        given = json.loads(body) if body else {}
    except ValueError:
        raise Refused(400, "BadRequest", "the object provided is unrecognized") from None
    if method == "POST":
        return _made(held, given)
    key, before = ("", name), held.objects["podblocks"].get(("", name))
    if before is None:
        raise Refused(404, "NotFound", f'podblocks.podwire.io "{name}" not found')
    if method == "DELETE":
        check_preconditions(before, given)
        held.remove("podblocks", key)
        return Answer(200, {"kind": "Status", "status": "Success", "details": {"uid": before["metadata"]["uid"]}})
    if method == "PATCH":
        if (version := given.get("metadata", {}).get("resourceVersion", before["metadata"]["resourceVersion"])) != (
            before["metadata"]["resourceVersion"]
        ):
            raise Refused(409, "Conflict", f"the object has been modified: {version}")
        after = merged(before, given)
        check("podblocks", after, before)
        check_owners(after["metadata"])
        held.put("podblocks", after)
    return Answer(200, held.objects["podblocks"][key])


def _made(held: Held, given: Thing) -> Answer:
    if (given.get("apiVersion"), given.get("kind")) != (VERSION, "PodBlock"):
        raise Refused(400, "BadRequest", "does not match the expected kind PodBlock")
    check("podblocks", given, None)
    check_owners(given["metadata"])
    key = ("", given["metadata"]["name"])
    if key in held.objects["podblocks"]:
        raise Refused(409, "AlreadyExists", f'podblocks.podwire.io "{key[1]}" already exists')
    held.put("podblocks", given)
    return Answer(201, held.objects["podblocks"][key])


# --- what is refused -----------------------------------------------------------------------------


def check(resource: str, thing: Thing, before: Thing | None) -> None:
    """The rules of the CustomResourceDefinition, as far as agents can break them. Raises Refused."""
    if resource != "podblocks":
        return
    spec = thing.get("spec")
    if not isinstance(spec, dict) or any(not isinstance(spec.get(it), str) for it in ("cidr", "pool", "node")):
        raise _invalid("spec: Required value")
    try:
        fits = str(ipaddress.ip_network(spec["cidr"])) == spec["cidr"]
    except ValueError:
        fits = False
    if not fits:
        raise _invalid("spec.cidr: Invalid value: expected an address range in its shortest form")
    if thing["metadata"]["name"] != name_of_block(spec["cidr"]):
        raise _invalid("metadata.name must be that of spec.cidr")
    if not spec["pool"] or not spec["node"]:
        raise _invalid("should be at least 1 chars long")
    if before is not None and before["spec"] != spec:
        raise _invalid("spec: Invalid value: can't be changed")


def check_owners(metadata: Thing) -> None:
    """Raises Refused (Kubernetes API, OwnerReference)."""
    for owner in metadata.get("ownerReferences") or ():
        if lacking := [it for it in ("apiVersion", "kind", "name", "uid") if not owner.get(it)]:
            raise _invalid(f"metadata.ownerReferences.{lacking[0]}: Required value")


def check_preconditions(held: Thing, options: Thing) -> None:
    """Raises Refused (Kubernetes API, DeleteOptions)."""
    for name, wanted in (options.get("preconditions") or {}).items():
        if (found := held["metadata"][name]) != wanted:
            raise Refused(409, "Conflict", f"Precondition failed: {name}: {wanted}, {found}")


def merged(held: Any, change: Any) -> Any:
    """RFC 7386."""
    if not isinstance(change, dict) or not isinstance(held, dict):
        return change
    result = {**held, **{key: merged(held.get(key), value) for key, value in change.items()}}
    return {key: value for key, value in result.items() if value is not None}


def _invalid(message: str) -> Refused:
    return Refused(422, "Invalid", message)


# --- what both must answer -----------------------------------------------------------------------

Ask = Callable[[str, str, Any, str], Any]
"""Method, path, body and content type; awaits an `Answer`."""


class Case(NamedTuple):
    """`body` may depend on the answers before, by their place."""

    method: str
    path: str
    status: int
    says: str = ""
    body: Any = None
    kind: str = "application/json"


def _named(cidr: str) -> str:
    return f"{BLOCKS}/{name_of_block(cidr)}"


def _owner(uid: str) -> list[Thing]:
    return [{"apiVersion": "v1", "kind": "Node", "name": "one", "uid": uid}]


def _record(of: str, by: str = "one", **more: Any) -> Thing:
    made = block(of, by)
    made["spec"] |= more
    return {"apiVersion": VERSION, "kind": "PodBlock", **made}


A, B = "10.9.0.64/26", "fd00:9::40/122"
CONTRACT: dict[str, list[Case]] = {
    "made once, whoever asks": [
        Case("GET", _named(A), 404, "NotFound"),
        Case("POST", BLOCKS, 201, body=_record(A)),
        Case("POST", BLOCKS, 409, "AlreadyExists", _record(A)),
        Case("POST", BLOCKS, 409, "AlreadyExists", _record(A, "two")),
        Case("GET", _named(A), 200),
        Case("POST", BLOCKS, 201, body=_record(B)),
        Case("POST", BLOCKS, 409, "AlreadyExists", _record(B, "two")),
    ],
    "not made": [
        Case("POST", BLOCKS, 422, "metadata.name must be that of spec.cidr", _record(A) | {"metadata": {"name": "a"}}),
        Case("POST", BLOCKS, 422, "shortest form", _record(A, cidr="10.9.0.65/26")),
        Case("POST", BLOCKS, 422, "shortest form", _record(B, cidr="fd00:9:0::40/122")),
        Case("POST", BLOCKS, 422, "shortest form", _record(A, cidr="ten")),
        Case("POST", BLOCKS, 422, "", _record(A, pool="")),
        Case("POST", BLOCKS, 422, "Required value", _record(A) | {"spec": {"cidr": A, "pool": "p"}}),
        Case(
            "POST",
            BLOCKS,
            422,
            "uid",
            _record(A) | {"metadata": {"name": name_of_block(A), "ownerReferences": _owner("")}},
        ),
        Case("POST", BLOCKS, 400, "", b"{"),
        Case("GET", _named(A), 404, "NotFound"),
    ],
    "given back by who has looked at it": [
        Case("POST", BLOCKS, 201, body=_record(A)),
        Case("DELETE", _named(A), 409, "Conflict", {"preconditions": {"uid": "another"}}),
        Case("DELETE", _named(A), 409, "Conflict", {"preconditions": {"resourceVersion": "1"}}),
        Case("GET", _named(A), 200),
        Case("DELETE", _named(A), 200, "Success", {}),
        Case("DELETE", _named(A), 404, "NotFound", {}),
        Case("POST", BLOCKS, 201, body=_record(A, "two")),
    ],
    "an owner changes, nothing else": [
        Case("PATCH", _named(A), 404, "NotFound", {"metadata": {"labels": {"a": "b"}}}, MERGE),
        Case("POST", BLOCKS, 201, body=_record(A)),
        Case("PATCH", _named(A), 200, "new", {"metadata": {"ownerReferences": _owner("new")}}, MERGE),
        Case("PATCH", _named(A), 409, "Conflict", {"metadata": {"resourceVersion": "1", "labels": {"a": "b"}}}, MERGE),
        Case("PATCH", _named(A), 422, "can't be changed", {"spec": {"node": "two"}}, MERGE),
        Case("PATCH", _named(A), 415, "", {"spec": {"node": "two"}}, "application/strategic-merge-patch+json"),
    ],
}


async def keeps(ask: Ask, cases: list[Case]) -> None:
    """That a server answers so; what the cases leave is removed."""
    try:
        for case in cases:
            answer = await ask(case.method, case.path, case.body, case.kind)
            text = json.dumps(answer.body)
            assert (answer.status, case.says in text) == (case.status, True), f"{case}: {text}"
    finally:
        for cidr in (A, B):
            await ask("DELETE", _named(cidr), {}, "application/json")
