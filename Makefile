# Everything that the project does is a target; `make help` lists them.
VENV ?= .venv
PYTHON := $(VENV)/bin/python
BUILD ?= build
# Release, or Development, which compiles in less time and runs slower (CMakeLists.txt). These goals build for development if
# no other goal is given.
IN_DEVELOPMENT = demo test test-cpp test-csharp test-objc test-swift test-python test-browser test-arm64 test-windows \
  test-windows-csharp test-windows-python test-dotnet test-musl-python cpp csharp objc swift docs check-clang
export BUILD_TYPE ?= $(if $(filter-out $(IN_DEVELOPMENT),$(MAKECMDGOALS)),Release,Development)
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
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-19s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# These goals need only the packages for building and for the demo.
ONLY_BUILD = demo install native small
.PHONY: setup
setup: ## Install the packages that building and testing need
	$(if $(INSTALLED),,@scripts/setup.sh $(VENV) $(if $(filter-out $(ONLY_BUILD),$(MAKECMDGOALS)),test,build))

.PHONY: install
install: setup ## Build the package and install it into the virtual environment
	$(if $(INSTALLED),,$(PYTHON) -m pip install --quiet --no-build-isolation --no-deps --disable-pip-version-check \
	  --config-settings=build-dir=$(BUILD)/python --config-settings=cmake.build-type=$(BUILD_TYPE) .)

.PHONY: demo
demo: install ## Train on real data and show the result
	$(PYTHON) examples/digits/train.py --out $(BUILD)/demo

# A separate environment with Flower, NVFlare and other packages that ortrain works with, see requirements-integrations.txt.
INTEGRATIONS = .venv-integrations
.PHONY: integrations
integrations: install
	@scripts/make_environment.sh $(INTEGRATIONS) $(VENV) requirements-integrations.txt

# The environment with PyTorch and the networks for the tests of ortrain.torch, see requirements-torch.txt.
TORCH = .venv-torch
.PHONY: torch
torch: install
	@scripts/make_environment.sh $(TORCH) $(VENV) requirements-torch.txt

# The environments of Keras and JAX, see requirements-keras.txt and requirements-jax.txt.
KERAS = .venv-keras
JAX = .venv-jax
.PHONY: keras jax
keras: install
	@scripts/make_environment.sh $(KERAS) $(VENV) requirements-keras.txt
jax: install
	@scripts/make_environment.sh $(JAX) $(VENV) requirements-jax.txt

.PHONY: federated
federated: integrations ## Train on the digits with Flower: a simulation, and a deployment of five processes on this machine
	$(INTEGRATIONS)/bin/python examples/federated/run.py simulation --out $(BUILD)/federated
	$(INTEGRATIONS)/bin/python examples/federated/run.py deployment --out $(BUILD)/federated

.PHONY: nvflare
nvflare: integrations ## Train on the digits with NVFlare's simulator
	$(INTEGRATIONS)/bin/python examples/federated/nvflare/job.py --out $(BUILD)/nvflare

.PHONY: generate
generate: setup ## Generate all files that follow from spec/
	$(PYTHON) -m codegen

# QUICK: run only the tests of `make test`. INSTALLED: the package is installed already.
.PHONY: test every-language
test: built-and-checked ## Test every language that this machine can build, and every operator, in minutes; make test-all runs all tests
	@$(SIDE_BY_SIDE) QUICK=1 INSTALLED=1 every-language
	@$(name-skipped)
	@echo "make test: NOT RUN, make test-all runs them: combinations of parameters and thorough tests (counted above), operators without passes,"
	@echo "make test: gradients in every opset, the fuzz targets, and the optimized code of a release"
# The order matters: the libraries that pytest-languages waits for come first, and the part that uses several processors comes last.
every-language: test-csharp test-objc test-swift pytest-others pytest-core pytest-languages test-cpp
ifneq ($(filter every-language,$(MAKECMDGOALS)),)
pytest-languages: test-csharp test-objc test-swift
endif

.PHONY: test-all
test-all: built-and-checked ## Run every test of every language, with the code of a release
	@$(SIDE_BY_SIDE) INSTALLED=1 every-language
	@$(name-skipped)

# The compiler starts as soon as its packages are installed; the packages of the tests are installed meanwhile.
.PHONY: built-and-checked
built-and-checked:
	@scripts/setup.sh $(VENV) build
	@$(SIDE_BY_SIDE) alone-install alone-check
alone-%:
	@$(MAKE) --no-print-directory $*

