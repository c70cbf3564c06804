//! The engine on a fake runtime, and against what a real kubelet did.
