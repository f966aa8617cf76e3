# Everything a developer or a CI runner does here. Each target first makes what it needs,
# so that on a fresh machine any one of them is the only command.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
# Python writes compiled files, so that the processes that tests start need not compile them again.
export PYTHONDONTWRITEBYTECODE :=

VENV := .venv
BIN := $(VENV)/bin

# The first of these that is recent enough and can make environments; `make PYTHON=… setup`
# names another. Plain python3 comes last, because it may be newer than the locked wheels.
PYTHONS := $(or $(PYTHON),python3.11 python3.12 python3.13 python3)

# What runs the tests: it limits them all, and leaves no process behind (tests/running).
RUN = "$$(scripts/find-python $(PYTHONS))" -m tests.running

.PHONY: help
help:  ## say what there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18
	@echo; echo "the parts of make deep, each a target: $(DEEP)"

.PHONY: setup
setup: $(VENV)/.installed  ## make .venv from the lock (at once when it is up to date)

# Made again from nothing when the lock changes, so that no package stays that it no longer names. All processors
# compile it at once, where pip would use one; files for other Pythons are not compiled.
$(VENV)/.locked: requirements.lock
	@python=$$(scripts/find-python $(PYTHONS)) && \
		echo "1 of 4  makes $(VENV) with $$("$$python" --version)" >&2 && \
		"$$python" -m venv --clear $(VENV)
	@count=$$(grep -c '^[A-Za-z0-9].*==' requirements.lock) && \
		echo "2 of 4  fetches the $$count packages that requirements.lock names" >&2 && \
		PYTHONUNBUFFERED=1 $(BIN)/python -m pip install --progress-bar off --disable-pip-version-check --no-compile --no-deps --require-hashes \
			-r requirements.lock | scripts/tell-progress "$$count"
	@$(BIN)/python -m compileall -qq --workers 0 $(VENV)/lib || true
	@touch $@

# Without isolation, because an isolated build would fetch the build backend past the lock.
$(VENV)/.installed: pyproject.toml $(wildcard addons/*/pyproject.toml) $(VENV)/.locked
	@echo "4 of 4  installs dljob and its add-ons, from this folder" >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e . -e addons/gangs -e addons/lab -e addons/mcp -e addons/web
	@touch $@
	@echo "done: source $(BIN)/activate, and then dljob --help" >&2

.PHONY: demo
demo: setup  ## show what it does, live: the SideCar paper's case study on this machine
	$(BIN)/dljob demo

.PHONY: lint
lint:  ## formatting, style, types and the arrows between packages
	@exec $(RUN) lint

.PHONY: check
check:  ## lint and the pure tests, in under two minutes
	@exec $(RUN) check

# Not --quiet, which hides the warnings from --strict too. In an environment of its own, so that nothing of the site is in the way of what is tested.
.docs/.installed: requirements.docs.lock $(VENV)/.locked
	@$(BIN)/python -m venv --clear .docs
	@.docs/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements.docs.lock
	@touch $@

.PHONY: docs
docs: .docs/.installed  ## the docs as a site with search, in site/; a broken link fails
	NO_MKDOCS_2_WARNING=1 .docs/bin/python -m mkdocs build --strict

.PHONY: servers
servers: setup  ## find the real servers and images that tests want, or build them where there is Go
	$(BIN)/python -m tests.servers.preparing

.PHONY: test
test:  ## the gate: lint, the site, all pure tests, and one real run of every behaviour
	@exec $(RUN) test

.PHONY: deep
deep:  ## everything else, part by part; parts that were green with these files are passed over
	@exec $(RUN) deep

DEEP := test-slow test-processes test-control-plane test-nodes chaos attack test-long test-frameworks bench
.PHONY: $(DEEP)
$(DEEP):
	@exec $(RUN) $@

.PHONY: which-tests
which-tests:  ## name the parts that the change at hand needs
	@scripts/which-tests

.PHONY: sidecar
sidecar: setup  ## the SideCar as one file for any image: dist/dljob-sidecar.pyz
	$(BIN)/python scripts/build-sidecar

# VERSION, if given, has to be that of pyproject.toml. KEY signs the checksums, ADDRESS is the URL of the files, which
# krew's manifest names, and REGISTRY is the place of the images, which the chart names.
.PHONY: release
release: setup  ## all parts of a release, without a registry: dist/release
	$(BIN)/python scripts/release --version "$(VERSION)" --key "$(KEY)" --address "$(ADDRESS)" --registry "$(REGISTRY)"

.PHONY: release-check
release-check: setup  ## install each part of dist/release in a bare place, and print a table
	$(BIN)/python -m tests.released dist/release

.PHONY: manifests
manifests: setup servers  ## write manifests/ and the other files that follow from the chart
	$(BIN)/python scripts/write-manifests
	$(BIN)/python scripts/write-reference

.frameworks/.installed: scripts/install-frameworks
	@scripts/install-frameworks .frameworks
	@touch $@

.PHONY: test-gpu
test-gpu: setup  ## what only a real NVIDIA GPU can show, in under ten minutes; skipped without one
	@scripts/test-gpu .gpu

.PHONY: format
format: setup  ## put the code into its form and mend what a tool can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: lock
lock:  ## renew requirements.lock from pyproject.toml
	@scripts/lock

.PHONY: clean
clean:  ## remove what was made here, .venv too
	rm -rf $(VENV) .docs .release .frameworks .gpu .tests build dist plots site htmlcov coverage.json .coverage .coverage.* .hypothesis \
		.import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
