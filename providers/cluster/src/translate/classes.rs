//! Which of the lower cluster's classes a pod is of.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PodSpec;

use super::{Facts, Lower, Policy, Reject};

/// The RuntimeClass by which a pod asks for a virtual node, and which means nothing below.
const OPT_IN: &str = "virtual-kubelet";

/// Sets the classes and the scheduler of the lower pod.
pub(super) fn choose(
    below: &mut PodSpec,
    upper: &PodSpec,
    lower: &Lower,
    policy: &Policy,
    facts: &Facts,
) -> Result<(), Reject> {
    below.scheduler_name.clone_from(&lower.scheduler_name);
    // One that is unknown below would have the pod refused.
    below.priority_class_name = lower.priority_class_name.clone().or_else(|| {
        let name = said(upper.priority_class_name.as_ref())?;
        mapped(&policy.priority_classes, name)
            .or_else(|| facts.priority_classes.contains(name).then(|| name.clone()))
    });
    below.runtime_class_name = match &lower.runtime_class_name {
        Some(name) => Some(name.clone()),
        None => said(upper.runtime_class_name.as_ref())
            .map(|name| runtime_class(name, policy, facts))
            .transpose()?
            .flatten(),
    };
    Ok(())
}

/// A RuntimeClass is often there for safety, so a pod does not lose one without a word.
fn runtime_class(name: &String, policy: &Policy, facts: &Facts) -> Result<Option<String>, Reject> {
    if let Some(other) = mapped(&policy.runtime_classes, name) {
        Ok(Some(other))
    } else if facts.runtime_classes.contains(name) {
        Ok(Some(name.clone()))
    } else if name == OPT_IN {
        Ok(None)
    } else {
        Err(Reject(format!(
            "spec.runtimeClassName: the lower cluster has no RuntimeClass {name}: make it there, name another one for it in \
             `runtimeClasses` of the provider's configuration, or take it out of the pod"
        )))
    }
}

fn mapped(map: &BTreeMap<String, String>, name: &str) -> Option<String> {
    map.get(name).cloned()
}

fn said(name: Option<&String>) -> Option<&String> {
    name.filter(|name| !name.is_empty())
}
