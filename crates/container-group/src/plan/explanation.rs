//! What becomes of a pod, for `virtual-kubelet explain-pod`: the translation's outcome in the contract's words.
//!
//! ```
//! use std::sync::Arc;
//!
//! use vk_container_group::{
//!     backend::{Plan, Rejection},
//!     plan::{explanation::{Source, OfflinePod}, policy::{Choices, PolicyTable}},
//! };
//! use vk_provider::{Explanation, ExplainRequest};
//!
//! const FIELDS: PolicyTable = PolicyTable { cloud: "Cloud", rows: &[] };
//!
//! fn explain(request: &ExplainRequest) -> Explanation {
//!     let pod = OfflinePod::new(Arc::clone(&request.pod));
//!     let review = FIELDS.review(&request.pod, &Choices::default());
//!     // Here the cloud's translation of `pod.resolved` does the rest.
//!     let outcome: Result<Plan<()>, Rejection> = review.diagnostics().finish(Plan::new(()));
//!     Source { review: &review, outcome: outcome.as_ref(), requested: None, given: None, size_reason: String::new(), price: None }
//!         .explanation(&pod)
//! }
//! assert!(explain(&ExplainRequest { pod: Arc::default(), ask_backend: false }).runs());
//! ```

mod offline;

use vk_provider::{
    Explanation,
    explanation::{FieldPolicy, FieldResult, FileUsage, PriceEstimate, SizeChoice},
    requests::ResourceList,
};

pub use self::offline::OfflinePod;
use super::{
    files::{self, FileLimits},
    policy::{Outcome, Review},
    size::{Requested, Resources},
};
use crate::backend::{Plan, Rejection, Size};

/// What an explanation is made of.
#[derive(Debug)]
pub struct Source<'a, R> {
    /// What the field policy says about the pod.
    pub review: &'a Review,
    /// What the translation says about it. Its messages replace those of the policy.
    pub outcome: Result<&'a Plan<R>, &'a Rejection>,
    /// What the pod requests.
    pub requested: Option<&'a Requested>,
    /// The size that the group gets: that of the plan, if it is not given here; `None` for a pod that is too large.
    pub given: Option<Size>,
    /// Why it gets this size, such as `next larger ECI size`. By default whether it is what was requested.
    pub size_reason: String,
    /// What it costs.
    pub price: Option<PriceEstimate>,
}

impl<R> Source<'_, R> {
    /// The explanation. Fields come in the order of the API types, refusals and warnings of the translation about others after them.
    pub fn explanation(self, pod: &OfflinePod) -> Explanation {
        let mut fields: Vec<FieldResult> = self.review.fields.iter().map(field_result).collect();
        match self.outcome {
            Ok(plan) => {
                for warning in &plan.warnings {
                    amend(&mut fields, &warning.field, &warning.message, FieldPolicy::Ignored);
                }
            }
            Err(rejection) => {
                for error in &rejection.errors {
                    amend(&mut fields, &error.field, &error.message, FieldPolicy::Refused);
                }
            }
        }
        let size = self.size();
        Explanation {
            size,
            price: self.price,
            not_read: pod.not_read.clone(),
            fields,
            ..Explanation::default()
        }
    }

    fn size(&self) -> Option<SizeChoice> {
        let requested = self.requested?;
        let planned = self.outcome.ok().and_then(|plan| plan.size.as_ref());
        let given = self.given.as_ref().or(planned);
        let is_exact = |size: &Size| size.cpu == requested.total.cpu && size.memory == requested.total.memory;
        let reason = match given {
            _ if !self.size_reason.is_empty() => self.size_reason.clone(),
            None => "larger than every size".to_owned(),
            Some(size) if is_exact(size) => "as requested".to_owned(),
            Some(_) => "next larger size".to_owned(),
        };
        Some(SizeChoice {
            requested: list(requested.running),
            init: requested.init.map(list),
            given: given.cloned(),
            reason,
        })
    }
}

/// How much the files of a pod use, for [`Explanation::files`]. `None` if it mounts none. Contents that were not read count as empty.
pub fn file_usage(pod: &OfflinePod, limits: &FileLimits) -> Option<FileUsage> {
    let mut ignored = super::Diagnostics::default();
    let used = files::usage(&files::volumes(&pod.resolved, limits, &mut ignored));
    let bytes = |bytes: usize| u64::try_from(bytes).unwrap_or(u64::MAX);
    (used.volumes > 0).then(|| FileUsage {
        volumes: used.volumes,
        bytes: bytes(used.bytes),
        limit: Some(bytes(limits.group)),
    })
}

fn field_result(report: &super::policy::FieldReport) -> FieldResult {
    let policy = match report.outcome {
        Outcome::Native => FieldPolicy::Native,
        Outcome::Emulated => FieldPolicy::Emulated,
        Outcome::Ignored => FieldPolicy::Ignored,
        Outcome::Refused => FieldPolicy::Refused,
        Outcome::Elsewhere => FieldPolicy::Elsewhere,
    };
    FieldResult { field: report.path.clone(), policy, result: report.result.clone(), warning: report.warns }
}

/// The message of the translation about a field: in the row of the field, or in another one.
fn amend(fields: &mut Vec<FieldResult>, field: &str, message: &str, policy: FieldPolicy) {
    let is_refused = policy == FieldPolicy::Refused;
    // The policy says by itself that a field is ignored.
    let result = message.strip_prefix("ignored: ").unwrap_or(message).to_owned();
    match fields.iter_mut().find(|one| one.field == field) {
        Some(row) => {
            let is_ignored = result.len() != message.len();
            if is_refused || is_ignored {
                row.policy = policy;
            } else if row.policy == FieldPolicy::Native {
                row.policy = FieldPolicy::Emulated;
            }
            row.result = result;
            row.warning = !is_refused;
        }
        None => fields.push(FieldResult { field: field.to_owned(), policy, result, warning: !is_refused }),
    }
}

fn list(resources: Resources) -> ResourceList {
    [("cpu".to_owned(), resources.cpu), ("memory".to_owned(), resources.memory)].into()
}

#[cfg(test)]
mod tests;
