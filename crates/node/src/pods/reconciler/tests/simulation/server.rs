//! A model of an API server: pods by name, with the rules for writes that were verified against the real one.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Node, Pod, PodCondition, PodStatus},
    apimachinery::pkg::apis::meta::v1::Time,
};
use serde_json::{Value, json};
use vk_kube::{Error, Kind};
use vk_provider::{
    PodRef,
    placement::{TRIAL_LABEL, trial_node},
};

use super::backend::{BOUND_ELSEWHERE, ON_TRIAL, TRIAL_ENDED};
use crate::pods::{
    admission::requests, status, trial::TrialPatch, watch::PodWatchEvent, watch_audit::PodVersions,
};

/// The wall clock's time when a simulation begins.
const START: &str = "2026-01-01T00:00:00Z";
/// The cpu of the node.
pub(super) const ROOM: u32 = 6;
/// The name of the label and of the condition that another controller sets.
pub(super) const FOREIGN: &str = "example.com/foreign";
/// The provider's own conditions: while something of the pod runs, and while nothing does.
pub(super) const AT_WORK: &str = "sim.virtual-kubelet.io/AtWork";
pub(super) const AT_REST: &str = "sim.virtual-kubelet.io/AtRest";

/// What becomes of a pod that nobody touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It runs forever.
    Runs,
    /// It runs forever, and only a restart rule lets its container run again after a crash.
    Restarts,
    /// It succeeds.
    Completes,
    /// It has an active deadline.
    Expires,
    /// The provider refuses it.
    Refused,
}

/// What the API server refuses of a pod's status, though the controller has no reason to expect it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StatusRejection {
    Nothing,
    /// Its address, by name.
    Named,
    /// Everything, without a name.
    Unnamed,
}

#[derive(Default)]
pub(super) struct Server {
    /// The pods that are bound to this node.
    pods: BTreeMap<String, Arc<Pod>>,
    /// The other pods, which the watch of this node does not show.
    others: BTreeMap<&'static str, Pod>,
    /// The pods that placement tries: they are not bound.
    tried: BTreeMap<String, Arc<Pod>>,
    version: u64,
    uids: u64,
    /// The events since the watch was last read.
    pub(super) log: Vec<PodWatchEvent>,
    /// The same for the watch of pods on trial.
    pub(super) trial_log: Vec<PodWatchEvent>,
    /// Writes by the controller.
    pub(super) writes: u64,
}

/// The correct wall clock at this time of the simulation.
pub(super) fn wall(now: Duration) -> Timestamp {
    START.parse::<Timestamp>().expect("a time") + jiff::SignedDuration::try_from(now).expect("short")
}

pub(super) fn label(pod: &Pod, key: &str) -> Option<String> {
    pod.metadata.labels.as_ref()?.get(key).cloned()
}

pub(super) fn fate(pod: &Pod) -> Fate {
    match label(pod, "fate").as_deref() {
        Some("completes") => Fate::Completes,
        Some("expires") => Fate::Expires,
        Some("refused") => Fate::Refused,
        Some("restarts") => Fate::Restarts,
        _ => Fate::Runs,
    }
}

pub(super) fn status_rejection(pod: &Pod) -> StatusRejection {
    match label(pod, "refusal").as_deref() {
        Some("named") => StatusRejection::Named,
        Some("unnamed") => StatusRejection::Unnamed,
        _ => StatusRejection::Nothing,
    }
}

/// The node. It has not enough cpu for all pods at once.
pub(super) fn node() -> Node {
    let node = json!({"metadata": {"name": "vk"}, "status": {"allocatable": {"cpu": ROOM.to_string(), "pods": "10"}}});
    serde_json::from_value(node).expect("a node")
}

/// Whether the status has the allocated resources of the pod.
pub(super) fn is_sized(pod: &Pod) -> bool {
    let status = pod.status.clone().unwrap_or_default();
    status.container_statuses.iter().flatten().any(|one| one.allocated_resources.is_some())
}

