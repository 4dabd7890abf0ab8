"""From a user's manifests to the complete objects of a cluster."""

from collections import Counter
from typing import Any

import pytest

from podwire.lab.expand import Manifest, ManifestsError, ObjectKey, Plan, Scaled, expand, objects
from podwire.lab.slices import Listen, RunningPod, listens_on
from podwire.lab.system import SYSTEM
from podwire.lab.topology import stations
from podwire.model.objects import PodKey, Protocol, ServiceKey
from podwire.sources.kubernetes import translate
from tests.unit.lab_manifests import bare, manifests, running, service, together, workload


def slices(plan: Plan, name: str, pods: dict[PodKey, RunningPod] | None = None) -> list[dict[str, Any]]:
    held = objects(plan, running(plan) if pods is None else pods)
    return [
        thing
        for thing in held.values()
        if thing["kind"] == "EndpointSlice" and thing["metadata"]["labels"]["kubernetes.io/service-name"] == name
    ]


def names(plan: Plan) -> list[str]:
    return [key.name for key in plan.pods]


# --- workloads ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "spec", "nodes", "count"),
    [
        pytest.param("Deployment", "replicas: 3", 2, 3, id="a Deployment has its replicas"),
        pytest.param("Deployment", "", 2, 1, id="one where it says nothing"),
        pytest.param("Deployment", "replicas: 0", 2, 0, id="or none"),
        pytest.param("ReplicaSet", "replicas: 2", 1, 2, id="a ReplicaSet too"),
        pytest.param("DaemonSet", "", 3, 3, id="a DaemonSet has a pod on every node"),
    ],
)
def test_a_workload_has_so_many_pods(kind: str, spec: str, nodes: int, count: int) -> None:
    plan = expand(manifests(workload(kind, spec=spec)), nodes)
    assert len(plan.pods) == count
    assert len({pod.uid for pod in plan.pods.values()}) == count


def test_a_daemon_set_is_on_each_node_once_and_where_its_selector_fits() -> None:
    plan = expand(manifests(workload("DaemonSet")), 3)
    assert sorted(pod.node for pod in plan.pods.values()) == ["node1", "node2", "node3"]
    chosen = expand(manifests(workload("DaemonSet", pod="nodeSelector: {kubernetes.io/hostname: node2}")), 3)
    assert [pod.node for pod in chosen.pods.values()] == ["node2"]


def test_a_stateful_set_numbers_its_pods_from_its_first_ordinal() -> None:
    plan = expand(manifests(workload("StatefulSet", "db", "replicas: 2\n          ordinals: {start: 3}")), 2)
    assert names(plan) == ["db-3", "db-4"]
    assert plan.pods[PodKey("default", "db-3")].labels["apps.kubernetes.io/pod-index"] == "3"


def test_a_deployment_s_pods_carry_the_hash_of_their_template() -> None:
    plan = expand(manifests(workload()), 1)
    (pod,) = plan.pods.values()
    digest = pod.labels["pod-template-hash"]
    assert pod.key.name.startswith(f"web-{digest}-")
    other = expand(manifests(workload(ports="[{containerPort: 81}]")), 1)
    assert not plan.pods.keys() & other.pods.keys()


def test_a_bare_pod_and_a_replication_controller() -> None:
    controller = """
        apiVersion: v1
        kind: ReplicationController
        metadata: {name: old}
        spec:
          replicas: 2
          template:
            metadata: {labels: {app: old}}
            spec: {containers: [{name: main}]}
        """
    plan = expand(manifests(bare("lone"), controller), 1)
    assert Counter(key.name.partition("-")[0] for key in plan.pods) == {"lone": 1, "old": 2}


def test_pods_are_spread_evenly() -> None:
    plan = expand(manifests(workload(spec="replicas: 7")), 3)
    assert sorted(Counter(pod.node for pod in plan.pods.values()).values()) == [2, 2, 3]


def test_another_number_of_replicas_keeps_the_pods_that_stay_where_they_are() -> None:
    three = expand(manifests(workload(spec="replicas: 3")), 2)
    five = expand(manifests(workload(spec="replicas: 5")), 2)
    assert three.pods.items() <= five.pods.items()