define name-skipped
$(call without,mcs mono nunit-console,C#: the library and its tests were neither built nor run)
$(call without,clang gnustep-config,Objective-C: the library and its tests were neither built nor run)
$(call without,swift,Swift: the package and its tests were neither built nor run)
$(BROWSER) || echo "make test: SKIPPED Dashboard: the page was not tested in a browser; make test-browser does that"
echo "make test: SKIPPED the tests with Flower, MLflow, Weights & Biases and datasets; make test-integrations runs them"
echo "make test: SKIPPED the tests with PyTorch; make test-torch runs them"
echo "make test: SKIPPED the tests with Keras; make test-keras runs them"
echo "make test: SKIPPED the tests with JAX; make test-jax runs them"
endef

# For a list of tools, prints which tests are skipped because a tool is missing.
without = for tool in $(1); do command -v $$tool >/dev/null || { echo "make test: SKIPPED $(2); $$tool is not installed"; break; }; done
# True if all the tools are available.
have = ( for tool in $(1); do command -v $$tool >/dev/null || exit 1; done )

# The sources that clang-format formats, without generated ones.
CLANG_FORMAT = git ls-files -z '*.c' '*.cpp' '*.h' '*.m' | grep -zv core/include | grep -zv generated/ | \
  xargs -0 $(VENV)/bin/clang-format

# Formats the Swift sources, with the formatter of the toolchain if it has one.
SWIFT_FORMAT = if $(call have,swift); then git ls-files -z '*.swift' | grep -zv generated/ | xargs -0 swift format

.PHONY: check
check: setup ## Check generated files, formatting, types, and that every function is used
	$(PYTHON) -m codegen --check
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/mypy --platform win32 bindings/python/ortrain
	$(PYTHON) scripts/check_unused.py
	$(CLANG_FORMAT) --dry-run --Werror
	@$(SWIFT_FORMAT) lint --strict; fi

.PHONY: format
format: setup ## Format the sources of all languages except C#
	$(VENV)/bin/ruff format .
	$(CLANG_FORMAT) -i
	@$(SWIFT_FORMAT) -i; fi

# pytest uses about one processor, so three parts run side by side: the tests of the core, the tests with libraries of other
# languages, and all other tests.
CORE_TESTS = tests/ops tests/session tests/passes tests/artifacts tests/models tests/distributed tests/structure
LANGUAGE_TESTS = tests/scenarios tests/objc tests/codegen tests/dropin tests/abi tests/docs tests/flower
SIDE_BY_SIDE = $(MAKE) --no-print-directory -j2 --output-sync=target
PYTEST = $(PYTHON) -m pytest -q $(QUICK:%=--quick)

.PHONY: test-python pytest-core pytest-others pytest-languages
test-python: install ## Run the Python tests
	$(SIDE_BY_SIDE) pytest-others pytest-core pytest-languages
pytest-core:
	$(PYTEST) $(CORE_TESTS)
pytest-languages:
	$(PYTEST) $(LANGUAGE_TESTS)
pytest-others:
	$(PYTEST) tests $(addprefix --ignore=,$(CORE_TESTS) $(LANGUAGE_TESTS))

# Not part of `make setup`: 124 MB of Debian packages, which take 414 MB, and 51 MB from PyPI. The browser tests are part of
# test-python if both are installed, as in .ci/run.
BROWSER = { command -v chromium && $(PYTHON) -c 'import playwright'; } >/dev/null 2>&1
.PHONY: browser
browser: setup
	@$(BROWSER) || scripts/setup_browser.sh $(VENV)

.PHONY: test-browser
test-browser: install browser ## Run the tests of the dashboard's page, in Chromium
	ORTRAIN_REQUIRE=browser $(PYTHON) -m pytest -q tests/dashboard

.PHONY: screenshots
screenshots: install browser ## Train on the digits and take the screenshots of docs/dashboard.md and docs/studio.md
	$(PYTHON) scripts/screenshots.py docs/images

# test-python also runs those tests of tests/flower that do not need Flower, and skips the others.
.PHONY: test-integrations
test-integrations: integrations ## Run the tests with Flower, MLflow, Weights & Biases, datasets and Jupyter, in a separate environment
	@if $(call have,mcs mono); then $(MAKE) --no-print-directory csharp; else $(call without,mcs mono,C#: its client was not built); fi
	$(INTEGRATIONS)/bin/python -m pytest -q tests/flower tests/trainer/test_real_inputs.py tests/docs/test_notebook.py

.PHONY: test-torch
test-torch: torch ## Run the tests of ortrain.torch with PyTorch and transformers, in a separate environment
	ORTRAIN_REQUIRE=pytorch $(TORCH)/bin/python -m pytest -q tests/pytorch

.PHONY: torch-table
torch-table: torch ## Test the networks of PyTorch, and write docs/reference/pytorch-networks.md
	ORTRAIN_REQUIRE=pytorch $(TORCH)/bin/python -m pytest -q tests/pytorch/test_networks.py --write-network-table

.PHONY: test-keras
test-keras: keras ## Run the tests of ortrain.keras with Keras and TensorFlow, in a separate environment
	ORTRAIN_REQUIRE=keras $(KERAS)/bin/python -m pytest -q tests/keras3

.PHONY: test-jax
test-jax: jax ## Run the tests of ortrain.jax with JAX and Flax, in a separate environment
	ORTRAIN_REQUIRE=jax $(JAX)/bin/python -m pytest -q tests/jax_flax

.PHONY: oracle-errors
oracle-errors: install ## Measure the errors of optimizers, schedules and losses that the docs show
	$(PYTHON) -m pytest -q tests/session/test_optimizers.py tests/session/test_schedules.py tests/session/test_loss_blocks.py --write-oracle-errors

.PHONY: conformance
conformance: install ## Run the test cases of the onnx package in ortrain and in onnxruntime, and record which cases pass
	$(PYTHON) -m tests.conformance

.PHONY: csharp
csharp: setup ## Build the C# library (Mono's compiler)
	@mkdir -p $(BUILD)/csharp
	mcs -nologo -target:library -langversion:7.2 -unsafe -optimize -debug -warn:4 -warnaserror \
	  -keyfile:bindings/csharp/ortrain.snk -doc:$(BUILD)/csharp/Microsoft.ML.OnnxRuntime.xml -out:$(BUILD)/csharp/Microsoft.ML.OnnxRuntime.dll \
	  -recurse:'bindings/csharp/src/*.cs'

.PHONY: test-csharp
test-csharp: install ## Run the C# tests
	@if $(call have,mcs mono nunit-console); then $(MAKE) --no-print-directory INSTALLED=1 csharp && \
	  tests/csharp/run.sh $(PYTHON) $$($(LIBRARY_FOLDER)); else $(call without,mcs mono nunit-console,C#); fi

.PHONY: objc
objc: install ## Build the Objective-C library (clang; GNUstep if Apple's Foundation is not available)
	cmake -S bindings/objc -B $(BUILD)/objc -G Ninja -DORTRAIN_LIBRARY=$$($(LIBRARY_FOLDER)) \
	  -DORTRAIN_OBJC_TESTS=ON -DPython_EXECUTABLE=$(abspath $(PYTHON))
	cmake --build $(BUILD)/objc

.PHONY: test-objc
test-objc: install ## Run the Objective-C tests
	@if $(call have,clang gnustep-config); then $(MAKE) --no-print-directory INSTALLED=1 objc && \
	  ctest --test-dir $(BUILD)/objc --output-on-failure; else $(call without,clang gnustep-config,Objective-C); fi

# A file with the places of the library under test and its headers, for the package manager.
SWIFT = PKG_CONFIG_PATH=$(abspath $(BUILD))/swift swift
.PHONY: swift
swift: install ## Build the Swift package
	@mkdir -p $(BUILD)/swift
	@sed -e "s|@PKGCONFIG_INCLUDEDIR@|$(CURDIR)/core/include|" -e "s|@PKGCONFIG_LIBDIR@|$$($(LIBRARY_FOLDER))|" \
	  -e "s|@PROJECT_VERSION@|0|" cmake/ortrain.pc.in >$(BUILD)/swift/ortrain.pc
	$(SWIFT) build -c release -j $(JOBS) --scratch-path $(BUILD)/swift -Xswiftc -warnings-as-errors

.PHONY: test-swift
test-swift: install ## Run the Swift tests
	@if $(call have,swift); then $(MAKE) --no-print-directory INSTALLED=1 swift && tests/swift/run.sh $(PYTHON) $(BUILD)/swift \
	  $$($(LIBRARY_FOLDER)); else $(call without,swift,Swift); fi

# Prints the folder of the installed libortrain.
LIBRARY_FOLDER = $(PYTHON) -c "import ortrain, pathlib; print(pathlib.Path(ortrain.__file__).parent / 'lib')"

.PHONY: native
native: setup ## Build the C and C++ library; PREFIX=DIR also installs the library into DIR
	cmake -S . -B $(BUILD)/native -G Ninja -DPython_EXECUTABLE=$(abspath $(PYTHON)) -DORTRAIN_PYTHON=OFF \
	  -DCMAKE_BUILD_TYPE=$(BUILD_TYPE)
	cmake --build $(BUILD)/native
	$(if $(PREFIX),cmake --install $(BUILD)/native --prefix $(PREFIX))

# ortrain-<version>-<system>-<processor>.tar.gz: the library, its headers, files for pkg-config and CMake, licences.
ARCHIVE = $(BUILD)/archive
.PHONY: archive
archive: setup ## Pack the C and C++ library into an archive in dist, optimized at link time, and check the limit of its size
	cmake -S . -B $(ARCHIVE) -G Ninja -DPython_EXECUTABLE=$(abspath $(PYTHON)) -DORTRAIN_PYTHON=OFF \
	  -DCMAKE_BUILD_TYPE=Release -DORTRAIN_LTO=ON
	cmake --build $(ARCHIVE)
	rm -rf $(ARCHIVE)/packed
	cpack --config $(ARCHIVE)/CPackConfig.cmake -B $(ARCHIVE)/packed
	$(PYTHON) scripts/library_size.py --check "archive=$$(echo $(ARCHIVE)/packed/_CPack_Packages/*/TGZ/*/lib*/libortrain.so.0)=6000"
	mkdir -p dist && cp $(ARCHIVE)/packed/*.tar.gz dist

# A static library for Swift's package manager, built by this machine's compiler for this machine's processor.
SWIFT_BUNDLE = $(BUILD)/ortrain.artifactbundle
.PHONY: swift-bundle
swift-bundle: native ## Build build/ortrain.artifactbundle, the C library for Swift packages on Linux
	cmake --build $(BUILD)/native --target static
	rm -rf $(SWIFT_BUNDLE)
	$(PYTHON) scripts/swift_package.py bundle $(BUILD)/native/libortrain.a $$(uname -m)-unknown-linux-gnu $(SWIFT_BUNDLE)

.PHONY: test-swift-bundle
test-swift-bundle: install swift-bundle ## Serve the bundle of swift-bundle like a release, and train with a Swift package that depends on this release
	scripts/test_swift_bundle.sh $(PYTHON) $(SWIFT_BUNDLE) $(BUILD)/swift-release

.PHONY: xcframework
xcframework: ## On a Mac: build build/ortrain.xcframework for macOS, iOS and the simulator of iOS
	scripts/xcframework.sh $(BUILD)

.PHONY: cpp
cpp: setup
	cmake -S . -B $(BUILD)/cpp -G Ninja -DPython_EXECUTABLE=$(abspath $(PYTHON)) -DORTRAIN_PYTHON=OFF -DORTRAIN_TESTS=ON \
	  -DCMAKE_BUILD_TYPE=$(BUILD_TYPE)
	cmake --build $(BUILD)/cpp $(if $(QUICK),--target test_programs)

.PHONY: test-cpp
test-cpp: cpp ## Run the C and C++ tests
	ctest --test-dir $(BUILD)/cpp --output-on-failure -LE fuzzing $(if $(QUICK),-E '^fuzz_')

# test-cpp runs the regressions of the fuzz targets; test-fuzz takes 20 seconds for each target.
.PHONY: test-fuzz
test-fuzz: cpp ## Run each fuzz target on generated inputs, which are equal in every run (docs/fuzzing.md)
	ctest --test-dir $(BUILD)/cpp --output-on-failure -L fuzzing -j $(JOBS)

# Builds for other systems (docs/targets.md).
FIXTURES = $(notdir $(patsubst %/,%,$(wildcard tests/data/fixtures/*/)))
.PHONY: replay
replay: setup
	$(PYTHON) -m tests.replay.pack $(BUILD)/replay

