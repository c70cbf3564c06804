# Every target installs what it needs. Builds and downloads are kept in the user's cache, outside of the checkout.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/virtual-kubelet
export CARGO_TARGET_DIR ?= $(CACHE)/target
export CARGO_TERM_COLOR ?= auto
export PATH := $(CACHE)/tools/bin:$(PATH)
STARTED := $(shell date +%s)
# The folder of libseccomp.a; .cargo/config.toml has the one of x86_64.
ifneq ($(shell uname -m),x86_64)
export LIBSECCOMP_LIB_PATH ?= /usr/lib/$(shell gcc -print-multiarch 2>/dev/null)
endif

.PHONY: help up test lint e2e e2e-node e2e-pods e2e-resolve e2e-kubectl e2e-metrics e2e-cri e2e-local e2e-cluster e2e-placement e2e-groups bench control-plane advisories clean setup

help: ## List these commands
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

setup:
	@dev/setup

control-plane: setup ## Build a Kubernetes control plane: etcd, kube-apiserver, controllers, kubectl (once)
	@dev/control-plane/build

up: control-plane ## Start a control plane and a virtual node that runs containers, until Ctrl-C
	@cargo build --package virtual-kubelet
	@printf 'Setup took %s s.\n' $$(( $$(date +%s) - $(STARTED) ))
	@exec "$$CARGO_TARGET_DIR/debug/virtual-kubelet" dev --kubeconfig-out .dev/kubeconfig $(ARGS)

test: control-plane ## Run all tests, as root against a real control plane and container runtime (ARGS=PACKAGE selects)
	@dev/setup tests
	@dev/test $(ARGS)

lint: setup ## Check formatting, lints, documentation, features, dependencies and names
	@dev/setup lint
	@cargo fmt --all --check
	@cargo clippy --workspace --all-targets --all-features -- -D warnings
	@cargo hack clippy --quiet --each-feature --exclude-features e2e --package virtual-kubelet --package vk-pod-engine --package vk-container-group --package vk-provider-cri -- -D warnings
	@RUSTDOCFLAGS="-D warnings" cargo doc --workspace --all-features --no-deps --quiet
	@cargo deny --log-level error check bans licenses sources
	@dev/cargo-test --package virtual-kubelet --test it layout -- --quiet

advisories: setup ## Check dependencies for known vulnerabilities (downloads the advisory database)
	@dev/setup lint
	@cargo deny check advisories

e2e: e2e-node e2e-pods e2e-resolve e2e-kubectl e2e-metrics e2e-cri e2e-local e2e-cluster e2e-placement e2e-groups ## Run all long tests

e2e-node: control-plane ## Long tests of nodes: 100 nodes in one process, many seeds of the node simulation
	@dev/e2e-node

e2e-pods: control-plane ## Long tests of pods: workloads of the real controllers, outages, 200 kills, many seeds of the pod simulation
	@dev/e2e-pods

e2e-resolve: control-plane ## Compare what containers of 139 pods get from the real kubelet and from ours (as root; ARGS=--record updates the recordings)
	@dev/e2e-resolve $(ARGS)

e2e-kubectl: control-plane ## Long tests of kubectl logs, exec, attach, cp, port-forward and debug over WebSocket and SPDY, also with Kubernetes 1.33
	@dev/e2e-kubectl

e2e-metrics: control-plane ## Long tests of metrics: metrics-server, kubectl top, a HorizontalPodAutoscaler
	@dev/e2e-metrics

e2e-cri: control-plane ## Compare 128 pods on the real kubelet and on ours, with containerd 1.6 and 2.x (as root; ARGS=--record updates the recordings)
	@dev/e2e-cri $(ARGS)

e2e-local: control-plane ## Compare 128 pods on the local provider and on the real kubelet; 200 kills; 50 pods that keep running (as root)
	@dev/e2e-local

e2e-cluster: control-plane ## Long tests of the cluster provider: 100 kills during a rollout of 200 pods, a lower cluster of Kubernetes 1.33
	@dev/e2e-cluster

e2e-placement: control-plane ## Long tests of placement: fit next to the real kube-scheduler for 2,000 pods, conversion on Kubernetes 1.33, 100 kills, 100 pods by gates and by the extender
	@dev/e2e-placement

e2e-groups: control-plane ## Long tests of container groups: 100 kills during rollouts on an emulated cloud with faults, 1,000 pods, an idle hour
	@dev/e2e-groups

bench: control-plane ## Compare performance with a plain client, other projects and the real kubelet (ARGS='--only bare,ours' is quick)
	@dev/bench nodes $(ARGS)
	@dev/bench pods $(ARGS)
	@dev/bench exec $(ARGS)
	@dev/bench clusters $(ARGS)
	@dev/bench groups $(ARGS)
	@dev/bench placement $(ARGS)
	@if [ "$$(id -u)" = 0 ]; then dev/bench containers $(ARGS); else echo 'Skipping pods on containers: kubelet and containerd need root' >&2; fi
	@dev/bench plot

clean: ## Remove all build results, here and in the cache
	@rm -rf target .dev "$(CACHE)"
