# The two commands that a fresh machine needs are `make demo` and `make test`; each sets up .venv first.
#   setup   .venv with everything that development needs, from the pinned constraints
#   demo    two real models, captured, forged, packed, dispatched, compared; DEMO_ARGS="--json" and the like
#   test    check, then all tests; TEST_ARGS="tests/cli -k help" and the like
#   adversarial   every hostile and honest source of tests/adversarial, REPEATS=100 times; continues where it stopped
#   memcheck   every proposal of the template generator under the sanitizers, some minutes
#   kill-test   searches killed 200 times at random moments, with and without a language model; KILLS=20 and the like
#   build-test   every hostile source with every compiler, and the torch ABI with nvcc, some minutes
#   fuzz    12,000 mutated packages, none of which may be trusted or do any harm, about a minute
#   compile-test   kernels under torch.compile: every call form of every operator, and Inductor's own kernels, some minutes
#   generation-test   20 prompts of up to 4,000 tokens decoded with kernels, growing and static cache, some minutes
#   version-test   one package under other versions of torch: VENVS="PATH ..." names environments that have them
#   threads   8 threads in dispatch for a minute: hits, misses, blocks that come and go, several packages
#   tensor-parallel   a model split over two processes, each with a package of its own; DEVICE=cuda for two GPUs
#   real-llm   ten iterations of a real language model on one variant, at most 5 dollars: MODEL=PROVIDER/NAME, its key
#              in the environment; the search is recorded in build/real-llm
#   check   formatting, lint, types, import directions, sizes of modules
#   docs    regenerate docs/cli.md
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup demo test adversarial memcheck kill-test build-test fuzz compile-test generation-test version-test threads tensor-parallel real-llm check format docs clean

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt
INPUTS := pyproject.toml constraints.txt
COMMA := ,
# Without nvcc on the system, tests that compile CUDA use the one from its wheels.
EXTRAS := dev,llm,transformers,mcp$(if $(shell command -v nvcc),,$(COMMA)cuda)

# The first interpreter that is new enough and can make environments; override with `make setup PYTHON=...`.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.14 python3; do \
	"$$p" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done)

help:
	@sed -n 's/^#   //p' Makefile

setup: $(VENV)/.stamp-dev

$(VENV)/.stamp-venv:
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or newer with venv found; install it, or set PYTHON=" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.stamp-dev: $(INPUTS) | $(VENV)/.stamp-venv
	$(PIP) -e '.[$(EXTRAS)]'
	@touch $(VENV)/.stamp-run $@

# What a user installs, and no more.
$(VENV)/.stamp-run: $(INPUTS) | $(VENV)/.stamp-venv
	$(PIP) -e .
	@touch $@

demo: $(VENV)/.stamp-run
	$(BIN)/kforge demo $(DEMO_ARGS)

test: check
	$(BIN)/python -m pytest --durations=15 $(TEST_ARGS)

# The log and the builds are kept in build/; delete it to begin anew.
REPEATS ?= 100
DRAWS ?= 10000
adversarial: setup
	$(BIN)/python -m tests.adversarial.harness --repeats $(REPEATS) $(ADVERSARIAL_ARGS)
	$(BIN)/python -m tests.adversarial.properties --draws $(DRAWS)

# Every proposal of the template generator under the sanitizers.
memcheck: setup
	$(BIN)/python -m pytest tests/evaluate/memcheck_all_families.py

# Searches in processes of their own, with fakes for compiler and judge.
KILLS ?= 200
kill-test: setup
	KFORGE_KILLS=$(KILLS) $(BIN)/python -m pytest -s tests/supervisor/test_kills.py tests/supervisor/test_kills_of_calls.py

fuzz: setup
	KFORGE_LONG=1 $(BIN)/python -m pytest -s tests/package/fuzz

compile-test: setup
	KFORGE_LONG=1 $(BIN)/python -m pytest tests/dispatch/test_compiled.py tests/dispatch/test_registered_catalogue.py

build-test: setup
	KFORGE_LONG=1 $(BIN)/python -m pytest tests/build

threads: setup
	KFORGE_LONG=1 $(BIN)/python -m pytest tests/dispatch/test_threads.py

generation-test: setup
	KFORGE_LONG=1 $(BIN)/python -m pytest -s tests/end_to_end/test_generation.py

# An environment needs another torch and what the run time depends on (`pip install` this repository there, without
# its dependency on torch if need be); the source that runs there is this one.
version-test: setup
	@test -n "$(VENVS)" || { echo 'which environments? make version-test VENVS="PATH ..."' >&2; exit 2; }
	KFORGE_VERSION_VENVS="$(VENVS)" $(BIN)/python -m pytest -s tests/end_to_end/test_torch_versions.py

DEVICE ?= cpu
tensor-parallel: setup
	$(BIN)/python -m tests.end_to_end.tensor_parallel_job --device $(DEVICE)

# The only target that costs money. What is found is no record of ours before somebody has looked at it.
REAL_LLM := build/real-llm
OPERATOR ?= layer_norm
real-llm: setup
	@test -n "$(MODEL)" || { echo "which model? make real-llm MODEL=PROVIDER/NAME (docs/llm.md)" >&2; exit 2; }
	@mkdir -p $(REAL_LLM)
	$(BIN)/kforge capture examples/models/tiny_mlp.py -o $(REAL_LLM)/tiny_mlp.kforge --overwrite
	$(BIN)/kforge forge $(REAL_LLM)/tiny_mlp.kforge $(OPERATOR) --generator llm:$(MODEL) --trials 10 --budget-usd 5 \
		--no-library --policy uniform --record $(REAL_LLM)/$$(date +%Y%m%d-%H%M%S).jsonl
	$(BIN)/kforge tree $(OPERATOR) --project $(REAL_LLM)/tiny_mlp.kforge
	$(BIN)/kforge cost $(REAL_LLM)/tiny_mlp.kforge --by step

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@find src tests -name '*.py' -exec wc -l {} + | awk '$$2 != "total" && $$1 > 450 \
		{ print "warning: " $$2 " has " $$1 " lines; modules are rarely over 400" }'

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: setup
	$(BIN)/python docs/make_cli.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
