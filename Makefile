# `make demo` and `make test` need python3 (3.11 or newer), pip and make, nothing else.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
RUNS ?= runs
PYTEST := $(BIN)/python -m pytest -n auto --dist loadfile

.PHONY: demo test test-fast test-slow lint smoke aot aot-check clean

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e .
	touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet -e ".[test]"
	touch $@

$(VENV)/.installed-smoke: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet -e ".[smoke]"
	touch $@

demo: $(VENV)/.installed
	$(BIN)/python -m experiments.run --config=experiments/configs/ppo_cartpole.py --workdir=$(RUNS)/demo/ppo_cartpole
	$(BIN)/python -m experiments.run --config=experiments/configs/a2c_line_world.py --workdir=$(RUNS)/demo/a2c_line_world

test: test-fast test-slow

# The error tests run in a second process: the type-checking hook would raise before our own messages.
test-fast: $(VENV)/.installed-test
	$(PYTEST) -m "not slow"
	$(PYTEST) -m "not slow" --errors

# Few and long: a worker that has nothing left takes what another has not begun.
test-slow: $(VENV)/.installed-test
	$(PYTEST) --dist worksteal -m slow

# A short set for another Python: make smoke PYTHON=python3.13 VENV=.venv-smoke
smoke: $(VENV)/.installed-smoke
	$(PYTEST) -m "not slow" -k "test_table or ppo_cartpole or sac_pendulum" tests/losses/test_table.py tests/experiments/test_run.py
	$(PYTEST) --dist load tests/kernels_pallas/test_gpu_mosaic.py  # which needs jax 0.12

# Kernels compiled for TPUs and GPUs that are not here: an environment of its own, with pinned
# compilers, which needs Python 3.12 or newer: make aot PYTHON=python3.13
AOT := .venv-aot
$(AOT)/.installed:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 12) and "error: needs Python 3.12 or newer: make aot PYTHON=python3.13")'
	$(PYTHON) -m venv $(AOT)
	$(AOT)/bin/python -m pip install --quiet jax==0.12.0.1 libtpu==0.0.50.1 numpy pytest pytest-xdist
	$(AOT)/bin/python -m pip install --quiet --no-deps jax-cuda13-plugin==0.12.0.1 \
	  jax-cuda13-pjrt==0.12.0.1 nvidia-cuda-nvcc==13.5.37 nvidia-nvvm==13.5.37
	touch $@

aot: $(AOT)/.installed
	$(AOT)/bin/python -m kernels_pallas.aot

# The part for every change: no schedule worse by 3%, no register spilled, nothing of the size of
# the logits in memory.
aot-check: $(AOT)/.installed
	$(AOT)/bin/python -m pytest -n 2 --noconftest -p no:cacheprovider tests/kernels_pallas/test_aot_*.py

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

clean:
	rm -rf $(VENV) .venv-smoke .venv-aot .jax_cache build *.egg-info
