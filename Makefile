# The index of commands: `make help`. CI runs the same targets (.ci/run), so what passes here passes there.
# Every target that needs Python runs tools/setup.sh first, which returns at once when nothing has changed.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
# Every rank and every command of a test imports torch: 3 s of a core from bytecode, 6 s where none may be written.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
JOB ?= examples/01-laptop/job.yaml
TESTS ?= tests
PYTEST_ARGS ?=
REPORT ?= runs/gpu-report
REPORT_ARGS ?=
CHAOS_ARGS ?=
CHAOS_SECONDS ?= 3600
QUEUE_ARGS ?=
WALK_ARGS ?=
BARE_ARGS ?=
DOCTOR_ARGS ?=
RELEASE_ARGS ?=
# Sums are no secrets, and what is generated or kept of a release holds thousands.
SCANNED = . ':!*.lock' ':!*.sum' ':!*.sha256' ':!*.svg' ':!*.png' ':!*crd.yaml' ':!tools/control_plane/*.txt' \
  ':!tests/fixtures/release-*' ':!tests/fixtures/tensorflow' ':!tests/golden'
FUZZ_ARGS ?=
FUZZ_SECONDS ?= 120
# Of test-older-torch: 2.7 (V100) or 2.4 (what ONNX Runtime's training needs).
TORCH ?= 2.7
# transformers needs torch 2.6, and operators of GPUs have no shapes on the meta device in 2.4.
OLDER_TORCH_TESTS = $(addprefix tests/,model optimizer schedule dropout kernels training evaluation distributed processor export/test_onnx_export.py \
  $(if $(filter 2.7,$(TORCH)),gpu checkpoint finetuning)) $(if $(filter 2.4,$(TORCH)), \
  --ignore=tests/model/test_against_huggingface.py --ignore=tests/training/test_initial_model_folder.py)
# The whole suite runs in two processes, of which the first to end takes tests of the other's share. A third made it 3 %
# faster on two cores, for 1.8 GB and a tenth more processor time. A part of it runs in one process, which starts sooner.
# A debugger needs PYTEST_ARGS="-n0 --pdb".
TEST_WORKERS = $(if $(filter tests,$(TESTS)),-n 2 --dist worksteal)

COMPILE = UV_CUSTOM_COMPILE_COMMAND="make lock" $(BIN)/uv pip compile --universal --python-version 3.11 \
  --generate-hashes --no-emit-index-url --quiet $(UPGRADE)

##@ Use it

help: ## List the targets
	@awk 'BEGIN { FS = ":.*## " } /^##@/ { printf "\n%s\n", substr($$0, 5) } \
	  /^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Make .venv from requirements.lock, with Horovod (PYTHON=python3.12, BERT_MPI=gloo, BERT_COLLECTIVES=torch)
	@tools/setup.sh $(if $(filter setup,$(MAKECMDGOALS)),,--quiet)

# A first look need not wait until Horovod is compiled: torch.distributed is there as soon as PyTorch is.
demo: ## Pretrain a small BERT on this machine with two ranks, setting up what that needs (JOB=another/job.yaml)
	@tools/setup.sh --quiet --first
	@$(BIN)/bert-operator local $(JOB)

recording: setup ## A job's day on the test cluster, as kubectl bert shows it: docs/guides/a-jobs-day.md (as cluster-demo)
	@BERT_RECORD_TO=docs/guides/a-jobs-day.md $(BIN)/pytest -q -m cluster tests/cluster/test_kubectl_bert.py

cluster-demo: setup ## Two jobs on a cluster of one node, made for the purpose (root, buildah, containerd)
	@$(BIN)/python tools/cluster_demo.py

bench-convergence: setup ## Train for up to an hour on two cores and draw the curve beside the published one
	@$(BIN)/python benchmarks/convergence/run.py

bench-build: setup ## Text to shards beside the tokenizer alone, on one core; peak memory at 200 MB and 2 GB (15 minutes)
	@$(BIN)/python benchmarks/data/build.py