def test_a_node_s_name_binds_and_an_unknown_one_leaves_the_pod_without() -> None:
    plan = expand(manifests(bare("a", spec="nodeName: node2"), bare("b", spec="nodeName: mars")), 2)
    assert {key.name: pod.node for key, pod in plan.pods.items()} == {"a": "node2", "b": ""}


def test_what_was_scaled_by_hand_holds_until_the_manifest_changes() -> None:
    key = ObjectKey("Deployment", "default", "web")
    scaled = {key: Scaled(instead_of=1, replicas=4)}
    assert len(expand(manifests(workload()), 1, scaled=scaled).pods) == 4
    assert len(expand(manifests(workload(spec="replicas: 2")), 1, scaled=scaled).pods) == 2


def test_the_order_of_files_changes_nothing() -> None:
    texts = [workload(), service("web"), workload("DaemonSet", "logs"), service("dns", ports="[{port: 53}]")]
    assert expand(manifests(*texts), 2) == expand(manifests(*reversed(texts)), 2)


# --- Services ----------------------------------------------------------------------------------


def test_a_selector_takes_the_pods_with_all_of_its_labels_in_its_own_namespace() -> None:
    plan = expand(
        manifests(
            service("web", selector="app: web, tier: front"),
            bare("a", "app: web, tier: front, more: x"),
            bare("b", "app: web"),
            bare("c", "app: web, tier: front").replace("name: c,", "name: c, namespace: other,"),
        ),
        1,
    )
    (held,) = slices(plan, "web")
    assert [it["targetRef"]["name"] for it in held["endpoints"]] == ["a"]


@pytest.mark.parametrize(
    ("ports", "wanted"),
    [
        pytest.param("[{port: 80}]", [("", "TCP", 80)], id="the port itself where no target is given"),
        pytest.param("[{port: 80, targetPort: 9000}]", [("", "TCP", 9000)], id="a number"),
        pytest.param("[{port: 80, targetPort: http}]", [("", "TCP", 8080)], id="a name"),
        pytest.param("[{port: 80, targetPort: nobody}]", [], id="a name that no container has"),
        pytest.param("[{port: 80, targetPort: http, protocol: UDP}]", [], id="a name of another protocol"),
        pytest.param(
            "[{name: a, port: 80, targetPort: http}, {name: b, port: 53, protocol: UDP}]",
            [("a", "TCP", 8080), ("b", "UDP", 53)],
            id="several",
        ),
    ],
)
def test_a_target_port_is_what_the_pod_says(ports: str, wanted: list[tuple[str, str, int]]) -> None:
    plan = expand(manifests(service("web", ports=ports), workload()), 1)
    (held,) = slices(plan, "web")
    assert [(it["name"], it["protocol"], it["port"]) for it in held["ports"]] == wanted


def test_a_name_that_means_two_numbers_makes_two_slices() -> None:
    plan = expand(
        manifests(
            service("web", ports="[{port: 80, targetPort: http}]"),
            bare("a", ports="[{name: http, containerPort: 8080}]"),
            bare("b", ports="[{name: http, containerPort: 9090}]"),
        ),
        1,
    )
    found = {it["endpoints"][0]["targetRef"]["name"]: it["ports"][0]["port"] for it in slices(plan, "web")}
    assert found == {"a": 8080, "b": 9090}


def test_a_dual_stack_service_has_a_slice_for_each_family() -> None:
    plan = expand(manifests(service("web", "ipFamilyPolicy: PreferDualStack"), workload(spec="replicas: 2")), 2)
    found = {it["addressType"]: it for it in slices(plan, "web")}
    assert [it["addresses"] for it in found["IPv4"]["endpoints"]] == [["10.244.1.2"], ["10.244.1.3"]]
    assert [it["addresses"] for it in found["IPv6"]["endpoints"]] == [["fd00:244:0:1::2"], ["fd00:244:0:1::3"]]
    for member in found["IPv6"]["endpoints"]:
        assert member["nodeName"] == plan.pods[PodKey("default", member["targetRef"]["name"])].node


