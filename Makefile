# Two commands: `make demo` trains a private federation on real data, `make test` runs the tests.
# Both make .venv first if it is missing; a later call starts at once.

PYTHON ?= python3
PIP_OPTIONS ?=
BIN := .venv/bin

.PHONY: demo test lint bench clean

demo: .venv/ready
	$(BIN)/sordino train

test: .venv/ready
	$(BIN)/python -m pytest

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/ready-bench
	$(BIN)/python -m benchmarks

.venv/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Sordino needs Python 3.11 or newer; this is %d.%d. Try: make PYTHON=python3.12" % sys.version_info[:2] if sys.version_info < (3, 11) else 0)'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet $(PIP_OPTIONS) --constraint constraints.txt --editable '.[dev]'
	@touch $@

.venv/ready-bench: .venv/ready
	$(BIN)/python -m pip install --quiet $(PIP_OPTIONS) --constraint constraints.txt --editable '.[dev,bench]'
	@touch $@

clean:
	rm -rf .venv build *.egg-info
