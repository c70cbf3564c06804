//! Sandboxes and containers, as the engine wants them.
