"""A slip of the pen in apiVersion or kind is told; what another API may mean is left alone."""

import pytest

from podwire.sources.kinds import KINDS
from podwire.sources.loading import load, read_file
from podwire.sources.near import nearest

SLICE = "discovery.k8s.io/v1 EndpointSlice"
RANGE = "networking.k8s.io/v1 ServiceCIDR"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("v1 Services", "v1 Service"),
        ("v1 service", "v1 Service"),
        ("v1 Sevrice", "v1 Service"),
        ("V1 Service", "v1 Service"),
        ("v1beta1 Service", "v1 Service"),
        ("apps/v1 Service", "v1 Service"),
        ("v1 Pods", "v1 Pod"),
        ("v1 NameSpace", "v1 Namespace"),
        ("v1 Nodes", "v1 Node"),
        ("v1 EndpointSlice", SLICE),
        ("discovery.k8s.io/v1beta1 EndpointSlice", SLICE),
        ("discovery.k8s.oi/v1 EndpointSlice", SLICE),
        ("discovery/v1 EndpointSlice", SLICE),
        ("discovery.k8s.io/v1 EndpointSlices", SLICE),
        ("discovery.k8s.io/v1 Service", "v1 Service"),
        ("networking.k8s.io/v1beta1 ServiceCIDR", RANGE),
        ("networking.k8s.io/v1 ServiceCidr", RANGE),
        ("v1 Secret", None),
        ("v1 Endpoints", None),
        ("v1 PodTemplate", None),
        ("v1 ServiceAccount", None),
        ("v1 ConfigMap", None),
        ("apps/v1 Deployment", None),
        ("networking.k8s.io/v1 IngressClass", None),
        ("networking.k8s.io/v1 NetworkPolicy", None),
        ("serving.knative.dev/v1 Service", None),
        ("example.com/v1 Services", None),
        ("cilium.io/v2 CiliumNode", None),
        ("metrics.k8s.io/v1beta1 NodeMetrics", None),
    ],
)
def test_the_nearest_kind(written: str, meant: str | None) -> None:
    version, kind = written.split(" ")
    found = nearest(version, kind, KINDS)
    assert (" ".join(found) if found else None) == meant


GOOD = "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}\n"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        pytest.param(
            GOOD + "---\n" + GOOD.replace("Service", "Services"),
            "a.yaml: document 2, line 7: kind: unknown: v1 Services; did you mean v1 Service?",
            id="the kind",
        ),
        pytest.param(
            GOOD.replace("v1", "discovery.k8s.io/v1beta1").replace("Service", "EndpointSlice"),
            "a.yaml: document 1, line 1: apiVersion: unknown: discovery.k8s.io/v1beta1 EndpointSlice; did you mean "
            "discovery.k8s.io/v1 EndpointSlice?",
            id="the version",
        ),
    ],
)
def test_a_document_of_nearly_a_kind_is_an_error_and_the_last_good_content_stays(text: str, error: str) -> None:
    good = read_file("a.yaml", GOOD.encode())
    now = read_file("a.yaml", text.encode(), good)
    assert (now.objects, now.error) == (good.objects, error)


def test_other_kinds_are_ignored_as_before() -> None:
    loaded = load({"a.yaml": GOOD.replace("Service", "ConfigMap").encode()})
    assert (loaded.errors, loaded.ignored) == ((), ("v1 ConfigMap",))
