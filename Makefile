# Two commands set up everything on a fresh machine with Python 3.10 or newer: `make demo` and `make test`.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# One BLAS thread: gpq's matrices are small, and more threads only slow each other down. PyTorch jobs set their own.
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1

.PHONY: help docs words stop-table demo demo-policies pictures test test-long test-interpreters bars prove lint check format bench bench-fit bench-cli bench-round bench-solver bench-policy bench-overhead bench-instructions bench-calls bench-past bench-spool bench-hostile bench-exactness bench-full-training bench-frameworks bench-noise bench-batch-norm bench-crowd bench-beside bench-files bench-floors bench-team bench-real bench-lab bench-resize gpu-check chaos stress chaos-daemon compare-recovery dst habits planted completions clean

help:            ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

demo: $(VENV)/.train  ## install gpq, then train three real jobs to the end on two embedded CPU servers
	$(BIN)/gpq demo

demo-policies: $(VENV)/.train  ## run the demo under every policy, with one line for each: a minute or two per policy
	@failed=; for policy in $(or $(ONLY),$$($(BIN)/python -c 'from gpq.policies.registry import POLICIES; print(*POLICIES)')); do \
	  if said=$$($(BIN)/gpq demo --policy $$policy --timeout 15m 2>&1); then echo "$$said" | tail -n 1; \
	  else failed="$$failed $$policy"; echo "$$policy: FAILED"; echo "$$said" | tail -n 12; fi; \
	done; test -z "$$failed" || { echo "failed:$$failed" >&2; exit 1; }

# A run ends after this many minutes and lists what has failed by then.
MINUTES ?= 150

# What each of these runs, and how to write a test that never fails by luck: docs/internals/tests.md.
test: $(VENV)/.dev  ## linters, types, import contracts, all tests whose sources changed, a tenth of the others: ten minutes
	$(BIN)/python -m compileall -q gpq agent tests
	$(BIN)/python -m tests.tiers test --minutes $(MINUTES)

test-long: $(VENV)/.dev  ## everything, as before a release: all tests, time limits, all Pythons, more generated examples: an hour
	GPQ_EXAMPLES=many $(BIN)/python -m tests.tiers long
	$(MAKE) bars
	$(MAKE) test-interpreters FULL=1
	$(MAKE) dst SEEDS=3000

check: $(VENV)/.dev   ## what to run at each save: linters, types, import contracts and the tests of the models
	@$(MAKE) -s lint
	GPQ_EXAMPLES=few $(BIN)/python -m pytest -q -n 2 tests/core tests/policies tests/control tests/views

lint: $(VENV)/.dev  ## linters, types, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --cache-dir $(VENV)/mypy-cache
	$(BIN)/lint-imports

# While other tests run, a limit in seconds is only noted, and enforced at six times its value.
bars: $(VENV)/.dev  ## the tests with limits in seconds, one at a time, with the limits enforced: 12 minutes
	GPQ_BARS=1 $(BIN)/python -m pytest -q -n 0 $(BARS)

BARS := tests/lab tests/chaos tests/e2e/test_no_waiting.py tests/e2e/test_server_faults.py tests/daemon/nodes/test_ssh_nodes.py

prove: $(VENV)/.dev  ## run whole groups of tests and note in tests/proven.json which sources they prove: make prove GROUPS="habits"
	$(BIN)/python -m tests.tiers prove $(GROUPS)

# Without PyTorch, so nothing that trains. Versions that this machine lacks are named. What works on the oldest and the
# newest version works on those between.
VERSIONS ?= $(if $(FULL),3.10 3.12 3.13,3.10 3.13)
# What differs between Pythons: argparse, typer, dataclasses, tomli, asyncio and typing. FULL=1 runs all that needs no PyTorch.
WITHOUT_TORCH := tests/core tests/policies tests/control tests/sim tests/views tests/contract/test_stores.py tests/test_config.py tests/test_demo.py
DIFFERS := tests/core tests/policies tests/contract/test_codec.py tests/test_config.py tests/test_decoding.py tests/cli/test_errors.py
INTERPRETED = $(if $(FULL),$(WITHOUT_TORCH),$(DIFFERS))

