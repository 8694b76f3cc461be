# Everything here works on a fresh Linux machine with Python 3.11; `make help` lists the targets.
PYTHON ?= python3.11
VENV ?= .venv
VENV_2X ?= .venv-2x
CHECK_VENV ?= .venv-check
export PIP_DISABLE_PIP_VERSION_CHECK = 1
# Hundreds of processes import the package: each would compile it again where this is set.
export PYTHONDONTWRITEBYTECODE =
# MindSpore's compiler asks for small pieces of memory all the time: with larger lists of free ones it takes a tenth less.
check unit demo test test-2x test-nightly test-ms210 test-ray: export GLIBC_TUNABLES ?= glibc.malloc.tcache_count=60000

# Runs a command that prints nothing, and prints a line every 30 s.
SPEAK = sh -c 'while sleep 30 >/dev/null 2>&1; do s=$$((s + 30)); echo "installing, $$s s so far"; done & t=$$!; "$$@"; c=$$?; kill $$t; exit $$c' speak

.PHONY: help demo lint unit test test-2x test-nightly test-ms210 test-ray matrix models wheel-test dist docs site check dev environments bench tables clean
help:  ## this list
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 14

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	@echo "installing MindSpore and MindFormers into $(VENV): about 3 minutes, once"
	@$(SPEAK) $(VENV)/bin/pip install --quiet -e '.[cpu,test]'
	touch $@

