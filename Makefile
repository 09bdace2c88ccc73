# Every target creates .venv and installs what it needs the first time, and only then.
#
# What is installed is remembered by stamp files inside .venv, which are older than pyproject.toml or
# constraints.txt exactly when there is something to install again. Another Python: make PYTHON=...

PYTHON ?= python3
VENV := .venv
CONSTRAINTS := constraints.txt
BIN := $(VENV)/bin

# The environment variables, not `pip install -c`: pip's isolated build environments read nothing
# else (PIP_BUILD_CONSTRAINT from pip 25.3 on, PIP_CONSTRAINT before). Relative, so that a path with
# a space in it is no trouble; every recipe runs in this folder.
export PIP_CONSTRAINT := $(CONSTRAINTS)
export PIP_BUILD_CONSTRAINT := $(CONSTRAINTS)
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-browser test-lowest coverage mutants lint bench docs package ci-local
.NOTPARALLEL:
.DELETE_ON_ERROR:

help:
	@echo "make demo          six methods on bundled data, and a page that says what clipping did"
	@echo "make test          the tests"
	@echo "make test-slow     the tests marked slow, which make test leaves out"
	@echo "make test-browser  the page in a real browser, chromium; pictures in build/screenshots/"
	@echo "make mutants       plants privacy bugs in a copy of the source; fails if no test sees one"
	@echo "make lint          ruff, ruff format --check, mypy --strict"
	@echo "make coverage      the tests, and how many of the package's lines they run"
	@echo "make test-lowest   the tests with the lowest versions that pyproject.toml allows"
	@echo "make package       builds sdist and wheel, and tries the wheel in an empty environment"
	@echo "make ci-local      what the workflows do, with the Python that is here; takes an hour"
	@echo "make bench         timings beside other libraries; fills the table in README.md"
	@echo "make docs          the documentation site, in site/"

demo: $(VENV)/.installed-base
	$(BIN)/plumbline compare demo

# One thread per worker: two workers on two cores, and sums in the same order on every machine.
test test-slow coverage mutants: export OMP_NUM_THREADS := 1
test test-slow coverage mutants: export MKL_NUM_THREADS := 1
# Two workers and a hundred processes of theirs import the same files: compile them once.
test test-slow coverage mutants: export PYTHONDONTWRITEBYTECODE :=

# A half of the tests each, in order, so that what a module sets up is made once; who is done first
# takes from the other.
test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest --quiet -n 2 --dist worksteal

# Lines that are run in this process: what compiled loops and other processes run is not counted.
coverage: $(VENV)/.installed-dev
	@mkdir -p build
	$(BIN)/python -m pytest --quiet -n 2 --cov --cov-report=
	$(BIN)/python -m coverage html --quiet
	@echo "The tests run $$($(BIN)/python -m coverage report --format=total) % of the package's lines; build/coverage/index.html shows which." | tee build/coverage.txt

# KEEP names what is taken from constraints.txt all the same: make test-lowest KEEP=torch
test-lowest:
	@mkdir -p build
	.ci/lowest $(KEEP) > build/lowest.txt
	$(MAKE) --no-print-directory test VENV=.venv-lowest CONSTRAINTS=build/lowest.txt

# pytest's exit code 5 says that no test was collected: no test is slow yet, which is no failure.
test-slow: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n 2 -m slow || test $$? -eq 5

# In one process: a browser takes a core by itself.
test-browser: export OMP_NUM_THREADS := 1
test-browser: $(VENV)/.installed-dev $(VENV)/.installed-browser
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || $(MAKE) --no-print-directory chromium
	$(BIN)/python -m pytest -m browser

# Through the system's packages, which need rights and a network. Without them the tests cannot
# run, and that is said, not skipped.
.PHONY: chromium
chromium: SUDO := $(if $(filter 0,$(shell id -u)),,sudo)
chromium:
	@command -v apt-get >/dev/null || { echo "make test-browser needs chromium and chromedriver on the PATH, and there is no apt-get to install them: install them by hand." >&2; exit 1; }
	@{ $(SUDO) apt-get update -qq && $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium chromium-driver fonts-dejavu-core >/dev/null; } || { echo "make test-browser could not install chromium and chromium-driver by apt-get (no network, or no rights?): install them by hand and run it again." >&2; exit 1; }

# Some minutes to half an hour; writes docs/mutants.md. One bug: make mutants ONLY="refund twice"
mutants: $(VENV)/.installed-dev
	$(BIN)/python -m tests.mutants $(if $(ONLY),--only "$(ONLY)")

lint: $(VENV)/.installed-dev
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy --strict src

bench: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks.loops
	$(BIN)/python -m benchmarks.growth
	$(BIN)/python -m benchmarks.where
	$(BIN)/python -m benchmarks.million
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks.overhead
	$(BIN)/python -m benchmarks.noise
	$(BIN)/python -m benchmarks.sums
	$(BIN)/python -m benchmarks.distributed
	$(BIN)/python -m benchmarks.methods
	$(BIN)/python -m benchmarks.diagnostics
	$(BIN)/python -m benchmarks.page
	$(BIN)/python -m benchmarks.load
	$(BIN)/python -m benchmarks.table_look

docs: export NO_MKDOCS_2_WARNING := 1
docs: $(VENV)/.installed-docs
	$(BIN)/python -m mkdocs build --strict --quiet

# WHOLE=1 for all of `plumbline compare demo`, in place of a minute of it.
package: $(VENV)/.installed-dev
	.ci/package $(BIN)/python $(if $(WHOLE),whole)

# The same targets as in .github/workflows/ci.yml. Not run here, since there is one Python and often one
# build of torch: the other Pythons, and the lowest torch.
ci-local: lint coverage test-browser docs
	$(MAKE) --no-print-directory package WHOLE=1
	$(MAKE) --no-print-directory test-lowest KEEP=torch
	@echo "Passed with $$($(BIN)/python --version). Not run here: other versions of Python, and the lowest torch."

# Installing. Each set of extras also installs the package itself, hence the stamp of both.

$(VENV)/.installed-base: EXTRAS :=
$(VENV)/.installed-dev: EXTRAS := [dev,images,lightning,mlflow,ray,scattering,tensorboard,transformers,tune]
$(VENV)/.installed-bench: EXTRAS := [bench]
$(VENV)/.installed-browser: EXTRAS := [browser]
$(VENV)/.installed-docs: EXTRAS := [docs]

$(VENV)/.installed-%: pyproject.toml $(CONSTRAINTS) | $(BIN)/pip
	$(BIN)/python -m pip install --quiet --quiet --editable '.$(EXTRAS)'
	@touch $(VENV)/.installed-base $@

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit("Plumbline needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
