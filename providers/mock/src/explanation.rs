//! Scripted explanations, for `virtual-kubelet explain-pod` without a cloud.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use serde::Deserialize;
use serde_json::Map;
use vk_provider::{Explanation, explanation::FieldPolicy};

/// What becomes of a field of the pod spec, as written by the user.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct FieldScript {
    policy: FieldPolicy,
    #[serde(default)]
    result: String,
}

/// Explains a pod by the scripts of its fields. Without scripts, pods are passed through unchanged.
pub(crate) fn explain(pod: &Pod, scripts: &BTreeMap<String, FieldScript>) -> Explanation {
    if scripts.is_empty() {
        return Explanation::unchanged();
    }
    let mut explanation = Explanation::default();
    let spec = serde_json::to_value(&pod.spec).unwrap_or_default();
    for key in spec.as_object().into_iter().flat_map(Map::keys) {
        let field = format!("spec.{key}");
        match scripts.get(key) {
            None => explanation.push(field, FieldPolicy::Native, ""),
            Some(FieldScript { policy, result }) => {
                explanation.push(&field, *policy, result);
                if matches!(policy, FieldPolicy::Emulated | FieldPolicy::Ignored) {
                    explanation.warn(&field, result);
                }
            }
        }
    }
    explanation
}
