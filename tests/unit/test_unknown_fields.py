"""Fields of manifests that a kind of Podwire's own does not have: each is one error that names it, and what it has."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from podwire.sources.fields import Invalid
from podwire.sources.kinds import KINDS
from podwire.sources.kube_objects import POOLS
from podwire.sources.kubernetes import translate
from podwire.sources.unknown_fields import check_fields

DEPLOY = Path(__file__).parents[2] / "deploy" / "podwire.yaml"
OWN = sorted(kind for version, kind in KINDS if version == POOLS)
SCHEMAS = {
    it["spec"]["names"]["kind"]: it["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    for it in yaml.safe_load_all(DEPLOY.read_text(encoding="utf-8"))
    if it["kind"] == "CustomResourceDefinition"
}
CHOOSES = {"nodeSelectors": [{"matchLabels": {"any/label": "x"}}]}
PEER = {"peerAddress": "192.0.2.1", "peerASN": 1, "myASN": 2}


def made(kind: str, spec: Any, **more: Any) -> dict[str, Any]:
    return {"apiVersion": POOLS, "kind": kind, "metadata": {"name": "a"}, "spec": spec, **more}


WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "one letter": (
        made("L2Advertisement", {"interface": ["eth0"]}),
        "spec.interface",
        "unknown; expected one of addressPools, addressPoolSelectors, serviceSelectors, nodeSelectors, interfaces",
    ),
    "in a struct": (
        made("BGPPeer", {**PEER, "bfd": {"multiplier": 3}}),
        "spec.bfd.multiplier",
        "unknown; expected one of receiveIntervalMilliseconds, transmitIntervalMilliseconds, detectMultiplier",
    ),
    "in a list": (
        made("L2Advertisement", {"nodeSelectors": [{}, {"matchLabel": {"a": "b"}}]}),
        "spec.nodeSelectors[1].matchLabel",
        "unknown; expected one of matchLabels, matchExpressions",
    ),
    "beside spec": (
        made("AddressPool", {"addresses": ["192.0.2.0/28"]}, addresses=[]),
        "addresses",
        "unknown; expected one of apiVersion, kind, metadata, spec, status",
    ),
    "the first of several": (
        made("BGPPeer", {"zzz": 1, "aaa": 1, **PEER}),
        "spec.zzz",
        "",
    ),
}


@pytest.mark.parametrize(("thing", "field", "message"), WRONG.values(), ids=WRONG)
def test_a_field_that_a_kind_does_not_have_is_an_error(thing: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(Invalid) as caught:
        translate(thing)
    assert str(caught.value).startswith(f"{field}: {message}")


RIGHT = {
    "labels are their users'": made("L2Advertisement", CHOOSES),
    "a status": made("BGPPeer", PEER, status={"conditions": []}),
    "others' metadata": {**made("BGPPeer", PEER), "metadata": {"name": "a", "managedFields": []}},
    "Kubernetes' own kinds have fields that are nothing to the network": {
        **made("Namespace", {"finalizers": ["kubernetes"]}),
        "apiVersion": "v1",
    },
}


@pytest.mark.parametrize("thing", RIGHT.values(), ids=RIGHT)
def test_what_else_stands_there_is_no_error(thing: dict[str, Any]) -> None:
    translate(thing)


def whole(schema: dict[str, Any]) -> Any:
    """A value with all fields of a schema."""
    if "properties" in schema:
        return {name: whole(it) for name, it in schema["properties"].items()}
    return [whole(schema["items"])] if "items" in schema else None


@pytest.mark.parametrize("kind", OWN)
def test_each_field_of_the_schema_is_known(kind: str) -> None:
    """What the API server takes a file may say, too."""
    thing = made(kind, whole(SCHEMAS[kind]))
    assert thing["spec"]
    check_fields(thing, KINDS[POOLS, kind])