def test_a_service_without_pods_has_an_empty_slice_and_one_without_selector_none() -> None:
    plan = expand(manifests(service("web"), service("outside", selector="")), 1)
    assert [it["endpoints"] for it in slices(plan, "web")] == [[]]
    assert slices(plan, "outside") == []


def test_a_pod_on_a_node_that_is_off_is_not_ready() -> None:
    plan = expand(manifests(service("web"), service("all", "publishNotReadyAddresses: true"), workload()), 1)
    pods = {key: it._replace(ready=False) for key, it in running(plan).items()}
    assert slices(plan, "web", pods)[0]["endpoints"][0]["conditions"]["ready"] is False
    assert slices(plan, "all", pods)[0]["endpoints"][0]["conditions"]["ready"] is True
    node = objects(plan, pods, frozenset({"node1"}))[ObjectKey("Node", "", "node1")]
    assert node["status"]["conditions"] == [{"type": "Ready", "status": "Unknown"}]


def test_a_headless_service_has_slices_but_no_address() -> None:
    plan = expand(manifests(service("db", "clusterIP: None"), workload("StatefulSet", "db", "serviceName: db")), 1)
    spec = objects(plan, {})[ObjectKey("Service", "default", "db")]["spec"]
    assert (spec["clusterIP"], spec["clusterIPs"]) == ("None", ["None"])
    (held,) = slices(plan, "db")
    assert [it["hostname"] for it in held["endpoints"]] == ["db-0"]


def test_an_external_name_has_neither() -> None:
    plan = expand(manifests(service("far", "type: ExternalName, externalName: example.org")), 1)
    assert "clusterIPs" not in objects(plan, {})[ObjectKey("Service", "default", "far")]["spec"]
    assert slices(plan, "far") == []


@pytest.mark.parametrize(
    ("ports", "wanted"),
    [
        pytest.param(
            "[{containerPort: 1}, {containerPort: 2, protocol: UDP}]",
            {(Protocol.TCP, 1), (Protocol.UDP, 2)},
            id="what it declares",
        ),
        pytest.param("[]", {(Protocol.TCP, 80), (Protocol.TCP, 90)}, id="else what its Services aim at"),
    ],
)
def test_a_pod_listens_on(ports: str, wanted: set[tuple[Protocol, int]]) -> None:
    plan = expand(manifests(service("a"), service("b", ports="[{port: 1, targetPort: 90}]"), bare("p", ports=ports)), 1)
    listens = listens_on(plan.pods[PodKey("default", "p")], [it.form for it in plan.services.values()])
    assert listens == {Listen(*it) for it in wanted}


@pytest.mark.parametrize(
    ("ports", "pod", "wanted"),
    [
        ("[{containerPort: 80, hostPort: 8001}]", "", ["8001/TCP to 80"]),
        ("[{containerPort: 80, hostPort: 8001, protocol: UDP, hostIP: 127.0.0.1}]", "", ["127.0.0.1:8001/UDP to 80"]),
        ("[{containerPort: 80, hostPort: 8001, hostIP: 'fd00::01'}]", "", ["[fd00::1]:8001/TCP to 80"]),
        ("[{containerPort: 80, hostPort: 0}, {containerPort: 81}]", "", []),
        ("[{containerPort: 80, hostPort: 80}]", "hostNetwork: true", []),
    ],
    ids=["at all addresses", "at one", "of IPv6", "none", "of the host's network"],
)
def test_ports_of_the_node_lead_to_a_pod(ports: str, pod: str, wanted: list[str]) -> None:
    (held,) = expand(manifests(workload(ports=ports, pod=pod)), 1).pods.values()
    assert list(map(str, held.host_ports)) == wanted


