# `make bench`, `make demo`, `make test` and `make docs` do all their own set-up. The rest is for
# developing.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO := $(VENV)/.demo
SERVE := $(VENV)/.serve
SITE := $(VENV)/.site

.PHONY: bench demo test docs test-slow coverage lint format browser clean help

help:  ## list the commands
	@grep -E '^[a-z-]+:.*##' Makefile | sed 's/:.*## /\t/'

bench: $(DEMO)  ## install, then the embedded benchmark: a table and a report page
	$(BIN)/opentta bench

demo: $(SERVE)  ## install, then streams that adapt while you look: http://127.0.0.1:8080
	$(BIN)/opentta serve --demo

test: $(READY) lint  ## ruff, mypy, import-linter, pytest
	$(BIN)/pytest -q -n auto --dist worksteal -m "not slow"

docs: $(SITE)  ## the documentation, in build/site: needs no network and no server
	rm -rf build/site
	$(BIN)/sphinx-build -q -W --keep-going -d build/site-cache -c docs -b html . build/site
	@echo "open build/site/index.html"

test-slow: $(READY)  ## the checks that take minutes
	$(BIN)/pytest -q -n auto --dist worksteal -m slow

coverage: $(READY)  ## the tests, with the share of lines that they run; below the floor it fails
	$(BIN)/pytest -q -n auto --dist worksteal -m "not slow" --cov --cov-report=term:skip-covered

lint: $(READY)  ## ruff, mypy strict, import directions, the hosted CI's files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/[!c]*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.citation-file-format CITATION.cff

format: $(READY)  ## let ruff format and mend what it can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

browser:  ## Debian's Chromium, for the tests that look at a page
	command -v chromium >/dev/null || (apt-get update -q && apt-get install -y -q chromium)

$(DEMO): pyproject.toml  # what the demo needs, and no more
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| (echo "opentta needs Python 3.11 or newer; pass PYTHON=/path/to/python3.11" && exit 1)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --upgrade pip
	$(BIN)/pip install -q -e .
	touch $(DEMO)

$(READY): $(DEMO)  # all extras, for the tests
	$(BIN)/pip install -q -e '.[ray,hf,serve,dev]'
	touch $(READY)

$(SERVE): $(DEMO)  # what the service needs beside it
	$(BIN)/pip install -q -e '.[serve]'
	touch $(SERVE)

$(SITE): $(DEMO)  # what builds the documentation
	$(BIN)/pip install -q -e '.[docs]'
	touch $(SITE)

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .coverage*
