# Every target sets up what it needs: the virtual environment, and the control plane that is built from source.
# Nothing outside this checkout is touched but the build cache, which `make clean` names.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
.DELETE_ON_ERROR:
.ONESHELL:

PYTHON ?= python3
ifeq ($(strip $(HOME)),)
export HOME := $(shell getent passwd "$$(id -u)" | cut -d: -f6)
endif
# Who has this set would pay for it at each start of a program: nothing here is worth compiling twice.
export PYTHONDONTWRITEBYTECODE :=
CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/gpuledger
BIN := .venv/bin
DOCS := $(CACHE)/docs-tools-$(shell sha256sum requirements/docs.txt | cut -c 1-12)
READY := .venv/.ready
# Many tests wait most of the time, so there are more of them under way than cores. Each worker may run a control plane,
# whose programs are asked to collect garbage less often: that is a tenth of their time.
WORKERS ?= $(shell n=$$(nproc); echo $$((n < 4 ? 2 * n : 8)))
PYTEST = GOGC=$(or $(GOGC),400) $(if $(SEED),GPULEDGER_TEST_SEED=$(SEED)) $(BIN)/python -m pytest -n $(WORKERS) --dist loadscope --no-loadscope-reorder
# Tests that judge how long others wait while somebody loads the machine: nothing else may run beside them.
ALONE := tests/hostile
# Tests with a Docker daemon, which changes the machine's network: by `make test-kind` alone.
KIND := tests/kind
# Of the tests with real programs, those of promises (tests/promises.py); `make test-all` runs all of them.
LANE = -m "promise or not (cluster or node or browser)"
# uv takes 4 s for what takes pip more than a minute. Where pip is told of an index or a certificate, it is for uv, too.
UV := env UV_DEFAULT_INDEX="$${UV_DEFAULT_INDEX:-$${PIP_INDEX_URL:-$$($(BIN)/pip config get global.index-url 2> /dev/null || true)}}" \
	SSL_CERT_FILE="$${SSL_CERT_FILE:-$${PIP_CERT:-}}" $(BIN)/uv --quiet --no-progress
COMPILE := $(UV) pip compile --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-emit-find-links --no-header $(if $(UPGRADE),--upgrade)

.PHONY: help
help: ## show this list
	@if [ -t 1 ] && [ "$${TERM:-dumb}" != dumb ] && [ -z "$${NO_COLOR:-}" ]; then name=$$'\e[1;32m'; end=$$'\e[0m'; else name=; end=; fi
	echo "gpuledger: share GPUs between Kubernetes pods"
	echo
	awk -F ':.*## ' -v name="$$name" -v end="$$end" \
		'/^[a-z-]+:.*## / { printf "  %smake %-14s%s %s\n", name, $$1, end, $$2 }' $(firstword $(MAKEFILE_LIST))
	echo
	echo "The first demo, test or bench builds Kubernetes from source: about 6 minutes on two cores, later nothing."
	echo "The first test as root builds kubelet and containerd too: about 2 minutes."

.PHONY: demo
demo: $(READY) control-plane ## share GPUs on a real control plane on this machine (KEEP=1 leaves it running)
	@$(BIN)/python tools/demo.py $(if $(KEEP),--keep)

.PHONY: demo-queues
demo-queues: $(READY) control-plane ## two teams that lend to each other, with Kueue's own manager (KEEP=1 leaves it running)
	@$(BIN)/python tools/queues_demo.py $(if $(KEEP),--keep)

.PHONY: kind-demo
kind-demo: $(READY) ## the same on a cluster of kind, with Docker, kind, kubectl and helm (KEEP=1; LOCAL=1: all of these made here)
	@PATH="$(abspath $(BIN)):$$PATH" $(if $(LOCAL),$(BIN)/python tools/kind_lab.py run) examples/kind/demo.sh

