//! Matching of taints and tolerations.

use k8s_openapi::api::core::v1::{Taint, Toleration};

/// Whether a toleration matches a taint, as in the scheduler: an empty key or effect matches all.
pub fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let matches_field = |text: &Option<String>, actual: &str| match text.as_deref() {
        None | Some("") => true,
        Some(text) => text == actual,
    };
    let value = toleration.value.as_deref().unwrap_or_default();
    let actual = taint.value.as_deref().unwrap_or_default();
    let numbers = || Some((actual.parse::<i64>().ok()?, value.parse::<i64>().ok()?));
    let matches = match toleration.operator.as_deref() {
        None | Some("" | "Equal") => value == actual,
        Some("Exists") => true,
        Some("Gt") => numbers().is_some_and(|(actual, limit)| actual > limit),
        Some("Lt") => numbers().is_some_and(|(actual, limit)| actual < limit),
        Some(_) => false,
    };
    matches_field(&toleration.effect, &taint.effect) && matches_field(&toleration.key, &taint.key) && matches
}
