# Needs Python 3.11 and make. Everything else is installed into .venv, in the versions that constraints.txt pins.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: conformance test lint format clean

conformance: $(INSTALLED)
	$(BIN)/python -m conformance run

test: $(INSTALLED)
	$(BIN)/python -m pytest -n 2

lint: $(INSTALLED)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# Made last, so that an installation that was broken off is taken up again; older than neither file, so that it is
# not repeated.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -qq --constraint constraints.txt pip setuptools
	$(BIN)/python -m pip install -qq --constraint constraints.txt --no-build-isolation \
		--editable '.[torch,jax,oracle,dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache
