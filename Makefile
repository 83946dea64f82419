# `make demo` and `make test` do all the set-up on a fresh machine.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# The systems that we are compared with. One of them calls itself onnxruntime, as another package does: a place apart.
PEERS ?= .venv-peers

.PHONY: demo tour test check bench report documents conformance robustness clean

$(VENV)/.demo: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[train]"
	touch $@

$(VENV)/.dev: $(VENV)/.demo
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev,train]"
	touch $@

$(PEERS)/.made: pyproject.toml
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -e ".[dev,peers,report]"
	-$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps "rapidocr-onnxruntime==1.4.4"
	touch $@

# Trains a small ONNX model on handwritten digits, in seconds; no download but the packages.
demo: $(VENV)/.demo
	$(BIN)/backstroke demo

tour: $(VENV)/.demo
	$(BIN)/backstroke tour

test: $(VENV)/.dev
	$(BIN)/python -m pytest -q -n 2

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m benchmarks.documents --check
	$(BIN)/python tests/conformance/differences.py --check

# Every op of every dialect against the system it speaks for; what cannot be installed is skipped and says why.
conformance: $(PEERS)/.made $(VENV)/.dev
	-$(PEERS)/bin/python -m peers.tfjs
	$(PEERS)/bin/python -m pytest -q -n 2 tests/conformance tests/graph/test_gradient_model.py tests/test_interop_torch.py tests/test_peers_convolution.py
	PEERS=$(PEERS) $(BIN)/python -m pytest -q -n 2 tests/graph/test_networks.py tests/training/test_curves.py tests/training/test_losses.py tests/training/test_optimizers.py

# The long way: ROBUSTNESS_SECONDS of random calls, five minutes of eight threads, every kernel under valgrind.
robustness: $(VENV)/.dev
	ROBUSTNESS_SECONDS=$${ROBUSTNESS_SECONDS:-1200} $(BIN)/python -m pytest -q tests/robustness
	$(BIN)/python tests/robustness/soak.py --seconds 300
	$(BIN)/python tests/robustness/memcheck.py

bench: $(PEERS)/.made $(VENV)/.demo
	$(PEERS)/bin/python -m benchmarks --json bench-results.json

# Measures everything, makes report/index.html of it and looks at that in a browser. It takes an hour; with MINUTES=4
# it goes on for so long with what report/figures.json lacks; QUICK=1 is a few problems of each family, in a minute.
report: $(PEERS)/.made $(VENV)/.demo
	$(PEERS)/bin/python -m benchmarks --json report/figures.json $(if $(QUICK),--quick) $(if $(MINUTES),--keep --minutes $(MINUTES))
	$(PEERS)/bin/python -m benchmarks.page report/figures.json --out report
	$(PEERS)/bin/python -m benchmarks.browser report/index.html

# The figures of the README and of docs/benchmarks are those of the last report.
documents: $(PEERS)/.made
	$(PEERS)/bin/python -m benchmarks.documents $(if $(wildcard report/figures.json),--figures report/figures.json)

clean:
	rm -rf $(VENV) $(PEERS) dist build report .mypy_cache .ruff_cache .pytest_cache .hypothesis