def test_what_is_behind_port_53_of_the_cluster_dns_is_a_name_server() -> None:
    names = service("dns", ports="[{name: a, port: 53, targetPort: 5353}, {name: b, port: 9153}]")
    plan = expand(
        manifests(names, bare("p", ports="[{containerPort: 5353}, {containerPort: 9153}]"), bare("q", "app: x")), 1
    )
    (form,) = (it.form for it in plan.services.values())
    assert listens_on(plan.pods[PodKey("default", "p")], [form], form) == {
        Listen(Protocol.TCP, 5353, dns=True),
        Listen(Protocol.TCP, 9153),
    }
    assert listens_on(plan.pods[PodKey("default", "q")], [form], form) == {Listen(Protocol.TCP, 8080)}


def test_a_user_s_own_object_replaces_one_of_the_lab_s() -> None:
    plan = expand(manifests(service("web")), 1, system=SYSTEM)
    assert {key.name: it.form.spec.cluster_ips for key, it in plan.services.items()} == {
        "kube-dns": ["10.96.0.10", "fd00:96::a"],
        "web": None,
    }
    own = service("kube-dns", "clusterIP: 10.96.0.53").replace(
        "name: kube-dns}", "name: kube-dns, namespace: kube-system}"
    )
    (held,) = expand(manifests(own), 1, system=SYSTEM).services.values()
    assert held.object["spec"]["clusterIPs"] == ["10.96.0.53"]


def test_a_load_balancer_gets_node_ports_and_it_is_said_that_no_address_is_given() -> None:
    plan = expand(manifests(service("web", "type: LoadBalancer")), 1)
    (held,) = plan.services.values()
    assert held.object["spec"]["ports"][0]["nodePort"] in range(30000, 32768)
    assert plan.notes == ("no AddressPool gives an address (external IPs work): default/web",)


POOL = "{apiVersion: podwire.io/v1alpha1, kind: AddressPool, metadata: {name: public}, spec: {addresses: [%s]}}"


def test_an_address_pool_gives_addresses_that_stay_and_says_where_there_is_none() -> None:
    def given(plan: Plan) -> dict[str, list[str]]:
        return {
            key.name: [it["ip"] for it in held.object["status"]["loadBalancer"]["ingress"]]
            for key, held in plan.services.items()
        }

    both = [service(name, "type: LoadBalancer") for name in ("web", "shop")]
    plan = expand(manifests(POOL % "203.0.113.1/32", both[0]), 1)
    assert given(plan) == {"web": ["203.0.113.1"]}
    again = expand(manifests(POOL % "203.0.113.1/32", *both), 1, plan.given)
    assert given(again) == {"web": ["203.0.113.1"], "shop": []}, "the first by name is the younger one"
    assert again.notes == ("no address for default/shop: no address: pool public has no free IPv4 address",)
    for taken in ("192.168.99.1/32", "10.244.1.7/32", "10.96.0.7/32"):
        whose = expand(manifests(POOL % taken, both[0]), 1)
        assert given(whose) == {"web": []}, "it is a node's, a pod's or a Service's, as for the cluster's controller"
    held = again.services[ServiceKey("default", "web")].object["status"]["conditions"][0]
    assert (held["status"], held["reason"]) == ("True", "Assigned")


def test_nodes_may_have_moved() -> None:
    plan = expand([], 2)
    first, second = stations(2)
    held = objects(plan, {}, nodes=[first, second._replace(host=7)])
    moved = held[ObjectKey("Node", "", "node2")]
    assert [it["address"] for it in moved["status"]["addresses"]] == ["192.168.99.7", "fd00:99::7", "node2"]
    assert moved["spec"]["podCIDRs"] == ["10.244.2.0/24", "fd00:244:0:2::/64"]


# --- the cluster -------------------------------------------------------------------------------


