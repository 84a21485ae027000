# Two commands for a bare clone: `make demo` and `make test`.
# TORCH_INDEX=<url> names an index with CPU builds of torch, where the default index has CUDA ones.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check \
       $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) --constraint constraints.txt

.PHONY: demo test check lint format types clients more-clients parity soak bench clean

demo: $(VENV)/.installed
	$(BIN)/sglang-lite demo

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest

check: lint types test

lint: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

types: $(VENV)/.installed-dev
	$(BIN)/mypy

format: $(VENV)/.installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Not part of `make check`: other people's clients against the server, and a long mixed load.
# A client that is not installed is skipped; `more-clients` has all of them, and the live page in
# Chromium (of the system). instructor needs an older openai; openai-node needs node and npm.
clients: $(VENV)/.installed-dev
	$(PIP) --editable '.[clients]'
	$(BIN)/python -m pytest tests/clients

more-clients: $(VENV)/.installed-dev
	$(PIP) --editable '.[clients,more-clients]'
	test -x $(VENV)-instructor/bin/python || $(PYTHON) -m venv $(VENV)-instructor
	$(VENV)-instructor/bin/python -m pip install --quiet --disable-pip-version-check instructor
	-npm install --silent --no-audit --no-fund --prefix $(VENV) openai
	$(BIN)/python -m pytest tests/clients

# 20 prompts of 200 tokens against transformers in every way to compute them: about half an hour.
parity: $(VENV)/.installed-dev
	$(BIN)/python -m pytest tests/runtime/test_parity.py -m 'slow or not slow'

soak: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/soak.py --minutes 10

# The engine beside its peers; needs a C++ compiler for llama-cpp-python, and a quiet machine.
bench: $(VENV)/.installed-dev
	$(PIP) --editable '.[bench]'
	$(BIN)/python benchmarks/decode.py --threads 2
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/engine_host.py

clean:
	rm -rf $(VENV) $(VENV)-instructor build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing sglang-lite into $(VENV) (the first time takes a minute or two)"
	$(PIP) --editable .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing sglang-lite and its development tools into $(VENV)"
	$(PIP) --editable '.[dev]'
	@touch $@ $(VENV)/.installed
