# `make demo` and `make test` do all the set-up on a fresh machine.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test check bench documents clean

$(VENV)/.demo: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	touch $@

$(VENV)/.dev: $(VENV)/.demo
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	touch $@

$(VENV)/.peers: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[peers]"
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check "onnxruntime-training-cpu==1.19.2" onnx
	touch $@

demo: $(VENV)/.demo
	$(BIN)/backstroke tour

test: $(VENV)/.dev
	$(BIN)/python -m pytest -q

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m benchmarks.documents --check

bench: $(VENV)/.peers
	$(BIN)/python -m benchmarks --json bench-results.json

# The figures of the README and of docs/benchmarks, measured here and now.
documents: $(VENV)/.peers
	$(BIN)/python -m benchmarks --json docs/benchmarks/figures.json
	$(BIN)/python -m benchmarks.documents

clean:
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
