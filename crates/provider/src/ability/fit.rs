//! Whether a node would take pods.

use std::{collections::BTreeMap, fmt, sync::Arc};

use k8s_openapi::api::core::v1::Pod;
use serde::{Deserialize, Serialize};

use crate::Quantity;

/// Tells whether the node would take pods, and how many like them.
///
/// A node that stands for many machines advertises the sum of their resources, and only its provider knows whether a single machine has
/// room for a pod. The placement of pods asks before a pod is bound.
pub trait Fit: Send + Sync {
    /// One verdict for each of `pods`, in their order.
    ///
    /// Each pod is evaluated as if the pods before it that were not refused, and all of `held`, were present, and the pods with the UIDs
    /// `without` were gone. A pod of `held` that the node already has counts once. A pod of `pods` counts as another one even if the node
    /// has it: name its UID in `without` to evaluate it in its own place.
    ///
    /// Answers from memory, at once and without side effects. A pod need not be bound or stored; `spec.nodeName` and scheduling gates
    /// are ignored. Where the provider cannot be sure it says [`Verdict::Unknown`] and never guesses.
    fn fit(&self, held: &[Arc<Pod>], pods: &[Arc<Pod>], without: &[Arc<str>]) -> Vec<Verdict>;

    /// The lower nodes that come closest to taking the pod, best first: at most `count`, and what is free on each of them now. For people
    /// who want to know why a pod does not fit.
    ///
    /// Answers from memory, like [`Fit::fit`]. Empty if the backend has no lower nodes, or does not tell.
    fn best_nodes(&self, pod: &Pod, count: usize) -> Vec<LowerNode> {
        let _ = (pod, count);
        Vec::new()
    }

    /// Whether the node takes pods on trial: a scheduler of the backend decides about every pod that is created, and the status of the pod
    /// says what it decided by the condition [`SCHEDULED_CONDITION`](crate::placement::SCHEDULED_CONDITION). A pod can then be created before
    /// it is bound, and is deleted again if the backend does not take it.
    fn takes_trials(&self) -> bool {
        false
    }
}

/// A machine behind a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LowerNode {
    /// Its name.
    pub name: String,
    /// What is free on it, by resource.
    pub free: BTreeMap<String, Quantity>,
}

/// Whether a node would take a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "camelCase")]
pub enum Verdict {
    /// It would.
    Fits {
        /// How many pods like this one it would take, including this one: at least 1.
        room: u32,
        /// How full the best lower node would be with the pod: the percentage of its scarcest resource, at most 100.
        fullness: u8,
    },
    /// The provider cannot tell.
    Unknown {
        /// What it cannot evaluate, on one line.
        why: String,
    },
    /// It would not.
    Refused {
        /// The causes: at least one, the one with the most lower nodes first.
        why: Vec<Cause>,
        /// Whether the refusal stays while other pods go: the pod, the lower nodes or a limit would have to change.
        lasting: bool,
    },
}

/// Why a node refuses a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    /// The cause on one line. The same cause always has the same text, but for amounts: see [`kind_text`](Self::kind_text).
    pub text: String,
    /// How many lower nodes refuse the pod for this cause. Every lower node counts once; 0 if the cause is not about single nodes.
    pub nodes: u32,
}

// === impl Verdict ===

impl Verdict {
    /// Refuses a pod for one cause that is not about single lower nodes.
    pub fn refused(text: impl Into<String>, lasting: bool) -> Self {
        Self::Refused { why: vec![Cause { text: text.into(), nodes: 0 }], lasting }
    }

    /// Leaves the question open.
    pub fn unknown(why: impl Into<String>) -> Self {
        Self::Unknown { why: why.into() }
    }

    /// Whether the pod fits for sure.
    pub fn fits(&self) -> bool {
        matches!(self, Self::Fits { .. })
    }
}

