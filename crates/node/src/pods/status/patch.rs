//! The strategic patch of a status.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::{
    api::core::v1::{ContainerStatus, HostIP, PodCondition, PodIP, PodStatus, ResourceRequirements},
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::Time},
};
use serde::{Serialize, Serializer, ser::SerializeSeq as _};

use super::{StatusPart, conditions};

/// Annotations or labels that a provider publishes on its pod; `None` removes one.
pub type MetadataChanges = BTreeMap<String, Option<String>>;

/// A change of a pod's status, and of the metadata that its provider publishes. It is serialized when it is sent: many are composed
/// that are not sent after all.
#[derive(Clone, Debug, PartialEq)]
pub struct StatusPatch {
    uid: Arc<str>,
    status: PodStatus,
    /// Our conditions that are to be removed.
    outdated: Vec<String>,
    /// Resource amounts are stored, and those that are not given must go.
    amounts: bool,
    annotations: MetadataChanges,
    labels: MetadataChanges,
    /// Parts that are not sent, so that what is stored stays.
    omitted: Vec<StatusPart>,
}

// === impl StatusPatch ===

impl StatusPatch {
    /// Turns the status that is `there` into this one, on the pod with this UID and no other.
    pub fn new(
        uid: Arc<str>,
        mut status: PodStatus,
        there: Option<&PodStatus>,
        annotations: &MetadataChanges,
        labels: &MetadataChanges,
    ) -> Self {
        let has_amounts =
            |there: &PodStatus| there.resources.is_some() || there.allocated_resources.is_some();
        conditions::remove_unchanged(&mut status, there);
        Self {
            uid,
            outdated: conditions::outdated(&status, there),
            amounts: there.is_some_and(has_amounts),
            annotations: annotations.clone(),
            labels: labels.clone(),
            omitted: Vec::new(),
            status,
        }
    }

    /// The patch without these parts.
    #[must_use]
    pub fn without(self, omitted: Vec<StatusPart>) -> Self {
        Self { omitted, ..self }
    }

    /// Whether this part is sent.
    pub fn sends(&self, part: StatusPart) -> bool {
        !self.omitted.contains(&part)
    }

    /// The new status.
    pub fn status(&self) -> &PodStatus {
        &self.status
    }

    /// The annotations that are published.
    pub fn annotations(&self) -> &MetadataChanges {
        &self.annotations
    }

    /// The labels that are published.
    pub fn labels(&self) -> &MetadataChanges {
        &self.labels
    }
}

/// Lists that merge by address are replaced as a whole, because a changed address is refused otherwise; empty fields are sent as null,
/// because an omitted one stays; conditions that do not hold any more are removed by type. What is not here is owned by others, or derived
/// by the API server.
impl Serialize for StatusPatch {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let status = &self.status;
        let held = status.conditions.as_deref();
        let conditions = Conditions { held: held.unwrap_or_default(), outdated: &self.outdated };
        let (hosts, pods) = (self.sends(StatusPart::HostIps), self.sends(StatusPart::PodIps));
        let has_conditions = held.is_some() || !self.outdated.is_empty();
        let resources = self.sends(StatusPart::Resources);
        Body {
            metadata: Metadata { uid: &self.uid, annotations: &self.annotations, labels: &self.labels },
            status: Status {
                phase: status.phase.as_deref(),
                reason: status.reason.as_deref(),
                message: status.message.as_deref(),
                host_ip: hosts.then_some(OrNull(status.host_ip.as_deref())),
                host_ips: hosts.then(|| Replaced(status.host_ips.as_deref().unwrap_or_default())),
                pod_ip: pods.then_some(OrNull(status.pod_ip.as_deref())),
                pod_ips: pods.then(|| Replaced(status.pod_ips.as_deref().unwrap_or_default())),
                start_time: status.start_time.as_ref(),
                observed_generation: status.observed_generation,
                conditions: (has_conditions && self.sends(StatusPart::Conditions)).then_some(conditions),
                container_statuses: self.list(StatusPart::Containers, status.container_statuses.as_ref()),
                init_container_statuses: self
                    .list(StatusPart::InitContainers, status.init_container_statuses.as_ref()),
                ephemeral_container_statuses: self
                    .list(StatusPart::EphemeralContainers, status.ephemeral_container_statuses.as_ref()),
                resources: status
                    .resources
                    .as_ref()
                    .filter(|_| resources)
                    .map(|amounts| self.amounts(amounts)),
                allocated_resources: status
                    .allocated_resources
                    .as_ref()
                    .filter(|_| resources)
                    .map(|amounts| self.amounts(amounts)),
            },
        }
        .serialize(serializer)
    }
}

