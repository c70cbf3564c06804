//! Sandboxes and containers from the specs of pods. Pure.
