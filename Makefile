# The virtual environment is .venv. It is updated when pyproject.toml or requirements.lock changes.
#   make train ARGS="--seed 3"                   trains on Brax's hopper and writes a video
#   make evaluate RUN_DIR=runs/hopper-s3         evaluates that run; make video writes another video
#   make sweep                                   compares learning rates on CartPole
#   make train EXTRAS=brax,gymnax,render,cuda  the same on a GPU
#   make PYTHON=/path/to/python3.12 train        uses this Python instead of the newest of 3.13, 3.12, 3.11

PYTHON ?=
VENV ?= .venv
CONFIG ?= hopper.yaml
RUN_DIR ?= runs/$(basename $(notdir $(CONFIG)))-s0
VIDEO ?= $(or $(FILM),video.mp4)
ARGS ?=
RUNS ?= runs/evidence
WORKERS ?= 2
EXTRAS ?= brax,gymnax,render
JAX_WORLD = craftax,jaxmarl,jumanji,pgx,xminigrid
TESTED = brax,envpool,export,gymnasium,gymnax,optuna,pettingzoo,playground,ray,render,slurm,unity,$(JAX_WORLD),dev
LOCKED = $(TESTED),docs
RUN = $(VENV)/bin/python
PYTEST = $(RUN) -m pytest -n $(WORKERS) --dist loadgroup --no-loadscope-reorder
ALL = not slow and not gpu
GOOD = import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
PYTHONS = $(or $(PYTHON),python3.13 python3.12 python3.11 python3)

comma := ,
for_train := $(VENV)/.installed-$(EXTRAS)
for_test := $(VENV)/.installed-$(TESTED)
for_docs := $(VENV)/.installed-docs

.PHONY: train evaluate video film sweep zoo check test test-all test-apart test-wheel golden mpirun godot gpu-compiler lint format types layers docs results lock clean
.DELETE_ON_ERROR:

train: $(for_train)
	$(RUN) -m purejaxppo.train --config $(CONFIG) --video $(ARGS)

evaluate: $(for_train)
	$(RUN) -m purejaxppo.evaluate --run $(RUN_DIR) $(ARGS)

video: $(for_train)
	$(RUN) -m purejaxppo.evaluate --run $(RUN_DIR) --episodes 1 --render $(VIDEO) $(ARGS)

# The name of `make video` before version 0.3, kept until 0.4.
film: video

# Writes a folder of trained agents, zoo/, from the run folders that benchmarks/learning.py --runs RUNS made.
zoo: $(for_test)
	$(RUN) benchmarks/zoo.py --runs $(RUNS) $(ARGS)

sweep: $(for_train)
	$(RUN) -m purejaxppo.sweep --config cartpole.yaml --num_seeds 4 \
	  --grid ppo.learning_rate=3e-4,1e-3,3e-3 $(ARGS)

# Lint, and the tests that compile only toy programs.
check: lint
	$(PYTEST) -m "toy and not full" $(ARGS)

# All tests except slow ones.
test: lint
	$(PYTEST) $(ARGS)

# All tests, including the slow ones: learning, all environments, notebooks, tutorials, killed runs, several processes
# and the site. CI runs this. Many tests wait for subprocesses, so pytest gets one more worker than there are cores.
test-all: WORKERS = 3
test-all: lint mpirun gpu-compiler docs
	$(PYTEST) -m "$(ALL)" --durations 40 --durations-min 20 $(ARGS)

# Installs the wheel into new virtual environments, trains and evaluates. Takes at most four minutes.
test-wheel: $(for_test)
	$(RUN) -m pip install --quiet uv
	tests/wheel.sh $(RUN)

# Runs each test file in a separate process, in random order. Exit code 5 (no tests collected) is accepted.
test-apart: export ARGS := $(ARGS)
test-apart: $(for_test) mpirun gpu-compiler
	find tests -name 'test_*.py' | sort | xargs -n 1 -P $(WORKERS) sh -c '\
	  eval "$(RUN) -m pytest -q -p randomly $$ARGS" -m \"$(ALL)\" "$$1"; \
	  code=$$?; [ $$code -eq 0 ] || [ $$code -eq 5 ] || { echo "$$1 failed alone" >&2; exit 1; }' apart

# Compares ten updates of five configs bit by bit with stored hashes, or with BASE=/path/to/another/checkout.
golden: $(for_test)
	$(RUN) tests/golden.py $(if $(BASE),--base $(BASE)) $(ARGS)

