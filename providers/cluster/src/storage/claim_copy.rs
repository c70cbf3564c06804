//! The copy of a claim in the lower cluster, and what the user of the upper claim should know about it.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use vk_kube::event::Severity;
use vk_provider::Quantity;

use super::claim_tracker::ClaimKey;
use crate::{
    names::{self, annotation},
    status::truncate,
};

const MAX_MESSAGE: usize = 980;
const MAX_REASON: usize = 128;

/// A condition of a copy that is worth an event.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ClaimFact {
    pub(super) reason: String,
    pub(super) message: String,
    pub(super) is_error: bool,
}

/// The copy of a claim.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ClaimCopy {
    /// The upper claim.
    pub(super) source: ClaimKey,
    /// The UID of the upper claim.
    pub(super) uid: String,
    pub(super) facts: Vec<ClaimFact>,
    /// The capacity.
    pub(super) capacity: Option<Quantity>,
}

// === impl ClaimFact ===

impl ClaimFact {
    pub(super) fn severity(&self) -> Severity {
        if self.is_error { Severity::Warning } else { Severity::Normal }
    }
}

// === impl ClaimCopy ===

impl ClaimCopy {
    /// Reads a lower claim; `None` if it is not a copy.
    pub(super) fn read(claim: &PersistentVolumeClaim) -> Option<Self> {
        let said = |key| annotation(&claim.metadata, key).map(str::to_owned);
        let source = ClaimKey { namespace: said(names::ORIGIN_NAMESPACE)?, name: said(names::ORIGIN_NAME)? };
        let status = claim.status.as_ref();
        let conditions = status.and_then(|status| status.conditions.as_deref()).unwrap_or_default();
        let mut facts: Vec<ClaimFact> = conditions
            .iter()
            .filter(|condition| condition.status == "True" && !condition.type_.is_empty())
            .map(|condition| ClaimFact {
                reason: truncate(&condition.type_, MAX_REASON),
                message: text(condition.message.as_deref(), condition.reason.as_deref()),
                is_error: condition.type_.contains("Error"),
            })
            .collect();
        if status.and_then(|status| status.phase.as_deref()) == Some("Lost") {
            facts.push(ClaimFact {
                reason: "ClaimLost".to_owned(),
                message: "the volume of the claim does not exist any more (lower)".to_owned(),
                is_error: true,
            });
        }
        let capacity = status.and_then(|status| status.capacity.as_ref()?.get("storage"));
        Some(Self {
            source,
            uid: said(names::ORIGIN_UID)?,
            facts,
            capacity: capacity.and_then(|capacity| Quantity::try_from(capacity).ok()),
        })
    }
}

/// The message or reason of the lower cluster, marked as such.
fn text(message: Option<&str>, reason: Option<&str>) -> String {
    let given = [message, reason].into_iter().flatten().map(str::trim).find(|text| !text.is_empty());
    match given {
        Some(given) => format!("{} (lower)", truncate(given, MAX_MESSAGE)),
        None => "(lower)".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(status: &Value) -> ClaimCopy {
        let annotations =
            json!({names::ORIGIN_NAMESPACE: "shop", names::ORIGIN_NAME: "data", names::ORIGIN_UID: "u1"});
        let claim = json!({"metadata": {"name": "data", "annotations": annotations}, "status": status});
        ClaimCopy::read(&serde_json::from_value(claim).unwrap()).unwrap()
    }

    #[test]
    fn conditions_keep_the_message_of_the_lower_cluster() {
        let conditions = json!([
            {"type": "Resizing", "status": "True", "reason": "InProgress"},
            {"type": "ControllerResizeError", "status": "True", "message": "quota exceeded: é".repeat(200)},
            {"type": "FileSystemResizePending", "status": "False", "message": "no"},
        ]);
        let copy = read(&json!({"phase": "Bound", "conditions": conditions, "capacity": {"storage": "5Gi"}}));
        let said: Vec<_> = copy.facts.iter().map(|fact| (fact.reason.as_str(), fact.is_error)).collect();
        assert_eq!(said, [("Resizing", false), ("ControllerResizeError", true)]);
        assert_eq!(copy.facts[0].message, "InProgress (lower)");
        let long = &copy.facts[1].message;
        assert!(
            long.starts_with("quota exceeded") && long.len() <= 1000 && long.ends_with("... (lower)"),
            "{long}"
        );
        assert_eq!((copy.uid.as_str(), copy.capacity), ("u1", Some("5Gi".parse().unwrap())));
    }

    #[test]
    fn a_lost_claim_is_an_error() {
        assert_eq!(read(&json!({"phase": "Lost"})).facts[0].reason, "ClaimLost");
        assert!(read(&json!({"phase": "Pending"})).facts.is_empty());
    }

    #[test]
    fn a_claim_that_is_not_a_copy_is_ignored() {
        assert_eq!(ClaimCopy::read(&PersistentVolumeClaim::default()), None);
    }
}