/// The requested cpu of the pod.
pub(super) fn size(pod: &Pod) -> u32 {
    let requests = requests(pod);
    requests.get("cpu").and_then(|cpu| u32::try_from(cpu.to_units()).ok()).unwrap_or_default()
}

pub(super) fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

pub(super) fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending")
}

/// A pod that is not bound to this node. Its UID is its name.
fn other(name: &str, bound_to: Option<&str>, trial: Option<&str>) -> Pod {
    let pod = json!({
        "metadata": {"name": name, "namespace": "default", "uid": name,
                     "labels": trial.map(|node| json!({"multicluster.virtual-kubelet.io/trial": node}))},
        "spec": {"nodeName": bound_to, "containers": [{"name": "app", "image": "app:1"}]},
    });
    serde_json::from_value(pod).expect("a pod")
}

impl Server {
    /// A server that has, beside the pods of this node, those whose trial on this node goes on or has ended.
    pub(super) fn with_trials() -> Self {
        let others = [
            (ON_TRIAL, other(ON_TRIAL, None, Some("vk"))),
            (TRIAL_ENDED, other(TRIAL_ENDED, None, None)),
            (BOUND_ELSEWHERE, other(BOUND_ELSEWHERE, Some("other"), Some("vk"))),
        ];
        Self { others: others.into(), ..Self::default() }
    }

    /// A read by a client that may see all pods.
    pub(super) fn read(&self, name: &str) -> Option<&Pod> {
        let ours = self.pods.get(name).or_else(|| self.tried.get(name));
        ours.map(|pod| &**pod).or_else(|| self.others.get(name))
    }

    pub(super) fn pods(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.pods.values()
    }

    pub(super) fn versions(&self) -> PodVersions {
        let pods = self.pods().filter_map(|pod| {
            let reference = PodRef::of(pod)?;
            let version = pod.metadata.resource_version.as_ref()?.parse().ok()?;
            Some((Arc::clone(&reference.uid), (reference, version)))
        });
        PodVersions { version: self.version, pods: pods.collect(), all_nodes: false }
    }

    pub(super) fn named(&self, name: &str) -> Option<&Arc<Pod>> {
        self.pods.get(name)
    }

    pub(super) fn by_uid(&self, wanted: &str) -> Option<&Arc<Pod>> {
        self.pods.values().find(|pod| uid(pod) == wanted)
    }

    /// Whether the pod is to run: it exists, is not being deleted and has not ended.
    pub(super) fn wants(&self, wanted: &str) -> bool {
        self.by_uid(wanted)
            .is_some_and(|pod| pod.metadata.deletion_timestamp.is_none() && !status::has_ended(pod))
    }

