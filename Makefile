# Two commands do all their own set-up: `make bench` and `make test`. The rest is for developing.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO := $(VENV)/.demo

.PHONY: bench test test-slow lint format browser clean help

help:  ## list the commands
	@grep -E '^[a-z-]+:.*##' Makefile | sed 's/:.*## /\t/'

bench: $(DEMO)  ## install, then the embedded benchmark: a table and a report page
	$(BIN)/opentta bench

test: $(READY) lint  ## ruff, mypy, import-linter, pytest
	$(BIN)/pytest -q -n auto --dist worksteal -m "not slow"

test-slow: $(READY)  ## the checks that take minutes
	$(BIN)/pytest -q -n auto --dist worksteal -m slow

lint: $(READY)  ## ruff, mypy strict, import directions
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

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

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