test-interpreters:  ## tests on the other Pythons that this machine has, from 3.10. FULL=1 runs all that need no PyTorch
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

stop-table: $(VENV)/.dev  ## print what happens to a program that saves on a signal, by launcher, signal and kind of worker
	$(BIN)/python -m tests.agent.node.stop_table --torch

format: $(VENV)/.dev  ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

pictures: $(VENV)/.train  ## record the pictures of the documents again, with real jobs on two embedded servers
	$(BIN)/python examples/pictures/record.py

completions: $(VENV)/.dev  ## write again what is made from the commands: man pages, schemas, completion_data.py, docs/commands.md
	$(BIN)/python -m tests.generated.reference --write

# TRACES is a folder of public measurements in the layout of the OSDI'21 artifact. bench-policy needs the folder above it.
TRACES ?=
# How many simulations run at once.
JOBS ?= 1

bench: bench-fit bench-round bench-solver bench-cli bench-past bench-overhead bench-exactness bench-noise  ## every benchmark, with its limit

bench-fit: $(VENV)/.dev  ## error and time of the throughput fit: make bench-fit TRACES=DIR
	@test -n "$(TRACES)" || { echo "TRACES is not set: make bench-fit TRACES=DIR" >&2; exit 2; }
	$(BIN)/python benchmarks/fit_accuracy.py --traces $(TRACES)

rooms: $(VENV)/.dev  ## print which room imports which, lowest first
	PYTHONPATH=.:agent $(BIN)/python benchmarks/rooms.py

# Strict: a warning or a dead link is an error. SITE: where the site goes.
SITE ?= .reports/site

docs: $(VENV)/.dev  ## build the documents as a site whose search works offline, in .reports/site
	$(BIN)/python -m sphinx -E -W --keep-going -q -b html docs $(SITE)
	@echo "open $(SITE)/index.html"

# YARDSTICKS="--beside pueue=README.md" measures another document next to ours.
words: $(VENV)/.dev  ## how the texts read: sentences, semicolons, Flesch reading ease, and what breaks the rules
	PYTHONPATH=.:agent $(BIN)/python -m tests.words --inside $(YARDSTICKS)
	PYTHONPATH=.:agent $(BIN)/python -m tests.words --faults

measure-code: $(VENV)/.dev  ## how dense the code is, next to other projects, and whether a figure has risen that only falls
	$(BIN)/python benchmarks/code.py $(ARGS)

bench-solver: $(VENV)/.dev  ## whole rounds at four sizes, against the genetic search and HiGHS
	$(BIN)/python benchmarks/solver.py

bench-round: $(VENV)/.dev  ## time of a round for 64 GPUs and 30 jobs
	$(BIN)/python benchmarks/round.py

bench-policy: $(VENV)/.dev  ## policies on public workloads, about an hour: make bench-policy TRACES=DIR (with osdi21/ and sia/)
	@test -n "$(TRACES)" || { echo "TRACES is not set: make bench-policy TRACES=DIR" >&2; exit 2; }
	$(BIN)/python benchmarks/policy.py --traces $(TRACES) --jobs-parallel $(JOBS) $(if $(ONLY),--only $(ONLY)) $(if $(OUT),--out $(OUT))

bench-floors: $(VENV)/.dev  ## what floors between users give and cost, 10 minutes: make bench-floors TRACES=DIR JOBS=2
	$(BIN)/python benchmarks/floors.py --processes $(JOBS) $(if $(TRACES),--traces $(TRACES)) --out $(or $(OUT),benchmarks/results/floors.md) $(ARGS)

bench-team: $(VENV)/.dev  ## what a team costs: submit to start, a round of its arbiter, answers under a flood
	$(BIN)/python benchmarks/team.py $(ARGS)

bench-cli: $(VENV)/.dev  ## CPU time of status, completion and submit, relative to `python -c pass`
	$(BIN)/python benchmarks/cli.py

# Needs root and Debian's packages (make compare-recovery INSTALL=1). ARGS="--only gpq,tsp --sizes 1000", OUT=FILE.
bench-beside: $(VENV)/.dev  ## CPU time of status, submit and one TAB next to task-spooler and Slurm, with 1,000 and 10,000 jobs: 10 minutes
	PYTHONPATH=.:agent $(BIN)/python benchmarks/cli.py --beside --out $(or $(OUT),benchmarks/results/commands.md) $(ARGS)

