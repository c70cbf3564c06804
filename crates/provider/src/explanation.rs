//! What becomes of a pod on a backend, for `virtual-kubelet explain-pod`.

use std::{fmt, sync::Arc};

use k8s_openapi::api::core::v1::Pod;
use serde::{Deserialize, Serialize};

use crate::{
    inventory::{Price, Size},
    requests::ResourceList,
};

/// The question that [`Factory::explain`](crate::Factory::explain) answers.
#[derive(Clone, Debug)]
pub struct ExplainRequest {
    /// The pod, with a namespace; not from an API server: it has no UID, and nothing that it refers to can be read.
    pub pod: Arc<Pod>,
    /// Whether to ask the backend, with the credentials of the configuration: for a dry run and the price. Otherwise nothing may be called.
    pub ask_backend: bool,
}

/// What becomes of a pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Explanation {
    /// Where it would run, in a word or two, such as the region.
    pub place: Option<String>,
    /// Whether the provider passes the pod through as it is.
    pub unchanged: bool,
    /// The size that it gets.
    pub size: Option<SizeChoice>,
    /// What one such pod costs.
    pub price: Option<PriceEstimate>,
    /// The files of its volumes, as far as they can be known.
    pub files: Option<FileUsage>,
    /// What it refers to and was not read.
    pub not_read: Vec<UnreadObject>,
    /// What the backend said, if it was asked.
    pub backend: Option<BackendAnswer>,
    /// What becomes of each field that is set, in the order of the pod.
    pub fields: Vec<FieldResult>,
}

/// What becomes of one field of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FieldResult {
    /// Its path, such as `spec.containers[web].args`.
    pub field: String,
    /// How it is treated.
    pub policy: FieldPolicy,
    /// What it becomes; for a refused field, what is wrong and what to write instead.
    pub result: String,
    /// Whether the pod gets a warning event about it.
    pub warning: bool,
}

/// How a backend treats a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FieldPolicy {
    /// The backend does it.
    Native,
    /// Something similar is done instead.
    Emulated,
    /// Nothing is done.
    Ignored,
    /// The pod does not run.
    Refused,
    /// Others do it: the scheduler, the core.
    Elsewhere,
}

/// The size of a pod on a backend with fixed sizes.
#[derive(Clone, Debug, PartialEq)]
pub struct SizeChoice {
    /// The requests of the containers that run at the same time.
    pub requested: ResourceList,
    /// The largest requests of an init step, if there are init containers.
    pub init: Option<ResourceList>,
    /// The size that it gets; `None` if there is none that is large enough.
    pub given: Option<Size>,
    /// Why it gets this size.
    pub reason: String,
}

/// The price of a pod.
#[derive(Clone, Debug, PartialEq)]
pub enum PriceEstimate {
    /// The price, and where it is from.
    Known {
        /// The price.
        price: Price,
        /// Where it is from: `list price from the configuration`.
        source: String,
    },
    /// Why it is not known.
    Unknown(String),
}

/// How many files a pod brings, with those sizes that are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FileUsage {
    /// Volumes with files.
    pub volumes: usize,
    /// The known part of their size, as it counts against the limit.
    pub bytes: u64,
    /// The limit for a pod; `None` if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
}

/// An object that a pod refers to and that was not read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UnreadObject {
    /// Its kind.
    pub kind: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// What a backend said about a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackendAnswer {
    /// It would take the pod.
    Accepted(String),
    /// It would not.
    Refused(String),
    /// It could not be asked: the error.
    Failed(String),
}

// === impl Explanation ===

impl Explanation {
    /// The explanation of a provider that passes pods through as they are.
    pub fn unchanged() -> Self {
        Self { unchanged: true, ..Self::default() }
    }

    /// Whether the pod runs, as far as is known.
    pub fn runs(&self) -> bool {
        self.refused().next().is_none() && !matches!(self.backend, Some(BackendAnswer::Refused(_)))
    }

