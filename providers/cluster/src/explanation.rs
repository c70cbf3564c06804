//! What becomes of a pod, for `virtual-kubelet explain-pod`: as far as the translation alone can tell, without the lower cluster.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use serde_json::{Map, Value};
use vk_provider::{Explanation, explanation::FieldPolicy};

use crate::{
    names::OwnerId,
    translate::{ClusterClasses, Rejection, TranslationPolicy, translate},
};

/// Stands for the identities that only exist in a cluster.
const UID: &str = "00000000-0000-0000-0000-000000000000";

/// Explains a pod by translating it. The classes that it names are taken to exist in the lower cluster.
pub(crate) fn explain(pod: &Pod, node: &str, policy: &TranslationPolicy) -> Explanation {
    let mut upper = pod.clone();
    upper.metadata.uid.get_or_insert_with(|| UID.to_owned());
    let spec = upper.spec.clone().unwrap_or_default();
    let owner = OwnerId { origin: UID.to_owned(), node: node.to_owned() };
    let mut explanation = Explanation::default();
    match translate(&upper, &owner, policy, &classes(&spec)) {
        Ok(translated) => {
            let lower = translated.pod.spec.unwrap_or_default();
            compare(&mut explanation, &spec, &lower);
        }
        Err(Rejection(why)) => match why.split_once(": ") {
            Some((field, message)) if field.starts_with("spec.") => explanation.refuse(field, message),
            _ => explanation.refuse("spec", why),
        },
    }
    explanation
}

fn classes(spec: &PodSpec) -> ClusterClasses {
    let one = |name: &Option<String>| name.iter().cloned().collect::<BTreeSet<_>>();
    ClusterClasses {
        priority_classes: one(&spec.priority_class_name),
        runtime_classes: one(&spec.runtime_class_name),
    }
}

/// Adds what becomes of each field.
fn compare(explanation: &mut Explanation, upper: &PodSpec, lower: &PodSpec) {
    let [upper, lower] = [upper, lower].map(|spec| serde_json::to_value(spec).unwrap_or_default());
    for (key, value) in upper.as_object().into_iter().flat_map(Map::iter) {
        let (policy, result) = match &lower[key] {
            Value::Null => (FieldPolicy::Elsewhere, "not copied: it has effect in the upper cluster"),
            below if below == value => (FieldPolicy::Native, "copied"),
            _ => (FieldPolicy::Emulated, "rewritten for the lower cluster"),
        };
        explanation.push(format!("spec.{key}"), policy, result);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn explained(spec: &Value) -> Explanation {
        let pod = json!({"metadata": {"name": "web", "namespace": "shop"}, "spec": spec});
        explain(&serde_json::from_value(pod).unwrap(), "vk", &TranslationPolicy::default())
    }

    #[test]
    fn fields_are_copied_rewritten_or_left_to_the_upper_cluster() {
        let explanation = explained(&json!({
            "containers": [{"name": "a", "image": "b"}],
            "nodeSelector": {"type": "virtual-kubelet"},
            "serviceAccountName": "builder",
        }));
        assert!(explanation.runs(), "{explanation:?}");
        let policy = |field: &str| {
            explanation.fields.iter().find(|row| row.field == format!("spec.{field}")).unwrap().policy
        };
        assert_eq!(policy("containers"), FieldPolicy::Native);
        assert_eq!(policy("nodeSelector"), FieldPolicy::Elsewhere);
        assert_eq!(policy("serviceAccountName"), FieldPolicy::Emulated);
    }

    #[test]
    fn a_pod_that_is_rejected_does_not_run() {
        let explanation = explained(&json!({
            "containers": [{"name": "a"}],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu"}],
        }));
        let refused: Vec<&str> = explanation.refused().map(|row| row.field.as_str()).collect();
        assert_eq!(refused, ["spec.resourceClaims"], "{explanation:?}");
        assert!(!explained(&json!({"containers": [{"name": "a"}], "hostNetwork": true})).runs());
    }
}
