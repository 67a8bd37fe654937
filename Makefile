# make demo    the main job: dense against one-layer random on a small corpus
# make check   linter, types and the fast tests, in about two minutes
# make test    all tests
# make lint    ruff and mypy
# make matrix  the fast tests on every supported Python that is found here
# make bench   speed and memory against the stock dense model
# make gpu     the masks on a GPU, if there is one: exactness and speed
# make fuzz    damaged and hostile files, to every command that reads files
# make chaos   trainings and sweeps that are killed 30 times each
# make venv    only the set-up that the others do by themselves

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin

.PHONY: demo check test lint matrix bench gpu fuzz chaos venv

# Of make fuzz: how many cases, from which seed, and how many at a time.
CASES ?= 5000
SEED ?= 1
JOBS ?= 1
# Of make chaos: how often each training is killed, at moments drawn from SEED.
KILLS ?= 30

demo: venv
	$(BIN)/python examples/demo/demo.py

# Two workers with one thread each; a worker runs whole files, whose tests share models.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

check: lint
	$(PYTEST) -m "not slow"

test: venv
	$(PYTEST)

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

matrix:
	.ci/matrix

bench: venv
	$(BIN)/python benchmarks/speed.py

gpu: venv
	$(BIN)/python benchmarks/gpu.py

fuzz: venv
	OMP_NUM_THREADS=1 $(BIN)/python -m fuzz --cases $(CASES) --seed $(SEED) --jobs $(JOBS)

chaos: venv
	KILLS=$(KILLS) SEED=$(SEED) OMP_NUM_THREADS=1 $(BIN)/python -m pytest -s tests/test_kills.py

venv: .venv/built

# Says nothing, not even what is deprecated, unless it fails.
INSTALL := $(BIN)/python -m pip install --quiet --quiet

# fairseq-fixed in an isolated build would fetch a second torch, and with its
# dependencies torchaudio; its extensions must not be built in parallel.
.venv/installed: requirements.txt
	@echo "setting up .venv with $(PYTHON) (2 to 4 minutes)"
	@$(PYTHON) -m venv .venv
	@$(INSTALL) --upgrade pip==26.3
	@$(INSTALL) --requirement requirements.txt
	@CFLAGS="-g0 -O1" $(INSTALL) --no-build-isolation --no-deps fairseq-fixed==0.12.3.1
	@$(INSTALL) --no-build-isolation --no-deps fastBPE==0.1.0
	@touch $@

# Python calls the compiled loops by their latest arguments.
.venv/built: .venv/installed pyproject.toml setup.py onelayer_lottery/core/_kernels.c
	@$(INSTALL) --no-build-isolation --no-deps --editable .
	@touch $@