.PHONY: test-kind
test-kind: $(READY) ## as root, where no Docker runs: the tests on clusters of kind, with Docker, kind and its images made here
	@tools/system-packages docker
	$(BIN)/python tools/kind_lab.py build || echo "==> the tests say what is missing"
	$(BIN)/python -m pytest --durations=0 --durations-min=5 $(KIND)

.PHONY: pods
pods: $(READY) control-plane ## as root: all of it as pods on two real nodes of this machine, from nothing, with the time
	@CI=true $(BIN)/python -m pytest -q tests/node/test_as_pods.py -k from_nothing

.PHONY: check
check: export GPULEDGER_TEST_EFFORT = check
# These tests compute more than they wait, so one process for each core is enough. The longest files begin first.
check: WORKERS := $(shell n=$$(nproc); echo $$((n < 8 ? n : 8)))
check: lint ## what to run while you work: lint, and the tests that need no control plane, with fewer tries
	@echo "==> pure tests"
	$(PYTEST) -q tests/documents tests/simulation tests/properties tests/house_rules tests/unit

.PHONY: test
test: $(READY) $(DOCS)/.ready ## pure tests, and of each promise the tests with real programs (or all of TESTS=tests/cluster; SEED=1 WORKERS=5)
	@tools/system-packages
	$(BIN)/python tools/prepare_tests.py
	echo "==> tests"
	# Once, where nothing is compiled yet: else each worker compiles all files for itself.
	[ -e tests/__pycache__ ] || $(BIN)/python -m pytest -qq --collect-only > /dev/null || true
	if [ -n "$(TESTS)" ]; then
		$(PYTEST) --durations=10 --durations-min=1 $(TESTS)
	else
		status=0
		$(PYTEST) $(LANE) --durations=10 --durations-min=1 tests $(addprefix --ignore=,$(ALONE) $(KIND)) || status=$$?
		echo "==> tests in $(ALONE), which measure seconds and so run alone"
		$(PYTEST) $(LANE) -n 0 --durations=10 --durations-min=1 $(ALONE) || status=$$?
		exit $$status
	fi

.PHONY: test-all
test-all: export GPULEDGER_TEST_EFFORT = test-all
test-all: LANE :=
# All tests on nodes are many more that measure seconds than those of promises.
test-all: ALONE += tests/node
test-all: test ## all tests, with thousands of random lives, large crowds, all crash points and chaos: some hours
	@for version in 1.34 1.36 1.37; do GPULEDGER_KUBERNETES=$$version $(MAKE) --no-print-directory test-kind; done

.PHONY: durations
durations: $(READY) ## write down in tests/durations.json how long the tests of the last `make test` took
	@$(BIN)/python -m pytest $(LANE) -q --collect-only tests | PYTHONPATH=tests $(BIN)/python tests/lanes.py

.PHONY: test-gpu
test-gpu: $(READY) ## on a machine with an NVIDIA card: what only a card can show (GPULEDGER_HAMI_CORE=PATH/libvgpu.so)
	@CI=true $(BIN)/python -m pytest -q tests/gpu

.PHONY: mutants
mutants: $(READY) ## make small faults in the code, and see whether the unit tests notice (COUNT=40 SEED=1)
	@$(BIN)/python tools/mutants.py --count $(or $(COUNT),40) $(if $(SEED),--seed $(SEED))

.PHONY: chaos
chaos: $(READY) control-plane ## try to break it, seed after seed (SEED=1 MINUTES=30; MINUTES=0: that seed only; AGAIN=1)
	@PYTHONPATH="$${PYTHONPATH:+$$PYTHONPATH:}tests:tools" $(BIN)/python -m chaos --seed $(or $(SEED),1) \
		--minutes $(or $(MINUTES),30) $(if $(AGAIN),--again)

.PHONY: node-chaos
node-chaos: $(READY) control-plane ## as root: the same with agent, kubelet and containerd of a real node (SEED=1 MINUTES=30 AGAIN=1)
	@PYTHONPATH="$${PYTHONPATH:+$$PYTHONPATH:}tests:tools" $(BIN)/python -m node_chaos --seed $(or $(SEED),1) \
		--minutes $(or $(MINUTES),30) $(if $(AGAIN),--again)

