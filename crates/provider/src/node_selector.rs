//! Matching of node selectors and node affinity, as in the scheduler and the kubelet.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PodSpec};

/// The label with the name of the machine: the one label in which all nodes differ.
pub const HOSTNAME: &str = "kubernetes.io/hostname";

/// The value of a label of a node, by key.
pub type LabelLookup<'a> = &'a dyn Fn(&str) -> Option<&'a str>;

/// Whether a node matches the `nodeSelector` and the [required node affinity](required_affinity) of a pod.
pub fn selects(
    node_selector: Option<&BTreeMap<String, String>>,
    affinity: Option<&NodeSelector>,
    labels: LabelLookup<'_>,
    name: &str,
) -> bool {
    let mut selector = node_selector.into_iter().flatten();
    selector.all(|(key, value)| labels(key) == Some(value.as_str()))
        && affinity.is_none_or(|affinity| matches(affinity, labels, name))
}

/// The required node affinity of a pod.
pub fn required_affinity(spec: &PodSpec) -> Option<&NodeSelector> {
    let affinity = spec.affinity.as_ref()?.node_affinity.as_ref()?;
    affinity.required_during_scheduling_ignored_during_execution.as_ref()
}

/// Whether a node matches one of the terms.
pub fn matches(selector: &NodeSelector, labels: LabelLookup<'_>, name: &str) -> bool {
    selector.node_selector_terms.iter().any(|term| matches_term(term, labels, name))
}

/// A term without any requirement matches nothing.
fn matches_term(term: &NodeSelectorTerm, labels: LabelLookup<'_>, name: &str) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    (!expressions.is_empty() || !fields.is_empty())
        && expressions.iter().all(|one| meets(&one.operator, values(one), labels(&one.key)))
        && fields.iter().all(|one| {
            let field = (one.key == "metadata.name").then_some(name);
            meets(&one.operator, values(one), field)
        })
}

fn values(requirement: &NodeSelectorRequirement) -> &[String] {
    requirement.values.as_deref().unwrap_or_default()
}

/// Whether a value meets a requirement of a node or label selector. A requirement that the API server would refuse is never met, as in
/// apimachinery.
pub fn meets(operator: &str, values: &[String], actual: Option<&str>) -> bool {
    let listed = |value: &str| values.iter().any(|known| known == value);
    let numbers = || {
        let [limit] = values else { return None };
        Some((actual?.parse::<i64>().ok()?, limit.parse::<i64>().ok()?))
    };
    match operator {
        "In" => actual.is_some_and(listed),
        "NotIn" => !values.is_empty() && !actual.is_some_and(listed),
        "Exists" => values.is_empty() && actual.is_some(),
        "DoesNotExist" => values.is_empty() && actual.is_none(),
        "Gt" => numbers().is_some_and(|(actual, limit)| actual > limit),
        "Lt" => numbers().is_some_and(|(actual, limit)| actual < limit),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_requirement_is_met_as_in_apimachinery() {
        let all = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        for (operator, values, actual, expected) in [
            ("In", &["a", "b"][..], Some("b"), true),
            ("In", &["a"], None, false),
            ("In", &[], Some("a"), false),
            ("NotIn", &["a"], None, true),
            ("NotIn", &["a"], Some("a"), false),
            ("NotIn", &[], Some("a"), false),
            ("Exists", &[], Some(""), true),
            ("Exists", &["a"], Some("a"), false),
            ("DoesNotExist", &[], None, true),
            ("Gt", &["7"], Some("8"), true),
            ("Gt", &["7"], Some("7"), false),
            ("Gt", &["7"], Some("x"), false),
            ("Gt", &["7", "8"], Some("9"), false),
            ("Lt", &["-1"], Some("-2"), true),
            ("Lt", &["1"], None, false),
            ("Near", &["1"], Some("1"), false),
        ] {
            assert_eq!(meets(operator, &all(values), actual), expected, "{operator} {values:?} {actual:?}");
        }
    }
}
