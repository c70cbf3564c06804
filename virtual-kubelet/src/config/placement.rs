//! Settings of placement.

mod servers;

use std::{collections::BTreeMap, time::Duration};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use vk_placement::{
    choose::{self, LOCAL, Preference},
    convert, descheduler,
};

pub(crate) use self::servers::{EXTENDER_PORT, WEBHOOK_PORT};
pub use self::servers::{ExtenderSettings, PlacementTlsSettings, ServedWebhook, Serving, WebhookSettings};
use super::{
    GoDuration, Problem,
    kubernetes_names::check_subdomain,
    validation::positive,
    value_types::{Gates, Prefer},
};

/// The namespace of the Leases, the ConfigMap and the certificates.
const NAMESPACE: &str = "kube-system";
const TRIAL_PATIENCE: Duration = Duration::from_secs(30);
/// Nodes do not believe that a trial lasts for longer than twice this time.
const MOST_PATIENCE: Duration = Duration::from_mins(10);
/// The most evictions per minute that can be asked for.
const MOST_EVICTIONS: i64 = 1000;

/// Placement of pods on virtual nodes. Every part is off by default.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PlacementSettings {
    /// Namespace of the Leases, the ConfigMap and the certificates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Labels that mean nodes of the upper cluster. The webhook moves requirements of other labels into annotations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upper_keys: Option<Vec<String>>,
    /// Whether pods that the webhook converts stay on a virtual node that is lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tolerate_lost: Option<bool>,
    /// Whether pods with the scheduling gate of placement are placed, and how.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gates: Option<Gates>,
    /// Whether nodes that cannot be asked, such as the cluster's own machines, are candidates, together under the name `local`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local: Option<bool>,
    /// The nodes in the order in which they are filled; others come last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order: Option<Vec<String>>,
    /// Weights of nodes, 1 or more: what is free on a node counts that many times.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights: Option<BTreeMap<String, i64>>,
    /// Which node is better if nothing else decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefer: Option<Prefer>,
    /// How long a pod stays on trial on a node whose lower scheduler finds no room for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trial_patience: Option<GoDuration>,
    /// Evicts pods that are stuck on a virtual node, if another node has room. The section switches it on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub descheduler: Option<DeschedulerSettings>,
    /// Answers kube-scheduler. The section switches it on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extender: Option<ExtenderSettings>,
    /// Converts pods, for Kubernetes before 1.36. The section switches it on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook: Option<WebhookSettings>,
    /// The certificate of extender and webhook.
    #[serde(skip_serializing_if = "is_default")]
    pub tls: PlacementTlsSettings,
}

fn is_default(tls: &PlacementTlsSettings) -> bool {
    *tls == PlacementTlsSettings::default()
}

/// Eviction of stuck pods.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct DeschedulerSettings {
    /// How long a pod is stuck before it is evicted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<GoDuration>,
    /// The most evictions per minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub most: Option<i64>,
    /// For how long new pods of the controller avoid the node; twice as long the next time, up to half an hour.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub avoid: Option<GoDuration>,
    /// Only say what would be evicted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dry_run: Option<bool>,
}

/// The parts of placement that are on: at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Namespace of the Leases, the ConfigMap and the certificates.
    pub namespace: String,
    /// The preference among nodes that have room, for gated pods and for the extender.
    pub preference: Preference,
    /// How gated pods are placed. `None`: they are left alone.
    pub gates: Option<PlacementGates>,
    /// How stuck pods are evicted. `None`: they are left alone.
    pub descheduler: Option<descheduler::DeschedulerSettings>,
    /// The extender and the webhook. `None`: neither is served.
    pub serving: Option<Serving>,
}

/// How gated pods are placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacementGates {
    /// Whether nodes that cannot be asked are candidates.
    pub local: bool,
    /// How long a pod stays on trial on a node that has no room for it; `None` if what nodes answer decides.
    pub trial: Option<Duration>,
}

/// A part of placement that has a command of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlacementPart {
    Descheduler,
    Extender,
    Webhook,
}