bench-crowd: $(VENV)/.dev  ## 200 clients submit 10,000 jobs at once, then an array of 10,000: make bench-crowd OUT=FILE ARGS="--policy fifo"
	PYTHONPATH=.:agent $(BIN)/python benchmarks/crowd.py --out $(or $(OUT),benchmarks/results/crowd.md) $(ARGS)

bench-real: $(VENV)/.train  ## five short real trainings to their targets under five policies, two hours, again to go on
	PYTHONPATH=.:agent OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.real --out $(or $(OUT),benchmarks/results/real.md) $(ARGS)

# OUT is the folder of the runs, PAGE the file of the tables.
bench-lab: $(VENV)/.train  ## real jobs on 16 emulated GPUs under five policies, four hours, again to go on: make bench-lab WORKLOADS=lab POLICIES=goodput
	PYTHONPATH=.:agent OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.lab $(WORKLOADS) $(if $(POLICIES),--policies $(POLICIES)) \
	  --runs $(or $(OUT),build/lab) --page $(or $(PAGE),benchmarks/results/lab.md)

bench-resize: $(VENV)/.train  ## the pause of a real job from one slot to two and back, by how its replicas start: make bench-resize ARGS="--millions 25"
	PYTHONPATH=.:agent OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.resize --out $(or $(OUT),benchmarks/results/resize.md) $(ARGS)

bench-files: $(VENV)/.dev  ## send a checkpoint between servers, 400 MB of large files or 10,000 small ones, next to ssh and tar
	PYTHONPATH=.:agent $(BIN)/python benchmarks/files.py $(ARGS)

bench-past: $(VENV)/.dev  ## 100,000 finished jobs: database, memory and start of the daemon, and the commands that look back: 3 minutes
	PYTHONPATH=.:agent $(BIN)/python benchmarks/past.py $(ARGS)

bench-spool: $(VENV)/.dev  ## 100,000 ended attempts on a server, removed: what is left of the spool, and CPU time of the agent for a job: 10 minutes
	PYTHONPATH=.:agent $(BIN)/python benchmarks/spool.py $(ARGS)

bench-sessions: $(VENV)/.dev  ## gpq shell on this machine and over ssh: until the prompt, a key next to plain ssh, and after a break
	PYTHONPATH=.:agent $(BIN)/python benchmarks/sessions.py $(ARGS)

bench-hostile: $(VENV)/.dev  ## a server that floods, drips and lies for a minute, next to an honest one: memory and disk of the daemon, and looks at the other
	PYTHONPATH=.:agent $(BIN)/python benchmarks/hostile.py $(ARGS)

bench-overhead: $(VENV)/.dev  ## the training library next to plain DDP
	$(BIN)/python benchmarks/overhead.py

bench-instructions: $(VENV)/.dev  ## the same, counted in instructions of Python's interpreter
	$(BIN)/python benchmarks/instructions.py

bench-calls: $(VENV)/.dev  ## calls of gpq's functions in a steady step: make bench-calls ARGS=--functions lists them
	PYTHONPATH=.:agent $(BIN)/python benchmarks/calls.py $(ARGS)

bench-exactness: $(VENV)/.dev  ## examples and losses over ten forced resizes
	$(BIN)/python benchmarks/exactness.py
	$(BIN)/python benchmarks/exactness.py --walk

bench-full-training: $(VENV)/.train  ## trainings to their end with a batch that grows, next to plain PyTorch: make bench-full-training ARGS="--jobs 2"
	$(BIN)/python benchmarks/full_training.py $(ARGS)

bench-frameworks: $(VENV)/.dev  ## trainings by Accelerate, Trainer and Lightning after a resize, by their own resume and under gpq: make bench-frameworks ARGS=--overhead
	$(BIN)/python benchmarks/frameworks.py $(ARGS)

bench-batch-norm: $(VENV)/.dev  ## batch norm in groups of 32 next to plain batch norm: make bench-batch-norm ARGS=--channels-last
	$(BIN)/python benchmarks/batch_norm.py $(ARGS)