impl fmt::Display for Verdict {
    /// One line for people, such as `0 of 100 lower nodes (60 insufficient cpu, 40 taint gpu)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fits { room, fullness } => write!(f, "fits (room for {room}, {fullness}% full)"),
            Self::Unknown { why } => write!(f, "unknown: {why}"),
            Self::Refused { why, .. } => {
                let (about_nodes, other): (Vec<&Cause>, Vec<&Cause>) =
                    why.iter().partition(|cause| cause.nodes > 0);
                let mut parts: Vec<String> = other.into_iter().map(|cause| cause.text.clone()).collect();
                if !about_nodes.is_empty() {
                    let total: u32 = about_nodes.iter().map(|cause| cause.nodes).sum();
                    let causes: Vec<String> = about_nodes.into_iter().map(Cause::to_string).collect();
                    parts.push(format!("0 of {total} lower nodes ({})", causes.join(", ")));
                }
                f.write_str(&parts.join("; "))
            }
        }
    }
}

// === impl Cause ===

impl Cause {
    /// The text without amounts, such as `quota "team" has … of … cpu left`: it stays the same while what is left changes. For counting
    /// and comparing causes.
    pub fn kind_text(&self) -> String {
        let is_amount = |part: &str| {
            part.starts_with(|first: char| first.is_ascii_digit()) && part.parse::<Quantity>().is_ok()
        };
        let parts = self.text.split(' ').map(|part| if is_amount(part) { "…" } else { part });
        parts.collect::<Vec<_>>().join(" ")
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.nodes {
            0 => f.write_str(&self.text),
            nodes => write!(f, "{nodes} {}", self.text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cause(text: &str, nodes: u32) -> Cause {
        Cause { text: text.to_owned(), nodes }
    }

    #[test]
    fn a_refusal_is_shown_with_the_number_of_lower_nodes_for_each_cause() {
        let why = vec![cause("insufficient cpu", 60), cause("taint gpu", 40)];
        let refused = Verdict::Refused { why, lasting: false };
        assert_eq!(refused.to_string(), "0 of 100 lower nodes (60 insufficient cpu, 40 taint gpu)");
        let quota = Verdict::refused("quota \"team\" has 2 of 8 cpu left", false);
        assert_eq!(quota.to_string(), "quota \"team\" has 2 of 8 cpu left");
        assert_eq!(Verdict::unknown("hard topology spread").to_string(), "unknown: hard topology spread");
    }

    #[test]
    fn causes_that_differ_in_amounts_only_are_of_one_kind() {
        let kind = |text: &str| cause(text, 0).kind_text();
        assert_eq!(kind("quota \"team\" has 2 of 8 cpu left"), "quota \"team\" has … of … cpu left");
        assert_eq!(
            kind("quota \"team\" has 0 of 8 cpu left"),
            kind("quota \"team\" has 1500m of 9 cpu left")
        );
        assert_eq!(
            kind("quota \"a\" has 1Gi of 2Gi memory left"),
            kind("quota \"a\" has 512Mi of 2Gi memory left")
        );
        assert_ne!(kind("quota \"1\" has 2 of 8 cpu left"), kind("quota \"2\" has 2 of 8 cpu left"));
        for same in [
            "insufficient cpu",
            "insufficient nvidia.com/mig-1g.5gb",
            "taint 2nd-pool",
            "volume a (hostPath /1)",
        ] {
            assert_eq!(kind(same), same);
        }
    }

    #[test]
    fn a_verdict_survives_json() {
        let verdicts = [
            Verdict::Fits { room: 3, fullness: 50 },
            Verdict::unknown("an autoscaling cluster"),
            Verdict::Refused { why: vec![cause("not ready", 2)], lasting: true },
        ];
        for verdict in verdicts {
            let text = serde_json::to_string(&verdict).unwrap();
            assert_eq!(serde_json::from_str::<Verdict>(&text).unwrap(), verdict, "{text}");
        }
    }
}
