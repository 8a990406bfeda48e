PYTHON ?= python3
BIN    := .venv/bin
UV     := $(BIN)/uv
SETUP  := .venv/.setup-done
PYTEST := $(BIN)/pytest -n 2 # more workers than this take the processor away from the clusters that they test
LOCK   := $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes \
          --no-header --no-annotate --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock"

.PHONY: help setup demo test test-fast hunt check bench lock up down compose-test clean

help: ## what can be done here
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 16

setup: $(SETUP) ## virtual environment, Python packages and jars, all by lock files

$(SETUP): requirements/uv.txt requirements/all.txt pyproject.toml $(wildcard jars/*/*.toml)
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "Stele needs Python 3.11 or newer: install it, then make setup PYTHON=python3.11")'
	@$(PYTHON) services/stele/stack/java.py
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	test -x $(UV) || $(BIN)/python -m pip install --quiet --require-hashes -r requirements/uv.txt
	$(UV) pip install --quiet --require-hashes -r requirements/all.txt
	$(UV) pip install --quiet --no-deps --no-build-isolation -e .
	$(BIN)/python -m stele.stack.jars sync
	@touch $@

demo: setup ## a real cluster on this machine, under load, with what happened
	$(BIN)/stele demo

test: check ## everything that must hold
	$(PYTEST)

test-fast: check ## the same without what takes minutes
	$(PYTEST) -m "not slow and not broker and not end_to_end and not spark and not deploy and not browser"

hunt: setup ## the properties with new examples each time: what fails becomes a case of its own
	STELE_HUNT=yes $(PYTEST) -m "not end_to_end and not spark and not deploy and not browser" tests/domain tests/coordinator

check: setup ## style, types, import rules, dead code, schema compatibility
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/vulture
	$(if $(wildcard services/stele/log/schemas.py),$(BIN)/python -m stele.log.schemas check)

bench: setup ## measure, on this machine
	$(BIN)/python -m benchmarks

lock: setup ## resolve the newest versions that pyproject.toml and jars/ allow
	echo "uv==0.13.8" | $(LOCK) --upgrade - -o requirements/uv.txt
	$(LOCK) --upgrade -c requirements/uv.txt pyproject.toml --all-extras -o requirements/all.txt
	$(LOCK) --upgrade -c requirements/all.txt pyproject.toml -o requirements/services.txt
	$(LOCK) --upgrade -c requirements/all.txt pyproject.toml --extra spark -o requirements/placements.txt
	printf '%s\n' uv 'jgo[cli]' setuptools | $(LOCK) --upgrade -c requirements/uv.txt -c requirements/all.txt - -o requirements/image-build.txt
	$(BIN)/python -m stele.stack.jars lock

up: ## the same services in containers, three brokers
	infra/compose up

down: ## stop the containers; the data stays in its volumes
	infra/compose down

compose-test: setup ## bring the containers up, break some, check, take them down
	$(BIN)/pytest -m deploy tests/deploy

clean: ## remove what was built; keep the sources
	rm -rf .venv .cache .stele build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis services/*.egg-info
