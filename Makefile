# Two commands do it all on a fresh machine with Python 3.10 or newer: `make demo` and `make test`.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# One BLAS thread: gpq's linear algebra is small, and threads only fight (PyTorch jobs set their own).
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1

.PHONY: help stop-table demo demo-policies pictures test test-long test-interpreters bars prove lint check format bench bench-fit bench-cli bench-round bench-solver bench-policy bench-overhead bench-instructions bench-daemon bench-exactness bench-noise bench-crowd bench-beside bench-files gpu-check chaos chaos-daemon compare-recovery dst habits planted completions clean

help:            ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

demo: $(VENV)/.train  ## install, then three real training jobs on two embedded CPU servers, to the end
	$(BIN)/gpq demo

demo-policies: $(VENV)/.train  ## the demo under every policy, one line each: a minute or two a policy
	@failed=; for policy in $(or $(ONLY),$$($(BIN)/python -c 'from gpq.policies.registry import POLICIES; print(*POLICIES)')); do \
	  if said=$$($(BIN)/gpq demo --policy $$policy --timeout 15m 2>&1); then echo "$$said" | tail -n 1; \
	  else failed="$$failed $$policy"; echo "$$policy: FAILED"; echo "$$said" | tail -n 12; fi; \
	done; test -z "$$failed" || { echo "failed:$$failed" >&2; exit 1; }

# After so many minutes a run ends, and says what failed until then.
MINUTES ?= 150

# What each of these runs, and how a test is written that never fails by luck: docs/internals/tests.md.
test: $(VENV)/.dev  ## lint, types, import contracts, every test whose sources changed since it was proven, a tenth of the others; ten minutes
	$(BIN)/python -m compileall -q gpq agent tests
	$(BIN)/python -m tests.tiers test --minutes $(MINUTES)

test-long: $(VENV)/.dev  ## everything, as before a release: all tests, bars, Pythons and more generated examples; an hour
	GPQ_EXAMPLES=many $(BIN)/python -m tests.tiers long
	$(MAKE) bars
	$(MAKE) test-interpreters FULL=1
	$(MAKE) dst SEEDS=3000

check: $(VENV)/.dev   ## what to run at each save: lint, types, import contracts, the models' tests with few examples
	@$(MAKE) -s lint
	GPQ_EXAMPLES=few $(BIN)/python -m pytest -q -n 2 tests/core tests/policies tests/control tests/views

lint: $(VENV)/.dev  ## lint, types, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --cache-dir $(VENV)/mypy-cache
	$(BIN)/lint-imports

# Beside other tests a bar in seconds is noted and only demanded six times as wide.
bars: $(VENV)/.dev  ## the tests with bars in seconds, one at a time, each bar as it was asked; 12 minutes
	GPQ_BARS=1 $(BIN)/python -m pytest -q -n 0 $(BARS)

BARS := tests/lab tests/chaos tests/e2e/test_no_waiting.py tests/e2e/test_server_faults.py tests/daemon/nodes/test_ssh_nodes.py

prove: $(VENV)/.dev  ## run groups of tests whole, and note in tests/proven.json which sources they prove: make prove GROUPS="habits"
	$(BIN)/python -m tests.tiers prove $(GROUPS)

# Without PyTorch, so nothing that trains; a version that this machine does not have is named. What the oldest and the
# newest take, those between them take.
VERSIONS ?= $(if $(FULL),3.10 3.12 3.13,3.10 3.13)
# What differs between Pythons: argparse and typer, dataclasses, tomli, asyncio, typing. All that needs no PyTorch with FULL=1.
WITHOUT_TORCH := tests/core tests/policies tests/control tests/sim tests/views tests/contract/test_stores.py tests/test_config.py tests/test_demo.py
DIFFERS := tests/core tests/policies tests/contract/test_codec.py tests/test_config.py tests/test_decoding.py tests/cli/test_errors.py
INTERPRETED = $(if $(FULL),$(WITHOUT_TORCH),$(DIFFERS))

