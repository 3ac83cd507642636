# `make demo` shows what this does, `make test` checks that it does it. Both make their own environment.
#
#   PYTHON   the interpreter the environment is made from (Python 3.11)
#   VENV     where the environment lies
#   JOBS     test processes

PYTHON ?= python3.11
VENV ?= .venv
JOBS ?= 2
BIN := $(VENV)/bin

# what the tests need beside Python packages; installed by `make ci-system` only
SYSTEM_PACKAGES := slurm-wlm munge chromium
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# one thread for each test process: they share the cores
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -ra -n $(JOBS) --dist worksteal --durations=10

.DEFAULT_GOAL := help
.PHONY: help demo install install-dev test checks test-fast test-long readme-walk notebooks docs format lock ci-system

help:
	@echo "make demo       install, then patch every head of the embedded model and print the table"
	@echo "make test       install, then format, lint, types, import contract, doctests and tests"
	@echo "make test-fast  the tests that take seconds;  make test-long  those that take minutes"
	@echo "make readme-walk  follow the README in an environment made from nothing (part of test-long)"
	@echo "make notebooks  run the notebooks' scripts and write what they put out;  make docs  API pages in build/docs"
	@echo "make format     rewrite the sources;  make lock  renew constraints.txt"
	@echo "make ci-system  install the system packages that tests need (apt)"

# --- environment -------------------------------------------------------------------------------------------

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is not here: give Python 3.11 by make PYTHON=/path/to/python3.11 …"; exit 2; }
	$(PYTHON) -m venv $(VENV)

# A torch that is installed already (another build, for a GPU) is kept; everything else is the tested set.
# setuptools comes first so that the package is built by the pinned one too.
define install
	@if $(BIN)/python -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)'; \
	then grep -v '^torch==' constraints.txt > $(VENV)/constraints.txt; \
	else cp constraints.txt $(VENV)/constraints.txt; fi
	$(BIN)/python -m pip install -q -c $(VENV)/constraints.txt setuptools
	$(BIN)/python -m pip install -q --no-build-isolation -c $(VENV)/constraints.txt -e '.$(1)'
	@touch $@
endef

$(VENV)/.stamp-core: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing into $(VENV) (minutes the first time) …"
	$(call install)

$(VENV)/.stamp-dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing into $(VENV) (minutes the first time) …"
	$(call install,[dev])

install: $(VENV)/.stamp-core

install-dev: $(VENV)/.stamp-dev

# --- the two commands --------------------------------------------------------------------------------------

demo: $(VENV)/.stamp-core
	$(BIN)/interp run activation_patching --model toy-ioi --task ioi --set sites=z --n 64 --seed 0 --out build/demo

test: checks
	$(PYTEST) --doctest-modules interp experiments tests -m "not long"

checks: $(VENV)/.stamp-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy

test-fast: $(VENV)/.stamp-dev
	$(PYTEST) tests -m "not slow and not long"

test-long: $(VENV)/.stamp-dev
	$(PYTEST) tests -m long

# every command and block of the README, in an environment made from nothing
readme-walk: $(VENV)/.stamp-dev
	rm -rf build/readme-walk
	$(BIN)/python -m tests.long.readme_walk build/readme-walk $(PYTHON)

# each notebook is a script with what it put out; the picture of the README is drawn from the same
notebooks: $(VENV)/.stamp-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m experiments.notebooks
	OMP_NUM_THREADS=1 $(BIN)/python -m experiments.notebooks._picture

# a page for every module, from docstrings; nothing is fetched. Each is named: pdoc stops at a package's __all__
SOURCES = $(shell find interp experiments -name '*.py' ! -name '__main__.py' ! -path '*/notebooks/*' | sort)
docs: $(VENV)/.stamp-dev
	rm -rf build/docs
	$(BIN)/pdoc --no-show-source -o build/docs $(subst /,.,$(patsubst %/__init__,%,$(basename $(SOURCES))))

format: $(VENV)/.stamp-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# --- upkeep ------------------------------------------------------------------------------------------------

# The newest releases that pyproject.toml allows, in an environment of their own. A build's local label
# (torch==2.13.0+cpu) is cut off: which build of a release is installed is the user's choice.
lock:
	rm -rf build/lock
	$(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip install -q --upgrade setuptools
	build/lock/bin/python -m pip install -q --no-build-isolation 'torch==2.13.0' -e '.[dev,slurm,track,peers,compiled]'
	{ echo "# The tested set, by \`make lock\`; pyproject.toml has the ranges."; \
	  build/lock/bin/python -m pip list --format=freeze --exclude-editable --exclude pip | sed 's/+.*//'; } > constraints.txt
	rm -rf build/lock

ci-system:
	@if [ -n "$(strip $(SYSTEM_PACKAGES))" ]; \
	then $(SUDO) apt-get update -q && DEBIAN_FRONTEND=noninteractive $(SUDO) apt-get install -q -y --no-install-recommends $(SYSTEM_PACKAGES); \
	else echo "no system packages are needed"; fi