# Installs JAX's GPU compiler, which does not require a GPU, for benchmarks/gpu.py --programs and its tests.
gpu-compiler: $(for_test)
	@version=$$($(RUN) -c 'import jax; print(jax.__version__)'); \
	if [ -e .gpu-compiler/jax_cuda13_plugin-$$version.dist-info ]; then exit 0; fi; \
	echo "Installing the compiler for GPUs of JAX $$version into .gpu-compiler; this downloads hundreds of MB"; \
	rm -rf .gpu-compiler; \
	$(RUN) -m pip install --quiet --no-deps --target .gpu-compiler jax-cuda13-plugin==$$version \
	  jax-cuda13-pjrt==$$version nvidia-cuda-nvcc nvidia-nvvm \
	  || { rm -rf .gpu-compiler; \
	  echo "the compiler for GPUs could not be installed: its tests are skipped" >&2; }

# Installs Open MPI for tests/parallel/test_processes.py. Without it, some of its tests are skipped.
mpirun:
	@if ! command -v mpirun >/dev/null && command -v apt-get >/dev/null; then \
	  root=; if [ "$$(id -u)" -ne 0 ]; then root="sudo -n"; fi; \
	  echo "Installing Debian's openmpi-bin"; \
	  { $$root apt-get -qq update && DEBIAN_FRONTEND=noninteractive $$root apt-get -qq install -y openmpi-bin; } \
	    >/dev/null 2>&1 || echo "openmpi-bin could not be installed: tests that need mpirun are skipped" >&2; \
	fi

# Installs Godot 4 in .godot-engine, for tests and configs of Godot games. On other systems, install it yourself.
# To test the official plugin, set GODOT_RL_PLUGIN to a checkout of godot_rl_agents_plugin.
godot:
	tests/engines/install_godot.sh .godot-engine

lint: $(for_test)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy
	$(VENV)/bin/lint-imports

format: $(for_test)
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

docs: $(for_docs)
	$(RUN) docs/make_config_reference.py
	$(RUN) docs/make_names.py
	$(RUN) docs/make_walk.py
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict

# Writes the tables and plots of the documentation from benchmarks/results/.
results: $(for_test)
	$(RUN) docs/make_results.py
	$(RUN) docs/make_pictures.py

# Keeps locked versions that pyproject.toml allows. LOCK_ARGS=--upgrade uses the newest versions.
lock: $(VENV)/.made
	$(RUN) -m pip install --quiet uv
	$(RUN) -m uv pip compile pyproject.toml --universal --python-version 3.11 \
	  $(foreach extra,$(subst $(comma), ,$(LOCKED)),--extra $(extra)) \
	  --no-annotate --no-header --quiet $(LOCK_ARGS) --output-file requirements.lock

clean:
	rm -rf $(VENV) .gpu-compiler build dist site .mypy_cache .pytest_cache .ruff_cache .import_linter_cache

$(VENV)/.made:
	@found=; without=; for python in $(PYTHONS); do \
	  if ! $$python -c '$(GOOD)' 2>/dev/null; then continue; fi; \
	  if $$python -c 'import ensurepip, venv' 2>/dev/null; then found=$$python; break; fi; \
	  without="$$without $$python"; \
	done; \
	if [ -z "$$found$$without" ]; then \
	  echo "purejaxppo needs Python 3.11, 3.12 or 3.13. Not found among: $(PYTHONS). Install one of these, or name it with make PYTHON=/path/to/python3.13" >&2; \
	  exit 1; \
	fi; \
	if [ -z "$$found" ]; then \
	  echo "$${without# } cannot make virtual environments, because the module ensurepip is missing. Install it (on Debian and Ubuntu with apt install python3-venv) and run make again" >&2; \
	  exit 1; \
	fi; \
	echo "Creating $(VENV) with $$($$found --version)"; \
	$$found -m venv $(VENV)
	@if ! $(RUN) -c '$(GOOD)'; then \
	  echo "$(VENV) was made with $$($(RUN) --version), and purejaxppo needs 3.11, 3.12 or 3.13: remove it with make clean and run make again" >&2; \
	  exit 1; \
	fi
	@touch $@

# The name of the stamp file lists the installed extras.
$(VENV)/.installed-%: $(VENV)/.made pyproject.toml requirements.lock
	@echo "Installing purejaxppo[$*] into $(VENV). The first time, this downloads several hundred MB."
	@quiet=--quiet; if [ -t 1 ]; then quiet=; fi; \
	PIP_DISABLE_PIP_VERSION_CHECK=1 $(RUN) -m pip install $$quiet --constraint requirements.lock \
	  --editable '.[$*]'
	@touch '$@'
