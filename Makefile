# The commands of this checkout. `make` alone lists them.

.DEFAULT_GOAL := help
.NOTPARALLEL:  # set-up comes before the checks, under -j as well
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
export PYTHON

# make storm SCALE=50 SEED=7
SCALE ?= 20
SEED ?=

.PHONY: help
help: ## list the commands
	@sed -n 's/^\([a-z%-]*\):[^#]*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r name what; do \
		printf '  make %-9s %s\n' "$$name" "$$what"; done

.PHONY: demo
demo: parts-for-demo jars ## see the promises kept, on servers of its own
	.venv/bin/python -m toril.demo

.PHONY: test
test: parts-for-tests lint jars ## run every check: the linters, the types, the layers, the tests
	.venv/bin/pytest -n 2 --dist loadfile --timeout=600 --durations=40

.PHONY: lint
lint: venv ## run the checks that need no server: ruff, mypy, import-linter
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	.venv/bin/lint-imports

.PHONY: storm
storm: parts-for-tests jars ## run the promise tests longer: SCALE=20, SEED=random
	@seed=$(SEED); seed=$${seed:-$$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}; \
	echo "storm: scale $(SCALE), seed $$seed; the same again: make storm SCALE=$(SCALE) SEED=$$seed"; \
	TORIL_TEST_SCALE=$(SCALE) TORIL_TEST_SEED=$$seed .venv/bin/pytest -m promise \
		--hypothesis-seed=$$seed --timeout=3600

bench-%: ## run one benchmark, benchmarks/NAME.py, in an environment of its own: make bench-NAME
	@tools/parts.sh $(if $(filter lake,$*),$@,run)
	@tools/venv.sh .venv-bench $(wildcard benchmarks/$*.requirements.txt)
	@$(if $(filter lake,$*),.venv-bench/bin/toril lake setup)
	.venv-bench/bin/python -m benchmarks.$* $(ARGS)

.PHONY: lock
lock: ## lock the versions again after a change of pyproject.toml; UPGRADE=1 takes the newest
	@tools/parts.sh run
	@tools/lock.sh $(if $(UPGRADE),--upgrade)

.PHONY: clean
clean: ## remove all that these commands have made here
	rm -rf .venv .venv-bench .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .schemathesis dist
	rm -rf tests/conformance/node/node_modules
	find src tests benchmarks tools -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: venv
venv:
	@tools/parts.sh run
	@tools/venv.sh .venv

.PHONY: jars
jars: venv
	@.venv/bin/toril lake setup

.PHONY: parts-for-demo
parts-for-demo:
	@tools/parts.sh demo

.PHONY: parts-for-tests
parts-for-tests:
	@tools/parts.sh test
	@tools/node.sh
