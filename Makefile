# Ister. `make help` lists the targets; every target sets up what it needs.
SHELL := /bin/bash
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
  "$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo "$$p"; break; }; done)
UV_VERSION := 0.13.7
BIN := .venv/bin
READY := .venv/ready
SEED ?= 1

.PHONY: help
help: ## List every target
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  make %-14s %s\n", $$1, $$2 }'

.PHONY: setup
setup: $(READY) ## Create .venv from requirements.lock (done by every other target)

$(READY): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "Ister needs Python 3.11 or newer; none was found. Install one, or run: make PYTHON=/path/to/python3 $(MAKECMDGOALS)"; exit 1; }
	@echo "setup: creating .venv with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv --clear .venv || { echo "setup: python's venv module is missing; on Debian or Ubuntu: apt-get install python3-venv"; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	@VIRTUAL_ENV=.venv $(BIN)/uv pip sync --quiet --require-hashes requirements.lock
	@VIRTUAL_ENV=.venv $(BIN)/uv pip install --quiet --no-deps --no-build-isolation --editable .
	@echo "setup: compiling the frame decoder (once; cached from then on)"
	@$(BIN)/python -m ister.core.frames.warm
	@echo "setup: fetching what Spark needs (once; kept from then on)"
	@$(BIN)/python -m ister.pipeline.session >/dev/null
	@touch $@

.PHONY: run
run: $(READY) ## Run the demonstration: official clients, kill -9, a lost log, Spark commits, SQL; every message is verified
	@$(BIN)/ister demo

.PHONY: test
test: $(READY) ## Run every test, at counts that fit in minutes
	@$(BIN)/python tests/run.py

.PHONY: test-long
test-long: $(READY) ## Run every test, at the full counts of docs/faults.md (about 40 minutes on two cores)
	@ISTER_TEST_LONG=1 $(BIN)/python tests/run.py

.PHONY: test-interop
test-interop: $(READY) ## Test a running broker: the official client, bare gRPC, faults
	@$(BIN)/python -m pytest -q -n 2 --dist worksteal tests/interop

.PHONY: test-services
test-services: $(READY) ## Test against MinIO, Azurite, fake-gcs-server, etcd 3.6, PostgreSQL, a REST catalog; builds them the first time
	@$(BIN)/python tests/real/run.py

.PHONY: test-clients
test-clients: $(READY) ## Test with the official Go, Rust and Java clients; builds them the first time
	@$(BIN)/python tests/clients/run.py

.PHONY: check
check: $(READY) ## Check format, lint, types, imports, quick unit tests: under a minute
	@$(BIN)/ruff format --check --quiet . && $(BIN)/ruff check --quiet . && echo "check: format and lint are clean"
	@$(BIN)/mypy --no-error-summary && echo "check: types are clean"
	@$(BIN)/lint-imports --no-logo >/dev/null || { $(BIN)/lint-imports; exit 1; }
	@echo "check: imports point one way"
	@$(BIN)/python -m pytest -q -n 2 -m "not slow" tests/unit tests/tidy/test_tidy.py

.PHONY: format
format: $(READY) ## Format the sources
	@$(BIN)/ruff format --quiet . && $(BIN)/ruff check --fix --quiet .

.PHONY: sim
sim: $(READY) ## Replay one simulated history: make sim SEED=42
	@$(BIN)/python tests/sim/replay.py $(SEED)

.PHONY: bench-wal
bench-wal: $(READY) ## Measure the log against its floors; the last line is JSON
	@$(BIN)/python bench/wal.py

.PHONY: bench-cloud
bench-cloud: $(READY) ## Measure the object tier against its floors; the last line is JSON
	@$(BIN)/python bench/cloud.py

.PHONY: bench-broker
bench-broker: $(READY) ## Measure the broker against its floors (about a quarter of an hour); the last line is JSON
	@$(BIN)/python bench/broker.py

.PHONY: bench-readback
bench-readback: $(READY) ## Measure reading from a table against its floors; the last line is JSON
	@$(BIN)/python bench/readback.py

.PHONY: bench-peers
bench-peers: ## Fetch the peers of bench-pipeline: Kafka, and Spark's Kafka source (needs Java and Maven)
	@mvn -q -B -f bench/peers/pom.xml dependency:copy-dependencies -DoutputDirectory=$(CURDIR)/.peers/lib
	@for jar in org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.3 org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.1.0-preview1 \
	  org.apache.kafka:kafka-clients:3.9.1 org.apache.commons:commons-pool2:2.12.1; do \
	  mvn -q -B dependency:copy -Dartifact=$$jar -DoutputDirectory=$(CURDIR)/.peers/spark || exit 1; done

.PHONY: bench-pipeline
bench-pipeline: $(READY) ## Measure the pipeline against Kafka and Spark (about twenty minutes; run make bench-peers first)
	@$(BIN)/python bench/pipeline.py

.PHONY: protos
protos: $(READY) ## Compile protos/ to src/ister/rpc and stubs/, which are committed
	@$(BIN)/python protos/generate.py

.PHONY: lock
lock: $(READY) ## Resolve requirements.lock (names, versions, hashes; no addresses)
	@$(BIN)/uv pip compile --quiet --upgrade --universal --generate-hashes --no-emit-index-url --no-header --no-emit-find-links --python-version 3.11 --group dev pyproject.toml -o requirements.lock

.PHONY: clean
clean: ## Remove .venv, caches and build output
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
