# Two commands: `make demo` trains a private federation on real data, `make test` runs the tests.
# Both make .venv first if it is missing; a later call starts at once.

PYTHON ?= python3
PIP_OPTIONS ?=
BIN := .venv/bin

.PHONY: demo test test-flower lint docs bench native native-sanitize clean

demo: .venv/ready
	$(BIN)/sordino train

# Two processes, a file of tests at a time: much of the time is spent waiting for browsers and servers.
test: .venv/ready
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile

# Whole deployments on this machine, with keys, killed processes and slow machines: a quarter of an hour.
test-flower: .venv/ready
	SORDINO_FLOWER=1 $(BIN)/python -m pytest tests/flower

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The documentation site, in build/site; any warning fails it. Nothing in it is loaded from elsewhere.
docs: .venv/ready
	$(BIN)/python -m mkdocs build --quiet --strict
	@echo "build/site/index.html"

bench: .venv/ready-bench
	$(BIN)/python -m benchmarks

# The native kernel alone, after a change to its sources; installing the package builds it too.
native: .venv/ready
	$(BIN)/python setup.py --quiet build_ext --inplace

# Its tests once more with every address and every undefined operation checked.
SANITIZED := build/sanitize/sordino/engines/native/built
native-sanitize: .venv/ready
	SORDINO_NATIVE_FLAGS="-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -g -O1" \
		$(BIN)/python setup.py --quiet build_ext --build-lib build/sanitize --build-temp build/sanitize-objects
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libubsan.so)" ASAN_OPTIONS=detect_leaks=0 \
		SORDINO_FUZZ=200 SORDINO_NATIVE_LIBRARIES=$(SANITIZED) $(BIN)/python -m pytest tests/engines/test_native_*.py

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
