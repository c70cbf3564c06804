//! The kubelet API over real connections.