# In development builds the tests and the wheel share a build folder.
ARM64 = $(abspath $(BUILD))/arm64$(patsubst %,-release,$(filter Release,$(BUILD_TYPE)))
ARM64_PACKAGES = $(abspath $(BUILD))/arm64-packages
ARM64_PYTHON = $(abspath $(BUILD))/arm64-python
# All instructions that the kernels use; only dot products of 8-bit integers; neither these nor bfloat16.
ARM64_CPUS ?= max neoverse-n1 cortex-a53
# SVE vectors of 128 and 256 bits. Those of `max` have 512 bits.
ARM64_SVE_CPUS ?= max,sve-max-vq=1 max,sve-max-vq=2
QEMU_ARM64 = qemu-aarch64 -L /usr/aarch64-linux-gnu
# Debian's Python for arm64, and the libraries that its modules and those of NumPy and onnx need.
PYTHON_PACKAGES = libc6 libgcc-s1 libstdc++6 zlib1g libexpat1 libffi8 libbz2-1.0 liblzma5 libssl3 python3.11-minimal \
  libpython3.11-minimal libpython3.11-stdlib libpython3.11-dev
.PHONY: arm64-tools
arm64-tools:
	@scripts/install_missing.sh g++-aarch64-linux-gnu qemu-user

.PHONY: wheel-arm64
wheel-arm64: setup arm64-tools ## Cross-compile a wheel for Linux on arm64 and show the system libraries that it needs
	scripts/foreign_packages.sh arm64 $(ARM64_PACKAGES) libprotobuf-dev
	scripts/foreign_packages.sh arm64 $(ARM64_PYTHON) $(PYTHON_PACKAGES)
	scripts/arm64_wheel.sh $(PYTHON) $(ARM64) $(ARM64_PYTHON) dist $(BUILD_TYPE) ORTRAIN_TESTS=ON \
	  PROTOBUF_LIBRARY=$(ARM64_PACKAGES)/usr/lib/aarch64-linux-gnu/libprotobuf-lite.a
	$(VENV)/bin/auditwheel show dist/ortrain-*_aarch64.whl

.PHONY: test-arm64
test-arm64: wheel-arm64 replay ## Cross-compile for Linux on arm64, and run the C and C++ tests, the recorded runs and the wheel in an emulator
	cmake --build $(ARM64) --target test_programs fuzz replay test_instructions
	set -e; for cpu in $(ARM64_CPUS) $(ARM64_SVE_CPUS); do echo "test-arm64: processor $$cpu"; export QEMU_CPU=$$cpu; \
	  $(QEMU_ARM64) $(ARM64)/tests/test_instructions; \
	  $(QEMU_ARM64) $(ARM64)/tests/replay tests/data/fixtures $(BUILD)/replay $(FIXTURES); done
	ctest --test-dir $(ARM64) --output-on-failure -LE fuzzing
	scripts/test_foreign_wheel.sh $(PYTHON) dist/ortrain-*_aarch64.whl $(abspath $(BUILD))/arm64-wheel \
	  "linux_aarch64 manylinux2014_aarch64 manylinux_2_27_aarch64 manylinux_2_28_aarch64" \
	  qemu-aarch64 -L $(ARM64_PYTHON) $(ARM64_PYTHON)/usr/bin/python3.11

# Only the operators of one recorded run, without Python: the tests of the C and C++ interfaces use this run, and need no protobuf.
QUICK_FIXTURE = tests/data/fixtures/mlp_adamw
# All vector code is compiled, because gcc accepts less of it for arm64 than for x86-64. The tests of each processor run in two parts of
# about the same time, so that two cores are used until the end.
.PHONY: test-arm64-quick
test-arm64-quick: setup arm64-tools replay ## Cross-compile all vector code for Linux on arm64, and run the C and C++ tests with the operators of one recorded run
	cmake -S . -B $(BUILD)/arm64-quick -G Ninja --toolchain cmake/toolchains/linux-arm64.cmake \
	  -DPython_EXECUTABLE=$(abspath $(PYTHON)) -DORTRAIN_PYTHON=OFF -DORTRAIN_TESTS=ON -DORTRAIN_LEGACY=OFF \
	  -DCMAKE_BUILD_TYPE=Development -DPROTOBUF_LIBRARY=none -DORTRAIN_ALL_VECTOR_CODE=ON \
	  "-DORTRAIN_OPERATORS=$$(echo $(foreach kind,training eval optimizer,$(QUICK_FIXTURE)/$(kind)_model.onnx) | tr ' ' ';')"
	cmake --build $(BUILD)/arm64-quick --target replay test_capi test_instructions
	QEMU_CPU=cortex-a53 $(QEMU_ARM64) $(BUILD)/arm64-quick/tests/replay tests/data/fixtures $(BUILD)/replay $(notdir $(QUICK_FIXTURE))
	QEMU_CPU=max $(QEMU_ARM64) $(BUILD)/arm64-quick/tests/test_capi
	printf '%s\n' $(foreach cpu,$(ARM64_CPUS),'$(cpu) *precision*' '$(cpu) ~*precision*') | xargs -P $(JOBS) -L 1 sh -c \
	  'echo "test-arm64-quick: processor $$0, tests $$1"; \
	  QEMU_CPU=$$0 $(QEMU_ARM64) $(BUILD)/arm64-quick/tests/test_instructions "~[large]$$1"'