    pub(super) fn create(&mut self, name: &str, fate: &str, refusal: &str, size: u32) {
        self.uids += 1;
        let deadline = (fate == "expires").then_some(20);
        let policy = if matches!(fate, "completes" | "restarts") { "Never" } else { "Always" };
        let rule = json!([{"action": "Restart", "exitCodes": {"operator": "In", "values": [1]}}]);
        let rule = (fate == "restarts").then_some(rule);
        let own_policy = rule.as_ref().map(|_| "Never");
        let pod = json!({
            "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{}", self.uids),
                         "labels": {"fate": fate, "refusal": refusal, "edit": "0"}, "generation": 1},
            "spec": {"nodeName": "vk", "restartPolicy": policy, "terminationGracePeriodSeconds": 30,
                     "activeDeadlineSeconds": deadline, "containers": [{"name": "app", "image": "app:1",
                                    "restartPolicy": own_policy, "restartPolicyRules": rule,
                                    "resources": {"requests": {"cpu": size.to_string()}}}]},
            "status": {"phase": "Pending"},
        });
        self.pods.insert(name.to_owned(), Arc::new(serde_json::from_value(pod).expect("a pod")));
        self.edit(name, |_| {});
    }

    /// A user resizes a pod.
    pub(super) fn resize(&mut self, name: &str, size: u32) {
        self.edit(name, |pod| {
            let container = &mut pod.spec.get_or_insert_default().containers[0];
            let resources = json!({"requests": {"cpu": size.to_string()}});
            container.resources = serde_json::from_value(resources).expect("resources");
            pod.metadata.generation = pod.metadata.generation.map(|generation| generation + 1);
        });
    }

    pub(super) fn edit(&mut self, name: &str, edit: impl FnOnce(&mut Pod)) {
        self.version += 1;
        let Some(pod) = self.pods.get_mut(name) else { return };
        let changed = Arc::make_mut(pod);
        edit(changed);
        changed.metadata.resource_version = Some(self.version.to_string());
        let finalized = changed.metadata.finalizers.as_ref().is_none_or(Vec::is_empty);
        let over = changed.metadata.deletion_timestamp.is_some()
            && changed.metadata.deletion_grace_period_seconds == Some(0);
        let (pod, on_trial) = (Arc::clone(pod), trial_node(pod).is_some());
        if over && finalized {
            self.pods.remove(name);
            self.log.push(PodWatchEvent::Deleted(Arc::clone(&pod)));
        } else {
            self.log.push(PodWatchEvent::Applied(Arc::clone(&pod)));
        }
        if on_trial {
            let event = if over && finalized { PodWatchEvent::Deleted } else { PodWatchEvent::Applied };
            self.trial_log.push(event(pod));
        }
    }

    /// A user deletes a pod. A pod that has ended goes at once; a grace period can only get shorter.
    pub(super) fn delete(&mut self, name: &str, now: Duration, grace: i64) {
        self.edit(name, |pod| {
            let ended = status::has_ended(pod);
            let meta = &mut pod.metadata;
            let before = meta.deletion_grace_period_seconds;
            let grace = if ended { 0 } else { before.map_or(grace, |before| before.min(grace)) };
            if before != Some(grace) {
                let by = now + Duration::from_secs(grace.try_into().unwrap_or(0));
                meta.deletion_timestamp = Some(Time(wall(by)));
                meta.deletion_grace_period_seconds = Some(grace);
            }
        });
    }

    /// The controller's removal of a pod.
    pub(super) fn remove(&mut self, name: &str, wanted: &str, now: Duration) -> Result<(), Error> {
        self.writes += 1;
        let pod = self.pods.get(name).ok_or_else(|| Error::new(Kind::NotFound, "gone"))?;
        if uid(pod) != wanted {
            return Err(Error::new(Kind::Conflict, "another UID"));
        }
        self.delete(name, now, 0);
        Ok(())
    }

    /// The controller's strategic patch of the status.
    pub(super) fn patch_status(&mut self, name: &str, body: &Value) -> Result<Arc<Pod>, Error> {
        let pod = self.pods.get(name).ok_or_else(|| Error::new(Kind::NotFound, "gone"))?;
        if body["metadata"]["uid"] != uid(pod) {
            return Err(Error::new(Kind::Replaced, "another UID"));
        }
        match status_rejection(pod) {
            StatusRejection::Unnamed => return Err(refusal(Vec::new())),
            StatusRejection::Named if !body["status"]["podIP"].is_null() => {
                return Err(refusal(vec!["status.podIPs[0].ip".to_owned()]));
            }
            StatusRejection::Named | StatusRejection::Nothing => self.writes += 1,
        }
        for key in body["metadata"].as_object().expect("metadata").keys() {
            let label = key == "labels" && body["metadata"]["labels"] == json!({TRIAL_LABEL: null});
            assert!(
                label || matches!(key.as_str(), "uid" | "annotations"),
                "a status write changes metadata.{key}"
            );
        }
        let had_foreign = has_foreign_condition(pod);
        let before = pod.status.clone().unwrap_or_default();
        let after = merged(before.clone(), &body["status"]);
        let policy = pod.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref());
        check_transition(&before, &after, policy == Some("Never") && fate(pod) != Fate::Restarts);
        let was_on_trial = trial_node(pod).is_some();
        self.edit(name, |pod| {
            pod.status = Some(after);
            for (key, value) in body["metadata"]["annotations"].as_object().into_iter().flatten() {
                let annotations = pod.metadata.annotations.get_or_insert_default();
                match value.as_str() {
                    Some(value) => drop(annotations.insert(key.clone(), value.to_owned())),
                    None => drop(annotations.remove(key)),
                }
            }
            for (key, _) in body["metadata"]["labels"].as_object().into_iter().flatten() {
                pod.metadata.labels.get_or_insert_default().remove(key);
            }
        });
        let pod = &self.pods[name];
        if was_on_trial && trial_node(pod).is_none() {
            self.trial_log.push(PodWatchEvent::Deleted(Arc::clone(pod)));
        }
        assert_eq!(has_foreign_condition(pod), had_foreign, "a condition of another controller was lost");
        Ok(Arc::clone(pod))
    }
}

