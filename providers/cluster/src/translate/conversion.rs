//! What conversion moved into annotations of the upper pod, which the lower pod gets back.
//!
//! An admission policy or a webhook converts pods for virtual nodes, because these have few of the labels of lower nodes. Users may set the
//! annotations, too.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{
        NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PodSpec,
        TopologySpreadConstraint,
    },
    apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta},
};
use vk_provider::label_selector::{self, Requirement};

use super::Rejection;
use crate::names;

const HARD: &str = "DoNotSchedule";
const SOFT: &str = "ScheduleAnyway";

/// The annotations of an upper pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct MovedConstraints {
    /// Of lower nodes.
    requirements: Vec<Requirement>,
    /// `minDomains` of spread constraints that are hard in the lower cluster, by topology key.
    spreads: BTreeMap<String, Option<i32>>,
    /// Tolerations of lost nodes without a limit are for the virtual node.
    pub(super) tolerates_lost: bool,
}

// === impl MovedConstraints ===

impl MovedConstraints {
    pub(super) fn from_annotations(upper: &ObjectMeta) -> Result<Self, Rejection> {
        let text = |key| names::annotation(upper, key).unwrap_or_default();
        let requirements = label_selector::parse(text(names::LOWER_NODES)).map_err(|error| {
            Rejection(format!(
                "annotation {}: {error}: expected a label selector such as `disk=ssd,gpu in (a100,h100),!old`",
                names::LOWER_NODES
            ))
        })?;
        let entries = text(names::LOWER_SPREAD).split(',').map(str::trim).filter(|entry| !entry.is_empty());
        let spreads = entries.map(parse_spread).collect::<Result<_, _>>()?;
        Ok(Self { requirements, spreads, tolerates_lost: text(names::TOLERATES_LOST) == "true" })
    }

    /// Adds the requirements of lower nodes to those that the lower pod has already: both hold.
    pub(super) fn require_nodes(&self, below: &mut PodSpec) {
        let mut expressions = Vec::new();
        for requirement in &self.requirements {
            let selector = below.node_selector.get_or_insert_default();
            match requirement.equal_value() {
                Some(value) => match selector.get(requirement.key()) {
                    Some(same) if same == value => {}
                    Some(_) => expressions.push(requirement.clone().into()),
                    None => {
                        selector.insert(requirement.key().to_owned(), value.to_owned());
                    }
                },
                None => expressions.push(requirement.clone().into()),
            }
        }
        below.node_selector = below.node_selector.take().filter(|selector| !selector.is_empty());
        if expressions.is_empty() {
            return;
        }
        let affinity = below.affinity.get_or_insert_default().node_affinity.get_or_insert_default();
        let required = &mut affinity.required_during_scheduling_ignored_during_execution;
        *required = Some(with_expressions(required.take(), &expressions));
    }

    /// The spread constraints of the lower pod: those that its annotation states, or else the soft ones of the upper pod; in both cases with those
    /// that conversion made soft. Other hard ones are about virtual nodes.
    pub(super) fn spread_constraints(
        &self,
        upper: Option<&Vec<TopologySpreadConstraint>>,
        stated: Option<Vec<TopologySpreadConstraint>>,
    ) -> Result<Option<Vec<TopologySpreadConstraint>>, Rejection> {
        let soft = upper.into_iter().flatten().filter(|constraint| constraint.when_unsatisfiable == SOFT);
        let copies: Vec<_> = soft.map(|constraint| self.spread_constraint(constraint)).collect();
        if let Some(key) =
            self.spreads.keys().find(|key| copies.iter().all(|copy| copy.topology_key != **key))
        {
            return Err(Rejection(format!(
                "annotation {}: {key}: spec.topologySpreadConstraints has no constraint with this topologyKey and whenUnsatisfiable: {SOFT}",
                names::LOWER_SPREAD
            )));
        }
        let all = match stated {
            None => copies,
            Some(mut stated) => {
                let is_stated = |copy: &TopologySpreadConstraint| {
                    stated.iter().any(|one| {
                        one.topology_key == copy.topology_key
                            && one.when_unsatisfiable == copy.when_unsatisfiable
                    })
                };
                let hard = copies.into_iter().filter(|copy| copy.when_unsatisfiable == HARD);
                let missing: Vec<_> = hard.filter(|copy| !is_stated(copy)).collect();
                stated.extend(missing);
                stated
            }
        };
        Ok((!all.is_empty()).then_some(all))
    }

