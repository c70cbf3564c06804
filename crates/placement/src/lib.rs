//! Placement of pods on virtual nodes.
//!
//! A virtual node advertises the sum of what is behind it, so a pod that fits into the sum may fit on no single machine. The node itself
//! knows: [`ask`] asks it, and [`explain`] says in words what all nodes answered.

pub mod ask;
pub mod explain;
