# minigpt: everything starts here. `make help` lists the targets.
# Works with GNU make 3.81 (macOS) and a POSIX shell.
#   PYTHON=/path/to/python3.12   the interpreter to build on (default: the first of 3.11 to 3.13 found)
#   TORCH_INDEX=URL              where to take torch from, e.g. https://download.pytorch.org/whl/cpu
#   ARGS="key=value ..."         settings for `make demo`, as minigpt train takes them

.PHONY: help setup demo test suite test-extras test-pages soak soak-cluster rehearse-gpu docs check clean
.DEFAULT_GOAL := help

BIN := .venv/bin

# One line each: what `make help` prints are the comments behind the targets.
help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1	\2/p' Makefile

setup: ## make .venv with everything needed (quick when nothing changed)
	@PYTHON='$(PYTHON)' $(if $(TORCH_INDEX),TORCH_INDEX='$(TORCH_INDEX)') sh scripts/setup.sh

demo: setup ## train a small GPT on text this machine already has, and print a sample
	@$(BIN)/minigpt demo $(ARGS)

test: ## lint, types and tests
	@$(MAKE) --no-print-directory -j2 check suite  # mypy needs one core while the tests' processes wait for others

suite: setup
	@# Two workers with a thread each: a third one would take ten seconds to load torch. Neighbours share what they
	@# have made, so each begins with one half, and takes from the other's when its own is done.
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

soak: setup ## the long trials: hundreds of kills, faults at every system call, full disks (half an hour or more)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m soak -x -s -rs --durations=0 --timeout=1800

soak-cluster: setup ## four processes, SLURM (needs root and slurm; skips what is missing)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m cluster -x -s -rs --durations=0 --timeout=1800

test-extras: setup ## the tests that need optional packages (installs tensorboard, zstandard, pyarrow, fsspec, gguf, xllamacpp, transformers, peft, lm-eval, fastapi, openai, nbclient, ray: 650 MB)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt "tensorboard>=2.17" zstandard pyarrow "fsspec[http]" "lm-eval>=0.4.9,<0.5" gguf xllamacpp transformers peft fastapi uvicorn openai httpx nbclient ipykernel "ray>=2.40"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/promises/test_loggers.py tests/promises/test_serve.py tests/promises/test_text_in.py tests/extras

test-pages: setup ## the pages in a headless Chromium, which must be there (installs fastapi, uvicorn, playwright: 150 MB)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt fastapi uvicorn playwright
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/pages

rehearse-gpu: setup ## trainings on a GPU that is not there: torch's CUDA build in .venv-gpu (3 GB), a stand-in for its runtime
	sh tests/gpu/build.sh .venv/bin/python
	OMP_NUM_THREADS=1 .venv-gpu/python -m pytest -m gpu --timeout=900 tests/gpu

docs: setup ## the pages as a site in build/docs, with the API from the docstrings (installs sphinx, myst-parser, furo: 40 MB)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt sphinx myst-parser furo
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/docs
	@echo "build/docs/index.html"

check: setup ## lint and types only
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

clean: ## remove the environment and caches; runs and prepared data stay
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
