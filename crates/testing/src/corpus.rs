//! A corpus of pods with recordings of what the real kubelet did with them.
//!
//! A [`Case`] is a file with a pod, the objects that it refers to, and [`Step`]s: actions, and checkpoints that wait for a predicate on the pod's
//! status. At each checkpoint an [`Observation`] is taken: the pod, the state of the runtime, events and logs. A [`Recording`] holds the
//! observations of one run. A [`CaseRunner`] runs cases on a control plane with any node; a [`NodeEnvironment`] is everything that the node needs.
//! [`differences`] compares two observations and ignores what differs between any two runs.

mod case;
mod comparison;
mod environment;
mod pod_watch;
mod predicate;
mod recording;
mod runner;
mod step;

pub use self::{
    case::Case,
    comparison::{compare, differences},
    environment::NodeEnvironment,
    predicate::holds,
    recording::{Observation, Recording},
    runner::{CaseRunner, NODE, Replacements, SnapshotFn},
    step::{Action, Checkpoint, Step},
};
