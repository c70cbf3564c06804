//! Taints of nodes.

use k8s_openapi::api::core::v1::{Taint, Toleration};

/// Whether a toleration is one for this taint, as the scheduler decides it: nothing said of key or effect is all of them.
pub fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let said = |text: &Option<String>, there: &str| match text.as_deref() {
        None | Some("") => true,
        Some(text) => text == there,
    };
    let value = toleration.value.as_deref().unwrap_or_default();
    let there = taint.value.as_deref().unwrap_or_default();
    let numbers = || Some((there.parse::<i64>().ok()?, value.parse::<i64>().ok()?));
    let matches = match toleration.operator.as_deref() {
        None | Some("" | "Equal") => value == there,
        Some("Exists") => true,
        Some("Gt") => numbers().is_some_and(|(there, limit)| there > limit),
        Some("Lt") => numbers().is_some_and(|(there, limit)| there < limit),
        Some(_) => false,
    };
    said(&toleration.effect, &taint.effect) && said(&toleration.key, &taint.key) && matches
}