    fn spread_constraint(&self, upper: &TopologySpreadConstraint) -> TopologySpreadConstraint {
        let mut copy = upper.clone();
        if let Some(min_domains) = self.spreads.get(&upper.topology_key) {
            HARD.clone_into(&mut copy.when_unsatisfiable);
            copy.min_domains = *min_domains;
        }
        copy.match_label_keys =
            unmerged_keys(copy.match_label_keys.as_ref(), copy.label_selector.as_ref(), "In");
        copy
    }
}

/// Label keys of a term or constraint that its selector does not contain. The upper API server has merged these keys into the selector. The lower
/// one would do it again and reject the duplicates.
pub(super) fn unmerged_keys(
    keys: Option<&Vec<String>>,
    selector: Option<&LabelSelector>,
    operator: &str,
) -> Option<Vec<String>> {
    let merged = |key: &String| {
        let mut expressions =
            selector.into_iter().flat_map(|selector| selector.match_expressions.iter().flatten());
        expressions.any(|expression| expression.key == *key && expression.operator == operator)
    };
    let keys: Vec<String> = keys?.iter().filter(|key| !merged(key)).cloned().collect();
    (!keys.is_empty()).then_some(keys)
}

/// Node affinity of the lower pod: that of its annotation, with the preferences of the upper pod if it has none.
pub(super) fn node_affinity(
    upper: Option<&NodeAffinity>,
    stated: Option<NodeAffinity>,
) -> Option<NodeAffinity> {
    let mut affinity = stated.unwrap_or_default();
    let preferred = &mut affinity.preferred_during_scheduling_ignored_during_execution;
    if preferred.is_none() {
        *preferred =
            upper.and_then(|upper| upper.preferred_during_scheduling_ignored_during_execution.clone());
    }
    (affinity != NodeAffinity::default()).then_some(affinity)
}

/// Adds expressions to each term, because terms are alternatives. An empty term matches nothing and stays empty.
fn with_expressions(required: Option<NodeSelector>, expressions: &[NodeSelectorRequirement]) -> NodeSelector {
    let Some(mut required) = required else {
        let term =
            NodeSelectorTerm { match_expressions: Some(expressions.to_vec()), ..NodeSelectorTerm::default() };
        return NodeSelector { node_selector_terms: vec![term] };
    };
    for term in &mut required.node_selector_terms {
        let is_empty = |list: &Option<Vec<_>>| list.as_ref().is_none_or(Vec::is_empty);
        if !is_empty(&term.match_expressions) || !is_empty(&term.match_fields) {
            term.match_expressions.get_or_insert_default().extend_from_slice(expressions);
        }
    }
    required
}

/// Parses `KEY` or `KEY:MINDOMAINS`.
fn parse_spread(entry: &str) -> Result<(String, Option<i32>), Rejection> {
    let (key, domains) = match entry.split_once(':') {
        Some((key, domains)) => (key, Some(domains)),
        None => (entry, None),
    };
    let number = domains.map(|domains| domains.parse::<i32>().ok().filter(|number| *number > 0));
    if !label_selector::is_key(key) || number == Some(None) {
        return Err(Rejection(format!(
            "annotation {}: {entry:?} is not a topology key: expected KEY or KEY:MINDOMAINS, separated by commas",
            names::LOWER_SPREAD
        )));
    }
    Ok((key.to_owned(), number.flatten()))
}
