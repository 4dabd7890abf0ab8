# The targets say what they need; each one installs it first (scripts/setup), and at once where it is there.
.PHONY: setup check test demo bench churn soak shim image cluster-build cluster-test conformance services-e2e pod-start proto lock clean help root

PYTHON := .venv/bin/python
CLUSTER_TESTS := tests/cluster
# As many tests at a time as there are processors; a file's tests often share what they set up. Not those on the kernel:
# all namespaces of a machine share its tables of neighbours, which two at a time can fill.
BESIDE := -n auto --dist loadfile --maxprocesses 8

setup: ## the machine's packages and .venv
	@scripts/setup

check: ## style, types, walls and the tests that need no root
	@scripts/setup python
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	.venv/bin/lint-imports
	$(PYTHON) -m pytest $(BESIDE) tests/unit

test: root setup ## all tests, those on the real kernel included
	$(PYTHON) -m pytest $(BESIDE) tests/unit
	$(PYTHON) -m pytest tests/kernel

demo: root ## two nodes of network namespaces on this machine, a shop on them, and what they answer
	@scripts/setup demo
	.venv/bin/podwire lab demo examples/online-shop --nodes 2

bench: root setup ## figures beside kube-proxy, into build/bench.json; about 20 minutes
	$(PYTHON) -m tests.bench

churn: root setup ## ten minutes of changes under traffic: what is lost, what grows, into build/bench.json
	$(PYTHON) -m tests.bench.churn

soak: root setup ## 2,000 calls of 16 callers at a node whose agent is killed 50 times; SEED says which
	$(PYTHON) -m tests.kernel.soak 2000 50 16 $(or $(SEED),$(shell date +%s))

shim: ## the native CNI plugin, static, for this machine or ARCH=arm64
	@scripts/setup shim $(ARCH)
	scripts/shim $(addprefix --arch ,$(ARCH))

image: root ## the agent's image, build/podwire-image.tar, without a registry; ARCHES="amd64 arm64": one for both
	@scripts/setup image $(ARCHES)
	$(PYTHON) -m deploy.image $(ARCHES)

cluster-build: root ## Kubernetes, containerd and CoreDNS from Go modules, once: about 20 minutes on two cores
	@scripts/setup cluster
	$(PYTHON) -m tests.cluster.parts

cluster-test: cluster-build ## real clusters of namespaces: IPv4, dual-stack, IPv6 first; what survives which death
	$(PYTHON) -m pytest $(CLUSTER_TESTS) -s -vv --durations=15

conformance: cluster-build ## Kubernetes' own conformance tests of the network, into build/conformance.json
	$(PYTHON) -m tests.cluster.conformance

services-e2e: cluster-build ## all of Kubernetes' tests of Services that need no cloud, into build/services-e2e.json
	$(PYTHON) -m tests.cluster.conformance --services

pod-start: cluster-build ## how fast pods start, beside the reference network, into build/bench.json
	$(PYTHON) -m tests.cluster.pod_start

proto: ## the generated messages, from their .proto files
	@scripts/setup python
	cd src && ../$(PYTHON) -m grpc_tools.protoc -I. --python_out=. --pyi_out=. podwire/cni/cni.proto podwire/tenants/remote/types.proto

lock: ## requirements.lock, from pyproject.toml; versions change only where they must
	@scripts/setup python
	.venv/bin/uv pip compile --quiet --universal --generate-hashes --no-header --group dev pyproject.toml -o requirements.lock

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 24

clean: ## everything that the other targets made in this folder
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find src tests -name __pycache__ -prune -exec rm -rf {} +

root:
	@[ "$$(id -u)" = 0 ] || { echo "this needs root: it makes network namespaces. Try: sudo make $(MAKECMDGOALS)" >&2; exit 1; }
