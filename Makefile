# make demo   install into .venv, convert, quantize and measure a small model
# make test   install into .venv, run everything a reviewer would: style, types, tests
# make test-all-pythons   run the tests with each Python that is supported and installed
# make test-all-numbas   run the tests of kernels with each minor release of numba that is supported
PYTHON ?= python3
VENV ?= .venv
PYTHONS ?= 3.10 3.11 3.12 3.13
TORCH ?= 'torch>=2.4'
NUMBAS ?= 0.61 0.62 0.63 0.64 0.65 0.66 0.67 0.68
RUN = $(VENV)/bin
# Where this is set, each worker rewrites the assertions of all tests anew.
unexport PYTHONDONTWRITEBYTECODE
# Tests that need no more than a plain installation and take a minute or two
FAST = tests/archs/test_families.py tests/archs/vocab tests/gguftools/io/gguf tests/gguftools/test_cli.py \
	tests/gguftools/conversion/test_convert.py tests/gguftools/conversion/test_export.py \
	tests/gguftools/conversion/test_quantize_austen.py tests/gguftools/metadata/test_chat_templates.py \
	tests/quants/formats tests/runtime/test_tokenizer.py tests/test_zoo.py

.PHONY: demo test test-all-numbas test-warm test-browser test-device test-lowest test-all test-all-pythons lint suite fuzz verify model-types bench zoo \
	docs clean
.DEFAULT_GOAL := test

# Compiled, because each start does it where it may not write.
$(VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(RUN)/pip install --quiet --upgrade pip
	$(RUN)/pip install --quiet --editable '.[test]'
	$(RUN)/python -m compileall -q archs gguftools quants runtime
	touch $@

demo: $(VENV)/installed
	$(RUN)/gguftools demo --overwrite

lint: $(VENV)/installed
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/mypy

# Style and types beside the tests, as mypy has use for one processor alone.
test: $(VENV)/installed
	$(MAKE) --no-print-directory --jobs=2 lint suite

# On all processors; the tests of a file stay together, for what they prepare in common.
suite: $(VENV)/installed
	$(RUN)/python -m pytest -n auto --dist loadfile

# The suite with each of PYTHONS that is installed, in a virtual environment of its own. Those that are missing are named;
# only if all are is that an error. With pyenv, name the versions to use: PYENV_VERSION=3.10.13:3.12.1 make test-all-pythons
test-all-pythons:
	@passed=; failed=; missing=; \
	for version in $(PYTHONS); do \
	    if ! python$$version -c pass >/dev/null 2>&1; then missing="$$missing $$version"; continue; fi; \
	    echo "Python $$version:"; \
	    if $(MAKE) --no-print-directory suite PYTHON=python$$version VENV=$(VENV)/python$$version; \
	    then passed="$$passed $$version"; else failed="$$failed $$version"; fi; \
	done; \
	echo "Python passed:$${passed:- none}; failed:$${failed:- none}; not installed:$${missing:- none}"; \
	[ -n "$$passed" ] && [ -z "$$failed" ]

# Once more what depends on kernels being compiled already; `make test` in a fresh clone finds none.
test-warm: $(VENV)/installed
	$(RUN)/python -m pytest tests/quants/kernels tests/quants/test_compilation.py tests/gguftools/cli/test_startup.py

# The report's page in Chromium or Chrome, which has to be installed.
test-browser: $(VENV)/installed
	$(RUN)/python -m pytest -m browser tests/gguftools/publish/report

# Models by torch, on the processor. TORCH may name a build of it.
test-device: $(VENV)/installed
	$(RUN)/python -c 'import torch' 2>/dev/null || $(RUN)/pip install --quiet $(TORCH)
	$(RUN)/python -m pytest -n auto --dist loadfile -m device tests

# The fast part with the lowest versions of all dependencies that pyproject.toml allows, in a VENV of its own. What numba
# compiles there must not replace what another version of it compiled. Old packages are deprecated by newer ones, and what
# is compared with transformers follows its newest version.
test-lowest:
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(PYTHON) tests/lower_bounds.py > $(VENV)/lowest.txt
	$(RUN)/pip install --quiet --requirement $(VENV)/lowest.txt --editable . hypothesis ml_dtypes pytest pytest-xdist
	NUMBA_CACHE_DIR=$(VENV)/numba $(RUN)/python -W ignore::DeprecationWarning -m pytest -W ignore::DeprecationWarning -n auto --dist loadfile -k 'not transformers' $(FAST)

# Kernels with each minor release of numba that pyproject.toml allows. Each has its own virtual environment and cache.
test-all-numbas:
	@passed=; failed=; \
	for version in $(NUMBAS); do \
	    folder=$(VENV)/numba-$$version; \
	    echo "numba $$version:"; \
	    if { test -d $$folder || $(PYTHON) -m venv $$folder; } && \
	        $$folder/bin/pip install --quiet "numba==$$version.*" --editable '.[test]' && \
	        NUMBA_CACHE_DIR=$$folder/cache $$folder/bin/python -m pytest -n auto --dist loadfile \
	            tests/quants/kernels tests/quants/formats tests/runtime/kernels; \
	    then passed="$$passed $$version"; else failed="$$failed $$version"; fi; \
	done; \
	echo "numba passed:$${passed:- none}; failed:$${failed:- none}"; \
	[ -z "$$failed" ]

test-all: lint
	$(RUN)/python -m pytest -n auto --dist loadfile -m 'not verify and not browser and not device' --hypothesis-profile random

fuzz: $(VENV)/installed
	$(RUN)/python -m tests.fuzz.test_mutations --count 200000
	$(RUN)/python -m tests.fuzz.test_concurrency --rounds 200
	$(RUN)/python -m tests.fuzz.test_set_kills --count 1000
	$(RUN)/python -m tests.fuzz.test_lies --count 20000
	$(RUN)/python -m tests.fuzz.test_configs --count 20000
	$(RUN)/python -m tests.fuzz.test_tokenizers --count 5000

# Beside transformers, diffusers (and torch): recorded cases, then random options of every family, there and back.
verify: $(VENV)/installed
	$(RUN)/pip install --quiet --editable '.[test,verify]'
	$(RUN)/python -m pytest -m verify
	$(RUN)/python -m tests.verify.forward --count 300
	$(RUN)/python -m tests.verify.export --count 300
	$(RUN)/python -m tests.verify.wholes

# What the installed transformers' config classes declare, which exports are written by, and names of the installed
# gguf, which files are judged by: archs/model_types.json.gz, archs/gguf_names.json.gz.
model-types: $(VENV)/installed
	$(RUN)/python -m tests.verify.model_types
	$(RUN)/python -m tests.verify.gguf_names

zoo: $(VENV)/installed
	$(RUN)/python -m tests.zoo

# The site, in site/; its generated parts first.
docs: $(VENV)/installed
	$(RUN)/python docs/generate.py
	$(RUN)/python -m mkdocs build --strict

bench: $(VENV)/installed
	$(RUN)/python -m benchmarks.formats

clean:
	rm -rf $(VENV) demo site
