"""Manifests for the lab's tests, as a user writes them: YAML text to what `expand` takes; and pods that run."""

from collections.abc import Iterable
from functools import partial
from textwrap import dedent

from podwire.lab.expand import Manifest, Plan
from podwire.lab.slices import RunningPod
from podwire.model.addresses import parse_address
from podwire.model.objects import PodKey
from podwire.sources.documents import Document, read_documents


def manifests(*texts: str) -> list[Manifest]:
    """Each text as a file: 1.yaml, 2.yaml, and so on."""
    found: list[Manifest] = []
    for number, text in enumerate(texts, 1):
        documents = read_documents(f"{number}.yaml", dedent(text).lstrip().encode())
        found += [Manifest(it.data, partial(_where, it)) for it in documents]
    return found


def _where(document: Document, field: str) -> str:
    return str(document.place._replace(line=document.line(field)))


def service(name: str, spec: str = "", selector: str = "app: web", ports: str = "[{port: 80}]") -> str:
    return dedent(f"""\
        apiVersion: v1
        kind: Service
        metadata: {{name: {name}}}
        spec: {{selector: {{{selector}}}, ports: {ports}, {spec}}}
        """)


def workload(
    kind: str = "Deployment",
    name: str = "web",
    spec: str = "",
    pod: str = "",
    ports: str = "[{name: http, containerPort: 8080}]",
    labels: str = "app: web",
) -> str:
    return dedent(f"""\
        apiVersion: apps/v1
        kind: {kind}
        metadata: {{name: {name}}}
        spec:
          selector: {{matchLabels: {{{labels}}}}}
          template:
            metadata: {{labels: {{{labels}}}}}
            spec: {{containers: [{{name: main, ports: {ports}}}], {pod}}}
          {spec}
        """)


def bare(
    name: str, labels: str = "app: web", ports: str = "[{name: http, containerPort: 8080}]", spec: str = ""
) -> str:
    return dedent(f"""\
        apiVersion: v1
        kind: Pod
        metadata: {{name: {name}, labels: {{{labels}}}}}
        spec: {{containers: [{{name: main, ports: {ports}}}], {spec}}}
        """)


def together(texts: Iterable[str]) -> str:
    return "---\n".join(texts)


def running(plan: Plan) -> dict[PodKey, RunningPod]:
    """Each pod with two addresses, numbered by the order of names."""
    found = {}
    for number, key in enumerate(sorted(plan.pods, key=str), 2):
        addresses = (parse_address(f"10.244.1.{number}"), parse_address(f"fd00:244:0:1::{number:x}"))
        found[key] = RunningPod(plan.pods[key], addresses)
    return found
