# Two commands do it all on a fresh machine: `make demo` and `make test`. Everything else is a detail of these.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.PHONY: demo test lint corpus clean

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

demo: $(VENV)/.ready
	$(BIN)/python examples/demo.py

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/mypy

corpus: $(VENV)/.ready
	$(BIN)/python tools/fetch_corpus.py

test: lint corpus
	$(BIN)/python -m pytest -n 2

clean:
	rm -rf $(VENV) .corpus build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