test-interpreters:  ## tests on the other Pythons from 3.10 up that this machine has; all that need no PyTorch with FULL=1
	@pyenv=$${PYENV_ROOT:-$$(eval echo "~$$(id -un)")/.pyenv}; \
	for version in $(VERSIONS); do \
	  python=$$(for candidate in python$$version "$$pyenv"/versions/$$version.*/bin/python; do \
	    "$$candidate" -c 'import sys; print(sys.executable)' 2>/dev/null && break; done); \
	  if test -z "$$python"; then echo "no Python $$version here"; continue; fi; \
	  echo "Python $$version: $$python"; \
	  test -x $(VENV)-$$version/bin/python || "$$python" -m venv $(VENV)-$$version || exit 1; \
	  $(VENV)-$$version/bin/python -m pip install --quiet --upgrade pip || exit 1; \
	  $(VENV)-$$version/bin/python -m pip install --quiet --editable . --group test || exit 1; \
	  $(VENV)-$$version/bin/python -W error -m tests.support.imports || exit 1; \
	  GPQ_EXAMPLES=$(if $(FULL),some,few) $(VENV)-$$version/bin/python -m pytest -q -n 2 $(INTERPRETED) || exit 1; \
	done

stop-table: $(VENV)/.dev  ## what becomes of a program that saves on a signal: a line for each launcher and signal, a cell for each kind of worker
	$(BIN)/python -m tests.agent.node.stop_table --torch

format: $(VENV)/.dev  ## rewrite the code in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

pictures: $(VENV)/.train  ## record the pictures of README.md anew: two embedded servers, real jobs; a few minutes
	$(BIN)/python examples/pictures/record.py

completions: $(VENV)/.dev  ## write anew what is made from the commands: completions/, the table in README.md
	$(BIN)/python -m gpq.cli.generated.reference --write

# TRACES is a folder of public measurements in the layout of the OSDI'21 artifact; for bench-policy the folder above it.
TRACES ?=
# Processes that simulate.
JOBS ?= 1

bench: bench-fit bench-round bench-solver bench-cli bench-daemon bench-overhead bench-exactness bench-noise  ## every benchmark, with its bar

bench-fit: $(VENV)/.dev  ## error and time of the throughput fit: make bench-fit TRACES=DIR
	@test -n "$(TRACES)" || { echo "say where the traces are: make bench-fit TRACES=DIR" >&2; exit 2; }
	$(BIN)/python benchmarks/fit_accuracy.py --traces $(TRACES)

rooms: $(VENV)/.dev  ## who imports whom, room by room, lowest first
	PYTHONPATH=.:agent $(BIN)/python benchmarks/rooms.py

measure-code: $(VENV)/.dev  ## how dense the code is, beside other projects
	$(BIN)/python benchmarks/code.py

bench-solver: $(VENV)/.dev  ## whole rounds at four sizes, against the genetic search and HiGHS
	$(BIN)/python benchmarks/solver.py

bench-round: $(VENV)/.dev  ## time of a round for 64 GPUs and 30 jobs
	$(BIN)/python benchmarks/round.py

bench-policy: $(VENV)/.dev  ## policies on public workloads, an hour or so: make bench-policy TRACES=DIR (with osdi21/ and sia/)
	@test -n "$(TRACES)" || { echo "say where the traces are: make bench-policy TRACES=DIR" >&2; exit 2; }
	$(BIN)/python benchmarks/policy.py --traces $(TRACES) --jobs-parallel $(JOBS) $(if $(ONLY),--only $(ONLY)) $(if $(OUT),--out $(OUT))

bench-cli: $(VENV)/.dev  ## CPU time of status, completion and submit over `python -c pass`
	$(BIN)/python benchmarks/cli.py

# As root, with Debian's packages (make compare-recovery INSTALL=1 installs them); ARGS="--only gpq,tsp --sizes 1000"; OUT=FILE.
bench-beside: $(VENV)/.dev  ## CPU time of status, submit and one TAB beside task-spooler and Slurm, 1,000 and 10,000 jobs; 10 minutes
	PYTHONPATH=.:agent $(BIN)/python benchmarks/cli.py --beside --out $(or $(OUT),benchmarks/results/commands.md) $(ARGS)

bench-crowd: $(VENV)/.dev  ## 200 clients submit 10,000 jobs at once, then an array of as many: make bench-crowd OUT=FILE ARGS="--policy fifo"
	PYTHONPATH=.:agent $(BIN)/python benchmarks/crowd.py --out $(or $(OUT),benchmarks/results/crowd.md) $(ARGS)

bench-files: $(VENV)/.dev  ## a checkpoint from one server to another: 10,000 small files, 400 MB of large ones, beside cp -a
	PYTHONPATH=.:agent $(BIN)/python benchmarks/files.py $(ARGS)

