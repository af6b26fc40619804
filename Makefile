# Every target installs what it needs; Python 3.11 must be there.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
CORES ?= 8

.PHONY: report chart-files check cheap-tests test run-tests record-test-times types style test-all test-random test-slurm lint lint-workflow advisories release bench history schema reference picture lock clean

# Exit code 1 if a comparison disagrees; DISAGREEMENTS=allowed leaves it at 0.
report: $(BIN)/modelbudget
	@$(BIN)/snakemake --cores $(CORES)
	@test "$(DISAGREEMENTS)" = allowed || $(BIN)/python -m modelbudget.workflow.exit_code

# Every chart as Vega-Lite, SVG and PNG, in results/SWEEP/charts.
chart-files: $(BIN)/modelbudget
	@$(BIN)/snakemake --cores $(CORES) chart_files

# While developing: style, types, and one case of each test function that is cheap. At most a minute.
# The processes of the tests start on one core, so the others run next to them.
check: $(VENV)/.installed-tests
	@$(MAKE) --no-print-directory --jobs 3 types style cheap-tests

cheap-tests:
	$(BIN)/pytest --check -n 2

# Style and types run next to the start of the tests, which is on one core.
test: $(VENV)/.installed-tests
	@$(MAKE) --no-print-directory --jobs 2 run-tests style types lint-workflow

run-tests:
	$(BIN)/pytest

# Write the CPU seconds of all tests into tests/cpu_seconds.json, the budget of later runs in CI.
record-test-times: $(VENV)/.installed-tests
	$(BIN)/pytest --record-cpu-seconds

# All tests, including those that take minutes, full products and all examples.
test-all: lint
	TESTS=all $(BIN)/pytest -m "slow or not slow"

# Hypothesis draws new examples, and prints how to draw a failing one again.
test-random: $(VENV)/.installed-tests
	$(BIN)/pytest --hypothesis-profile=random

lint: $(VENV)/.installed-tests
	@$(MAKE) --no-print-directory --jobs 2 style types lint-workflow

style:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

lint-workflow:
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/snakemake --lint

types: $(VENV)/.installed-tests
	$(BIN)/pyrefly check

# Run two sweeps on a Slurm cluster of one node and compare with a local run. Needs root on Debian;
# takes 5 minutes.
test-slurm: .slurm-venv/.installed
	tests/slurm/run.sh .slurm-venv/bin

.slurm-venv/.installed: requirements.lock profiles/slurm/requirements.txt
	$(PYTHON) -m venv .slurm-venv
	.slurm-venv/bin/pip install --quiet --disable-pip-version-check \
		-r requirements.lock -r profiles/slurm/requirements.txt
	@touch $@

# Compiled once, since jobs that start at the same time would each compile the same files.
$(VENV)/.installed: requirements.lock
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.lock
	@$(BIN)/python -m compileall -q modelbudget
	@touch $@

# The command, and `import modelbudget` in every folder, from this checkout; nothing is built.
$(BIN)/modelbudget: $(VENV)/.installed
	@$(BIN)/python -c "import pathlib, site, sys; pathlib.Path(site.getsitepackages()[0], \
		'modelbudget.pth').write_text(sys.argv[1] + '\n')" "$(CURDIR)"
	@echo '#!/bin/sh' > $@
	@echo 'exec "$$(dirname "$$(readlink -f "$$0")")/python" -m modelbudget "$$@"' >> $@
	@chmod +x $@

$(VENV)/.installed-tests: $(VENV)/.installed tests/requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check -r tests/requirements.lock
	@touch $@

# Speed: start-up next to another command, counting PaLM against its bare torch modules, counting with
# seventeen tools, tracing a training step of PaLM against torch's tracker (minutes), ten million
# predictions against a copy of their columns and against a calculator, a run by stage and by number
# of models, the page in a browser, and twenty runs that are killed and resumed (half an hour).
bench: report $(VENV)/.installed-tests .bench-venv/.installed
	PYTHONPATH=. .bench-venv/bin/python benchmarks/start_up.py
	PYTHONPATH=. $(BIN)/python benchmarks/count_palm.py
	PYTHONPATH=. $(BIN)/python benchmarks/trace_palm.py
	PYTHONPATH=. .bench-venv/bin/python benchmarks/predictions.py
	PYTHONPATH=. $(BIN)/python benchmarks/regimes.py
	PYTHONPATH=. .bench-venv/bin/python benchmarks/other_tools.py docs/other-tools.md
	$(BIN)/python benchmarks/pipeline.py $(CORES)
	$(BIN)/python benchmarks/scale.py $(CORES)
	$(BIN)/python benchmarks/page.py
	$(BIN)/python benchmarks/kills.py

