# make demo    make test    make help

PYTHON ?= python3
VENV   ?= .venv
ARGS   ?=

# Exactly this release, and before all else: pip finds its CPU wheel, while an open range may pull gigabytes of CUDA.
TORCH  := torch==2.13.0

BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --disable-pip-version-check --quiet

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test slow soak coverage lint type format clean

help:                   ## list the targets
	@awk -F ' *## *' '/^[a-z]+:.*##/ { sub(/:.*/, "", $$1); printf "make %-10s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/.demo     ## install what the demo needs, and run it
	$(BIN)/omnibus demo $(ARGS)

test: $(VENV)/.test     ## install what the tests need, and run the suite; ARGS="-k lanes -x" narrows it
	$(BIN)/python -m pytest $(ARGS)

slow: $(VENV)/.test     ## run the tests that take more than some seconds each
	$(BIN)/python -m pytest -m slow $(ARGS)

soak: $(VENV)/.test     ## run the tests that load and kill a mesh for minutes
	$(BIN)/python -m pytest -m soak --timeout=0 $(ARGS)

coverage: $(VENV)/.test ## run the suite and report which lines and branches it leaves out
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest $(ARGS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

lint: $(VENV)/.test     ## ruff's rules
	$(BIN)/ruff check .

type: $(VENV)/.test     ## mypy, strict
	$(BIN)/mypy

format: $(VENV)/.test   ## mend what ruff can mend by itself
	$(BIN)/ruff check --fix .

clean:                  ## remove the environment and all that was built
	rm -rf $(VENV) build dist *.egg-info .coverage .coverage.* htmlcov .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find actors benchmarks brokers examples launch omnibus tests -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is newer than pyproject.toml once its extras are installed, so the set-up runs once.
$(VENV)/.demo: $(VENV)/.torch pyproject.toml
	$(PIP) -e '.[demo]'
	@touch $@

$(VENV)/.test: $(VENV)/.torch pyproject.toml
	$(PIP) -e '.[test,demo]'
	@touch $@

$(VENV)/.torch: $(BIN)/python
	$(PIP) '$(TORCH)'
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Omnibus needs Python 3.11 or later, and '$(PYTHON)' is: $$($(PYTHON) --version 2>&1)." \
		     "Name another one: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { \
		echo "'$(PYTHON)' cannot make virtual environments; on Debian: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