/// What is known of placement, also if all its parts run elsewhere.
pub(super) struct ResolvedPlacement {
    pub(super) namespace: String,
    pub(super) conversion: convert::Settings,
    /// The parts that are on; `None` if none is.
    pub(super) parts: Option<Placement>,
}

pub(super) fn resolve(settings: &PlacementSettings, problems: &mut Vec<Problem>) -> ResolvedPlacement {
    let namespace = settings.namespace.clone().unwrap_or_else(|| NAMESPACE.to_owned());
    if let Err(why) = check_subdomain(&namespace) {
        problems.push(Problem::new("placement.namespace", format!("`{namespace}` is no namespace: {why}")));
    }
    let preference = preference(settings, problems);
    let conversion = servers::conversion(settings, problems);
    let trial = trial(settings, problems);
    let is_gated = conversion.gate == Some(true);
    let local = settings.local.unwrap_or(true);
    let gates = is_gated.then_some(PlacementGates { local, trial });
    let descheduler =
        settings.descheduler.as_ref().map(|section| resolve_descheduler(section, local, problems));
    let serving = servers::resolve(settings, &conversion, problems);
    let is_on = gates.is_some() || descheduler.is_some() || serving.is_some();
    let parts =
        is_on.then(|| Placement { namespace: namespace.clone(), preference, gates, descheduler, serving });
    ResolvedPlacement { namespace, conversion, parts }
}

/// The patience of trials, if pods are placed by trial.
fn trial(settings: &PlacementSettings, problems: &mut Vec<Problem>) -> Option<Duration> {
    let key = "placement.trialPatience";
    let patience = positive(key, settings.trial_patience, TRIAL_PATIENCE, problems);
    if patience > MOST_PATIENCE {
        let message = format!(
            "{patience:?} is too long: a node ends a trial by itself, write at most {MOST_PATIENCE:?}"
        );
        problems.push(Problem::new(key, message));
    }
    (settings.gates == Some(Gates::Trial)).then_some(patience)
}

fn preference(settings: &PlacementSettings, problems: &mut Vec<Problem>) -> Preference {
    if settings.order.is_some() && settings.weights.is_some() {
        let message = "cannot be used together with placement.order: the order decides before weights do";
        problems.push(Problem::new("placement.weights", message));
    }
    let order = settings.order.clone().unwrap_or_default();
    if let Some(twice) = order.iter().enumerate().find(|(index, name)| order[..*index].contains(name)) {
        problems.push(Problem::new("placement.order", format!("names {} twice", twice.1)));
    }
    let mut weights = BTreeMap::new();
    for (node, weight) in settings.weights.iter().flatten() {
        if let Some(weight) = u32::try_from(*weight).ok().filter(|weight| *weight > 0) {
            weights.insert(node.clone(), weight);
        } else {
            let message = format!("{weight} is no weight: write 1 or more");
            problems.push(Problem::new(format!("placement.weights.{node}"), message));
        }
    }
    let names_local = order.iter().any(|name| name == LOCAL) || weights.contains_key(LOCAL);
    if names_local && settings.local == Some(false) {
        let message = "is off, but placement.order or placement.weights names `local`: leave one of them out";
        problems.push(Problem::new("placement.local", message));
    }
    let prefer = match settings.prefer {
        None | Some(Prefer::Spread) => choose::Prefer::Spread,
        Some(Prefer::Pack) => choose::Prefer::Pack,
    };
    Preference { order, weights, prefer }
}

fn resolve_descheduler(
    section: &DeschedulerSettings,
    local: bool,
    problems: &mut Vec<Problem>,
) -> descheduler::DeschedulerSettings {
    let default = descheduler::DeschedulerSettings::default();
    let given = section.most.unwrap_or(10);
    let most = usize::try_from(given).ok().filter(|_| (1..=MOST_EVICTIONS).contains(&given));
    if most.is_none() {
        let message = format!("{given} is out of range: write a number from 1 to {MOST_EVICTIONS}");
        problems.push(Problem::new("placement.descheduler.most", message));
    }
    let mut time = |key: &str, given: Option<GoDuration>, default: Duration| {
        positive(&format!("placement.descheduler.{key}"), given, default, problems)
    };
    descheduler::DeschedulerSettings {
        after: time("after", section.after, default.after),
        avoid: time("avoid", section.avoid, default.avoid),
        most: most.unwrap_or(default.most),
        local,
        dry_run: section.dry_run.unwrap_or(default.dry_run),
    }
}

