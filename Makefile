# `make quickstart` and `make test` need nothing but Python 3.11 with pip, and make.

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
# All but the one that looks at a trained model.
BENCHMARKS := $(filter-out benchmarks/next_sentence.py,$(wildcard benchmarks/*.py))
INSTALLED := $(VENV)/.installed
WITH_BEAM := $(VENV)/.installed-with-beam
WITH_DOCS := $(VENV)/.installed-with-docs

.PHONY: quickstart test lint format bench docs clean

quickstart: $(INSTALLED)
	$(BIN)/python -m examples.quickstart

# Most of a test's time is TensorFlow tracing graphs on one core, so a process a core halves the wait on two of them.
test: $(WITH_BEAM)
	$(BIN)/python -m pytest -m "not slow" --numprocesses auto --maxprocesses 4 --dist worksteal

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(INSTALLED)
	for script in $(BENCHMARKS); do $(BIN)/python -m benchmarks.$$(basename $$script .py) || exit 1; done

# A link to nowhere, or a docstring that names a parameter that isn't there, ends the build.
docs: $(WITH_DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

clean:
	rm -rf build .pytest_cache .ruff_cache

# The stamps make the second run quick: pip is asked again only when the pins change. Compiling what is installed would
# take half of pip's time, and Python compiles what it imports anyway, which is a small part of it.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile

$(INSTALLED): requirements.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) -r requirements.txt
	touch $@

$(WITH_BEAM): requirements-beam.txt $(INSTALLED)
	$(INSTALL) -r requirements-beam.txt
	touch $@

$(WITH_DOCS): requirements-docs.txt $(INSTALLED)
	$(INSTALL) -r requirements-docs.txt
	touch $@