$(CHECK_VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(CHECK_VENV)
	@$(SPEAK) $(CHECK_VENV)/bin/pip install --quiet -e '.[check]'
	touch $@

# MindFormers 2.1.0 asks for mindspore 2.11 and hyper-parallel, which PyPI does not have: without its requirements.
$(VENV_2X)/.installed: pyproject.toml tools/mindformers_2x.txt
	$(PYTHON) -m venv $(VENV_2X)
	@echo "installing MindFormers 2.1.0 with MindSpore 2.10.0 into $(VENV_2X): about 2 minutes, once"
	@$(SPEAK) $(VENV_2X)/bin/pip install --quiet -r tools/mindformers_2x.txt -e . pytest pytest-xdist hypothesis
	@$(SPEAK) $(VENV_2X)/bin/pip install --quiet --no-deps mindformers==2.1.0
	touch $@

demo: $(VENV)/.installed  ## the four documented cases on the Ascend backend without a card, and trained on CPU (5 to 12 min; the first time installs MindSpore, 3 min more)
	$(VENV)/bin/python tools/demo.py

check: $(CHECK_VENV)/.installed  ## `lint` and `unit`, at the same time (2 min)
	$(MAKE) --no-print-directory --jobs=2 lint unit

lint: $(CHECK_VENV)/.installed  ## ruff, contracts of imports, spelling, types (20 s)
	$(CHECK_VENV)/bin/ruff check .
	$(CHECK_VENV)/bin/ruff format --check .
	$(CHECK_VENV)/bin/lint-imports --no-logo --no-cache
	$(CHECK_VENV)/bin/codespell
	$(CHECK_VENV)/bin/python -c 'import sys; sys.exit(sys.version_info > (3, 11))' || $(CHECK_VENV)/bin/mypy  # NumPy for Python 3.10 has other types

unit: $(CHECK_VENV)/.installed  ## the tests that need no MindSpore, but for the long ones (1 min)
	$(CHECK_VENV)/bin/pytest -q -n 2 -m "not mindspore and not ascend and not long"

test: $(CHECK_VENV)/.installed  ## everything: `check`, its long tests, then those on real MindSpore and MindFormers (35 min, 5 of them to install, once)
	$(MAKE) --no-print-directory --jobs=2 environments lint unit
	$(CHECK_VENV)/bin/pytest -q -n 3 -m "long and not mindspore" $$(grep -rl mark.long tests --include="test_*.py")
	$(VENV)/bin/pytest -q -n 3 --dist loadfile --no-loadscope-reorder -m "mindspore and not ascend and not mindformers2" $$(grep -rl mark.mindspore tests --include="test_*.py")
	$(MAKE) --no-print-directory test-2x
	$(VENV)/bin/pytest -q tests/runtime/text tests/report/test_plots.py -m "not mindspore"  # need packages that .venv-check lacks

test-2x: $(VENV_2X)/.installed  ## dry runs with the trainer of MindFormers 2.1.0 (2 min; the first time installs it, 2 min more)
	$(VENV_2X)/bin/pytest -q -n 2 -m mindformers2 $$(grep -rl mark.mindformers2 tests --include="test_*.py")

test-nightly: $(CHECK_VENV)/.installed $(VENV)/.installed  ## at full strength: tests without MindSpore, and those with it that are shorter by day (55 min)
	MINDSWAP_NIGHTLY=1 $(CHECK_VENV)/bin/pytest -q -n 2 -m "not mindspore and not ascend"
	MINDSWAP_NIGHTLY=1 $(VENV)/bin/pytest -q -n 2 --dist loadfile -m "mindspore and not mindformers2" $$(grep -rl "from tests.strength import" tests --include="test_*.py") tests/adapters/test_rewrites.py

test-ms210:  ## capture and apply on MindSpore 2.10.0, without MindFormers (1 min)
	$(PYTHON) -m venv .venv-ms210
	@$(SPEAK) .venv-ms210/bin/pip install --quiet mindspore==2.10.0 'numpy<2' -e '.[test]'
	.venv-ms210/bin/pytest -q -m mindspore tests/graph/test_load.py tests/steps/test_network.py

test-ray:  ## faults of adaptive runs and of plan --ray on three Ray nodes of this machine; as root also real trainings in networks of their own (12 min, and once 3 min to install)
	$(PYTHON) -m venv .venv-ray
	@$(SPEAK) .venv-ray/bin/pip install --quiet -e '.[cpu,test,ray]'
	.venv-ray/bin/pytest -q tests/runtime/test_ray_cluster.py tests/runtime/attempt/test_ray.py tests/runtime/attempt/test_ray_network.py tests/features/plan/test_spread.py

matrix: $(VENV)/.installed  ## try every known pair of MindFormers and MindSpore (4 min a pair; once 2 min to install it)
	$(VENV)/bin/python tools/matrix.py --write

models: $(VENV)/.installed  ## every command on the training configurations of MindFormers, FOLDER=its checkout (an hour)
	$(VENV)/bin/python tools/try_models.py $(FOLDER) --write

wheel-test:  ## build wheel and sdist, install the wheel in a clean environment, train with it (4 min)
	$(PYTHON) tools/wheel_test.py

site: $(CHECK_VENV)/.installed  ## the documentation as a web site in site/, English and Chinese, with search (10 s)
	NO_MKDOCS_2_WARNING=1 $(CHECK_VENV)/bin/mkdocs build --strict

dist:  ## wheel and sdist in dist/, checked with twine and installed in a clean environment without MindSpore (1 min)
	$(PYTHON) tools/wheel_test.py --build-only --keep dist

docs: $(VENV)/.installed  ## outputs, figures and pictures of all pages again, from runs (20 min)
	$(VENV)/bin/python tools/docs.py

dev: $(VENV)/.installed $(CHECK_VENV)/.installed  ## both environments, nothing run

environments:  # one after the other, as both build the package in this folder; `test` installs them while its first tests run
	@$(MAKE) --no-print-directory $(VENV)/.installed
	@$(MAKE) --no-print-directory $(VENV_2X)/.installed

bench: $(VENV)/.installed  ## speed of all parts, and plans next to what others do (40 min)
	for file in benchmarks/*.py; do $(VENV)/bin/python $$file || exit 1; done

tables: $(VENV)/.installed  ## write mindswap/data/families from real MindFormers
	$(VENV)/bin/python tools/make_family_tables.py

clean:  ## remove the environments and what runs left behind
	rm -rf $(VENV) $(CHECK_VENV) $(VENV_2X) .venv-ms210 .venv-ray output build *.egg-info
