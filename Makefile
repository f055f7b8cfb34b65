# A thin front over CMake: each target installs what it lacks (tools/setup.sh), configures, builds and runs.
# For CMake itself: cmake --preset dev && cmake --build --preset dev && ctest --preset dev

JOBS ?= $(shell nproc 2>/dev/null || echo 2)
FILE ?=
PREFIX ?= /usr/local
# Where the benchmarks put their JSON lines.
OUT ?= $(CURDIR)/build/bench

# The make that CMake starts is not a part of this one.
unmake = env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL

# Setup and builds must leave standard input alone: the demo may read it.
setup = sh tools/setup.sh $(1) </dev/null
configure = cmake --preset $(1) $(2) </dev/null >build/configure-$(1).log 2>&1 || { cat build/configure-$(1).log; exit 1; }
build = mkdir -p build && { $(call configure,$(1),$(2)); } && $(unmake) cmake --build --preset $(1) --parallel $(JOBS) </dev/null
ready = $(call setup,$(2)) && $(call build,$(1))
ready_library = $(call setup,library) && $(call build,release,-DGVMM_BUILD_TESTS=OFF $(1))
# On the simulated driver the Python of build/venv, as in the tests; on a GPU the one whose peers are to be measured, PYTHON.
bench_python = PYTHON=$(if $(PYTHON),$(PYTHON),$(if $(wildcard build/venv/bin/python),build/venv/bin/python,python3))

.PHONY: help demo test gpu-test bench gpu-bench lint format sanitize asan tsan install clean
.NOTPARALLEL:

help:
	@echo 'make demo [FILE=path]   build, then run examples/ingest.c (also: ... | make demo)'
	@echo 'make test               build, then run every test on the simulated driver'
	@echo 'make gpu-test           the tests that can, on the GPU of this machine'
	@echo 'make bench              benchmarks on the simulated driver; JSON lines into OUT ($(OUT))'
	@echo 'make gpu-bench          benchmarks on the GPU of this machine, beside the peers that PYTHON (python3) has'
	@echo 'make lint               format, include direction, ruff;  make format rewrites the sources'
	@echo 'make sanitize           the tests under the address, undefined behaviour and thread sanitizers'
	@echo 'make install            into PREFIX ($(PREFIX)), below DESTDIR if set'
	@echo 'make clean              removes build/'
	@echo 'What a target needs and cannot find it installs with apt-get.'

demo:
	@$(call ready_library) --target ingest
	@sh tools/demo.sh build/release/ingest "$(FILE)"

test:
	@$(call setup,python)
	@$(call ready,dev,build)
	@$(unmake) ctest --preset dev --parallel $(JOBS) </dev/null

gpu-test:
	@$(call ready,gpu,tests)
	@$(unmake) ctest --preset gpu </dev/null

bench:
	@$(call setup,python)
	@$(call ready_library) --target gvmm_bench
	@$(bench_python) sh tools/bench.sh build/release/bench sim "$(OUT)"

gpu-bench:
	@$(call ready_library) --target gvmm_bench
	@sh tools/bench.sh build/release/bench gpu "$(OUT)"

lint:
	@sh tools/setup.sh lint </dev/null
	@sh tools/lint.sh

format:
	@sh tools/setup.sh lint </dev/null
	@sh tools/lint.sh --fix

sanitize: asan tsan

asan tsan:
	@$(call ready,$@,build)
	@$(unmake) ctest --preset $@ --parallel $(JOBS) </dev/null

install:
	@$(call ready_library,-DCMAKE_INSTALL_PREFIX='$(PREFIX)')
	@cmake --install build/release

clean:
	rm -rf build