// === impl Placement ===

impl Placement {
    /// The settings that count in the process that leads, on one line; `None` if nothing needs a leader.
    pub(crate) fn leader_summary(&self) -> Option<String> {
        let leads = self.gates.is_some() || self.descheduler.is_some();
        leads.then(|| one_line(&self.leader_settings()))
    }

    /// The settings that all processes with extender or webhook have to have in common, on one line; `None` if neither is served.
    pub(crate) fn serving_summary(&self) -> Option<String> {
        let mut settings = self.serving.as_ref()?.common();
        settings.namespace = Some(self.namespace.clone());
        self.add_preference(&mut settings, self.serves_extender());
        Some(one_line(&settings))
    }

    /// Switches off all other parts.
    pub(crate) fn keep_only(&mut self, part: PlacementPart) {
        self.gates = None;
        if part != PlacementPart::Descheduler {
            self.descheduler = None;
        }
        if let Some(serving) = &mut self.serving {
            if part != PlacementPart::Extender {
                serving.extender = None;
            }
            if part != PlacementPart::Webhook {
                serving.webhook = None;
            }
        }
        let serves = |serving: &Serving| serving.extender.is_some() || serving.webhook.is_some();
        self.serving = self.serving.take().filter(serves);
    }

    /// Converts to the structure of the configuration file.
    pub(super) fn to_settings(&self) -> PlacementSettings {
        let mut settings = self.leader_settings();
        self.add_preference(&mut settings, self.gates.is_some() || self.serves_extender());
        if let Some(serving) = &self.serving {
            serving.add_to(&mut settings);
        }
        settings
    }

    fn serves_extender(&self) -> bool {
        self.serving.as_ref().is_some_and(|serving| serving.extender.is_some())
    }

    fn leader_settings(&self) -> PlacementSettings {
        let mut settings = PlacementSettings {
            namespace: Some(self.namespace.clone()),
            gates: Some(match self.gates {
                None => Gates::Off,
                Some(PlacementGates { trial: None, .. }) => Gates::Estimate,
                Some(PlacementGates { trial: Some(_), .. }) => Gates::Trial,
            }),
            local: self
                .gates
                .map(|gates| gates.local)
                .or_else(|| self.descheduler.map(|descheduler| descheduler.local)),
            trial_patience: self.gates.and_then(|gates| gates.trial).map(GoDuration),
            descheduler: self.descheduler.map(|it| DeschedulerSettings {
                after: Some(GoDuration(it.after)),
                most: i64::try_from(it.most).ok(),
                avoid: Some(GoDuration(it.avoid)),
                dry_run: Some(it.dry_run),
            }),
            ..PlacementSettings::default()
        };
        self.add_preference(&mut settings, self.gates.is_some());
        settings
    }

    /// Adds which node is better, if that matters.
    fn add_preference(&self, settings: &mut PlacementSettings, matters: bool) {
        if !matters {
            return;
        }
        let Preference { order, weights, prefer } = &self.preference;
        let weights: BTreeMap<_, _> =
            weights.iter().map(|(node, weight)| (node.clone(), i64::from(*weight))).collect();
        settings.order = Some(order.clone()).filter(|order| !order.is_empty());
        settings.weights = Some(weights).filter(|weights| !weights.is_empty());
        settings.prefer = Some(match prefer {
            choose::Prefer::Spread => Prefer::Spread,
            choose::Prefer::Pack => Prefer::Pack,
        });
    }
}

fn one_line(settings: &PlacementSettings) -> String {
    serde_json::to_string(settings).unwrap_or_default()
}

#[cfg(test)]
mod tests;
