# Two commands for a newcomer: `make run` and `make test`. Each sets up what it needs.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PEERS := $(VENV)/.peers
# The rooms are linted through their symlinks, where their imports are seen as opforge.<room>.
LINTED := src/opforge $(addprefix src/opforge/,accelerator builders cache ops) tests benchmarks examples setup.py
# The modules whose names are public: what the reference shows, and a test holds to have docstrings.
PUBLIC := opforge opforge.accelerator opforge.errors opforge.ops opforge.ops.triton opforge.builders.setuptools \
	opforge.builders.triton opforge.compat.cpp_extension opforge.compat.deepspeed
SOURCES := git ls-files '*.c' '*.cpp' '*.cu' '*.h' '*.hpp' '*.cl' '*.sycl'
export OPFORGE_CACHE_DIR ?= $(CURDIR)/.cache/run

.PHONY: run test check bench torture docs format clean

run: $(STAMP)
	$(BIN)/python examples/char_transformer

# The tests keep their caches to themselves: conftest gives each its own folder.
test: $(STAMP) $(PEERS)
	$(BIN)/python -m pytest tests -n auto --maxprocesses 8

check: $(STAMP)
	$(BIN)/ruff check $(LINTED)
	$(BIN)/ruff format --check $(LINTED)
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(SOURCES) | xargs $(BIN)/clang-format --dry-run --Werror
	$(BIN)/python tests/wheel_contents.py

bench: $(STAMP)
	$(BIN)/python -m benchmarks

# Kills and corruption at length; a short round of it is among the tests.
torture: $(STAMP)
	$(BIN)/python tests/fault/torture.py --kills 1000 --processes 16

docs: $(STAMP)
	$(BIN)/python -W error::UserWarning -m pdoc --docformat google --output-directory docs/_build $(PUBLIC)

format: $(STAMP)
	$(BIN)/ruff check --fix $(LINTED)
	$(BIN)/ruff format $(LINTED)
	$(SOURCES) | xargs $(BIN)/clang-format -i

# setuptools' own log of an editable install names every file; the errors are kept.
$(STAMP): pyproject.toml constraints.txt setup.py
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "opforge needs Python 3.10 or newer; set PYTHON")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,bench,check,docs]'
	$(BIN)/python -m compileall -q src accelerator builders cache ops
	touch $@

# What opforge is tested beneath. DeepSpeed's setup script asks the torch beside it, so it gets no environment of its own.
$(PEERS): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt setuptools wheel py-cpuinfo
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation deepspeed
	touch $@

clean:
	rm -rf $(VENV) .cache build dist src/opforge.egg-info