bench-data: setup ## The data benchmarks one after the other: text to shards, to batches, to a training run (20 minutes)
	@$(BIN)/python benchmarks/data/run.py $(BENCH_ARGS)

bench-trainer: setup ## BERT-base's step on this processor beside Hugging Face's, eager and compiled; then bench-collectives (20 minutes)
	@$(BIN)/python benchmarks/trainer/run.py $(BENCH_ARGS)
	@$(BIN)/python benchmarks/trainer/modernbert.py
	@$(BIN)/python benchmarks/trainer/collectives.py

bench-collectives: setup ## BERT-base's step on two ranks, by Horovod and by torch.distributed (5 minutes)
	@$(BIN)/python benchmarks/trainer/collectives.py $(BENCH_ARGS)

bench-engines: setup ## One pass of BERT-base by plain operations, compiled, by our kernels and by ONNX Runtime (30 minutes)
	@$(BIN)/python benchmarks/engines.py $(BENCH_ARGS)

bench-finetune: setup ## What fine-tuning learns: docstrings from pretrained and random weights, a planted rule, questions (25 minutes)
	@$(BIN)/python benchmarks/finetuning/run.py $(BENCH_ARGS)

bench-finetune-speed: setup ## Fine-tuning BERT-base beside transformers' Trainer on this processor (15 minutes)
	@$(BIN)/python benchmarks/finetuning/speed.py $(BENCH_ARGS)

bench-recipes: setup ## Azure ML's recipe on this machine: samples/s of large, base and distil (BENCH_ARGS="--models base")
	@$(BIN)/python benchmarks/finetuning/recipes.py $(BENCH_ARGS)

bench-gpu: setup ## One GPU beside Hugging Face, BERT-large (BENCH_ARGS="--device cpu --preset tiny --sequences 8" is a check)
	@$(BIN)/python benchmarks/gpu.py $(BENCH_ARGS)

gpu-report: setup ## What only a GPU shows, on one page, in 9 minutes (REPORT=folder REPORT_ARGS="--only tests,loss")
	@PYTHON=$(CURDIR)/$(BIN)/python tools/gpu_report.sh $(REPORT_ARGS) $(REPORT)

gpu-report-rehearsal: setup ## The same at small size on processors, for whoever changes it (5 minutes)
	@PYTHON=$(CURDIR)/$(BIN)/python tools/gpu_report.sh --small --device cpu --seconds 1800 $(REPORT_ARGS) $(REPORT)

bench-operator: setup ## Create 100, 1,000 and 3,000 jobs on a real API server, beside a bare client (BENCH_ARGS="--jobs 100": 2 minutes)
	@$(BIN)/python benchmarks/operator/run.py $(BENCH_ARGS)

##@ Work on it

test: setup ## Run the tests (TESTS=tests/planning PYTEST_ARGS="-k resume -x")
	@BERT_TEST_MINILM=$$(tools/minilm.sh) $(BIN)/pytest -m "not api_server and not cluster and not cpumanager and not long and not manifests and not ort and not tensorflow" $(TEST_WORKERS) $(TESTS) $(PYTEST_ARGS)

test-long: setup ## Run the tests that make test leaves out for the time they take
	@$(BIN)/pytest -m "long and not api_server" $(TEST_WORKERS) $(TESTS) $(PYTEST_ARGS)

test-bare: ## make demo and make test in a chroot with Python, make and a compiler alone (root, debootstrap; 30 minutes; BARE_ARGS="TESTS=tests/pod")
	@tools/bare_machine.sh $(BARE_ARGS)

test-stops: setup ## Stop pods at 40 moments of their start and kill 100 ranks, per MPI (tests/pod/flavours.py; 40 minutes)
	@BERT_TEST_STOPS=40 BERT_TEST_KILLS=100 $(BIN)/pytest -rA tests/pod/test_early_stop.py tests/pod/test_kills.py $(PYTEST_ARGS)

test-stops-on-cluster: setup ## Stop jobs at 40 moments of their start on a cluster of one node (10 minutes)
	@BERT_TEST_STOPS=40 $(BIN)/pytest -m cluster tests/cluster/test_early_stop.py $(PYTEST_ARGS)

