//! The engine: one actor per pod.
