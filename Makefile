# Start with `make run` and `make test`. Each target installs what it needs, once: `run` opforge alone, the others also
# extras of pyproject.toml.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
EXTRA = $(addprefix $(VENV)/.extra-,$(1))
PEERS := $(VENV)/.peers
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# ruff would format the Python in pages too: it gets the site's own code alone.
SITE := docs/conf.py docs/opforge_docs docs/pictures
# These folders are linted through their symlinks, where their modules are seen as opforge.<folder>.
LINTED := src/opforge_autoload.py src/opforge $(addprefix src/opforge/,accelerator builders cache ops packages remote) tests benchmarks $(SITE) examples setup.py .ci
SOURCES := git ls-files '*.c' '*.cpp' '*.cu' '*.h' '*.hpp' '*.cl' '*.sycl'
DOCUMENTS := git ls-files '*.md'
FUZZ_TARGETS := $(addprefix inspection/,library cubin fatbin bundle hsaco ptx msgpack) \
	$(addprefix packages/,metadata release index lock hub_lock build_toml kernel_toml installed) records lookups blobs statements
FUZZ_SECONDS ?= 60
FUZZ_OPTIONS := -max_total_time=$(FUZZ_SECONDS) -timeout=5 -rss_limit_mb=1024 -max_len=65536 -artifact_prefix=.cache/fuzz/
# One process more than there are cores (conftest.py), each with a part of the cases. Each imports the test files; with
# bytecode that takes half as long.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto --maxprocesses 8 --dist worksteal
export OPFORGE_CACHE_DIR ?= $(CURDIR)/.cache/run

.PHONY: run test test-all test-long check bench torture model mutants model-mutants observe projects facade matrix fuzz docs dist dist-check format clean

# torch warns that NumPy is missing, which the example does not use.
run: $(STAMP)
	PYTHONWARNINGS='ignore:Failed to initialize NumPy' $(BIN)/python examples/char_transformer

# What a change is tried with: one real test for each promise (tests/spine), and all that is cheap. See
# tests/support/tiers.py. conftest.py sets a cache folder for the tests, so they do not use the one above.
test: $(call EXTRA,test)
	$(PYTEST) --tier first tests

# Every test but the long ones. TIER=rest leaves out what `make test` runs.
test-all: $(call EXTRA,test-all bench) $(PEERS)
	$(PYTEST) $(if $(TIER),--tier $(TIER)) tests

# Full products, each level, thousands of kills: a few hours.
test-long: $(call EXTRA,test-all bench jits) $(PEERS)
	$(PYTEST) --tier long tests
	$(TORTURE)

# mypy follows the imports of the tests and the benchmarks too.
check: $(call EXTRA,check test-all bench)
	$(BIN)/ruff check $(LINTED)
	$(BIN)/ruff format --check $(LINTED)
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(SOURCES) | xargs $(BIN)/clang-format --dry-run --Werror
	$(DOCUMENTS) | xargs $(BIN)/mdformat --check --wrap 100
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/python tests/wheel_contents.py

# The ops, then what is measured in whole processes: builds, loads, stores.
bench: $(call EXTRA,bench test-all)
	$(BIN)/python -m opforge bench
	$(BIN)/python -m benchmarks

# Long runs of the tests that kill builders, that put anything in the place of a store's files, that change files in the
# middle of a load, and of what is proved of stores for each kind. `make test-all` includes short ones.
define TORTURE
$(BIN)/python tests/fault/torture/kills.py --kills 1000 --processes 16
$(BIN)/python tests/fault/torture/damages.py --rounds 1000 --processes 8
$(BIN)/python tests/fault/torture/changes.py --cases 2000
endef
torture: $(call EXTRA,test-all)
	$(TORTURE)
	$(BIN)/python -m pytest -q --tier long tests/fault/stores/test_flips.py \
		tests/fault/stores/test_hostile_answers.py tests/fault/stores/test_killed_commands.py tests/unit/remote/test_histories.py

# Random changes of all that a load depends on; after each the load must give what a build without a cache gives.
# `make test-all` includes a short run.
MODEL_STEPS ?= 15000
model: $(call EXTRA,test)
	$(BIN)/python tests/model --steps $(MODEL_STEPS) --seed $$(date +%s)

