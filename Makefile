# One entry point; everything else is CMake presets (CMakePresets.json).
#   make run    install what running needs, build, start the service on http://127.0.0.1:8080
#   make test   install what testing needs, build, run all tests
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
JOBS ?= $(shell nproc)
PORT ?= 8080
MINUTES ?= 30
DATA_DIR ?= build/data
FUZZ_SECONDS ?= 600
# Folders with threads in them or under them; the rest runs under ASan and UBSan only.
TSAN_TESTS := base core_handoff core_prompt core_kvcache engine engine_kernels service_gateway service_handoff service_worker service_kvd io_control \
  io_disk io_embedded io_http io_kv io_posix_store io_transport io_threads io_telemetry io_usrbio io_zmq
export CCACHE_DIR ?= $(CURDIR)/.cache/ccache
# What ccache asks for before it keeps objects made with precompiled headers.
export CCACHE_SLOPPINESS ?= pch_defines,time_macros
# Tests never reach for a core of somebody else's spinning thread.
export OMP_WAIT_POLICY := passive

.PHONY: help run build test test-build test-sdks test-clients unit asan asan-build tsan tsan-build test-ceph fuzz faults bench layers tidy format format-check docs clean

help:
	@sed -n '2,3p' Makefile | cut -c2-; echo; \
	echo "  make test-clients   SDKs and agents (npm)      make tidy      clang-tidy"; \
	echo "  make test-ceph      the cluster tier on a real Ceph (Debian's), 15 minutes at most"; \
	echo "  make bench          all benches as JSON       make fuzz      fuzzers, FUZZ_SECONDS=$(FUZZ_SECONDS) each"; \
	echo "  make asan | tsan    unit tests, sanitized     make format    clang-format in place"; \
	echo "  make layers         include rules             make docs      generated documents"; \
	echo "  make faults         1,000 kills, 200 flips, ..., P/D for MINUTES=$(MINUTES) (docs/faults.md)"

run: build
	exec build/release/penstock serve --port $(PORT) --data-dir $(DATA_DIR)

build:
	tools/install_packages.sh run
	tools/build.sh release penstock

test: unit
	tools/tokenizer_reference/run_parity.sh

test-build:
	tools/install_packages.sh test
	tools/build.sh release

unit: test-build
	ctest --preset release

asan-build:
	tools/install_packages.sh test
	tools/build.sh asan unit_tests fuzzers

asan: asan-build
	ctest --preset asan --label-regex unit

tsan-build:
	tools/install_packages.sh test
	tools/build.sh tsan $(TSAN_TESTS:%=%_test)

tsan: tsan-build
	ctest --preset tsan --tests-regex '^($(shell tr ' ' '|' <<<'$(TSAN_TESTS)'))$$'

fuzz: asan-build
	tools/fuzz.sh $(FUZZ_SECONDS)

# The long forms; `make test` runs the short ones.
faults:
	tools/install_packages.sh test
	tools/build.sh release penstock kv_faults pd_worker
	build/release/tests/faults/kv_faults kills --rounds 1000
	build/release/tests/faults/kv_faults scenes
	build/release/tests/faults/kv_faults flips --flips 200
	tests/faults/serve_faults.py --binary build/release/penstock --kills 100 --conversations 6
	tests/faults/pd_faults.py --binary build/release/penstock --worker-binary build/release/tests/faults/pd_worker \
	  --minutes $(MINUTES)

# The cluster tier on a real Ceph, brought up for it: 15 minutes at most, 4 GB of memory.
test-ceph:
	tools/install_packages.sh ceph
	tools/build.sh release penstock store_load io_rados_test
	tests/cluster/ceph_test.py

test-sdks: build
	tests/clients/run.sh

test-clients: test-sdks
	tests/clients/agents/run.sh

bench: build
	tools/install_packages.sh test
	build/release/penstock bench all --json

layers:
	python3 tools/check_layers.py

format:
	git ls-files '*.h' '*.cc' | xargs clang-format-19 -i

format-check:
	git ls-files '*.h' '*.cc' | xargs clang-format-19 --dry-run --Werror

tidy:
	tools/install_packages.sh test
	tools/build.sh dev proto_engine
	git ls-files 'src/*.cc' 'bench/*.cc' | xargs clang-tidy-19 -p build/dev --quiet

docs:
	tools/install_packages.sh test
	tools/build.sh release
	UPDATE=1 ctest --preset release --label-regex unit

clean:
	rm -rf build
