//! Limits of containers, and what they use.