def test_every_object_is_one_that_an_agent_understands() -> None:
    extra = """
        apiVersion: v1
        kind: Namespace
        metadata: {name: other, labels: {team: a}}
        ---
        apiVersion: discovery.k8s.io/v1
        kind: EndpointSlice
        metadata: {name: outside-1, labels: {kubernetes.io/service-name: outside}}
        addressType: IPv4
        ports: [{port: 80}]
        endpoints: [{addresses: [192.0.2.1]}]
        """
    plan = expand(
        manifests(
            service("web", "ipFamilyPolicy: RequireDualStack, type: NodePort"),
            service("outside", selector=""),
            workload(spec="replicas: 3"),
            extra,
        ),
        2,
    )
    held = objects(plan, running(plan))
    kinds = Counter(key.kind for key in held)
    assert kinds == {"Node": 2, "Service": 2, "Pod": 3, "EndpointSlice": 3, "Namespace": 1}
    for thing in held.values():
        assert translate(thing).value is not None
    node = held[ObjectKey("Node", "", "node2")]
    assert node["spec"]["podCIDRs"] == ["10.244.2.0/24", "fd00:244:0:2::/64"]
    assert [it["address"] for it in node["status"]["addresses"]] == ["192.168.99.2", "fd00:99::2", "node2"]


def test_a_pod_is_pending_until_it_has_addresses() -> None:
    plan = expand(manifests(bare("p")), 1)
    key = ObjectKey("Pod", "default", "p")
    assert objects(plan, {})[key]["status"]["phase"] == "Pending"
    status = objects(plan, running(plan))[key]["status"]
    assert (status["phase"], status["podIPs"]) == ("Running", [{"ip": "10.244.1.2"}, {"ip": "fd00:244:0:1::2"}])


def test_what_is_older_stays_older() -> None:
    first = expand(manifests(service("web")), 1, now="2024-01-01T00:00:00Z")
    second = expand(manifests(service("web"), service("new")), 1, first.given, now="2024-01-02T00:00:00Z")
    born = {key.name: it.object["metadata"]["creationTimestamp"] for key, it in second.services.items()}
    assert born == {"web": "2024-01-01T00:00:00Z", "new": "2024-01-02T00:00:00Z"}


def test_ports_that_nothing_answers_on_are_listed() -> None:
    port = "[{containerPort: 1, protocol: SCTP}]"
    assert expand(manifests(workload(ports=port)), 1).notes == ()
    plan = expand(manifests(workload(ports=port, pod="hostNetwork: true")), 1)
    assert plan.notes == ("no answer over SCTP at a node's own addresses: Deployment/default/web",)


def test_other_kinds_are_listed_and_nothing_else() -> None:
    config = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: NAME}\n"
    class_ = "apiVersion: example.org/v1\nkind: Widget\nmetadata: {name: w, namespace: other}\nspec: 5\n"
    plan = expand(manifests(config.replace("NAME", "b"), config.replace("NAME", "a"), class_), 1)
    assert plan.notes == ("not used here: ConfigMap: default/a, default/b", "not used here: Widget: other/w")
    assert {key.kind for key in objects(plan, {})} == {"Node"}


