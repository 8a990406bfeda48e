PYTHON ?= python3
BIN    := .venv/bin
UV     := $(BIN)/uv
SETUP  := .venv/.setup-done
WORKERS ?= 5
UNREAD := /(tests?|pip|mypy|moto|botocore|_vendor|lexers|pandas)/
PAGE_TOOLS := .cache/page
TSC    := $(PAGE_TOOLS)/node_modules/.bin/tsc
MERMAID := .cache/site/mermaid.min.js
MERMAID_PACKAGE := mermaid@11.12.0
MERMAID_SHA256 := 07e37dfa97b337ccc85365d57eddf99b9706f09db3b59b260d0333b23b343c4b
PYTEST := $(BIN)/pytest -n $(WORKERS)
LOCK   := $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes \
          --no-header --no-annotate --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock"

.PHONY: help setup classes chromium demo drill test test-all test-fast test-profile collected hunt mutate check page-types docs bench lock up down compose-test clean

help: ## what can be done here
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 16

setup: $(SETUP) ## virtual environment, Python packages and jars, all by lock files

$(SETUP): requirements/uv.txt requirements/all.txt pyproject.toml tests/harness/pyproject.toml $(wildcard jars/*/*.toml)
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "Stele needs Python 3.11 or newer: install it, then make setup PYTHON=python3.11")'
	@$(PYTHON) -I services/stele/runtime/java.py
	@echo "1 of 4: a virtual environment in .venv"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@test -x $(UV) || $(BIN)/python -m pip install --quiet --require-hashes -r requirements/uv.txt
	@echo "2 of 4: Python packages, 1.2 GB in .venv, most of it Spark; a minute or two the first time"
	@$(UV) pip install --python $(BIN)/python --quiet --require-hashes -r requirements/all.txt
	@echo "3 of 4: stele itself"
	@$(UV) pip install --python $(BIN)/python --quiet --no-deps --no-build-isolation -e . -e tests/harness
	@$(BIN)/python -W ignore -m compileall -q -j 0 -x '$(UNREAD)' .venv/lib services tests/harness
	@echo "4 of 4: jars of Kafka and of Spark's connectors, in .cache/jars"
	@$(BIN)/python -m stele_harness.stack.jars sync
	@touch $@
	@echo "Ready. The command is .venv/bin/stele: 'source .venv/bin/activate' puts it on the PATH of this shell,"
	@echo "'stele completion' has Tab complete it. Next: make demo"

demo: setup ## a real cluster on this machine, under load, with what happened
	$(BIN)/stele demo

drill: setup ## lose the log of a real cluster under load, and recover it
	$(BIN)/stele drill

classes: setup ## half a minute, once: then brokers and Spark start in half the time
	$(BIN)/python -m stele_harness.stack.classes

test: setup ## all promises, in 12 to 25 minutes on two cores
	@$(MAKE) --no-print-directory -j 2 check classes chromium collected
	$(PYTEST) -m "not slow"
	@case "$${STELE_SKIP_BROWSER:-0}" in 0) ;; *) echo "The browser tests were skipped: STELE_SKIP_BROWSER is set." ;; esac

test-all: setup ## everything: planted bugs, stories, 300 disasters, containers, kills, ten minutes of live chaos; hours
	@$(MAKE) --no-print-directory -j 2 check classes chromium collected
	@date +%s >.cache/test-all.begun
	STELE_TEST_KILLS_S=600 $(PYTEST)
	$(BIN)/stele sim live --minutes 10
	@echo "make test-all took $$((($$(date +%s) - $$(cat .cache/test-all.begun)) / 60)) minutes"

test-fast: check ## the tests that need no server, in a few minutes
	$(PYTEST) -m "not slow and not broker and not end_to_end and not spark and not deploy and not browser"

test-profile: setup ## run `make test` and write its processor time by suite to docs/testing.md
	@$(MAKE) --no-print-directory -j 2 classes chromium collected
	$(PYTEST) -m "not slow" -p tests.cpu_profile
	$(BIN)/python -m tests.cpu_profile

chromium: setup # for the browser tests; STELE_SKIP_BROWSER=1 skips them
	@$(BIN)/python -m tests.chromium

collected: setup # the tests' modules are compiled once: else each worker does it; what is wrong with them the run says
	@$(BIN)/pytest --collect-only --quiet >/dev/null 2>&1 || true

hunt: setup ## the properties with new examples each time: what fails becomes a case of its own
	STELE_HUNT=yes $(PYTEST) -m "not end_to_end and not spark and not deploy and not browser" tests/domain tests/coordinator
	STELE_HUNT=yes $(PYTEST) tests/conformance -k faulty

mutate: setup ## 500 bugs made by machine, one at a time: which of them the tests that need no server find
	$(BIN)/python -m tests.mutation

check: setup ## style, types, import rules, dead code, schema compatibility; the page's types where Node is there
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/vulture
	@if command -v npm >/dev/null; then $(MAKE) --no-print-directory page-types; \
	else echo "no Node here: the types of the console's page are not checked"; fi
	$(BIN)/python -m tests.schema_history check

page-types: $(TSC)
	$(TSC) --project infra/page/tsconfig.json

$(TSC): infra/page/package.json infra/page/package-lock.json
	@mkdir -p $(PAGE_TOOLS)
	@cp infra/page/package.json infra/page/package-lock.json $(PAGE_TOOLS)
	npm ci --prefix $(PAGE_TOOLS) --silent --no-audit --no-fund
	@touch $@

$(MERMAID): # draws the site's diagrams; where npm is missing they are shown as text
	@mkdir -p $(@D)
	@cd $(@D) && npm pack $(MERMAID_PACKAGE) --silent >/dev/null && tar xzOf mermaid-*.tgz package/dist/mermaid.min.js >mermaid.js && rm mermaid-*.tgz
	@cd $(@D) && echo "$(MERMAID_SHA256)  mermaid.js" | sha256sum --check --quiet && mv mermaid.js $(@F)

docs: setup ## the pages as a site in build/site, with search; a dead link fails it
	@if command -v npm >/dev/null; then $(MAKE) --no-print-directory $(MERMAID); else echo "no Node here: diagrams are shown as text"; fi
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: setup ## measure, on this machine
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks.archive
	$(BIN)/python -m benchmarks.store
	$(BIN)/python -m benchmarks.ring
	$(BIN)/python -m benchmarks.large_cluster
	$(BIN)/python -m benchmarks.ddl

lock: setup ## resolve the newest versions that pyproject.toml and jars/ allow
	echo "uv==0.13.8" | $(LOCK) --upgrade - -o requirements/uv.txt
	$(LOCK) --upgrade -c requirements/uv.txt pyproject.toml --all-extras -o requirements/all.txt
	$(LOCK) --upgrade -c requirements/all.txt pyproject.toml --extra services -o requirements/services.txt
	$(LOCK) --upgrade -c requirements/all.txt pyproject.toml --extra services --extra spark -o requirements/placements.txt
	$(LOCK) --upgrade -c requirements/all.txt pyproject.toml --extra router -o requirements/router.txt
	$(LOCK) --upgrade -c requirements/all.txt pyproject.toml --extra agent -o requirements/agent.txt
	printf '%s\n' uv 'jgo[cli]' setuptools | $(LOCK) --upgrade -c requirements/uv.txt -c requirements/all.txt - -o requirements/image-build.txt
	$(BIN)/python -m stele_harness.stack.jars lock

up: ## the same services in containers, three brokers
	infra/compose up

down: ## stop the containers; the data stays in its volumes
	infra/compose down

compose-test: setup ## bring the containers up, break some, check, take them down
	$(BIN)/pytest -m deploy tests/deploy

clean: ## remove what was built; keep the sources
	rm -rf .venv .cache .stele build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis services/*.egg-info
