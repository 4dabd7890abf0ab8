# The targets say what they need; each one installs it first (scripts/setup), and at once where it is there.
.PHONY: setup check test demo proto lock clean root

PYTHON := .venv/bin/python

setup: ## the machine's packages and .venv
	@scripts/setup

check: ## style, types, walls and the tests that need no root
	@scripts/setup python
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	.venv/bin/lint-imports
	$(PYTHON) -m pytest tests/unit

test: root setup ## all tests, those on the real kernel included
	$(PYTHON) -m pytest tests/unit tests/kernel

demo: root setup ## a cluster of network namespaces on this machine
	.venv/bin/podwire lab demo examples/guestbook

proto: ## the generated messages, from their .proto files
	@scripts/setup python
	cd src && ../$(PYTHON) -m grpc_tools.protoc -I. --python_out=. --pyi_out=. podwire/cni/cni.proto

lock: ## requirements.lock, from pyproject.toml; versions change only where they must
	@scripts/setup python
	.venv/bin/uv pip compile --quiet --universal --generate-hashes --no-header --group dev pyproject.toml -o requirements.lock

clean: ## everything that the other targets made in this folder
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find src tests -name __pycache__ -prune -exec rm -rf {} +

root:
	@[ "$$(id -u)" = 0 ] || { echo "this needs root: it makes network namespaces. Try: sudo make $(MAKECMDGOALS)" >&2; exit 1; }
