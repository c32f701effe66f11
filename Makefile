# Two commands do everything on a fresh machine (Python 3.11+, pip, make):
#   make serve   a server with the demo model on http://127.0.0.1:8000
#   make test    every check that CI runs
# Options: MODEL=  HOST=  PORT=  PYTHON=python3.12  TORCH_INDEX=<pip index with another torch build>
# Both can be repeated: what is done is not done again.

PYTHON ?= python3
VENV ?= .venv
HOST ?= 127.0.0.1
PORT ?= 8000
MODEL ?= demo
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALL_FAILED := the install failed, pip says above why; a download that broke off goes on with the same command

.PHONY: serve chat test setup check fast lint types doctor clean help attack clients bench

serve: $(VENV)/.installed $(if $(filter demo,$(MODEL)),$(VENV)/.demo)
	@exec $(BIN)/triolet serve "$(MODEL)" --host "$(HOST)" --port "$(PORT)"

chat: $(VENV)/.installed $(if $(filter demo,$(MODEL)),$(VENV)/.demo) ## talk to the model in the terminal
	@exec $(BIN)/triolet chat "$(MODEL)"

test: setup check ## lint, types and all tests
	$(BIN)/python -m pytest --run-slow

check: lint types

setup: $(VENV)/.installed-test $(VENV)/.demo $(VENV)/.demo-gemma ## everything for working on triolet

fast: $(VENV)/.installed-test ## the inner loop: no slow tests
	$(BIN)/python -m pytest -q

lint: $(VENV)/.installed-test
	$(BIN)/ruff format --check src kernels tests examples
	$(BIN)/ruff check src kernels tests examples

types: $(VENV)/.installed-test
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python

doctor: $(VENV)/.installed ## what is installed, and does it fit the machine
	@exec $(BIN)/triolet doctor

URL ?= http://127.0.0.1:$(PORT)
ATTACK := build/schemathesis

attack: ## generate requests for a running server, by schemathesis (URL=, own environment)
	@test -x $(ATTACK)/bin/schemathesis || { $(PYTHON) -m venv $(ATTACK) && \
	  $(ATTACK)/bin/python -m pip install -q --disable-pip-version-check 'schemathesis>=4,<5'; }
	@# The 504 that it finds is the answer to a deadline_ms of 1.
	cd build && schemathesis/bin/schemathesis run $(URL)/openapi.json --url $(URL) --phases coverage,fuzzing -n 50 \
	  --checks not_a_server_error,response_schema_conformance,content_type_conformance \
	  --exclude-path-regex 'debug|metrics' --request-timeout 30

clients: ## run client libraries against a running server (URL=, own environment)
	@test -x build/clients/bin/llm || { $(PYTHON) -m venv build/clients && \
	  build/clients/bin/python -m pip install -q --disable-pip-version-check \
	  langchain-openai litellm instructor 'pydantic-ai-slim[openai]' llm; }
	build/clients/bin/python tests/clients/run_clients.py $(URL)

bench: $(VENV)/.installed $(VENV)/.demo ## triolet beside the peers under $$PEERS, on the same requests (MODEL=, BENCH=options)
	$(BIN)/python tests/bench/run.py --model "$(MODEL)" $(BENCH)

help:
	@sed -n 's/^# \{0,1\}//; 1,6p' Makefile
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1: \2/p' Makefile

# A directory without pip is what a broken start leaves behind: it is made again.
$(VENV)/.made:
	@command -v $(PYTHON) > /dev/null || { \
	  echo "there is no $(PYTHON); triolet needs Python 3.11 or newer. Try: make PYTHON=python3.11"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "triolet needs Python 3.11 or newer; this is $$($(PYTHON) --version). Try: make PYTHON=python3.11"; exit 1; }
	@$(BIN)/python -m pip --version > /dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV) || { \
	  echo "could not make a virtual environment; on Debian: apt-get install python3-venv"; exit 1; }
	@touch $@

# Another build of torch goes first: what is installed satisfies the install of triolet.
$(VENV)/.torch: $(VENV)/.made constraints.txt
	@$(if $(TORCH_INDEX),$(PIP) install -q "$$(grep '^torch==' constraints.txt)" --index-url "$(TORCH_INDEX)" || { \
	  echo "no torch could be installed from $(TORCH_INDEX)"; exit 1; },true)
	@touch $@

$(VENV)/.installed: $(VENV)/.torch pyproject.toml constraints.txt $(wildcard kernels/CMakeLists.txt)
	@echo "installing triolet; the first time this takes a few minutes"
	@$(PIP) install -q -c constraints.txt -e . || { echo "$(INSTALL_FAILED)"; exit 1; }
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	@$(PIP) install -q -c constraints.txt -e '.[test]' || { echo "$(INSTALL_FAILED)"; exit 1; }
	@touch $@

$(VENV)/.demo: $(VENV)/.installed
	@$(BIN)/triolet pull demo > /dev/null || { \
	  echo "make serve MODEL=tiny-random needs no download; MODEL=<directory> serves your own"; exit 1; }
	@touch $@

# The second real model of the tests: sliding windows and a vocabulary of 262k tokens.
$(VENV)/.demo-gemma: $(VENV)/.installed
	@$(BIN)/triolet pull demo-gemma > /dev/null || { echo "$(INSTALL_FAILED)"; exit 1; }
	@touch $@

clean: ## remove what make made
	rm -rf $(VENV) build dist
