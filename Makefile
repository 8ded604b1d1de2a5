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
	$(addprefix packages/,metadata release index lock hub_lock build_toml kernel_toml installed) records lookups archive statements
FUZZ_SECONDS ?= 60
FUZZ_OPTIONS := -max_total_time=$(FUZZ_SECONDS) -timeout=5 -rss_limit_mb=1024 -max_len=65536 -artifact_prefix=.cache/fuzz/
export OPFORGE_CACHE_DIR ?= $(CURDIR)/.cache/run

.PHONY: run test check bench torture model model-mutants observe projects facade matrix fuzz docs dist dist-check format clean

# torch warns that NumPy is missing, which the example does not use.
run: $(STAMP)
	PYTHONWARNINGS='ignore:Failed to initialize NumPy' $(BIN)/python examples/char_transformer

# conftest.py sets a cache folder for the tests, so they do not use the one above.
test: $(call EXTRA,test bench) $(PEERS)
	$(BIN)/python -m pytest tests -n auto --maxprocesses 8 --dist worksteal

# mypy follows the imports of the tests and the benchmarks too.
check: $(call EXTRA,check test bench)
	$(BIN)/ruff check $(LINTED)
	$(BIN)/ruff format --check $(LINTED)
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(SOURCES) | xargs $(BIN)/clang-format --dry-run --Werror
	$(DOCUMENTS) | xargs $(BIN)/mdformat --check --wrap 100
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/python tests/wheel_contents.py

# The ops, then what is measured in whole processes: builds, loads, stores.
bench: $(call EXTRA,bench test)
	$(BIN)/python -m opforge bench
	$(BIN)/python -m benchmarks

# Long runs of the tests that kill builders, that put anything in the place of a store's files, that change files in the
# middle of a load, and of what is proved of stores for each kind. `make test` includes short ones.
torture: $(call EXTRA,test)
	$(BIN)/python tests/fault/torture/kills.py --kills 1000 --processes 16
	$(BIN)/python tests/fault/torture/damages.py --rounds 1000 --processes 8
	$(BIN)/python tests/fault/torture/changes.py --cases 2000
	OPFORGE_LONG_TESTS=1 $(BIN)/python -m pytest -q tests/fault/stores/test_flips.py \
		tests/fault/stores/test_hostile_answers.py tests/fault/stores/test_killed_commands.py tests/unit/remote/test_histories.py

# Random changes of all that a load depends on; after each the load must give what a build without a cache gives.
# `make test` includes a short run.
MODEL_STEPS ?= 15000
model: $(call EXTRA,test)
	$(BIN)/python tests/model --steps $(MODEL_STEPS) --seed $$(date +%s)

# Each patch of tests/model/mutants.py puts a defect back, and must be found within ten minutes.
model-mutants: $(call EXTRA,test)
	$(BIN)/python tests/model --mutants

# Builds that are observed: all that compilers and linkers really read and look for must be noticed, or have a reason.
# `make test` includes a part.
observe: $(call EXTRA,test)
	OPFORGE_LONG_TESTS=1 $(BIN)/python -m pytest tests/compile/observer -n 2

# Public projects, and each of the facade's operators, on the facade and on torch's own headers: all must compute the same.
projects: $(call EXTRA,test)
	$(BIN)/python tests/facade projects

facade: $(call EXTRA,test)
	$(BIN)/python tests/facade differential

# Every torch and every Python that can be installed here, one environment at a time: docs/versions.md.
matrix: $(call EXTRA,test)
	$(BIN)/python .ci/matrix.py

# Coverage-guided fuzzing of every parser in turn, FUZZ_SECONDS each. It ends at the first input that fails, which is
# left in .cache/fuzz. Inputs that reach new code are kept there for the next run.
fuzz: $(call EXTRA,test fuzz)
	set -e; for target in $(FUZZ_TARGETS); do \
		script=fuzz_$${target%%/*}.py; parser=$${target#*/}; corpus=tests/fuzz/corpus/$$target; \
		mkdir -p .cache/fuzz/$$target; test "$$parser" != "$$target" || parser=; test -d $$corpus || corpus=; \
		$(BIN)/python tests/fuzz/$$script $$parser $(FUZZ_OPTIONS) .cache/fuzz/$$target $$corpus; \
	done

# --fresh-env: the pages also depend on the code of the commands and of docs/opforge_docs, which Sphinx does not watch.
docs: $(call EXTRA,docs)
	$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11) and "the site needs Python 3.11 or newer: make clean docs PYTHON=python3.11")'
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
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "opforge needs Python 3.10 or newer; set PYTHON")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	$(BIN)/python -m compileall -q src accelerator builders cache ops packages remote
	touch $@

# An extra of pyproject.toml, by its name.
$(VENV)/.extra-%: $(STAMP)
	$(PIP) -e '.[$*]'
	touch $@

# DeepSpeed, for the tests of opforge.compat. Its setup script imports torch, which an isolated build would not have.
$(PEERS): $(call EXTRA,test)
	$(PIP) setuptools wheel py-cpuinfo
	$(PIP) --no-build-isolation deepspeed
	touch $@

clean:
	rm -rf $(VENV) .cache build dist src/opforge.egg-info