test-modernbert: setup ## Hold ModernBERT to transformers, its kernels to plain operations, runs of it to each other (4 minutes)
	@$(BIN)/pytest -m "not api_server and not cluster" -k "modern" tests/model tests/kernels tests/gpu tests/finetuning \
	  tests/export tests/run_folder tests/training tests/contract $(PYTEST_ARGS)

test-api: setup ## Run the tests against a real Kubernetes API server, built the first time (8 minutes)
	@$(BIN)/pytest -m api_server -n 2 --dist worksteal tests/api_server $(PYTEST_ARGS)

walk: setup ## Walk over the spec at random on a real API server, 2,000 transitions (WALK_ARGS="--seed 7 --transitions 500"; 10 minutes)
	@$(BIN)/python tests/walk/run.py $(WALK_ARGS)

test-doctor: setup ## Plant 15 faults, and some more, in a cluster on a real API server: the doctor finds each (1 minute)
	@$(BIN)/python tests/doctor/run.py $(DOCTOR_ARGS)

test-memory: setup ## See how much memory 2,000 of the largest jobs take (10 minutes)
	@LARGE_JOBS=2000 $(BIN)/pytest -s tests/large_jobs $(PYTEST_ARGS)

test-cluster: setup ## Run jobs on a cluster of one node (root, buildah, containerd), or on the one of KUBECONFIG
	@$(BIN)/pytest -m cluster tests/cluster $(PYTEST_ARGS)

chaos: setup ## Faults on a cluster of one node, at seeded moments of real jobs (CHAOS_ARGS="--only SIGKILL --moments 1 --resume")
	@$(BIN)/python tests/chaos/run.py $(CHAOS_ARGS)

chaos-quiet: setup ## Healthy jobs with a slow disk, a slow API server and busy processors: no restart (CHAOS_ARGS="--runs 10")
	@$(BIN)/python tests/chaos/quiet.py $(CHAOS_ARGS)

test-queue: setup ## The real Kueue preempts real jobs on a cluster of one node; two operators and their Lease (QUEUE_ARGS="--only victim")
	@$(BIN)/python tests/queue/run.py $(QUEUE_ARGS)

dashboards: setup ## Draw the dashboards' panels from what a real Prometheus answers to docs/images (2 minutes; apt-get install prometheus)
	@PYTHONPATH=operator:trainer:tools:tools/local_cluster:tests/support:tests/deploy $(BIN)/python tools/draw_dashboards.py

fuzz: setup ## Coverage-guided fuzzing of every reader of files from elsewhere (FUZZ_SECONDS=3600 FUZZ_ARGS="--only shards")
	@$(BIN)/python tests/fuzz/run.py --seconds $(FUZZ_SECONDS) $(FUZZ_ARGS)

chaos-walk: setup ## Faults and changes of two jobs at random, one after another (CHAOS_SECONDS=3600 CHAOS_ARGS="--seed 7")
	@$(BIN)/python tests/chaos/walk.py --seconds $(CHAOS_SECONDS) $(CHAOS_ARGS)

test-cuda-image: setup ## Build the CUDA image and look at it on a node without a GPU (root; 20 minutes, 25 GB of disk)
	@BERT_TEST_CUDA_IMAGE=1 $(BIN)/pytest -m cluster -s tests/cluster/test_cuda_image.py $(PYTEST_ARGS)

test-tensorflow: setup ## Exchange checkpoints and records with real TensorFlow, BERT-base and large (10 minutes, 6 GB of disk)
	@BERT_TEST_TENSORFLOW=$$(tools/tensorflow.sh) $(BIN)/pytest -m tensorflow -s tests/tensorflow_checkpoints tests/data/test_tensorflow_records.py $(PYTEST_ARGS)

test-ort: setup ## Train with ONNX Runtime in an environment of its own, made the first time (6 GB, 10 minutes)
	@BERT_TEST_ORT=$$(tools/ort.sh) $(BIN)/pytest -m ort -s tests/ort $(PYTEST_ARGS)

