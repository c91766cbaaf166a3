# Everything a contributor types. Each target first installs what it needs, unless that is current.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Targets start hundreds of Python processes, each of which would compile the package for itself
# where bytecode is not kept.
export PYTHONDONTWRITEBYTECODE =
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check
# uv installs the development set several times as fast as pip. It does not read pip's settings, so
# it is told the index that pip has; where it cannot get there all the same, pip installs.
UV_PROGRAM = $(BIN)/uv
INDEX = $(shell $(BIN)/python -m pip config get global.index-url 2>/dev/null || echo "$$PIP_INDEX_URL")
UV = $(if $(INDEX),UV_DEFAULT_INDEX=$(INDEX)) UV_NATIVE_TLS=1 $(UV_PROGRAM) pip install --quiet --python $(BIN)/python
INSTALL = install() { $(UV) "$$@" 2>$(VENV)/.uv.log || $(PIP) "$$@"; }; install

.DEFAULT_GOAL := help
.PHONY: help setup run test quick test-versions test-repeat check bench bench-postgres bench-http bench-stores bench-queues bench-instructions soak soak-services simulate mutants chaos hammer-postgres hammer-stores verify-broken verify-demo verify-peers lock docs docs-site clean

help: ## show this
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-19s %s\n", $$1, $$2}'

setup: $(VENV)/.dev ## make .venv with everything, hash-checked

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "oncekey needs Python 3.11 or newer; try: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "Python's venv module is missing (on Debian: the package python3-venv)"; exit 1; }

$(VENV)/.installer: requirements/installer.txt | $(BIN)/python
	@test $(UV_PROGRAM) != $(BIN)/uv || $(PIP) --require-hashes -r requirements/installer.txt || \
	  echo "no uv for this machine; pip installs, which takes longer"
	@touch $@

# The sets share one .venv: versions in the smaller sets are those of the development set.
$(VENV)/.demo: requirements/demo.txt pyproject.toml | $(VENV)/.installer
	@echo "installing what the demo needs into $(VENV) ..."
	@$(INSTALL) --require-hashes -r requirements/demo.txt
	@$(INSTALL) --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.dev: requirements/dev.txt pyproject.toml | $(VENV)/.installer
	@echo "installing the development set into $(VENV) ..."
	@$(INSTALL) --require-hashes -r requirements/dev.txt
	@$(INSTALL) --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.bench: requirements/bench.txt $(VENV)/.dev
	@$(INSTALL) --require-hashes -r requirements/bench.txt
	@touch $@

$(VENV)/.docs: requirements/docs.txt $(VENV)/.dev
	@$(INSTALL) --require-hashes -r requirements/docs.txt
	@touch $@

run: $(VENV)/.demo ## start the demo: a payments API and its page (ARGS=--play plays it in the terminal)
	@$(BIN)/oncekey demo $(ARGS)

# Six processes on two cores: tests wait for servers, leases and kills as much as they compute.
PARALLEL = -n 6 --dist loadfile --no-loadscope-reorder

# The first run would fetch servers one after the other, and compile every test in each process.
$(VENV)/.servers: $(VENV)/.dev
	@echo "fetching the servers that the tests start, and compiling the tests ..."
	@$(BIN)/python -m pytest --collect-only --quiet >/dev/null & \
	  $(BIN)/python -m tests.support.servers.fetched; wait
	@touch $@

test: $(VENV)/.servers ## run every test, on two cores
	@$(BIN)/python -m pytest $(PARALLEL) $(ARGS)

quick: setup ## the tests that need no server and no network, in less than a minute
	@ONCEKEY_QUICK=1 $(BIN)/python -m pytest -q $(PARALLEL) $(addprefix tests/,core engine contract http client testing) $(ARGS)

test-versions: setup ## the tests on every Python >= 3.11 of this machine (ARGS=--quick: what make quick runs)
	@$(BIN)/python -m tests.support.python_versions $(ARGS)

N = 10
test-repeat: $(VENV)/.servers ## the tests N times, in other orders and with other seeds; LOAD=1 adds a busy neighbour
	@$(BIN)/python -m tests.support.repeated_runs --times $(N) $(if $(LOAD),--load) $(ARGS)

# Names that vermin takes for those of a newer Python: here they are modules of the redis client.
NEWER_NAMES = --exclude sentinel