.bench-venv/.installed: requirements.lock benchmarks/requirements.txt benchmarks/calculator.txt
	$(PYTHON) -m venv .bench-venv
	.bench-venv/bin/pip install --quiet --disable-pip-version-check \
		-r requirements.lock -r benchmarks/requirements.txt
	.bench-venv/bin/pip install --quiet --disable-pip-version-check --no-deps \
		-r benchmarks/calculator.txt
	@touch $@

# A budget locked with the last transformers 4 and checked with the locked version (minutes). That
# environment has its own transformers, and everything else from .venv.
history: $(VENV)/.installed
	$(PYTHON) -m venv .history-venv
	$(BIN)/python -c "import site; print(site.getsitepackages()[0])" \
		> $$(.history-venv/bin/python -c "import site; print(site.getsitepackages()[0])")/shared.pth
	.history-venv/bin/pip install --quiet --disable-pip-version-check transformers==4.57.6
	PYTHONPATH=. $(BIN)/python benchmarks/history.py .history-venv/bin/python
	rm -rf .history-venv

# Generate the JSON schemas of sweeps, models and accelerators, which editors use for completion.
schema: $(VENV)/.installed
	PYTHONPATH=. $(BIN)/python scripts/dev/write_file_schemas.py

.PHONY: environment docs lock-docs

# The environment of conda, from the lock.
environment: $(VENV)/.installed
	$(BIN)/python scripts/dev/write_environment.py

# The pages that are written from the code; docs/formulas.md is not tracked.
reference: $(VENV)/.installed
	PYTHONPATH=. $(BIN)/python scripts/dev/write_reference.py

# The documentation as a site, in site/. Fails on a broken link.
docs: .docs-venv/.installed reference
	NO_MKDOCS_2_WARNING=1 .docs-venv/bin/mkdocs build --clean

.docs-venv/.installed: docs/requirements.lock
	$(PYTHON) -m venv .docs-venv
	.docs-venv/bin/pip install --quiet --disable-pip-version-check -r docs/requirements.lock
	@touch $@

# Draw the README's picture from the results, as the report draws it.
picture: report
	$(BIN)/python scripts/dev/write_picture.py

# Lock the newest versions that pyproject.toml allows, installed in a fresh environment: first those
# of users, then what tests add. The accelerator packages that torch installs depend on the machine,
# so they are not locked.
FREEZE := .lock-venv/bin/pip freeze --exclude modelbudget | sed 's/+cpu$$//' \
	| grep -vE '^(nvidia-|triton|cuda-)'
lock:
	rm -rf .lock-venv && $(PYTHON) -m venv .lock-venv
	.lock-venv/bin/pip install --quiet '.[workflow]'
	$(FREEZE) > requirements.lock
	.lock-venv/bin/pip install --quiet '.[test]' -c requirements.lock
	echo '-r ../requirements.lock' > tests/requirements.lock
	$(FREEZE) | grep -vxFf requirements.lock >> tests/requirements.lock
	.lock-venv/bin/python scripts/dev/write_environment.py
	rm -rf .lock-venv

# Lock the newest tools that build the documentation, which no other environment has.
lock-docs:
	rm -rf .lock-venv && $(PYTHON) -m venv .lock-venv
	.lock-venv/bin/pip install --quiet mkdocs-material
	.lock-venv/bin/pip freeze > docs/requirements.lock
	rm -rf .lock-venv

# Look up the locked packages in PyPI's advisories. Fails if PyPI cannot be reached.
advisories:
	$(PYTHON) -m venv .audit-venv
	.audit-venv/bin/pip install --quiet --disable-pip-version-check pip-audit==2.10.1
	.audit-venv/bin/pip-audit --strict --no-deps --disable-pip -r tests/requirements.lock
	rm -rf .audit-venv

# A dry run of a release: what is built is checked and tried outside of the checkout, and published
# nowhere. The wheel is built from the sdist, so that both are complete.
release: $(VENV)/.installed-tests .release-venv/.installed
	grep -q "^## \[$$($(BIN)/python -c 'import modelbudget; print(modelbudget.__version__)')\] - 20" \
		CHANGELOG.md
	rm -rf dist
	.release-venv/bin/python -m build
	.release-venv/bin/twine check --strict dist/*
	WHEEL=$$(echo dist/*.whl) $(BIN)/pytest -n 0 -m slow tests/command/test_wheel.py

.release-venv/.installed:
	$(PYTHON) -m venv .release-venv
	.release-venv/bin/pip install --quiet --disable-pip-version-check build==1.6.1 twine==7.0.0
	@touch $@

clean:
	rm -rf results .snakemake site dist