.PHONY: chaos-report
chaos-report: $(READY) ## show what the seeds have found so far, of both
	@PYTHONPATH=tests:tools $(BIN)/python -m chaos --report
	PYTHONPATH=tests:tools $(BIN)/python -m node_chaos --report

.PHONY: lint
lint: $(READY) ## check style, types and the direction of imports
	@echo "==> ruff"
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	echo "==> mypy"
	$(BIN)/mypy
	echo "==> import-linter"
	$(BIN)/lint-imports

.PHONY: bench
bench: $(READY) control-plane ## measure speed and cost on a real control plane (FULL=1: all sizes; BENCH="--nodes 1000 ...")
	@$(BIN)/python tools/bench.py $(if $(FULL),--full) $(BENCH)

.PHONY: bench-gangs
bench-gangs: $(READY) control-plane ## measure gangs of 8 and of 64 beside the same pods without a group
	@$(BIN)/python tools/bench.py --only gangs-of-8,gangs-of-64 --rounds 5 $(BENCH)

.PHONY: bench-filter
bench-filter: $(READY) ## measure Filter and the ledger's memory without a cluster (PROFILE=file: collapsed stacks)
	@$(BIN)/python tools/bench.py filter $(if $(PROFILE),--profile $(PROFILE)) $(BENCH)
	$(BIN)/python tools/bench.py memory

.PHONY: bench-preempt
bench-preempt: $(READY) ## measure the choice of victims without a cluster
	@$(BIN)/python tools/bench.py preempt $(BENCH)

.PHONY: bench-watches
bench-watches: $(READY) ## measure Kopf's watches beside the plain one without a cluster
	@$(BIN)/python tools/bench.py watches $(BENCH)

.PHONY: bench-soak
bench-soak: $(READY) control-plane ## measure the operator's memory over 100,000 assignments (20 minutes)
	@$(BIN)/python tools/bench.py soak $(BENCH)

.PHONY: replay
replay: $(READY) ## replay a trace: which policy wastes least (REPLAY="--nodes nodes.csv --pods pods.csv --policy all")
	@PYTHONPATH="$${PYTHONPATH:+$$PYTHONPATH:}tools" $(BIN)/python -m replay $(REPLAY)

.PHONY: docs
docs: $(DOCS)/.ready ## make the site of the documents, in build/docs/
	@echo "==> build/docs/index.html"
	$(DOCS)/bin/sphinx-build -W --keep-going -q -E -d build/docs-doctrees -c docs -b html . build/docs

.PHONY: image
image: $(READY) ## build the container image without Docker, with its bill of materials, into build/ (HAMI_CORE=libvgpu.so: with it)
	@$(BIN)/python tools/container_image.py $(if $(HAMI_CORE),--hami-core $(HAMI_CORE)) build/gpuledger.tar

.PHONY: publish
publish: $(READY) ## build image and chart and push them under this version (REGISTRY=registry.example.com/team HOME_URL=... DRY_RUN=1)
	@$(BIN)/python tools/publish.py $(REGISTRY) $(if $(HOME_URL),--home-url $(HOME_URL)) $(if $(DRY_RUN),--dry-run) \
		$(foreach each,$(BUILD_ARGS),--build-arg $(each))

.PHONY: wheel
wheel: $(READY) ## make the wheel of a release, with the plugin for kubectl in it, into build/dist/
	@$(BIN)/python -m hatchling build --target wheel --directory build/dist

.PHONY: krew
krew: $(READY) ## make the plugin's archive for krew and its manifest, into build/dist/ (URL=where the archive is published)
	@$(BIN)/python tools/krew_archive.py $(URL)

