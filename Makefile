# `make run` and `make test` set themselves up on a fresh machine with Python >= 3.11, and are quick the second time.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
WORKERS ?= 2

.PHONY: run test test-long lint architecture docs setup clean

run: $(INSTALLED)
	$(BIN)/bilateral run

test: $(INSTALLED)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

test-long: $(INSTALLED)
	$(BIN)/python -m pytest -m long

lint: $(INSTALLED)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	MYPYPATH=benchmarks:benchmarks/peers $(BIN)/mypy --strict benchmarks/*.py benchmarks/peers/*.py
	MYPYPATH=tools $(BIN)/mypy --strict tools/*.py
	$(BIN)/lint-imports

architecture: $(INSTALLED)
	$(BIN)/python tools/draw_architecture.py

docs: $(INSTALLED)
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build
	@echo 'docs/_build/index.html'

setup: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(INSTALLED)

clean:
	rm -rf $(VENV) build dist docs/_build docs/reference *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