check: setup ## lint, types, layers, the oldest Python, tidiness
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@found=$$($(BIN)/vermin -q --violations --no-tips -vvv -t=3.11- $(NEWER_NAMES) src tests bench examples docs_build); \
	  test -z "$$found" || { echo "$$found"; exit 1; }  # of a file that it cannot judge it only says so
	@$(BIN)/python -m pytest -q tests/test_tidy.py tests/test_oldest_python.py

bench: $(VENV)/.bench ## measure against peers and the raw limit, in one run
	@$(BIN)/python -m bench

bench-postgres: $(VENV)/.bench ## the same on a PostgreSQL server of its own (minutes)
	@$(BIN)/python -m bench postgres

bench-http: $(VENV)/.bench ## an HTTP API bare, guarded by oncekey, and by its peers (minutes)
	@$(BIN)/python -m bench http

bench-stores: $(VENV)/.bench ## Valkey, its Cluster and etcd beside raw limits and peers (minutes)
	@$(BIN)/python -m bench stores

bench-queues: $(VENV)/.bench ## consumers beside bare loops, on Redis Streams and Kafka (minutes)
	@$(BIN)/python -m bench queues

bench-instructions: $(VENV)/.bench ## count instructions per operation with callgrind (minutes)
	@$(BIN)/python -m bench instructions

soak: setup ## the long forms of hammer, model, crashes and kills (more than an hour; ARGS="-n 4 --dist loadfile" takes four processes)
	@ONCEKEY_SOAK=1 $(BIN)/python -m pytest tests/core tests/engine tests/explore tests/simulation tests/contract tests/hammer tests/model tests/fault tests/stores tests/http tests/queues tests/servers tests/cli tests/client tests/testing tests/crossings tests/chaos -s --timeout 1800 $(ARGS)

soak-services: setup ## 500 checkouts through four services that are killed all the time (minutes)
	@ONCEKEY_SOAK=1 $(BIN)/python -m pytest tests/fleet -s --timeout 1800

simulate: setup ## a million simulated worlds (half an hour; ARGS="--seed 17 -v" tells the story of one)
	@$(BIN)/python -m tests.support.simulation --seeds 1000000 $(ARGS)

mutants: setup ## run every tool on every seeded bug: each must be caught by two (minutes; ARGS=--docs writes the page)
	@$(BIN)/python -m tests.support.mutants $(ARGS)

chaos: setup ## ten minutes of faults on APIs, consumers and databases; every history is checked (ARGS="--seed 7 --minutes 2")
	@mkdir -p build/chaos
	@$(BIN)/python -m tests.support.chaos --html build/chaos/timeline.html $(ARGS)

hammer-postgres: setup ## the long hammer on PostgreSQL alone (minutes)
	@ONCEKEY_SOAK=1 $(BIN)/python -m pytest tests/hammer/test_postgres_hammer.py -s --timeout 1800

hammer-stores: setup ## the long hammer on Valkey, a Valkey Cluster, Redis and etcd (minutes)
	@ONCEKEY_SOAK=1 $(BIN)/python -m pytest tests/hammer/test_redis_and_etcd_hammer.py -s --timeout 1800

verify-broken: setup ## the verifier on fifteen servers with one fault each, and on one without (minutes)
	@$(BIN)/python -m bench.verifier.broken_servers

verify-demo: setup ## the verifier on the demo, 20 times: no false alarm (minutes)
	@$(BIN)/python -m bench.verifier.false_alarms

verify-peers: $(VENV)/.bench ## the verifier on published middlewares; writes docs/explanation/verified-peers.md (minutes)
	@$(BIN)/python -m bench.verifier.comparison

docs: setup ## write the pages in docs/ that are generated from code
	@$(BIN)/python -m docs_build.state_machine_page
	@$(BIN)/python -m docs_build.doctor_page
	@$(BIN)/python -m docs_build.verify_page
	@$(BIN)/python -m tests.crossings

docs-site: $(VENV)/.docs ## build the documentation site into build/site; a dead link or anchor fails
	@PYTHONPATH=. $(BIN)/zensical build --clean --strict

lock: setup ## pin requirements/*.in again, with hashes
	@for set in installer dev demo docs bench; do \
	  $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	    --no-emit-index-url --no-header --output-file requirements/$$set.txt requirements/$$set.in; done

clean: ## remove what make made
	find src tests bench examples docs_build -name __pycache__ -prune -exec rm -rf {} +
	rm -rf $(VENV) .venv-* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .cache build dist src/*.egg-info
