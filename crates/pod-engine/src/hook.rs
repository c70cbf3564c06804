//! Lifecycle hooks: postStart and preStop.