    /// The fields because of which the pod does not run.
    pub fn refused(&self) -> impl Iterator<Item = &FieldResult> {
        self.fields.iter().filter(|field| field.policy == FieldPolicy::Refused)
    }

    /// The fields about which the pod gets a warning.
    pub fn warnings(&self) -> impl Iterator<Item = &FieldResult> {
        self.fields.iter().filter(|field| field.warning && field.policy != FieldPolicy::Refused)
    }

    /// Adds a field, after all others.
    pub fn push(&mut self, field: impl Into<String>, policy: FieldPolicy, result: impl Into<String>) {
        self.fields.push(FieldResult { field: field.into(), policy, result: result.into(), warning: false });
    }

    /// Adds a warning: to the field if it was added before, else as an ignored field.
    pub fn warn(&mut self, field: &str, message: impl Into<String>) {
        self.amend(field, FieldPolicy::Ignored, message.into(), false);
    }

    /// Adds a reason why the pod does not run: to the field if it was added before, else as another field.
    pub fn refuse(&mut self, field: &str, message: impl Into<String>) {
        self.amend(field, FieldPolicy::Refused, message.into(), true);
    }

    /// Changes a field, or adds it with this policy. A second message about a field becomes another row.
    fn amend(&mut self, field: &str, policy: FieldPolicy, message: String, refused: bool) {
        let plain =
            |one: &&mut FieldResult| one.field == field && !one.warning && one.policy != FieldPolicy::Refused;
        match self.fields.iter_mut().find(plain) {
            Some(one) => {
                one.result = message;
                one.warning = !refused;
                if refused {
                    one.policy = policy;
                }
            }
            None => self.fields.push(FieldResult {
                field: field.to_owned(),
                policy,
                result: message,
                warning: !refused,
            }),
        }
    }
}

// === Display ===

impl fmt::Display for FieldPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Native => "native",
            Self::Emulated => "emulated",
            Self::Ignored => "ignored",
            Self::Refused => "refused",
            Self::Elsewhere => "elsewhere",
        })
    }
}

impl fmt::Display for UnreadObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_and_refusals_belong_to_the_rows_of_their_fields() {
        let mut explanation = Explanation::default();
        explanation.push("spec.a", FieldPolicy::Native, "A");
        explanation.push("spec.b", FieldPolicy::Emulated, "B");
        explanation.push("spec.c", FieldPolicy::Native, "C");
        assert!(explanation.runs());
        explanation.warn("spec.b", "less than B");
        explanation.warn("metadata.annotations[x]", "unknown");
        assert!(explanation.runs() && explanation.warnings().count() == 2);
        explanation.refuse("spec.c", "no C");
        explanation.refuse("spec.c", "nor anything like it");
        let rows: Vec<(&str, FieldPolicy, &str)> = explanation
            .fields
            .iter()
            .map(|row| (row.field.as_str(), row.policy, row.result.as_str()))
            .collect();
        assert_eq!(
            rows,
            [
                ("spec.a", FieldPolicy::Native, "A"),
                ("spec.b", FieldPolicy::Emulated, "less than B"),
                ("spec.c", FieldPolicy::Refused, "no C"),
                ("metadata.annotations[x]", FieldPolicy::Ignored, "unknown"),
                ("spec.c", FieldPolicy::Refused, "nor anything like it"),
            ]
        );
        assert!(!explanation.runs());
        assert_eq!((explanation.refused().count(), explanation.warnings().count()), (2, 2));
    }

    #[test]
    fn a_pod_that_the_backend_refuses_does_not_run() {
        let refused = BackendAnswer::Refused("no stock".into());
        assert!(!Explanation { backend: Some(refused), ..Explanation::default() }.runs());
        let failed = BackendAnswer::Failed("no answer".into());
        assert!(Explanation { backend: Some(failed), ..Explanation::unchanged() }.runs());
    }
}
