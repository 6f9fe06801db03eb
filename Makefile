# Every target works from a clean clone with nothing but make and Python 3.11 or newer.
# Two environments are made when first needed: .venv (light) and .venv-vllm (a real vLLM on CPU, 3.5 GB);
# test-vllm-matrix makes one more for each vLLM release, test-sglang one with SGLang, bench-vllm one with Dynamo's
# scheduler.

SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= python3
LIGHT := .venv
ENGINE := .venv-vllm
MATRIX := .venvs-matrix
SGLANG := .venv-sglang
REFERENCE := .venv-reference
REQUIREMENTS := requirements/test.txt requirements/dev.txt requirements/peers.txt

PYTEST_ARGS ?=
VERSIONS ?=
SUITES ?=
BENCH_ARGS ?=
DEMO_ARGS ?=
MINUTES ?= 30
SOAK_ARGS ?=
PASSES ?= 1000000
TORTURE_ARGS ?=
PROVE_ARGS ?= --fresh --jobs 2 --write

.PHONY: help demo demo-vllm demo-bench test test-reference test-sglang test-vllm-matrix soak-vllm prove-vllm torture check bench bench-vllm bench-page prove-exact docs clean distclean

help: ## Show the targets.
	@echo "Usage: make TARGET"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "%-19s %s\n", $$1, $$2}'

demo: $(LIGHT)/.ready ## Record a simulated engine with two ranks for a few seconds and sum it up (no GPU).
	@$(LIGHT)/bin/forwardpass demo $(DEMO_ARGS)

demo-vllm: $(ENGINE)/.ready ## The same with a real vLLM server on CPU and a tiny model.
	@$(ENGINE)/bin/python scripts/demo_vllm.py $(DEMO_ARGS)

demo-bench: $(ENGINE)/.ready ## Let that vLLM server measure itself before it serves, and show what it found.
	@$(ENGINE)/bin/python scripts/demo_bench.py $(DEMO_ARGS)

test: $(LIGHT)/.ready $(ENGINE)/.ready ## Run every test, those with a real vLLM too (PYTEST_ARGS="-k codec" to choose).
	@scripts/run_tests.sh $(LIGHT) $(ENGINE) $(PYTEST_ARGS)

test-sglang: $(SGLANG)/.ready ## Run the tests with a released SGLang on CPU (two minutes and 700 MB more, once).
	@$(SGLANG)/bin/python -m pytest -m sglang tests/engine_sglang $(PYTEST_ARGS)

test-reference: $(REFERENCE)/.ready ## Run the tests that need NVIDIA Dynamo's own Python code as a peer.
	@$(REFERENCE)/bin/python -m pytest -m reference $(PYTEST_ARGS)

test-vllm-matrix: $(LIGHT)/.ready ## Run the tests with every supported vLLM release (VERSIONS="0.30 0.31" to choose).
	@PYTHON="$(PYTHON)" $(LIGHT)/bin/python scripts/vllm_matrix.py $(VERSIONS) --suites $(SUITES)

soak-vllm: $(ENGINE)/.ready ## Soak a real vLLM server: mixed load, recorders stopped and killed, all counted (MINUTES=30).
	@$(ENGINE)/bin/python scripts/soak_vllm.py --minutes $(MINUTES) $(SOAK_ARGS)

prove-vllm: $(ENGINE)/.ready ## Check every message of random engines on vLLM's real scheduler (PASSES=1000000).
	@$(ENGINE)/bin/python scripts/prove_vllm.py --passes $(PASSES) $(PROVE_ARGS)

check: $(LIGHT)/.ready ## Check format, lint, types and the rules of the house.
	@$(LIGHT)/bin/ruff format --check --quiet . || { echo "make check: run .venv/bin/ruff format ." >&2; exit 1; }
	@$(LIGHT)/bin/ruff check .
	@$(LIGHT)/bin/mypy
	@$(LIGHT)/bin/python -m pytest -q tests/test_*.py

bench: $(LIGHT)/.ready ## Measure speed: ratios of two ways, run in turn (BENCH_ARGS="--quick").
	@$(LIGHT)/bin/python benchmarks/run.py $(BENCH_ARGS)

bench-vllm: $(ENGINE)/.ready $(REFERENCE)/.ready ## Measure what recording costs vLLM, Dynamo's way and ours (BENCH_ARGS="--quick").
	@$(REFERENCE)/bin/python benchmarks/run.py vllm_scheduler vllm_publisher reference_recorder plane $(BENCH_ARGS)
	@$(ENGINE)/bin/python benchmarks/run.py vllm_throughput vllm_after_benchmark $(BENCH_ARGS)

bench-page: $(LIGHT)/.ready $(ENGINE)/.ready $(REFERENCE)/.ready ## Measure anew what docs/explanation/speed.md shows (an hour, on a quiet machine).
	@mkdir -p build/bench
	@$(REFERENCE)/bin/python benchmarks/run.py vllm_scheduler vllm_publisher --json build/bench/vllm.json
	@$(REFERENCE)/bin/python benchmarks/run.py reference_recorder --json build/bench/recorder.json
	@$(REFERENCE)/bin/python benchmarks/run.py plane --json build/bench/plane.json
	@$(ENGINE)/bin/python benchmarks/run.py vllm_throughput vllm_after_benchmark --json build/bench/throughput.json
	@$(LIGHT)/bin/python benchmarks/run.py raw_stream stalled --json build/bench/stream.json
	@$(LIGHT)/bin/python benchmarks/run.py scale --large --json build/bench/scale.json
	@$(LIGHT)/bin/python benchmarks/speed_page.py build/bench/*.json

torture: $(LIGHT)/.ready ## Try to break the trace: 1,000 kills, 50 million records, full disks (20 minutes, one core).
	@mkdir -p build
	@$(LIGHT)/bin/python scripts/torture_trace.py --full --write --json build/torture.json $(TORTURE_ARGS)

prove-exact: $(LIGHT)/.ready ## Compare a million random steps of counting with rational arithmetic (a minute).
	@$(LIGHT)/bin/python scripts/prove_exact.py

docs: $(LIGHT)/.ready ## Write the generated reference pages again.
	@$(LIGHT)/bin/python scripts/generate_docs.py

clean: ## Remove outputs and caches.
	@rm -rf build dist site demo-output .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find src tests benchmarks scripts -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## Remove all environments as well.
	@rm -rf $(LIGHT) $(ENGINE) $(MATRIX) $(SGLANG) $(REFERENCE)

$(LIGHT)/.ready: pyproject.toml $(REQUIREMENTS) scripts/setup_light_env.sh
	@PYTHON="$(PYTHON)" scripts/setup_light_env.sh $(LIGHT)

$(ENGINE)/.ready: pyproject.toml requirements/test.txt scripts/setup_vllm_env.sh
	@PYTHON="$(PYTHON)" scripts/setup_vllm_env.sh $(ENGINE)

$(SGLANG)/.ready: $(ENGINE)/.ready scripts/setup_sglang_env.sh
	@PYTHON="$(PYTHON)" scripts/setup_sglang_env.sh $(SGLANG) $(ENGINE)

$(REFERENCE)/.ready: pyproject.toml requirements/test.txt scripts/setup_vllm_env.sh scripts/setup_reference_env.sh
	@PYTHON="$(PYTHON)" scripts/setup_reference_env.sh $(REFERENCE)