bench-noise: $(VENV)/.dev  ## the noise scale against exact per-sample statistics
	$(BIN)/python benchmarks/noise_scale.py

# Paste the output into an issue. SCRIPTS is another Python with torch and the packages of the group `test`.
gpu-check: $(if $(SCRIPTS),,$(VENV)/.dev)  ## test gpq on the free GPUs of this machine and print the figures: make gpu-check SCRIPTS=python3, 3 minutes
	@echo "gpq $$(git rev-parse --short HEAD 2>/dev/null), $$(uname -sr)"
	@$(or $(SCRIPTS),$(BIN)/python) -m pytest -q -n 0 tests/gpu/real_gpus.py

# Hours. RUNS picks some (benchmarks/chaos.py --list). Runs that need root or a package fail without it.
chaos: $(VENV)/.dev  ## every fault at full size. Fails if a limit is exceeded: make chaos RUNS="kills powercuts"
	PYTHONPATH=.:agent $(BIN)/python benchmarks/chaos.py $(RUNS)

# As root. Jobs of three users under random kills, cuts and power cuts.
stress: $(VENV)/.dev  ## an hour of anything, judged by what jobs wrote: make stress SECONDS=300 SEED=1
	PYTHONPATH=.:agent $(BIN)/python benchmarks/chaos.py stress $(if $(SECONDS),--times $(SECONDS)) --seed $(or $(SEED),0)

chaos-daemon: $(VENV)/.dev  ## kill -9 the daemon 100 times under 300 jobs
	$(BIN)/python benchmarks/chaos_daemon.py

# Needs root and Debian's packages. INSTALL=1 installs them. ARGS="--runs 2" passes options, OUT=FILE keeps the tables.
compare-recovery: $(VENV)/.dev  ## Slurm and task-spooler next to gpq: kill -9 of the controller, a cut network: 15 minutes
	$(BIN)/python benchmarks/compare_recovery.py $(if $(INSTALL),--install) $(if $(OUT),--out $(OUT)) $(ARGS)

# Needs only the package. SEEDS and JOBS (processes), or SEED of one that failed, PLANT for one of the planted bugs.
dst: $(VENV)/.dev  ## simulate daemon, servers and network under faults: 3,000 seeds, then the planted bugs that it must find
ifdef SEED
	PYTHONPATH=.:agent $(BIN)/python -m tests.dst --seed $(SEED) $(if $(PLANT),--plant "$(PLANT)")
else
	PYTHONPATH=.:agent $(BIN)/python -m tests.dst --seeds $(or $(SEEDS),3000) --jobs $(if $(filter file,$(origin JOBS)),2,$(JOBS))
	PYTHONPATH=.:agent $(BIN)/python -m tests.dst --planted --seeds 500
endif

# For one cell in full: .venv/bin/python -m tests.habits HABIT --shape SHAPE --verbose. ARGS="clip-adamw gan --explain".
habits: $(VENV)/.dev  ## ordinary training loops in every shape, next to plain PyTorch: make habits OUT=FILE ARGS=..., some minutes
	PYTHONPATH=.:agent $(BIN)/python -m tests.habits $(if $(OUT),--out $(OUT)) $(ARGS)

# The planted habits are in tests/habits/planted.py. ARGS="lbfgs gan" checks only these.
planted: $(VENV)/.dev  ## gpq check on scripts with one planted habit each: make planted OUT=FILE ARGS=..., 20 minutes
	$(BIN)/python benchmarks/planted.py $(if $(OUT),--out $(OUT)) $(ARGS)

clean:           ## remove the environment and the leftovers of tools
	rm -rf $(VENV) $(VENV)-3.* .reports .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# The versions before those of constraints.txt, which the adapters of frameworks serve as well.
FRAMEWORKS_BEFORE := transformers==5.23.0 accelerate==1.14.0 lightning==2.6.5 trl==1.15.0

# -- environments: made once, and again when pyproject.toml or constraints.txt changes ----------------------------------

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
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target $(VENV)/frameworks-before $(FRAMEWORKS_BEFORE)
	@touch $@
