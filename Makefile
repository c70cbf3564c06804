# Every command sets up what it needs; what is built or downloaded is kept in the user's cache, outside of the checkout.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/virtual-kubelet
export CARGO_TARGET_DIR ?= $(CACHE)/target
export CARGO_TERM_COLOR ?= auto
BEGAN := $(shell date +%s)
# Where libseccomp.a is; .cargo/config.toml says it for x86_64.
ifneq ($(shell uname -m),x86_64)
export LIBSECCOMP_LIB_PATH ?= /usr/lib/$(shell gcc -print-multiarch 2>/dev/null)
endif

.PHONY: help up test lint e2e e2e-node e2e-pods e2e-resolve e2e-kubectl e2e-metrics e2e-cri e2e-local e2e-cluster bench control-plane clean setup

help: ## Show these commands
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

setup:
	@dev/setup

control-plane: setup ## Build etcd, kube-apiserver and the rest of a real control plane (once)
	@dev/control-plane/build

up: control-plane ## Start a control plane with a virtual node that runs containers, and stay until Ctrl-C
	@cargo build --package virtual-kubelet
	@printf 'Set up in %s s.\n' $$(( $$(date +%s) - $(BEGAN) ))
	@exec "$$CARGO_TARGET_DIR/debug/virtual-kubelet" dev --kubeconfig-out .dev/kubeconfig $(ARGS)

test: control-plane ## Run all tests, against a real control plane and container runtime where they need one (those as root)
	@dev/setup tests
	@cargo test --workspace --no-fail-fast -- --include-ignored 2>&1 | \
	  awk '{ print; fflush() } /^test result/ { ok += $$4; bad += $$6 } END { printf "\n%d passed, %d failed\n", ok, bad }'

lint: setup ## Check formatting, lints, documentation and the direction of dependencies
	@cargo fmt --all --check
	@cargo clippy --workspace --all-targets --all-features -- -D warnings
	@cargo clippy --package virtual-kubelet --no-default-features -- -D warnings
	@RUSTDOCFLAGS="-D warnings" cargo doc --workspace --all-features --no-deps --quiet
	@cargo test --package virtual-kubelet --test it house -- --quiet

e2e: e2e-node e2e-pods e2e-resolve e2e-kubectl e2e-metrics e2e-cri e2e-local e2e-cluster ## Run the long tests of all areas

e2e-node: control-plane ## 100 nodes in one process; many seeds of the node simulation
	@dev/e2e-node

e2e-pods: control-plane ## Workloads of the real controllers; outages; 200 kills; many seeds of the pod simulation
	@dev/e2e-pods

e2e-resolve: control-plane ## What the real kubelet gives to the containers of 139 pods, beside what ours gives (as root; ARGS=--record writes it down)
	@dev/e2e-resolve $(ARGS)

e2e-kubectl: control-plane ## Every verb of kubectl that reaches into pods, by WebSocket and by SPDY, also with Kubernetes 1.33, with large files and many requests
	@dev/e2e-kubectl

e2e-metrics: control-plane ## metrics-server reads a virtual node; kubectl top; an autoscaler that goes up and down
	@dev/e2e-metrics

e2e-cri: control-plane ## What the real kubelet does with 128 pods, and that ours does the same, with containerd 1.6 and 2.x (as root; ARGS=--record writes it down)
	@dev/e2e-cri $(ARGS)

e2e-local: control-plane ## That 128 pods fare without a runtime as with the real kubelet; 200 kills; 50 pods that go on (as root)
	@dev/e2e-local

e2e-cluster: control-plane ## 100 kills during a rollout of 200 pods over two lower clusters; a lower cluster of Kubernetes 1.33
	@dev/e2e-cluster

bench: control-plane ## Measure, beside a bare client, the rivals and the real kubelet in the same run (ARGS='--only bare,ours' is quick)
	@dev/bench nodes $(ARGS)
	@dev/bench pods $(ARGS)
	@dev/bench exec $(ARGS)
	@dev/bench clusters $(ARGS)
	@if [ "$$(id -u)" = 0 ]; then dev/bench containers $(ARGS); else echo 'Pods on containers are left out: a kubelet and containerd have to be root' >&2; fi
	@dev/bench plot

clean: ## Remove what was built here and in the cache
	@rm -rf target .dev "$(CACHE)"
