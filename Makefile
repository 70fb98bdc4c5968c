# lmerge: the commands of the project. `make` lists them.
SHELL := /bin/sh
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
WORKERS ?= 2
KILLS ?= 200
SEEDS ?= 2000
SEED ?=

.DEFAULT_GOAL := help
.PHONY: help demo test check lint types bench bench-core bench-server bench-replicas bench-figures bench-peers crash sim proto clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# What Spark and ZooKeeper run on. A system whose package manager is known gets it.
JAVA := openjdk-17-jre-headless
define need_java
	@command -v java > /dev/null || { \
		if command -v apt-get > /dev/null && [ "$$(id -u)" = 0 ]; then \
			echo "Installing Java ($(JAVA)) ..."; \
			apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq -y install $(JAVA) > /dev/null; \
		else \
			echo "Spark needs Java 17 or newer. On Debian and Ubuntu: sudo apt-get install $(JAVA)"; exit 1; \
		fi; }
endef

# The environment is made anew when what it needs changes. The compiled loops are made with it,
# so that no command waits for them later.
$(READY): pyproject.toml Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "lmerge needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1). Try: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv --clear $(VENV) || { \
		echo "Python's venv module is missing. On Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	@echo "Installing lmerge and its tools into $(VENV) ..."
	$(need_java)
	@$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@echo "Compiling the merge's loops (once) ..."
	@$(BIN)/python -m lmerge.core.warmup
	@touch $@

demo: $(READY) ## three replicas, one of them dies: what the consumer sees
	@$(BIN)/lmerge demo

test: $(READY) ## all tests
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

check: lint types test ## lint, types and tests

lint: $(READY) ## ruff
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(READY) ## mypy, strict
	@$(BIN)/mypy

bench: bench-core bench-server bench-replicas ## all benchmarks

bench-core: $(READY) ## the core's speed and memory, as ratios; writes bench/results/core.json
	@$(BIN)/python -m bench.core

bench-figures: $(READY) ## the paper's figures: plots and a page in bench/results/figures
	@$(BIN)/lmerge bench figures -o bench/results/figures
	@$(BIN)/python -m bench.report.document

bench-server: $(READY) ## the server's speed, memory and recovery; writes bench/results/server.json
	@$(BIN)/python -m bench.server

bench-replicas: $(READY) ## what PySpark replicas cost and gain; writes bench/results/replicas.json
	@$(BIN)/python -m bench.replicas

bench-peers: $(READY) ## against DuckDB and Spark, each installed into bench/.peers
	@$(BIN)/python -m bench.peers
	@$(BIN)/python -m bench.report.document

crash: $(READY) ## kill -9 the server KILLS times under load: nothing lost, twice or changed
	@$(BIN)/python -m tests.crash --kills $(KILLS) $(if $(SEED),--seed $(SEED))

sim: $(READY) ## simulate a cluster with a faulty network for SEEDS seeds (SEED=n: one, told in full)
	@$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED),--seeds $(SEEDS))

proto: $(READY) ## generate lmerge/v1 from proto/
	@$(BIN)/python -m tests.proto_generation lmerge/v1

clean: ## remove the environment and everything made
	@rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
