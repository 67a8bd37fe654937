# make demo   the main job: dense against one-layer random on a small corpus
# make test   all tests
# make bench  speed and memory against the stock dense model
# make fuzz   damaged and hostile files, to every command that reads files
# make lint   ruff
# make venv   only the set-up that the others do by themselves

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin

.PHONY: demo test bench fuzz lint venv

# Of make fuzz: how many cases, from which seed, and how many at a time.
CASES ?= 5000
SEED ?= 1
JOBS ?= 1

demo: venv
	$(BIN)/python examples/demo/demo.py

test: venv
	$(BIN)/python -m pytest

bench: venv
	$(BIN)/python benchmarks/speed.py

fuzz: venv
	OMP_NUM_THREADS=1 $(BIN)/python -m fuzz --cases $(CASES) --seed $(SEED) --jobs $(JOBS)

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

venv: .venv/built

# fairseq-fixed in an isolated build would fetch a second torch, and with its
# dependencies torchaudio; its extensions must not be built in parallel.
.venv/installed: requirements.txt setup.py
	@echo "setting up .venv with $(PYTHON) (2 to 4 minutes)"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip==26.3
	$(BIN)/python -m pip install --quiet -r requirements.txt
	CFLAGS="-g0 -O1" $(BIN)/python -m pip install --quiet --no-build-isolation \
		--no-deps fairseq-fixed==0.12.3.1
	$(BIN)/python -m pip install --quiet --no-build-isolation --no-deps fastBPE==0.1.0
	touch $@

# Python calls the compiled loops by their latest arguments.
.venv/built: .venv/installed onelayer_lottery/_kernels.c
	$(BIN)/python -m pip install --quiet --no-build-isolation --no-deps --editable .
	touch $@