# The compilers of PyPI's package ziglang.
ZIG_TOOLS = $(abspath $(BUILD))/zig
# A C library other than this machine's; Debian's package musl contains the loader.
MUSL = $(BUILD)/musl
.PHONY: test-musl
test-musl: setup replay ## Compile the operators of one recorded run for Linux with musl, and run the C and C++ tests with this run
	@scripts/install_missing.sh musl
	cmake -S . -B $(MUSL) -G Ninja --toolchain cmake/toolchains/linux-zig.cmake -DZIG_TOOLS=$(ZIG_TOOLS) \
	  -DZIG_COMPILER=$$(scripts/zig_compiler.sh $(VENV) $(ZIG_TOOLS) x86_64-linux-musl) -DPython_EXECUTABLE=$(abspath $(PYTHON)) \
	  -DORTRAIN_PYTHON=OFF -DORTRAIN_TESTS=ON -DORTRAIN_LEGACY=OFF -DCMAKE_BUILD_TYPE=Development -DPROTOBUF_LIBRARY=none \
	  "-DORTRAIN_OPERATORS=$$(echo $(foreach kind,training eval optimizer,$(QUICK_FIXTURE)/$(kind)_model.onnx) | tr ' ' ';')"
	cmake --build $(MUSL) --target replay test_capi
	$(MUSL)/tests/replay tests/data/fixtures $(BUILD)/replay $(notdir $(QUICK_FIXTURE))
	$(MUSL)/tests/test_capi

WINDOWS = $(BUILD)/windows$(patsubst %,-release,$(filter Release,$(BUILD_TYPE)))
# Wine stores its registry and drives in a folder, and prints many messages that do not concern the tests.
WINE_SETTINGS = WINEPREFIX=$(abspath $(BUILD))/wine WINEDEBUG=-all
WINE = $(WINE_SETTINGS) wine
# WINDOWS_OPERATORS: models and operators, as in MODELS of `make small`; if empty, all operators and the older training API.
.PHONY: windows
windows: setup ## Cross-compile ortrain.dll for Windows on x86-64, and install it with headers and licences into build/windows-release/package
	@scripts/install_missing.sh llvm
	cmake -S . -B $(WINDOWS) -G Ninja --toolchain cmake/toolchains/windows-x64.cmake -DZIG_TOOLS=$(ZIG_TOOLS) \
	  -DZIG_COMPILER=$$(scripts/zig_compiler.sh $(VENV) $(ZIG_TOOLS) x86_64-windows-gnu) \
	  -DPython_EXECUTABLE=$(abspath $(PYTHON)) -DORTRAIN_PYTHON=OFF -DORTRAIN_TESTS=ON -DCMAKE_BUILD_TYPE=$(BUILD_TYPE) \
	  -DORTRAIN_LEGACY=$(if $(WINDOWS_OPERATORS),OFF,ON) "-DORTRAIN_OPERATORS=$$(echo $(WINDOWS_OPERATORS) | tr ' ' ';')"
	cmake --build $(WINDOWS) --target ortrain
	scripts/check_windows_library.sh $(WINDOWS)/ortrain.dll
	cmake --install $(WINDOWS) --prefix $(WINDOWS)/package

# test_instructions and replay_instruction_sets run kernels for SSE4.2, AVX2 and AVX-512.
.PHONY: test-windows
test-windows: windows replay ## Cross-compile for Windows, and run the C and C++ tests and the recorded runs under Wine
	@scripts/install_missing.sh wine wine64
	cmake --build $(WINDOWS) --target test_programs replay replay_instruction_sets test_instructions
	$(WINE) $(WINDOWS)/replay.exe tests/data/fixtures $(BUILD)/replay $(FIXTURES)
	$(WINE) $(WINDOWS)/replay_instruction_sets.exe tests/data/fixtures $(BUILD)/replay $(FIXTURES)
	$(WINE) $(WINDOWS)/test_instructions.exe
	$(WINE_SETTINGS) ctest --test-dir $(WINDOWS) --output-on-failure

# C# on .NET, which PyPI's package dotnetcore2 contains. The programs are compiled with Mono's compiler.
DOTNET_LINUX = $(BUILD)/dotnet-linux
DOTNET_WINDOWS = $(BUILD)/dotnet-windows
DOTNET_PACKAGES = mono-mcs libnunit-framework2.6.3-cil
WINDOWS_SCENARIOS = ORTRAIN_REQUIRE=c,cpp,csharp ORTRAIN_WINDOWS=$(WINDOWS) ORTRAIN_DOTNET=$(DOTNET_WINDOWS)
.PHONY: test-windows-csharp
test-windows-csharp: install windows ## Run the C# tests on .NET for Windows under Wine, and the scenarios in C, C++ and C#, with ortrain.dll
	@scripts/install_missing.sh wine wine64 $(DOTNET_PACKAGES)
	scripts/dotnet_runtime.sh $(VENV) $(DOTNET_WINDOWS) win_amd64
	$(WINE_SETTINGS) tests/dotnet/run.sh $(PYTHON) $(DOTNET_WINDOWS) $(WINDOWS)/ortrain.dll
	$(WINE_SETTINGS) $(WINDOWS_SCENARIOS) $(PYTHON) -m pytest -q tests/scenarios

.PHONY: test-dotnet
test-dotnet: install ## Run the C# tests and the scenarios in C# on .NET for Linux instead of Mono
	@scripts/install_missing.sh $(DOTNET_PACKAGES)
	scripts/dotnet_runtime.sh $(VENV) $(DOTNET_LINUX) manylinux1_x86_64
	tests/dotnet/run.sh $(PYTHON) $(DOTNET_LINUX) $$($(LIBRARY_FOLDER))/libortrain.so
	ORTRAIN_REQUIRE=csharp ORTRAIN_DOTNET=$(DOTNET_LINUX) $(PYTHON) -m pytest -q tests/scenarios -k csharp

# A wheel of the library of `make windows`, and a Python for Windows.
WINDOWS_PYTHON = $(abspath $(BUILD))/windows-python
.PHONY: wheel-windows
wheel-windows: windows ## Cross-compile a wheel for Windows on x86-64 and Python 3.11 into dist
	scripts/windows_python.sh $(VENV) $(ZIG_TOOLS) $(WINDOWS_PYTHON)
	scripts/windows_wheel.sh $(VENV) $(ZIG_TOOLS) $(WINDOWS_PYTHON) $(abspath $(WINDOWS)) dist $(BUILD_TYPE)

