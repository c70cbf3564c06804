//! The client on a real containerd.
