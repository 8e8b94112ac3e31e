# make run    install if needed, then run the pipeline of config/config.yaml and print its table
# make test   install if needed, then run the everyday tests
# make lint   install if needed, then run every style, type and workflow check
# Options: PYTHON=python3.12, CORES=8, CONFIG=config/text.yaml

PYTHON ?= python3
CORES ?= $(shell nproc 2>/dev/null || getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
CONFIG ?= config/config.yaml
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: run test lint install clean

run: $(INSTALLED)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/snakemake --cores $(CORES) --configfile $(CONFIG)

test: $(INSTALLED)
	$(BIN)/python -m pytest

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy workflows
	$(BIN)/snakefmt --check Snakefile workflows
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/snakemake --lint --configfile $(CONFIG)

install: $(INSTALLED)

# The stamp is written last, so that an interrupted installation is taken up again.
$(INSTALLED): requirements/lock.txt setup.cfg pyproject.toml
	sh scripts/install.sh $(PYTHON) $(VENV)
	@touch $@

clean:
	rm -rf results .snakemake
