//! What the real kubelet does with pods, and that ours does the same.
//!
//! The corpus and what a kubelet made of it are beside the tests of the pod engine (`crates/pod-engine/tests/it/kubelet`), which replay
//! the recordings without a runtime. Here both are run, each as a node of a control plane, on a containerd of its own.

mod scene;

#[cfg(feature = "e2e")]
mod kubelet;
