//! Probes: liveness, readiness, startup.

pub mod verdict;

pub use self::verdict::{Kind, Verdict, Verdicts};