test-older-torch: setup ## Train, resume, score and compile for V100 with torch 2.7.1, which it installs outside the clone (TORCH=2.4; 20 minutes)
	@PYTHONPATH=$(CURDIR)/trainer:$(CURDIR)/operator $$(tools/older_torch.sh $(TORCH))/bin/python -m pytest -n0 \
	  -W 'ignore:`torch.cpu.amp.autocast:FutureWarning' -m "not long" $(OLDER_TORCH_TESTS) $(PYTEST_ARGS)

test-manifests: setup ## Check deploy/, charts/ and examples/ for Kubernetes 1.31 to 1.36; builds its tools and the API server once
	@$(BIN)/pytest -m manifests tests/deploy $(PYTEST_ARGS)

test-manifests-oldest: setup ## Have the API server of the oldest supported release take all that (4 minutes for building it once)
	@BERT_TEST_KUBERNETES=oldest $(BIN)/pytest -m "manifests or api_server" --timeout 300 tests/deploy/test_examples.py \
	  tests/deploy/test_on_api_server.py tests/api_server/test_schema_agrees.py \
	  tests/api_server/test_schema_definition.py tests/api_server/test_schema_immutability.py \
	  tests/api_server/test_size_bound.py tests/api_server/test_rendered_children.py \
	  tests/api_server/test_mistakes_at_apply.py \
	  "tests/api_server/test_bench.py::test_the_api_server_is_of_the_pinned_version" $(PYTEST_ARGS)

test-cpumanager: setup ## Ask kubelet's own CPU manager which CPUs our pods get on machines with hyper-threads (4 minutes the first time)
	@$(BIN)/pytest -m cpumanager -s tests/cpumanager $(PYTEST_ARGS)

check: lint types layers generated secrets ## Everything that needs no test run: lint, types, layers, generated, secrets

lint: setup ## Style, formatting and spelling
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet . || { echo "make format fixes that"; exit 1; }
	@$(BIN)/codespell

types: setup ## Strict types of both packages and the tools
	@$(BIN)/mypy

layers: setup ## Who may import whom, as pyproject.toml says
	@$(BIN)/lint-imports --no-logo --no-cache

secrets: setup ## Fail if a file holds something like a password or key that .secrets.baseline does not know
	@git ls-files -z -- $(SCANNED) | xargs -0 -n 400 -P 2 $(BIN)/detect-secrets-hook --baseline .secrets.baseline

crossings: setup ## Which modules a spec field, a sentence and a step go through (CROSSINGS_ARGS=". another/checkout")
	@$(BIN)/python tools/crossings.py $(CROSSINGS_ARGS)

generated: setup ## Fail if a generated page or the CRD is older than its source
	@$(BIN)/python tools/generate.py --check

generate: setup ## Write docs/reference and the CRD again
	@$(BIN)/python tools/generate.py

docs: setup ## Make the documentation's site in build/site, for a browser; warnings are errors
	@$(BIN)/python tools/docs_site.py "$$(tools/docs.sh)"

format: setup ## Let ruff format and fix what it can
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

lock: setup ## Resolve requirements.lock and tools/docs.lock again (UPGRADE=--upgrade takes new versions)
	@$(COMPILE) pyproject.toml --extra operator --extra trainer --extra mpi --extra dev -o requirements.lock
	@$(COMPILE) --group docs -o tools/docs.lock

release: setup ## Make the files of a release in dist/, from the last commit (RELEASE_ARGS="--images none")
	@$(BIN)/python tools/make_release.py $(RELEASE_ARGS)

plugin: setup ## Make kubectl-bert, a plugin of kubectl in one file that needs Python alone, in dist/plugin/
	@$(BIN)/python tools/make_plugin.py

clean: ## Remove .venv and every cache inside the clone (downloads and wheels outside it stay)
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Every target: none of them makes a file of its name.
.PHONY: $(shell sed -n 's/^\([a-z][-a-z]*\):.*/\1/p' $(firstword $(MAKEFILE_LIST)))
