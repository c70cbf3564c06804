//! Pods that show what a kubelet does, and what one did.
//!
//! A [`Case`] is a file with a pod, the objects that it refers to and the [`Step`]s that it goes through: things that are done to it, and
//! checkpoints, each a predicate on the pod's status with a deadline. At each a [`Moment`] is looked at: the pod, what the runtime said,
//! what people were told, what the containers wrote. A [`Recording`] holds the moments of one run. A [`Stage`] runs cases on a
//! control plane, whoever the node is; a [`Scene`] is all that a node needs for that; and [`differences`] says in what two moments differ once everything is taken out
//! of them that no two runs have in common.

mod case;
mod follow;
mod normal;
mod predicate;
mod recording;
mod scene;
mod stage;
mod step;

pub use self::{
    case::Case,
    normal::{compare, differences},
    predicate::holds,
    recording::{Moment, Recording},
    scene::Scene,
    stage::{Look, NODE, Stage, Words},
    step::{Action, Checkpoint, Step},
};