bench-daemon: $(VENV)/.dev  ## memory and start of a daemon with 10,000 finished jobs
	$(BIN)/python benchmarks/daemon_memory.py

bench-overhead: $(VENV)/.dev  ## the training library against plain DDP
	$(BIN)/python benchmarks/overhead.py

bench-instructions: $(VENV)/.dev  ## the same, counted in instructions of Python's interpreter
	$(BIN)/python benchmarks/instructions.py

bench-exactness: $(VENV)/.dev  ## samples and losses over ten forced resizes
	$(BIN)/python benchmarks/exactness.py

bench-noise: $(VENV)/.dev  ## the noise scale against exact per-sample statistics
	$(BIN)/python benchmarks/noise_scale.py

# Paste what it prints into an issue. NODES="gpu1 gpu2": servers instead of this machine; SCRIPTS: the interpreter that has torch.
gpu-check:  ## what this machine's GPUs do under gpq, to be pasted into an issue: make gpu-check PYTHON=python3; 3 minutes
	@echo "gpq $$(git rev-parse --short HEAD 2>/dev/null), $$(uname -sr)"
	@PYTHONPATH=.:agent $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) -m gpq doctor --gpu $(NODES) $(if $(SCRIPTS),--python $(SCRIPTS)) --color never

# Hours. RUNS names some (benchmarks/chaos.py --list); what needs root or a package fails without it.
chaos: $(VENV)/.dev  ## every fault at full size, exits 1 over a bar: make chaos RUNS="kills powercuts"
	PYTHONPATH=.:agent $(BIN)/python benchmarks/chaos.py $(RUNS)

chaos-daemon: $(VENV)/.dev  ## kill -9 the daemon 100 times under 300 jobs
	$(BIN)/python benchmarks/chaos_daemon.py

# Root, and Debian's packages, which are installed only with INSTALL=1; ARGS="--runs 2" and the like; OUT=FILE keeps the tables.
compare-recovery: $(VENV)/.dev  ## Slurm and task-spooler against gpq: kill -9 of the controller, a cut network; 15 minutes
	$(BIN)/python benchmarks/compare_recovery.py $(if $(INSTALL),--install) $(if $(OUT),--out $(OUT)) $(ARGS)

# Needs nothing but the package: SEEDS, JOBS (processes), or SEED of one that failed, PLANT with one of the planted bugs.
dst: $(VENV)/.dev  ## daemon, nodes and network simulated under faults: 3,000 seeds, then the planted bugs that it must find
ifdef SEED
	PYTHONPATH=.:agent $(BIN)/python -m tests.dst --seed $(SEED) $(if $(PLANT),--plant "$(PLANT)")
else
	PYTHONPATH=.:agent $(BIN)/python -m tests.dst --seeds $(or $(SEEDS),3000) --jobs $(if $(filter file,$(origin JOBS)),2,$(JOBS))
	PYTHONPATH=.:agent $(BIN)/python -m tests.dst --planted --seeds 500
endif

# One cell with all that it said: .venv/bin/python -m tests.habits HABIT --shape SHAPE --verbose. ARGS="clip-adamw gan --explain".
habits: $(VENV)/.dev  ## ordinary training loops in every shape, against plain PyTorch: make habits OUT=FILE ARGS=...; some minutes
	PYTHONPATH=.:agent $(BIN)/python -m tests.habits $(if $(OUT),--out $(OUT)) $(ARGS)

# Which are planted: tests/habits/planted.py. ARGS="lbfgs gan" checks these only.
planted: $(VENV)/.dev  ## gpq check on scripts with one planted habit each: make planted OUT=FILE ARGS=...; 20 minutes
	$(BIN)/python benchmarks/planted.py $(if $(OUT),--out $(OUT)) $(ARGS)

clean:           ## remove the environment and what tools left behind
	rm -rf $(VENV) $(VENV)-3.* .reports .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# -- environments: made once, made anew when what they are made from changes -------------------------------------------

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "gpq needs Python 3.10 or newer; try: make PYTHON=python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.train: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[train,examples]'
	@touch $@

$(VENV)/.dev: $(VENV)/.train
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group dev
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target $(VENV)/nvidia-ml-py-oldest nvidia-ml-py==12.535.108
	@touch $@