# --- mistakes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param(
            workload(spec="replicas: -1"),
            "1.yaml: document 1, line 9: Deployment/default/web: spec.replicas: expected a whole number from 0, not -1",
            id="replicas",
        ),
        pytest.param(
            workload().replace("apps/v1", "extensions/v1beta1"),
            "1.yaml: document 1, line 1: Deployment/default/web: apiVersion: expected apps/v1 for a Deployment, "
            "not 'extensions/v1beta1'",
            id="an old version",
        ),
        pytest.param(
            workload().replace("selector: {matchLabels: {app: web}}", "selector: {matchLabels: {app: other}}"),
            "1.yaml: document 1, line 5: Deployment/default/web: spec.selector: does not select the template's own "
            "labels (spec.template.metadata.labels)",
            id="a selector that misses",
        ),
        pytest.param(
            workload(ports="[{containerPort: 70000}]"),
            "1.yaml: document 1, line 8: Deployment/default/web: "
            "spec.template.spec.containers[0].ports[0].containerPort: expected 1 to 65535, not 70000",
            id="a port",
        ),
        pytest.param(
            workload(ports="[{containerPort: 80, hostPort: 65536}]"),
            "1.yaml: document 1, line 8: Deployment/default/web: "
            "spec.template.spec.containers[0].ports[0].hostPort: expected 1 to 65535, not 65536",
            id="a port of the node",
        ),
        pytest.param(
            workload(ports="[{containerPort: 80, hostIP: localhost}]"),
            "1.yaml: document 1, line 8: Deployment/default/web: "
            "spec.template.spec.containers[0].ports[0].hostIP: expected an IP address, not 'localhost'",
            id="an address of the node",
        ),
        pytest.param(
            workload(ports="[{containerPort: http}]"),
            "1.yaml: document 1, line 8: Deployment/default/web: "
            "spec.template.spec.containers[0].ports[0].containerPort: expected a whole number, not text",
            id="a port that is no number",
        ),
        pytest.param(
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec: {replicas: 1}\n",
            "1.yaml: document 1, line 4: Deployment/default/web: spec.template: missing",
            id="no template",
        ),
        pytest.param(
            "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {selector: {app: web}}\n",
            "1.yaml: document 1, line 4: Service/default/web: spec.ports: expected at least one port",
            id="a Service without ports",
        ),
        pytest.param(
            service("web", "clusterIP: 10.0.0.1"),
            "1.yaml: document 1, line 4: Service/default/web: spec.clusterIP: 10.0.0.1 is not in the service range "
            "10.96.0.0/16",
            id="an address from elsewhere",
        ),
        pytest.param(
            service("web", "ipFamilies: [IPv4, IPv6]"),
            "1.yaml: document 1, line 4: Service/default/web: spec.ipFamilyPolicy: expected PreferDualStack or "
            "RequireDualStack beside two ipFamilies",
            id="two families unasked",
        ),
        pytest.param(
            service("web", "type: NodePort", ports="[{port: 80, nodePort: 80}]"),
            "1.yaml: document 1, line 4: Service/default/web: spec.ports[0].nodePort: expected 30000 to 32767, not 80",
            id="a node port",
        ),
        pytest.param(
            service("web", "clusterIP: None", ports="[{port: 80, protocol: QUIC}]"),
            "1.yaml: document 1, line 4: Service/default/web: spec.ports[0].protocol: expected TCP, UDP or SCTP, not "
            "'QUIC'",
            id="a protocol of a headless Service, that no agent reads",
        ),
        pytest.param(
            service("web", "type: ExternalName, externalName: a.example, externalIPs: [192.0.2.1, x]"),
            "1.yaml: document 1, line 4: Service/default/web: spec.externalIPs[1]: expected an IP address, not 'x'",
            id="an external IP of an ExternalName, that no agent reads",
        ),
        pytest.param(
            together([service("web"), service("web")]),
            "1.yaml: document 2, line 8: Service/default/web: metadata.name: is there twice; the other is at 1.yaml: "
            "document 1, line 1",
            id="a name twice",
        ),
        pytest.param(
            bare("Upper"),
            "1.yaml: document 1, line 3: Pod/default/Upper: metadata.name: expected lower-case letters, digits, "
            '"-" and ".", not \'Upper\'',
            id="a name that can't be",
        ),
    ],
)
def test_a_mistake_is_one_line_with_its_place(text: str, said: str) -> None:
    with pytest.raises(ManifestsError) as caught:
        expand(manifests(text), 1)
    assert str(caught.value) == said


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(ManifestsError) as caught:
        expand(manifests(workload(spec="replicas: -1"), service("a", "type: Odd"), service("b")), 1)
    assert len(str(caught.value).splitlines()) == 2


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"kind": 5},
        {"kind": "Service", "apiVersion": "v1"},
        {"kind": "Service", "apiVersion": "v1", "metadata": {"name": "a"}},
        {"kind": "Service", "apiVersion": "v1", "metadata": {"name": "a"}, "spec": []},
        {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "a"}, "spec": {"containers": {}}},
        {"kind": "Deployment", "apiVersion": "apps/v1", "metadata": {"name": "a", "namespace": 5}, "spec": {}},
        {"kind": "ReplicationController", "apiVersion": "v1", "metadata": {"name": "a"}, "spec": {"selector": 5}},
    ],
    ids=repr,
)
def test_no_shape_is_a_crash(data: dict[str, Any]) -> None:
    with pytest.raises(ManifestsError):
        expand([Manifest(data, lambda _: "file")], 1)
