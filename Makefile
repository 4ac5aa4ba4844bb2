# Everything that the project does is a target here; `make help` lists them.
VENV ?= .venv
PYTHON := $(VENV)/bin/python
BUILD ?= build
JOBS ?= $(shell nproc)
export PATH := $(abspath $(VENV))/bin:$(PATH)
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
export CCACHE_SLOPPINESS := pch_defines,time_macros,include_file_mtime,include_file_ctime
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1
export CXX  # one name for the compiler in all builds, so that they share the cache

.DEFAULT_GOAL := help

.PHONY: help
help: ## Show the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## Install what building and testing needs
	@scripts/setup.sh $(VENV)

.PHONY: install
install: setup ## Build the package and install it into the virtual environment
	$(PYTHON) -m pip install --quiet --no-build-isolation --no-deps --disable-pip-version-check \
	  -Cbuild-dir=$(BUILD)/python .

.PHONY: demo
demo: install ## Train on real data and show the result
	$(PYTHON) examples/digits/train.py --out $(BUILD)/demo

.PHONY: generate
generate: setup ## Render everything that follows from spec/
	$(PYTHON) -m codegen

.PHONY: test
test: check test-python test-cpp test-portable ## Pass every test of every language that this machine can build
	@echo "make test: skipped: C#, Objective-C and Swift have no bindings in this repository yet"

.PHONY: check
check: setup ## Generated files, formatting, types
	$(PYTHON) -m codegen --check
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	git ls-files -z '*.c' '*.cpp' '*.h' | grep -zv core/include | grep -zv generated/ | xargs -0 $(VENV)/bin/clang-format --dry-run --Werror

.PHONY: test-python
test-python: install ## The Python tests
	$(PYTHON) -m pytest -q tests

.PHONY: cpp
cpp: setup
	cmake -S . -B $(BUILD)/cpp -G Ninja -DPython_EXECUTABLE=$(abspath $(PYTHON)) -DORTRAIN_PYTHON=OFF -DORTRAIN_TESTS=ON
	cmake --build $(BUILD)/cpp

.PHONY: test-cpp
test-cpp: cpp ## The C and C++ tests
	ctest --test-dir $(BUILD)/cpp --output-on-failure

.PHONY: portable
portable: setup
	$(PYTHON) -m pip install --quiet --no-build-isolation --no-deps --disable-pip-version-check --upgrade \
	  --target $(BUILD)/portable-site -Cbuild-dir=$(BUILD)/portable -Ccmake.define.ORTRAIN_ONEDNN=OFF .

.PHONY: test-portable
test-portable: portable ## The tests of the core on the portable kernels, without oneDNN
	PYTHONPATH=$(BUILD)/portable-site $(PYTHON) -m pytest -q tests/ops tests/python

.PHONY: test-sanitize
test-sanitize: setup ## The C and C++ tests under AddressSanitizer and UndefinedBehaviorSanitizer
	cmake -S . -B $(BUILD)/sanitize -G Ninja -DPython_EXECUTABLE=$(abspath $(PYTHON)) -DORTRAIN_PYTHON=OFF \
	  -DORTRAIN_TESTS=ON -DORTRAIN_SANITIZE=address,undefined
	cmake --build $(BUILD)/sanitize
	ctest --test-dir $(BUILD)/sanitize --output-on-failure

.PHONY: bench-peers
bench-peers: ## Install the peers that the benchmarks compare with
	benchmarks/make_peers.sh .venv-peers

.PHONY: bench
bench: install bench-peers ## Measure against onnxruntime-training and PyTorch
	$(PYTHON) -m benchmarks

.PHONY: docs
docs: install ## Build the documentation site
	$(VENV)/bin/sphinx-build -W -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

.PHONY: wheel
wheel: setup ## Build a wheel and show what it needs from the system
	$(PYTHON) -m pip wheel --quiet --no-build-isolation --no-deps -w dist -Cbuild-dir=$(BUILD)/python .
	$(VENV)/bin/auditwheel show dist/ortrain-*.whl

.PHONY: clean
clean: ## Remove what was built
	rm -rf $(BUILD) dist docs/_build