impl StatusPatch {
    fn list<'a>(
        &self,
        part: StatusPart,
        list: Option<&'a Vec<ContainerStatus>>,
    ) -> Option<&'a [ContainerStatus]> {
        list.map(Vec::as_slice).filter(|_| self.sends(part))
    }

    fn amounts<'a, T>(&self, amounts: &'a T) -> Amounts<'a, T> {
        Amounts { directive: self.amounts.then_some("replace"), amounts }
    }
}

#[derive(Serialize)]
struct Body<'a> {
    metadata: Metadata<'a>,
    status: Status<'a>,
}

#[derive(Serialize)]
struct Metadata<'a> {
    uid: &'a str,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    annotations: &'a MetadataChanges,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: &'a MetadataChanges,
}

/// A text, or null, which removes the field.
#[derive(Serialize)]
struct OrNull<'a>(Option<&'a str>);

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Status<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    phase: Option<&'a str>,
    reason: Option<&'a str>,
    message: Option<&'a str>,
    #[serde(rename = "hostIP", skip_serializing_if = "Option::is_none")]
    host_ip: Option<OrNull<'a>>,
    #[serde(rename = "hostIPs", skip_serializing_if = "Option::is_none")]
    host_ips: Option<Replaced<'a, HostIP>>,
    #[serde(rename = "podIP", skip_serializing_if = "Option::is_none")]
    pod_ip: Option<OrNull<'a>>,
    #[serde(rename = "podIPs", skip_serializing_if = "Option::is_none")]
    pod_ips: Option<Replaced<'a, PodIP>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    start_time: Option<&'a Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    observed_generation: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    conditions: Option<Conditions<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    container_statuses: Option<&'a [ContainerStatus]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    init_container_statuses: Option<&'a [ContainerStatus]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ephemeral_container_statuses: Option<&'a [ContainerStatus]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resources: Option<Amounts<'a, ResourceRequirements>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    allocated_resources: Option<Amounts<'a, BTreeMap<String, Quantity>>>,
}

/// A list that replaces the stored one.
struct Replaced<'a, T>(&'a [T]);

impl<T: Serialize> Serialize for Replaced<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.0.len() + 1))?;
        list.serialize_element(&Directive { directive: "replace", kind: None })?;
        for item in self.0 {
            list.serialize_element(item)?;
        }
        list.end()
    }
}

#[derive(Serialize)]
struct Amounts<'a, T> {
    #[serde(rename = "$patch", skip_serializing_if = "Option::is_none")]
    directive: Option<&'static str>,
    #[serde(flatten)]
    amounts: &'a T,
}

struct Conditions<'a> {
    held: &'a [PodCondition],
    outdated: &'a [String],
}

impl Serialize for Conditions<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.held.len() + self.outdated.len()))?;
        for held in self.held {
            list.serialize_element(&Condition {
                kind: &held.type_,
                status: &held.status,
                reason: held.reason.as_deref(),
                message: held.message.as_deref(),
                last_probe_time: held.last_probe_time.as_ref(),
                last_transition_time: held.last_transition_time.as_ref(),
                observed_generation: held.observed_generation,
            })?;
        }
        for kind in self.outdated {
            list.serialize_element(&Directive { directive: "delete", kind: Some(kind) })?;
        }
        list.end()
    }
}

/// Conditions merge by type, so an omitted field of each stays, too.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Condition<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    status: &'a str,
    reason: Option<&'a str>,
    message: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_probe_time: Option<&'a Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_transition_time: Option<&'a Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    observed_generation: Option<i64>,
}

#[derive(Serialize)]
struct Directive<'a> {
    #[serde(rename = "$patch")]
    directive: &'static str,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'a str>,
}
