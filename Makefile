# `make` is the manual: it lists what can be done. `make lab` and `make test` set up
# everything they need, once, into .venv; all that is needed is Python 3.11 to 3.13.

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
BENCH_READY := $(VENV)/bench-ready
PYTHONS := python3 python3.11 python3.12 python3.13 python
# Passed on: `make lab LAB_ARGS="--port 9000 --no-browser"`, `make test PYTEST_ARGS=-x`.
LAB_ARGS ?=
PYTEST_ARGS ?=
PYTEST := $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help lab test test-fast test-all test-gpu check notebooks bench

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-12s %s\n", $$1, $$2}' Makefile

lab: $(READY) ## set up, copy new lessons to work/, open JupyterLab
	$(BIN)/labkit lab $(LAB_ARGS)

test: $(READY) ## set up, run every test that needs no GPU
	$(PYTEST) -m "not gpu and not grid" $(PYTEST_ARGS)

test-fast: $(READY) ## the tests that take under a minute together
	$(PYTEST) -m "not gpu and not grid and not slow and not browser" $(PYTEST_ARGS)

test-all: $(READY) ## every test that needs no GPU, with the large grids
	$(PYTEST) -m "not gpu" $(PYTEST_ARGS)

test-gpu: $(READY) ## the tests that need a GPU
	LABKIT_REQUIRE_GPU=1 $(PYTEST) -m "gpu" $(PYTEST_ARGS)

check: $(READY) ## format, lint, types, layers, notebooks fresh; edits nothing
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(PYTEST) -q tests/test_layers.py
	$(BIN)/labkit build --check

notebooks: $(READY) ## build lessons/ and solutions/ from solutions/*.py
	$(BIN)/labkit build

bench: $(BENCH_READY) ## measure labkit beside other tools, as one table
	$(BIN)/labkit bench --all

# The pinned file first: it alone decides which torch, so that no range can pull another.
$(READY): requirements.txt pyproject.toml
	@set -e; for python in $(PYTHONS); do \
	  if $$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' \
	      2>/dev/null; then found=$$python; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
	  echo "labkit needs Python 3.11 to 3.13; none of these is: $(PYTHONS)." \
	    "Install one, or name it: make lab PYTHONS=/path/to/python3.12" >&2; exit 1; \
	fi; \
	if ! $$found -m venv $(VENV); then \
	  echo "labkit needs Python's venv module; $$found has none." \
	    "On Debian or Ubuntu: apt install python3-venv" >&2; exit 1; \
	fi
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps \
	  --no-build-isolation --editable .
	@touch $(READY)

$(BENCH_READY): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  --constraint requirements.txt --no-build-isolation --editable '.[bench]'
	@touch $(BENCH_READY)
