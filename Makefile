# make demo | test | test-extra | test-all | test-lowest | test-gpu | lint | format. Each makes .venv on first use and keeps it.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# PyPI's torch for Linux on x86-64 brings several GB of CUDA. The CPU build is enough here: taken from where pip
# already looks if it is there, else from PyTorch's own index, else (macOS, ARM) the plain wheel is a CPU build.
TORCH_VERSION ?= 2.13.0
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu

demo: $(READY)
	$(BIN)/zeus-trt demo -o out/demo

test: $(READY)
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not slow and not extra" --durations=20

test-extra: $(READY)
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "extra and not slow" --durations=20

test-all: $(READY)
	$(BIN)/python -m pytest -q -n 2 --dist worksteal

# Part of the suite with the oldest version of every package that pyproject.toml allows, in an environment of its own.
LOWEST := .venv-lowest/bin
test-lowest:
	test -x $(LOWEST)/python || $(PYTHON) -m venv .venv-lowest
	$(LOWEST)/python tests/lowest_versions.py > .venv-lowest/lowest.txt
	$(LOWEST)/pip install -q "torch==$(TORCH_VERSION)+cpu" 2>/dev/null \
	  || $(LOWEST)/pip install -q "torch==$(TORCH_VERSION)+cpu" --index-url $(TORCH_CPU_INDEX) 2>/dev/null \
	  || $(LOWEST)/pip install -q "torch==$(TORCH_VERSION)"
	$(LOWEST)/pip install -q -r .venv-lowest/lowest.txt pytest pytest-xdist hypothesis scipy
	$(LOWEST)/pip install -q --no-deps -e .
	$(LOWEST)/python -m pytest -q -n 2 -m "not slow" tests/zeus_graph tests/runtime/test_session.py \
	  tests/runtime/test_engine.py tests/runtime/test_acceleration_scope.py tests/export/test_export.py \
	  tests/cli/test_cli.py tests/evaluation/test_quality.py

# On a machine with CUDA, with the Python that has its torch; diffusers, click, msgspec and pytest are all else that it needs.
test-gpu: types
	PYTHONPATH=.venv/types $(PYTHON) -m pytest -q --confcutdir=tests/gpu -p no:cacheprovider tests/gpu

lint: $(READY) types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	MYPYPATH=.venv/types $(BIN)/mypy -p zeus_trt

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(READY): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install -q "torch==$(TORCH_VERSION)+cpu" 2>/dev/null \
	  || $(BIN)/pip install -q "torch==$(TORCH_VERSION)+cpu" --index-url $(TORCH_CPU_INDEX) 2>/dev/null \
	  || $(BIN)/pip install -q "torch==$(TORCH_VERSION)"
	$(BIN)/pip install -q -e ".[dev]"
	touch $(READY)

docs: $(READY) types
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build -q --strict

# The folders of the repository laid out as the package that they are installed as: mypy cannot see the mapping.
types:
	rm -rf .venv/types && mkdir -p .venv/types/zeus_trt
	ln -s $(CURDIR)/zeus_trt/*.py $(CURDIR)/zeus_trt/cli $(addprefix $(CURDIR)/,zeus_graph export runtime serving evaluation calibration) .venv/types/zeus_trt/

.PHONY: demo docs test test-all test-lowest test-gpu lint format types
