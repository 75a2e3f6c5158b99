# What a person types. Everything sets itself up: only Python >= 3.12, git and make must be there.
# `make PYTHON=/path/to/python3 ...` chooses the interpreter, `make demo ARGS=--keep` passes arguments on.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.SUFFIXES:

BIN := .venv/bin
READY := .venv/.gpuyard-ready
# One more than cores: the longest tests mostly wait, for a fence or for a killed server. Many more would only make the
# others wait for each other.
WORKERS ?= $(shell expr $$(nproc 2>/dev/null || echo 2) + 1)
# Linters load Django's settings, which want these; nothing connects.
UNCONNECTED := DEBUG=1 DATABASE_URL=postgresql://nobody@127.0.0.1:1/none

.PHONY: help setup demo up down status test check lint types layers clean \
        bench-placement bench-billing bench-api bench-agent test-hosts fuzz-api mutants-billing

help:             ## this list
	@grep -hE '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/: .*## /\t/' | expand -t 20

setup: $(READY)   ## make the environment .venv from the lock file

$(READY): uv.lock pyproject.toml deploy/environment.sh
	@PYTHON='$(PYTHON)' deploy/environment.sh
	@touch $@

demo: $(READY)    ## the main job end to end on this machine (ARGS=--keep leaves it up)
	@$(BIN)/python -m embedded.demo $(ARGS)

up: $(READY)      ## start the embedded stack and print its URLs and a first API key
	@$(BIN)/python -m embedded up $(ARGS)

down: $(READY)    ## end the embedded stack
	@$(BIN)/python -m embedded down $(ARGS)

status: $(READY)  ## what of the embedded stack runs
	@$(BIN)/python -m embedded status $(ARGS)

test: $(READY)    ## all tests; says which parts it skips (ARGS='tests/billing -k floor' narrows)
	@deploy/test-requirements.sh
	@$(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

check: lint types layers test  ## what CI runs

lint: $(READY)    ## ruff: rules and format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(READY)   ## mypy, strict
	@$(UNCONNECTED) $(BIN)/mypy

layers: $(READY)  ## calls go down: import-linter
	@$(UNCONNECTED) PYTHONPATH=.:platform $(BIN)/lint-imports

bench-placement: $(READY)  ## placement beside its controls (ARGS=--quick; ARGS='--only speed,durable' measures these anew)
	@$(BIN)/python bench/placement.py $(ARGS)

bench-billing: $(READY)    ## metering, close and reconcile
	@$(BIN)/python bench/billing.py $(ARGS)

bench-api: $(READY)        ## lease creation beside a bare one-INSERT view
	@$(BIN)/python bench/api.py $(ARGS)

bench-agent: $(READY)      ## memory and cost of an agent, and how many one control plane bears (ARGS: of the second)
	@$(BIN)/python bench/agent.py
	@$(BIN)/python bench/agent_scale.py $(ARGS)

test-hosts: $(READY)       ## agents on hosts of their own, over SSH, with a real engine (root)
	@deploy/test-requirements.sh
	@$(BIN)/pytest -m 'engine or sshd or root' $(ARGS)

fuzz-api: $(READY)         ## schemathesis against the API's own description
	@$(BIN)/pytest tests/api/test_fuzz.py $(ARGS)

mutants-billing: $(READY)  ## break the money code on purpose; every mutant must be caught
	@$(BIN)/python bench/billing_mutants.py $(ARGS)

clean:            ## end the stack, remove the environment and everything it made
	@if [ -x $(BIN)/python ]; then $(BIN)/python -m embedded down --remove; fi
	rm -rf .venv var dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache static-collected