.PHONY: generate
generate: $(READY) ## write anew what comes from the code: CRD, policies, the chart's files, manifests/, reference, gRPC
	@for kind in GPUAllocation GPUReservation GPUUsage; do
		file=crds/gpuledger.dev_$$(tr '[:upper:]' '[:lower:]' <<< $$kind)s.yaml
		echo "==> $$file"
		crd=$$($(BIN)/gpuledger crd --kind $$kind)
		printf '%s\n' "$$crd" > $$file
	done
	$(BIN)/python tools/chart.py
	for kind in validating mutating agents; do
		file=manifests/admission/$$kind.yaml
		if [ $$kind = agents ]; then file=manifests/agent/policy.yaml; fi
		echo "==> $$file"
		policies=$$($(BIN)/gpuledger admission-policies --settings manifests/settings.yaml --kind $$kind)
		printf '%s\n' "$$policies" > $$file
	done
	echo "==> docs/reference/commands.md, gpuallocation.md, promises.md"
	PYTHONPATH=tests $(BIN)/python tools/reference_docs.py
	echo "==> operator/gpuledger/agent/_generated/*.py"
	cd operator
	../$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. gpuledger/agent/_generated/*.proto

.PHONY: lock
lock: $(READY) ## write requirements/*.txt anew (UPGRADE=1 takes newer versions too)
	@echo "==> requirements/runtime.txt, dev.txt, docs.txt, go.txt, uv.txt"
	$(COMPILE) --all-extras pyproject.toml -o requirements/runtime.txt
	$(COMPILE) -c requirements/runtime.txt --all-extras --group dev pyproject.toml -o requirements/dev.txt
	$(COMPILE) --group pyproject.toml:docs -o requirements/docs.txt
	$(COMPILE) requirements/go.in -o requirements/go.txt
	$(COMPILE) requirements/uv.in -o requirements/uv.txt

.PHONY: control-plane
control-plane: $(READY) ## build etcd and Kubernetes into the cache, if they are not there
	@$(BIN)/python tools/build_control_plane.py > /dev/null

.PHONY: clean
clean: ## remove the virtual environment and all caches in this checkout
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
	find . -path ./.git -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
	echo "The built control plane stays in $(CACHE); \`make clean-cache\` removes it."

.PHONY: clean-cache
clean-cache: ## remove the built control plane (Go's own caches: go clean -cache -modcache)
	@rm -rf "$(CACHE)"

# The stamp is newer than the lock when everything is installed.
$(READY): requirements/dev.txt requirements/uv.txt pyproject.toml
	@if ! $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null; then
		echo "error: $(PYTHON) is missing or older than 3.11 ($$($(PYTHON) --version 2>&1 || true))." >&2
		echo "Install Python 3.11 or newer, or name one: make PYTHON=/path/to/python3.12 ..." >&2
		exit 1
	fi
	if [ ! -x $(BIN)/pip ]; then
		echo "==> virtual environment .venv"
		if ! $(PYTHON) -c 'import ensurepip, venv' 2> /dev/null; then
			echo "error: $(PYTHON) can't make virtual environments. On Debian and Ubuntu: apt install python3-venv" >&2
			exit 1
		fi
		$(PYTHON) -m venv .venv
	fi
	echo "==> Python packages, as pinned in requirements/dev.txt"
	$(BIN)/python -m pip --disable-pip-version-check install --quiet --require-hashes -r requirements/uv.txt
	$(UV) pip install --python $(BIN)/python --require-hashes -r requirements/dev.txt
	$(UV) pip install --python $(BIN)/python --no-deps --no-build-isolation -e .
	touch $@

# Sphinx has an environment of its own: who only runs tests of the program does not install it.
$(DOCS)/.ready: | $(READY)
	@echo "==> Python packages, as pinned in requirements/docs.txt"
	$(PYTHON) -m venv --clear --without-pip $(DOCS)
	$(UV) pip install --python $(DOCS)/bin/python --require-hashes -r requirements/docs.txt
	touch $@