# NumPy needs functions that Wine's C library lacks, and onnxruntime corrupts memory with Wine's C++ library: n,b takes those of Windows.
WINDOWS_LIBRARIES = ucrtbase,msvcp140,msvcp140_1,vcruntime140,vcruntime140_1=n,b
# Python tests that run with the wheel, with --quick: files and folders.
WINDOWS_TESTS ?= tests/session tests/trainer tests/artifacts tests/text tests/dashboard tests/cli
.PHONY: test-windows-python
test-windows-python: wheel-windows ## Install the wheel for Windows, and run the recorded runs, a case of each operator, the command line and WINDOWS_TESTS under Wine
	@scripts/install_missing.sh wine wine64
	TESTS="$(WINDOWS_TESTS)" scripts/test_foreign_wheel.sh $(PYTHON) dist/ortrain-*-win_amd64.whl $(abspath $(BUILD))/windows-wheel win_amd64 \
	  env $(WINE_SETTINGS) WINEDLLOVERRIDES=$(WINDOWS_LIBRARIES) wine $(WINDOWS_PYTHON)/python.exe

MACOS = $(BUILD)/macos$(patsubst %,-release,$(filter Release,$(BUILD_TYPE)))
# MACOS_OPERATORS: as WINDOWS_OPERATORS.
.PHONY: macos
macos: setup ## Cross-compile libortrain.dylib for macOS on arm64 into build/macos-release, and check its format, without running the library
	@scripts/install_missing.sh llvm
	cmake -S . -B $(MACOS) -G Ninja --toolchain cmake/toolchains/macos-arm64.cmake -DZIG_TOOLS=$(ZIG_TOOLS) \
	  -DZIG_COMPILER=$$(scripts/zig_compiler.sh $(VENV) $(ZIG_TOOLS) aarch64-macos.12.0) -DPython_EXECUTABLE=$(abspath $(PYTHON)) \
	  -DORTRAIN_PYTHON=OFF -DCMAKE_BUILD_TYPE=$(BUILD_TYPE) \
	  -DORTRAIN_LEGACY=$(if $(MACOS_OPERATORS),OFF,ON) "-DORTRAIN_OPERATORS=$$(echo $(MACOS_OPERATORS) | tr ' ' ';')"
	cmake --build $(MACOS) --target ortrain
	scripts/check_macos_library.sh $(MACOS)/libortrain.dylib

# The oldest iOS of Package.swift. IOS_OPERATORS: as WINDOWS_OPERATORS, and by default those of one recorded run.
IOS_TARGET = aarch64-ios.15.0
IOS_OPERATORS ?= $(foreach kind,training eval optimizer,$(QUICK_FIXTURE)/$(kind)_model.onnx)
.PHONY: check-ios
check-ios: setup ## Compile the core for iOS 15 on arm64, without linking; `make xcframework` on a Mac links it
	cmake -S . -B $(BUILD)/ios -G Ninja --toolchain cmake/toolchains/ios-arm64.cmake -DZIG_TOOLS=$(ZIG_TOOLS) \
	  -DZIG_COMPILER=$$(scripts/zig_compiler.sh $(VENV) $(ZIG_TOOLS) $(IOS_TARGET)) -DPython_EXECUTABLE=$(abspath $(PYTHON)) \
	  -DORTRAIN_PYTHON=OFF -DCMAKE_BUILD_TYPE=Development \
	  -DORTRAIN_LEGACY=$(if $(IOS_OPERATORS),OFF,ON) "-DORTRAIN_OPERATORS=$$(echo $(IOS_OPERATORS) | tr ' ' ';')"
	cmake --build $(BUILD)/ios --target core

# ANDROID_OPERATORS: as WINDOWS_OPERATORS. ANDROID_ABI=x86_64 is for emulators. The NDK has neither Highway nor FlatBuffers: the build uses
# this machine's headers, which do not depend on the system.
ANDROID_ABI ?= arm64-v8a
ANDROID = $(BUILD)/android-$(ANDROID_ABI)
.PHONY: android-ndk android
android-ndk:
	@scripts/android_ndk.sh "$(ANDROID_NDK)" >/dev/null
android: android-ndk setup ## Cross-compile libortrain.so for Android with ANDROID_NDK=DIR into build/android-arm64-v8a, and install it into build/android-arm64-v8a/package
	mkdir -p $(ANDROID)/include && for library in hwy flatbuffers; do ln -sfn /usr/include/$$library $(ANDROID)/include/$$library; done
	cmake -S . -B $(ANDROID) -G Ninja -DCMAKE_TOOLCHAIN_FILE=$$(scripts/android_ndk.sh "$(ANDROID_NDK)") \
	  -DANDROID_ABI=$(ANDROID_ABI) -DANDROID_PLATFORM=android-24 -DANDROID_STL=c++_static -DCMAKE_BUILD_TYPE=$(BUILD_TYPE) \
	  -DPython_EXECUTABLE=$(abspath $(PYTHON)) -DORTRAIN_PYTHON=OFF -DFLATC=$$(command -v flatc) \
	  -DHIGHWAY_INCLUDE=$(abspath $(ANDROID))/include -DFLATBUFFERS_INCLUDE=$(abspath $(ANDROID))/include \
	  -DORTRAIN_LEGACY=$(if $(ANDROID_OPERATORS),OFF,ON) "-DORTRAIN_OPERATORS=$$(echo $(ANDROID_OPERATORS) | tr ' ' ';')"
	cmake --build $(ANDROID) --target ortrain
	cmake --install $(ANDROID) --prefix $(ANDROID)/package --strip