# Defects that are put into a copy, one at a time: those by hand must be found by `make test`, of those that are drawn it
# is counted how many are. MUTANT_TIER=all counts for every test.
MUTANTS ?= 30
MUTANT_TIER ?= first
mutants: $(call EXTRA,test-all mutants)
	$(BIN)/python tests/mutants --tier $(MUTANT_TIER) --record
	$(BIN)/python tests/mutants --tier $(MUTANT_TIER)
	$(BIN)/python tests/mutants --tier $(MUTANT_TIER) --drawn $(MUTANTS)

# Each patch of tests/model/mutants.py puts a defect back, and must be found by the model within ten minutes.
model-mutants: mutants
	$(BIN)/python tests/model --mutants

# Builds that are observed: all that compilers and linkers really read and look for must be noticed, or have a reason.
# `make test-all` includes a part.
observe: $(call EXTRA,test-all)
	$(BIN)/python -m pytest --tier long tests/compile/observer -n 2

# Public projects, and each of the facade's operators, on the facade and on torch's own headers: all must compute the same.
projects: $(call EXTRA,projects)
	$(BIN)/python tests/facade projects
	$(BIN)/python tests/facade rows

facade: $(call EXTRA,test)
	$(BIN)/python tests/facade differential

# Every torch and every Python that can be installed here, one environment at a time: docs/versions.md.
matrix: $(call EXTRA,test-all)
	$(BIN)/python .ci/matrix.py

# Coverage-guided fuzzing of every parser in turn, FUZZ_SECONDS each. It ends at the first input that fails, which is
# left in .cache/fuzz. Inputs that reach new code are kept there for the next run.
fuzz: $(call EXTRA,test-all fuzz)
	set -e; for target in $(FUZZ_TARGETS); do \
		script=fuzz_$${target%%/*}.py; parser=$${target#*/}; corpus=tests/fuzz/corpus/$$target; \
		mkdir -p .cache/fuzz/$$target; test "$$parser" != "$$target" || parser=; test -d $$corpus || corpus=; \
		$(BIN)/python tests/fuzz/$$script $$parser $(FUZZ_OPTIONS) .cache/fuzz/$$target $$corpus; \
	done

# --fresh-env: the pages also depend on the code of the commands and of docs/opforge_docs, which Sphinx does not watch.
docs: $(call EXTRA,docs)
	$(BIN)/python -m sphinx --quiet --fresh-env --fail-on-warning --keep-going --conf-dir docs --doctree-dir .cache/doctrees . docs/_build
	$(BIN)/python docs/opforge_docs/links.py docs/_build

# The files of a release, in dist/: docs/releasing.md. `dist-check` makes them twice and compares every byte.
dist: $(call EXTRA,check)
	$(BIN)/python .ci/dist.py dist

dist-check: $(call EXTRA,check)
	$(BIN)/python .ci/dist.py dist --twice

format: $(call EXTRA,check)
	$(BIN)/ruff check --fix $(LINTED)
	$(BIN)/ruff format $(LINTED)
	$(SOURCES) | xargs $(BIN)/clang-format -i
	$(DOCUMENTS) | xargs $(BIN)/mdformat --wrap 100

# --quiet: setuptools' log of an editable install names every file. Errors are still printed.
$(STAMP): pyproject.toml constraints.txt setup.py
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "opforge needs Python 3.11 or newer; set PYTHON")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	$(BIN)/python -m compileall -q src accelerator builders cache ops packages remote
	touch $@

# An extra of pyproject.toml, by its name.
$(VENV)/.extra-%: $(STAMP)
	$(PIP) -e '.[$*]'
	touch $@

# DeepSpeed, for the tests of opforge.compat. Its setup script imports torch, which an isolated build would not have.
$(PEERS): $(call EXTRA,test-all)
	$(PIP) setuptools wheel py-cpuinfo
	$(PIP) --no-build-isolation deepspeed
	touch $@

clean:
	rm -rf $(VENV) .cache build dist src/opforge.egg-info
