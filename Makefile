# Two commands: `make demo` trains a private federation on real data, `make test` runs the quick tests.
# Each first installs in .venv what it needs and lacks; a later call starts at once.

PYTHON ?= python3
PIP_OPTIONS ?=
BIN := .venv/bin
# Two processes, a file of tests at a time, in order: by size, the deployments would come last and wait for each other alone.
PYTEST := $(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

# Modules are compiled once, not at every start, whatever the shell says.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-ci test-all test-flower test-flower-next lint docs bench native native-sanitize clean

demo: .venv/ready
	$(BIN)/sordino train sordino/examples/digits.toml

# The quick tests: a few minutes.
test: .venv/ready-test
	$(PYTEST) -m "not slow and not soak"

# What must pass before a change lands: a quarter of an hour.
test-ci: .venv/ready-test-all
	$(PYTEST) -m "not soak"

# Every test, whole deployments, browsers and long statistics too: an hour.
test-all: .venv/ready-test-all
	$(PYTEST)

# Whole deployments on this machine, with keys, killed processes and slow machines: a quarter of an hour.
test-flower: .venv/ready-test
	$(PYTEST) tests/flower

# The same deployment, pin, guard, access control and secure sums with the next version of Flower, which constraints.txt does not take yet.
# It stands before .venv in an environment that has everything else from there.
NEXT := .flower-next/bin/python
test-flower-next: .flower-next/ready
	@$(NEXT) -c 'from importlib.metadata import version; print("Flower", version("flwr"))'
	$(NEXT) -m pytest $(addprefix tests/flower/test_, \
		deployment.py attacks.py pin.py access_control.py enforcement.py secure_training.py)

.flower-next/ready: tests/flower/next.txt .venv/ready-test
	@test -x $(NEXT) || $(BIN)/python -m venv .flower-next
	$(NEXT) -m pip install --quiet --no-compile $(PIP_OPTIONS) --no-deps --requirement $<
	@$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
		> "$$($(NEXT) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/everything_else.pth"
	@touch $@

lint: .venv/ready-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The documentation site, in build/site; any warning fails it. Nothing in it is loaded from elsewhere.
docs: .venv/ready-docs
	$(BIN)/python -m mkdocs build --quiet --strict
	@echo "build/site/index.html"

# Peers want other versions of what Sordino needs: each has an environment to itself.
bench: .venv/ready .bench/pfl/ready .bench/flower/ready .bench/opacus/ready
	$(BIN)/python -m benchmarks

.bench/%/ready: benchmarks/peers/%.txt
	@test -x .bench/$*/bin/python || $(PYTHON) -m venv .bench/$*
	.bench/$*/bin/python -m pip install --quiet --no-compile $(PIP_OPTIONS) --requirement $<
	@touch $@

# The native kernel alone, after a change to its sources; installing the package builds it too.
native: .venv/ready-test
	$(BIN)/python setup.py --quiet build_ext --inplace

# Its tests once more with every address and every undefined operation checked.
SANITIZED := build/sanitize/sordino/native/built
native-sanitize: .venv/ready-test
	SORDINO_NATIVE_FLAGS="-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -g -O1" \
		$(BIN)/python setup.py --quiet build_ext --build-lib build/sanitize --build-temp build/sanitize-objects
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libubsan.so)" ASAN_OPTIONS=detect_leaks=0 \
		SORDINO_FUZZ=200 SORDINO_NATIVE_LIBRARIES=$(SANITIZED) $(BIN)/python -m pytest tests/engines/test_native_*.py

# Installs the package with an extra, or alone. Modules are compiled when they are first imported: most never are.
define install
	@$(PYTHON) -c 'import sys; sys.exit("Sordino needs Python 3.11 or newer; this is %d.%d. Try: make PYTHON=python3.12" % sys.version_info[:2] if sys.version_info < (3, 11) else 0)'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-compile $(PIP_OPTIONS) --constraint constraints.txt --editable '.$(1)'
	@touch $@ .venv/ready
endef

.venv/ready: pyproject.toml constraints.txt
	$(call install,)

.venv/ready-%: pyproject.toml constraints.txt
	$(call install,[$*])

clean:
	rm -rf .venv .bench .flower-next build *.egg-info