# WASM_OPERATORS: models and operators, as in MODELS of `make small`; by default, the operators of two recorded runs, which
# examples/digits_in_browser also uses; if empty, all operators. WASM_FIXTURES='$(FIXTURES)' selects all recorded runs. WASM_TYPE=Release
# optimizes.
WASM_FIXTURES ?= mlp_adamw mlp_sgd_sched
WASM_OPERATORS ?= $(foreach run,$(WASM_FIXTURES),$(wildcard tests/data/fixtures/$(run)/*_model.onnx))
WASM_TYPE ?= Development
WASM_TOOLS = $(abspath $(BUILD))/wasm-tools
WASM = $(BUILD)/wasm
WASM_BUILT = module
RUN_WASI = node --no-warnings bindings/javascript/run_wasi.mjs
.PHONY: wasm-tools
wasm-tools: setup
	@$(if $(shell command -v node),,scripts/install_missing.sh nodejs)
	scripts/wasm_tools.sh $(VENV) $(WASM_TOOLS)

.PHONY: wasm
wasm: wasm-tools ## Build build/wasm/ortrain.wasm with few operators (docs/targets.md)
	cmake -S . -B $(WASM) -G Ninja --toolchain cmake/toolchains/wasm32-wasi.cmake -DWASM_TOOLS=$(WASM_TOOLS) \
	  -DPython_EXECUTABLE=$(abspath $(PYTHON)) -DORTRAIN_PYTHON=OFF -DORTRAIN_LEGACY=OFF -DORTRAIN_TESTS=ON \
	  -DCMAKE_BUILD_TYPE=$(WASM_TYPE) "-DORTRAIN_OPERATORS=$$(echo $(WASM_OPERATORS) | tr ' ' ';')"
	cmake --build $(WASM) --target $(WASM_BUILT)
	cp -r bindings/javascript/*.mjs bindings/javascript/generated $(WASM)
	@ls -l $(WASM)/ortrain.wasm

# The tests of C and C++ need the operators of mlp_adamw; those of the core need all operators.
WASM_TESTS = test_capi $(if $(strip $(WASM_OPERATORS)),,test_core)
# The tests that are left out, as Catch2 names them: WASI cannot start threads. cmake/wasm.cmake leaves out whole sources.
WASM_LEFT_OUT = "~*thread*"
.PHONY: test-wasm
test-wasm: WASM_BUILT = module replay $(WASM_TESTS)
test-wasm: wasm replay ## Replay recorded runs and run the C and C++ tests in Node.js with the library for WebAssembly
	$(RUN_WASI) $(WASM)/replay.wasm $(abspath tests/data/fixtures) $(abspath $(BUILD)/replay) $(WASM_FIXTURES)
	set -e; for test in $(WASM_TESTS); do $(RUN_WASI) $(WASM)/$$test.wasm $(WASM_LEFT_OUT); done
	node tests/javascript/replay.mjs $(WASM) tests/data/fixtures $(BUILD)/replay $(WASM_FIXTURES)

.PHONY: test-wasm-browser
test-wasm-browser: install wasm browser ## Train on the digits in Chromium with the library for WebAssembly
	ORTRAIN_REQUIRE=wasm ORTRAIN_WASM=$(WASM) $(PYTHON) -m pytest -q tests/javascript

.PHONY: digits-in-browser
digits-in-browser: install wasm ## Write a page that trains on the digits to build/digits_in_browser
	$(PYTHON) examples/digits_in_browser/prepare.py $(BUILD)/digits_in_browser $(WASM)

# SDIST_TYPE=Development builds in less time.
SDIST_TYPE ?= Release
.PHONY: test-sdist
test-sdist: setup ## Install the source distribution while development packages are hidden, and replay the recorded runs
	scripts/test_sdist.sh $(PYTHON) $(BUILD)/sdist $(SDIST_TYPE)

# Not part of `make test`, because it builds the extension for each Python. `make install` then builds the extension of .venv again.
PYTHONS ?= $(foreach n,10 11 12 13 14,$(shell command -v python3.$(n)))
.PHONY: test-pythons
test-pythons: setup ## Build and install a wheel for each of PYTHONS, and train with it
	scripts/test_pythons.sh $(BUILD)/pythons $(BUILD)/python $(PYTHONS)

# As test-pythons. Debian has no package of such a Python, so its sources are compiled.
FREE_THREADED = $(BUILD)/free-threaded
.PHONY: test-free-threaded
test-free-threaded: setup ## Compile Python 3.13 without the GIL, and train with a wheel for it, also in several threads at the same time
	scripts/free_threaded_python.sh $(FREE_THREADED)/python-3.13
	scripts/test_free_threaded.sh $(FREE_THREADED) $(BUILD)/python $(abspath $(FREE_THREADED))/python-3.13/bin/python3.13t

# MODELS: ONNX files and names of operators, separated by spaces. WITHOUT: parts that most programs need, such as WRITERS.
.PHONY: small
small: setup ## Build the library with only the operators of MODELS and only the optional parts that PARTS names, into build/small
	@test -n "$(MODELS)" || { echo 'make small: name models and operators, as in make small MODELS="a.onnx b.onnx Relu"'; exit 2; }
	cmake -S . -B $(BUILD)/small -G Ninja -DPython_EXECUTABLE=$(abspath $(PYTHON)) -DORTRAIN_PYTHON=OFF \
	  $(foreach part,$(SMALL_PARTS),-DORTRAIN_$(part)=$(if $(filter $(part),$(PARTS)),ON,OFF)) \
	  $(foreach part,$(MODEL_PARTS),-DORTRAIN_$(part)=$(if $(filter $(part),$(PARTS) $(NEEDED_PARTS)),ON,OFF)) \
  $(foreach part,$(COMMON_PARTS),-DORTRAIN_$(part)=$(if $(filter $(part),$(WITHOUT)),OFF,ON)) \
	  "-DORTRAIN_OPERATORS=$$(echo $(MODELS) | tr ' ' ';')"
	cmake --build $(BUILD)/small --target ortrain

# The parts that training from artifacts does not need (CMakeLists.txt). `ortrain reduce` leaves out the same parts.
MODEL_PARTS = DEPTHWISE DOUBLES HALVES SMALL_INTEGERS
NEEDED_PARTS = $(if $(filter %.onnx,$(MODELS)),$(shell $(PYTHON) cmake/parts_for_models.py $(filter %.onnx,$(MODELS))),$(MODEL_PARTS))
COMMON_PARTS = ML STRINGS WRITERS
SMALL_PARTS = ADAPTERS ARTIFACTS CUSTOM_OPERATORS GRAPHS LEGACY METRICS SPARSE

# The library with all operators for arm64, optimized at link time and stripped.
ARM64_SIZE = $(BUILD)/size/arm64
ARM64_STRIPPED = arm64=$(ARM64_SIZE)/stripped.so=6000
.PHONY: size-arm64
size-arm64: setup arm64-tools ## Cross-compile the library with all operators for Linux on arm64, and check the limit of its size
	cmake -S . -B $(ARM64_SIZE) -G Ninja --toolchain cmake/toolchains/linux-arm64.cmake -DPython_EXECUTABLE=$(abspath $(PYTHON)) \
	  -DORTRAIN_PYTHON=OFF -DCMAKE_BUILD_TYPE=Release -DORTRAIN_LTO=ON
	cmake --build $(ARM64_SIZE) --target ortrain
	aarch64-linux-gnu-strip --strip-unneeded -o $(ARM64_SIZE)/stripped.so $(ARM64_SIZE)/libortrain.so
	$(PYTHON) scripts/library_size.py --check "$(ARM64_STRIPPED)"

# scripts/library_size.py reads the map that the linker writes.
size: export LDFLAGS := -Wl,-Map=libortrain.map
SIZE_FIXTURES = mlp_adamw lenet_adamw
.PHONY: size
size: install size-arm64 ## Build the library with all operators and with only the operators of some models, write docs/size.md, and check the limits of their sizes
	cmake -S . -B $(BUILD)/size/all -G Ninja -DPython_EXECUTABLE=$(abspath $(PYTHON)) -DORTRAIN_PYTHON=OFF \
	  -DCMAKE_BUILD_TYPE=Release
	cmake --build $(BUILD)/size/all --target ortrain
	cmake -S . -B $(BUILD)/size/wheel -G Ninja -DPython_EXECUTABLE=$(abspath $(PYTHON)) -DORTRAIN_PYTHON=OFF \
	  -DCMAKE_BUILD_TYPE=Release -DORTRAIN_LTO=ON
	cmake --build $(BUILD)/size/wheel --target ortrain
	for run in $(SIZE_FIXTURES); do $(MAKE) --no-print-directory small BUILD=$(BUILD)/size/$$run \
	  MODELS="$$(echo tests/data/fixtures/$$run/*_model.onnx)" || exit 1; done
	$(PYTHON) -m ortrain artifacts tests/models/data/mobilenet_v2/torchscript_17.onnx --classes 4 --out $(BUILD)/size/mobilenet
	$(MAKE) --no-print-directory small BUILD=$(BUILD)/size/mobilenet MODELS="$$(echo $(BUILD)/size/mobilenet/*_model.onnx)"
	$(PYTHON) scripts/library_size.py docs/size.md "$(ARM64_STRIPPED)" "all operators=$(BUILD)/size/all" "in wheels=$(BUILD)/size/wheel=6000" \
	  $(foreach run,$(SIZE_FIXTURES),"$(run)=$(BUILD)/size/$(run)/small=1500") "head of MobileNetV2=$(BUILD)/size/mobilenet/small=2000"

# Not part of `make test`, because it compiles the core again.
SMALL_FIXTURE = tests/data/fixtures/lenet_adamw
.PHONY: test-small
test-small: install ## Train a recorded run with a library that has only the operators of this run
	$(MAKE) --no-print-directory small WITHOUT=WRITERS \
	  MODELS="$(foreach kind,training eval optimizer,$(SMALL_FIXTURE)/$(kind)_model.onnx)"
	rm -rf $(BUILD)/small-site && mkdir -p $(BUILD)/small-site
	cp -r $$($(LIBRARY_FOLDER))/.. $(BUILD)/small-site/ortrain
	cp $(BUILD)/small/libortrain.so $(BUILD)/small-site/ortrain/lib/
	ORTRAIN_SMALL=1 PYTHONPATH=$(BUILD)/small-site $(PYTHON) -m pytest -q tests/structure/test_small_build.py
	PYTHONPATH=$(BUILD)/small-site $(PYTHON) -m pytest -q tests/session/test_fixtures.py -k "their_artifacts and lenet"

# The newest installed clang. Versions before 16 cannot compile the core.
CLANG_CXX ?= $(firstword $(foreach n,19 18 17 16,$(shell command -v clang++-$(n))))

TOGETHER ?= ON

.PHONY: check-clang
check-clang: setup ## Check that clang compiles the core without a warning; TOGETHER=OFF compiles each source separately
	@if [ -z "$(CLANG_CXX)" ]; then echo "make check-clang: SKIPPED; there is no clang++-16 or newer"; else \
	  $(MAKE) --no-print-directory run-check-clang; fi
.PHONY: run-check-clang
run-check-clang:
	cmake -S . -B $(BUILD)/clang -G Ninja -DCMAKE_BUILD_TYPE=$(BUILD_TYPE) -DPython_EXECUTABLE=$(abspath $(PYTHON)) \
	  -DORTRAIN_PYTHON=OFF -DORTRAIN_TESTS=ON -DORTRAIN_TOGETHER=$(TOGETHER)
	cmake --build $(BUILD)/clang --target made
	$(PYTHON) scripts/check_clang.py $(CLANG_CXX) $(BUILD)/clang

# Records which code of the core each test runs (docs/testing.md). COVERED: the tests to record; a later run adds to the record.
COVERED ?= tests/ops $(CORE_TESTS)
COVERAGE = $(abspath $(BUILD))/coverage
.PHONY: coverage
coverage: setup ## Record which blocks of the core each test in COVERED="tests/ops ..." runs, and report lines, costs, and redundant cases
	@if [ -z "$(CLANG_CXX)" ]; then echo "make coverage: SKIPPED; there is no clang++-16 or newer"; else \
	  scripts/install_missing.sh llvm && $(MAKE) --no-print-directory run-coverage; fi
.PHONY: run-coverage
run-coverage:
	cmake -S . -B $(COVERAGE) -G Ninja -DCMAKE_CXX_COMPILER=$(CLANG_CXX) -DPython_EXECUTABLE=$(abspath $(PYTHON)) \
	  -DCMAKE_BUILD_TYPE=Development -DORTRAIN_COVERAGE=ON
	cmake --build $(COVERAGE)
	rm -rf $(COVERAGE)/site
	cmake --install $(COVERAGE) --prefix $(COVERAGE)/site >/dev/null
	cp -r bindings/python/ortrain/. $(COVERAGE)/site/ortrain
	PYTHONPATH=$(COVERAGE)/site:tests $(PYTHON) -m pytest -q -p coverage_by_test --record-coverage=$(COVERAGE)/record.sqlite $(COVERED)
	$(PYTHON) scripts/core_coverage.py $(COVERAGE)/record.sqlite --costs --redundant

EVERY ?= 1
.PHONY: faults
faults: cpp ## Let each allocation (or one of EVERY) and each file operation of a training loop fail once
	$(BUILD)/cpp/tests/test_faults --every $(EVERY)

KILLS ?= 1000
.PHONY: kill
kill: cpp ## Kill a training run KILLS times while it saves, and simulate a power failure after every write
	$(BUILD)/cpp/tests/test_kill $(KILLS)

STEPS ?= 1000000
.PHONY: soak
soak: install ## Train for STEPS steps with changing shapes, sessions and errors, and plot the memory
	$(PYTHON) -m tests.soak --steps $(STEPS) --plot $(BUILD)/soak.png

# All checks of gcc for undefined behaviour. Two operations are defined, and therefore not checked: the division of floats by
# zero, which IEEE 754 defines and kernels use, and the wrapping of unsigned numbers, which hashes and random numbers use.
SANITIZERS = address,undefined,float-cast-overflow
.PHONY: test-sanitize
test-sanitize: setup ## Run the tests of the core, sessions and artifacts under sanitizers: memory, leaks, undefined behaviour, races
	cmake -S . -B $(BUILD)/sanitize -G Ninja -DPython_EXECUTABLE=$(abspath $(PYTHON)) -DORTRAIN_TESTS=ON \
	  -DORTRAIN_SANITIZE=$(SANITIZERS)
	cmake --build $(BUILD)/sanitize
	ctest --test-dir $(BUILD)/sanitize --output-on-failure
	$(MAKE) --no-print-directory pytest-sanitize test-races

# Python is not built with the sanitizers, so the libraries of the sanitizers are loaded before Python, together with the C++
# library, whose exceptions they track. Kernels divide even small work among threads. Tests can only access those intermediate
# values that are in use (program/guarded_arena.h). Tests that measure time or memory are left out.
SANITIZED_SESSIONS = $(filter-out $(addprefix tests/session/test_,gradients_in_and_out.py waiting_threads.py), \
  $(wildcard tests/session/test_*.py)) tests/ops/quantized tests/ops/recurrent
SANITIZED_OTHERS = tests/artifacts/test_artifacts.py tests/models/test_malformed_*.py tests/models/test_model_limits.py \
  tests/ops/signal tests/ops/vision
SANITIZED_SITE = $(abspath $(BUILD))/sanitize/site
SANITIZED_PYTEST = LD_PRELOAD="$(foreach name,asan ubsan stdc++,$(shell $(CXX) -print-file-name=lib$(name).so))" \
  PYTHONMALLOC=malloc PYTHONPATH=$(SANITIZED_SITE) \
  LSAN_OPTIONS=suppressions=$(CURDIR)/tests/python_leaks.txt:print_suppressions=0 $(PYTHON) -m pytest -q --capture=sys
.PHONY: pytest-sanitize pytest-sanitize-sessions pytest-sanitize-others
pytest-sanitize:
	rm -rf $(SANITIZED_SITE)
	cmake --install $(BUILD)/sanitize --prefix $(SANITIZED_SITE) >/dev/null
	cp -r bindings/python/ortrain/. $(SANITIZED_SITE)/ortrain
	$(SIDE_BY_SIDE) pytest-sanitize-sessions pytest-sanitize-others
pytest-sanitize-sessions:
	$(SANITIZED_PYTEST) $(SANITIZED_SESSIONS)
pytest-sanitize-others:
	$(SANITIZED_PYTEST) $(SANITIZED_OTHERS)

.PHONY: test-races
test-races: setup ## Test under ThreadSanitizer the calls that several threads may make at once
	@if [ -z "$(CLANG_CXX)" ]; then echo "make test-races: SKIPPED; there is no clang++-16 or newer"; else \
	  $(MAKE) --no-print-directory run-races; fi
.PHONY: run-races
run-races:
	cmake -S . -B $(BUILD)/races -G Ninja -DCMAKE_CXX_COMPILER=$(CLANG_CXX) -DPython_EXECUTABLE=$(abspath $(PYTHON)) \
	  -DORTRAIN_PYTHON=OFF -DORTRAIN_TESTS=ON -DORTRAIN_SANITIZE=thread
	cmake --build $(BUILD)/races --target test_threads
	TSAN_OPTIONS=ignore_noninstrumented_modules=1:external_symbolizer_path=$(shell command -v llvm-symbolizer) \
	  $(BUILD)/races/tests/test_threads

SECONDS ?= 60
TARGET ?= reader checkpoint inference training gradient calls formats
CORPUS ?= $(BUILD)/fuzz/corpus
# Limits for a single input: seconds, megabytes in total, and megabytes in one allocation.
FUZZ_LIMITS = -timeout=25 -rss_limit_mb=3000 -malloc_limit_mb=2500
# The default schedule counts how often each feature occurs; for most inputs, this takes longer than running the target.
FUZZ_LIMITS += -entropic=0

.PHONY: fuzz
fuzz: setup ## Fuzz each target, or those in TARGET="reader ...", for SECONDS=60 (docs/fuzzing.md)
	@if [ -z "$(CLANG_CXX)" ]; then echo "make fuzz: SKIPPED; there is no clang++-16 or newer"; else \
	  $(MAKE) --no-print-directory run-fuzz; fi
.PHONY: run-fuzz
run-fuzz:
	cmake -S . -B $(BUILD)/fuzz -G Ninja -DCMAKE_CXX_COMPILER=$(CLANG_CXX) -DPython_EXECUTABLE=$(abspath $(PYTHON)) \
	  -DORTRAIN_PYTHON=OFF -DORTRAIN_FUZZ=ON -DORTRAIN_SANITIZE=fuzzer-no-link,address,undefined
	cmake --build $(BUILD)/fuzz --target $(addprefix fuzz_,$(TARGET))
	[ -d $(BUILD)/fuzz/seeds ] || $(PYTHON) -m tests.fuzz.seeds $(BUILD)/fuzz/seeds
	@for target in $(TARGET); do mkdir -p $(CORPUS)/$$target $(BUILD)/fuzz/findings/$$target; \
	  echo "fuzzing $$target for $(SECONDS) seconds"; \
	  OMP_NUM_THREADS=1 $(BUILD)/fuzz/tests/fuzz/fuzz_$$target $(FUZZ_LIMITS) -max_total_time=$(SECONDS) -max_len=65536 \
	    -artifact_prefix=$(abspath $(BUILD))/fuzz/findings/$$target/ -print_final_stats=1 -verbosity=0 \
	    $(CORPUS)/$$target $(BUILD)/fuzz/seeds/$$target $$(find tests/fuzz/regressions -name $$target -type d) || exit 1; done

.PHONY: bench-peers
bench-peers: ## Install the libraries that the benchmarks compare with ortrain
	benchmarks/make_peers.sh .venv-peers

.PHONY: bench
bench: install bench-peers ## Compare the time and memory of a step with onnxruntime-training, PyTorch and JAX
	$(PYTHON) -m benchmarks

.PHONY: docs
docs: install ## Build the documentation site
	$(VENV)/bin/sphinx-build -W -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

.PHONY: wheel
wheel: setup ## Build a wheel and show the system libraries that it needs
	$(PYTHON) -m pip wheel --quiet --no-build-isolation --no-deps -w dist --config-settings=build-dir=$(BUILD)/python \
	  --config-settings=cmake.build-type=$(BUILD_TYPE) .
	$(VENV)/bin/auditwheel show dist/ortrain-*.whl

# zig's name for a system, and the name of the system in wheels.
WHEEL_TARGET ?= x86_64-linux-gnu.2.28
WHEEL_PLATFORM ?= manylinux_2_28_x86_64
.PHONY: wheel-manylinux
wheel-manylinux: setup ## Build a wheel that needs only glibc 2.28 or newer into dist, and show the system libraries that it needs
	rm -f dist/ortrain-*$(WHEEL_PLATFORM).whl
	scripts/linux_wheel.sh $(VENV) $(ZIG_TOOLS) $(WHEEL_TARGET) $(WHEEL_PLATFORM) $(BUILD)/zig/$(WHEEL_PLATFORM) dist $(BUILD_TYPE)
	$(VENV)/bin/auditwheel show dist/ortrain-*$(WHEEL_PLATFORM).whl

.PHONY: test-manylinux
test-manylinux: wheel-manylinux ## Install the wheel of wheel-manylinux into a new virtual environment, replay the recorded runs, train, and write docs/wheel.md
	scripts/test_wheel.sh $(PYTHON) dist/ortrain-*$(WHEEL_PLATFORM).whl $(BUILD)/wheel-test
	$(PYTHON) scripts/wheel_contents.py dist/ortrain-*$(WHEEL_PLATFORM).whl docs/wheel.md

# A Python for musl, and a wheel for it.
MUSL_PYTHON = $(BUILD)/musl-python
.PHONY: test-musl-python
test-musl-python: install ## Build a wheel for Linux with musl, replay the recorded runs with a Python for musl, and train with the command line
	rm -f dist/ortrain-*musllinux*.whl
	scripts/linux_wheel.sh $(VENV) $(ZIG_TOOLS) x86_64-linux-musl musllinux_1_2_x86_64 $(BUILD)/zig/musllinux_1_2_x86_64 dist $(BUILD_TYPE)
	scripts/musl_python.sh $(VENV) $(ZIG_TOOLS) $(MUSL_PYTHON)
	scripts/test_musl_wheel.sh $(PYTHON) dist/ortrain-*musllinux*.whl $(BUILD)/musl-wheel $(MUSL_PYTHON)

.PHONY: clean
clean: ## Remove the results of builds
	rm -rf $(BUILD) dist docs/_build
