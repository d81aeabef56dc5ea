# `make demo` and `make test` need Python 3.11 to 3.13, pip and make; everything else they install into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
OUT ?=

.PHONY: setup demo test test-long check format bench bench-ray bench-view bench-data bench-controller bench-trl bench-pipelines bench-rollout mutants clean

setup: $(READY)

$(READY): requirements-cpu.txt pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info[:2] <= (3, 13) else "dagrl needs Python 3.11 to 3.13, this is " + sys.version.split()[0] + ": set PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-deps -r requirements-cpu.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $(READY)

demo: $(READY)
	$(BIN)/dagrl run pipelines/grpo.py --set workers=2 $(if $(OUT),--out $(OUT))

test: $(READY)
	$(BIN)/python -m pytest -m "not long" -n 3 --dist loadfile --no-loadscope-reorder

test-long: $(READY)
	$(BIN)/python -m pytest -m long -n 2 --dist loadfile --no-loadscope-reorder

mutants: $(READY)
	$(BIN)/python -m tests.mutants $(ARGS)

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright
	$(BIN)/python -m pytest -q tests/test_layers.py

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY)
	$(BIN)/python -m tests.bench $(ARGS)

bench-ray: $(READY)
	$(BIN)/python -m tests.bench.ray_step $(ARGS)

bench-view: $(READY)
	$(BIN)/python -m tests.bench.live_view $(ARGS)

bench-controller: $(READY)
	$(BIN)/python -m tests.bench.controller $(ARGS)

bench-trl: $(READY)
	$(BIN)/python -m tests.bench.versus_trl $(ARGS)

bench-pipelines: $(READY)
	$(BIN)/python -m tests.bench.pipelines $(ARGS)

bench-rollout: $(READY)
	$(BIN)/python -m tests.bench.rollout $(ARGS)

bench-data: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.bench.dataproto $(ARGS)

clean:
	rm -rf build *.egg-info .pytest_cache .ruff_cache .hypothesis