impl Server {
    /// The pods that placement tries.
    pub(super) fn tried(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.tried.values()
    }

    pub(super) fn tried_pod(&self, name: &str) -> Option<&Arc<Pod>> {
        self.tried.get(name)
    }

    /// A user creates a pod that placement tries.
    pub(super) fn create_tried(&mut self, name: &str) {
        self.uids += 1;
        let pod = json!({
            "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{}", self.uids),
                         "labels": {"fate": "runs", "tried": "yes", "edit": "0"}, "generation": 1},
            "spec": {"restartPolicy": "Always", "terminationGracePeriodSeconds": 5, "containers": [
                        {"name": "app", "image": "app:1", "resources": {"requests": {"cpu": "1"}}}]},
            "status": {"phase": "Pending"},
        });
        self.tried.insert(name.to_owned(), Arc::new(serde_json::from_value(pod).expect("a pod")));
    }

    /// A change of a pod that placement tries. `None` removes it.
    pub(super) fn edit_tried(&mut self, name: &str, edit: impl FnOnce(&mut Pod) -> bool) {
        self.version += 1;
        let Some(pod) = self.tried.get_mut(name) else { return };
        let was_on_trial = trial_node(pod).is_some();
        let changed = Arc::make_mut(pod);
        let stays = edit(changed);
        changed.metadata.resource_version = Some(self.version.to_string());
        let pod = Arc::clone(pod);
        let is_bound = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
        if stays && trial_node(&pod).is_some() {
            self.trial_log.push(PodWatchEvent::Applied(Arc::clone(&pod)));
        } else if was_on_trial {
            self.trial_log.push(PodWatchEvent::Deleted(Arc::clone(&pod)));
        }
        if !stays || is_bound {
            self.tried.remove(name);
        }
        if stays && is_bound {
            self.pods.insert(name.to_owned(), Arc::clone(&pod));
            self.log.push(PodWatchEvent::Applied(pod));
        }
    }

    /// The controller's patch of a pod on trial.
    pub(super) fn patch_trial(&mut self, name: &str, patch: &TrialPatch) -> Result<Arc<Pod>, Error> {
        let found = self.tried.get(name).or_else(|| self.pods.get(name));
        let pod = found.ok_or_else(|| Error::new(Kind::NotFound, "gone"))?;
        let body = serde_json::to_value(patch).expect("a patch");
        if body["metadata"]["uid"] != uid(pod) {
            return Err(Error::new(Kind::Replaced, "another UID"));
        }
        if pod.metadata.resource_version.as_deref() != Some(patch.version()) {
            return Err(Error::new(Kind::Conflict, "another version"));
        }
        self.writes += 1;
        self.edit_tried(name, |pod| {
            pod.status = Some(merged(pod.status.clone().unwrap_or_default(), &body["status"]));
            for (key, _) in body["metadata"]["labels"].as_object().into_iter().flatten() {
                pod.metadata.labels.get_or_insert_default().remove(key);
            }
            for (key, _) in body["metadata"]["annotations"].as_object().into_iter().flatten() {
                pod.metadata.annotations.get_or_insert_default().remove(key);
            }
            true
        });
        Ok(Arc::clone(&self.tried[name]))
    }
}

/// The labels that concern the backend.
pub(super) fn labels(pod: &Pod) -> BTreeMap<String, String> {
    let mut labels = pod.metadata.labels.clone().unwrap_or_default();
    labels.remove(TRIAL_LABEL);
    labels
}

/// Whether placement tries, or has tried, the pod before it is bound.
pub(super) fn is_tried(pod: &Pod) -> bool {
    label(pod, "tried").is_some()
}

/// The answer of validation.
fn refusal(fields: Vec<String>) -> Error {
    Error { fields, failed_validation: true, ..Error::new(Kind::Invalid, "as scheduled") }
}

pub(super) fn has_foreign_condition(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|one| one.type_ == FOREIGN)
}

pub(super) fn add_foreign_things(pod: &mut Pod) {
    pod.metadata.labels.get_or_insert_default().insert(FOREIGN.to_owned(), "yes".to_owned());
    if !has_foreign_condition(pod) {
        let condition =
            PodCondition { type_: FOREIGN.to_owned(), status: "True".to_owned(), ..PodCondition::default() };
        pod.status.get_or_insert_default().conditions.get_or_insert_default().push(condition);
    }
}

/// A strategic merge of a status: conditions merge by type, `null` removes, what is omitted stays.
fn merged(there: PodStatus, given: &Value) -> PodStatus {
    let mut there = serde_json::to_value(there).expect("a status");
    let status = there.as_object_mut().expect("a map");
    for (key, value) in given.as_object().expect("a status") {
        let replaced = value.as_array().is_some_and(|list| list.iter().any(|one| one["$patch"] == "replace"));
        match value {
            Value::Null => drop(status.remove(key)),
            Value::Array(list) if replaced => {
                let rest = list.iter().filter(|one| one["$patch"].is_null()).cloned().collect();
                status.insert(key.clone(), Value::Array(rest));
            }
            Value::Array(list) if key == "conditions" => {
                let conditions = status.entry(key.clone()).or_insert_with(|| json!([]));
                let conditions = conditions.as_array_mut().expect("a list");
                for condition in list {
                    conditions.retain(|known| known["type"] != condition["type"]);
                    if condition["$patch"] != "delete" {
                        conditions.push(condition.clone());
                    }
                }
            }
            _ => drop(status.insert(key.clone(), value.clone())),
        }
    }
    serde_json::from_value(there).expect("a status")
}

/// Checks what no kubelet would write, and what the real API server refuses.
fn check_transition(before: &PodStatus, after: &PodStatus, never: bool) {
    let rank = |status: &PodStatus| match status.phase.as_deref() {
        Some("Running") => 1,
        Some("Succeeded" | "Failed") => 2,
        _ => 0,
    };
    assert!(rank(after) >= rank(before), "the phase went from {:?} to {:?}", before.phase, after.phase);
    assert!(rank(before) < 2 || before.phase == after.phase, "a final phase changed");
    let ended = |status: &PodStatus| {
        status
            .container_statuses
            .iter()
            .flatten()
            .any(|one| one.state.as_ref().is_some_and(|state| state.terminated.is_some()))
    };
    assert!(!never || !ended(before) || ended(after), "a container that may not be restarted runs again");
    let hosts = after.host_ips.as_ref().and_then(|ips| ips.first()).map(|host| &host.ip);
    assert_eq!(hosts, after.host_ip.as_ref(), "the API server refuses this");
}
