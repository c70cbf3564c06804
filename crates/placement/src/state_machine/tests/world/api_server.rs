//! The API server, as far as placement calls it.

use k8s_openapi::{
    api::core::v1::{Pod, PodCondition},
    apimachinery::pkg::apis::meta::v1::Time,
};
use rand::RngExt as _;
use vk_kube::{Error, Kind};
use vk_provider::placement::{TRIAL_LABEL, TRIAL_UNTIL_ANNOTATION, declares_trial, trial_node};

use super::{Scheduled, World};
use crate::{
    effect::{Answer, ApiCall, CallId, FormerNode, Input},
    eviction::AfterEviction,
    names, pod_state,
};

impl World {
    pub(super) fn carry_out(&mut self, process: u32, id: CallId, call: &ApiCall) {
        let fails = self.rng.random_bool(self.faults.fails);
        let answer = if fails { Err(Error::new(Kind::Server, "fault")) } else { self.call(call) };
        let lost = self.rng.random_bool(self.faults.lost);
        let answer = if lost { Err(Error::new(Kind::Timeout, "lost")) } else { answer };
        self.record(|| format!("the answer to {id:?} will be {answer:?}"));
        let delay = self.delay();
        self.schedule(delay, Scheduled::Input(process, Box::new(Input::Answered(id, answer))));
    }

    fn call(&mut self, call: &ApiCall) -> Result<Answer, Error> {
        let (uid, version) = match call {
            ApiCall::Nominate { pod, version, .. }
            | ApiCall::Ungate { pod, version, .. }
            | ApiCall::ReportWaiting { pod, version, .. }
            | ApiCall::StartTrial { pod, version, .. }
            | ApiCall::ExtendTrial { pod, version, .. }
            | ApiCall::EndTrial { pod, version }
            | ApiCall::RemoveTrial { pod, version, .. }
            | ApiCall::Evict { pod, version } => (pod.uid.to_string(), Some(version)),
            ApiCall::ReportPlaced { pod, .. } => (pod.uid.to_string(), None),
            ApiCall::WriteAvoidTable(changes) => {
                self.avoid_writes += 1;
                for (key, value) in changes {
                    match value {
                        Some(value) => drop(self.config_map.insert(key.clone(), value.clone())),
                        None => drop(self.config_map.remove(key)),
                    }
                }
                return Ok(Answer::Done);
            }
            ApiCall::ReadJob { name, .. } => return Ok(Answer::JobIgnoresDisruption(name == "ignores")),
            ApiCall::ReadClaims { names, .. } => {
                return Ok(Answer::ClaimsBound(names.iter().all(|name| name == "bound")));
            }
        };
        let Some(mut pod) = self.pods.get(&uid).cloned() else {
            return Err(Error::new(Kind::NotFound, "not found"));
        };
        if version.is_some_and(|version| pod.metadata.resource_version.as_ref() != Some(version)) {
            return Err(Error::new(Kind::Conflict, "the pod has changed"));
        }
        match call {
            ApiCall::Nominate { node, .. } => {
                pod.status.get_or_insert_default().nominated_node_name = Some(node.to_string());
                self.set_condition(&mut pod, names::PLACED, true, "Estimated", "");
                self.change_pod(&uid, pod);
            }
            ApiCall::ReportWaiting { reason, message, .. } => {
                pod.status.get_or_insert_default().nominated_node_name = None;
                self.set_condition(&mut pod, names::PLACED, false, reason, message);
                self.change_pod(&uid, pod);
            }
            ApiCall::StartTrial { node, until, .. } => {
                assert_eq!(pod_state::gating(&pod), pod_state::Gating::Ours, "{uid} has lost its gate");
                assert_eq!(trial_node(&pod), None, "{uid} is on trial");
                pod.metadata.labels.get_or_insert_default().insert(TRIAL_LABEL.to_owned(), node.to_string());
                let annotations = pod.metadata.annotations.get_or_insert_default();
                annotations.insert(TRIAL_UNTIL_ANNOTATION.to_owned(), until.to_string());
                pod.status.get_or_insert_default().nominated_node_name = Some(node.to_string());
                self.set_condition(&mut pod, names::PLACED, false, names::ON_TRIAL, "");
                self.change_pod(&uid, pod);
                self.trials += 1;
            }
            ApiCall::ExtendTrial { until, .. } => {
                let annotations = pod.metadata.annotations.get_or_insert_default();
                annotations.insert(TRIAL_UNTIL_ANNOTATION.to_owned(), until.to_string());
                self.change_pod(&uid, pod);
            }
            ApiCall::EndTrial { .. } => {
                pod.metadata.annotations.get_or_insert_default().remove(TRIAL_UNTIL_ANNOTATION);
                pod.status.get_or_insert_default().nominated_node_name = None;
                self.change_pod(&uid, pod);
            }
            ApiCall::RemoveTrial { former, .. } => {
                let is_responsible = match former {
                    None => false,
                    Some(FormerNode::Gone(node)) => self.nodes.contains_key(&**node),
                    Some(FormerNode::WithoutTrials(node)) => {
                        self.nodes.get(&**node).is_some_and(declares_trial)
                    }
                };
                if is_responsible {
                    return Err(Error::new(Kind::Conflict, "the node may remove it"));
                }
                pod.metadata.labels.get_or_insert_default().remove(TRIAL_LABEL);
                pod.metadata.annotations.get_or_insert_default().remove(TRIAL_UNTIL_ANNOTATION);
                self.change_pod(&uid, pod);
            }
            ApiCall::ReportPlaced { .. } => {
                self.set_condition(&mut pod, names::PLACED, true, "Tried", "");
                self.change_pod(&uid, pod);
            }
            ApiCall::Ungate { pin, trial_until, .. } => {
                assert_eq!(pod_state::gating(&pod), pod_state::Gating::Ours, "{uid} has lost its gate");
                assert!(pod_state::nominated_node(&pod).is_some(), "{uid} was not nominated");
                assert!(pod_state::node(&pod).is_none(), "{uid} is bound");
                let own =
                    pod.spec.as_ref().and_then(|spec| spec.node_selector.as_ref()?.get(names::HOSTNAME));
                let pinned = pin.as_ref().or(own).cloned();
                if let Some(node) = trial_node(&pod) {
                    let has_node = self.lower.get(node).is_some_and(|lower| lower.is_scheduled(&uid));
                    assert!(has_node, "{uid} has no lower node on {node}");
                    assert_eq!(pinned.as_deref(), Some(node), "{uid} may be bound elsewhere");
                }
                // A machine that was chosen although placement does not know all rules of the pod may be the wrong one.
                let is_machine =
                    pod_state::nominated_node(&pod).is_some_and(|node| !self.lower.contains_key(node));
                let has_affinity = pod.spec.as_ref().is_some_and(|spec| spec.affinity.is_some());
                let may_stay_unpinned =
                    AfterEviction::of(&pod) != AfterEviction::Replaced || is_machine && has_affinity;
                assert!(
                    !self.pins() || pinned.is_some() || may_stay_unpinned,
                    "{uid} may be bound elsewhere"
                );
                self.check_group(&uid, &pod, pinned.as_deref());
                let spec = pod.spec.as_mut().unwrap();
                spec.scheduling_gates.as_mut().unwrap().retain(|gate| gate.name != names::GATE);
                if let Some(hostname) = pin {
                    let selector = spec.node_selector.get_or_insert_default();
                    selector.insert(names::HOSTNAME.to_owned(), hostname.clone());
                    let annotations = pod.metadata.annotations.get_or_insert_default();
                    annotations.insert(names::PINNED.to_owned(), "true".to_owned());
                }
                if let Some(until) = trial_until {
                    let annotations = pod.metadata.annotations.get_or_insert_default();
                    annotations.insert(TRIAL_UNTIL_ANNOTATION.to_owned(), until.to_string());
                }
                self.change_pod(&uid, pod);
                let delay = self.delay();
                self.schedule(delay, Scheduled::Bind(uid.clone()));
            }
            ApiCall::Evict { .. } => self.evict(&uid, pod),
            ApiCall::WriteAvoidTable(_) | ApiCall::ReadJob { .. } | ApiCall::ReadClaims { .. } => {}
        }
        let version = self.pods.get(&uid).and_then(|pod| pod.metadata.resource_version.clone());
        Ok(version.map_or(Answer::Done, Answer::Patched))
    }

    pub(super) fn set_condition(&self, pod: &mut Pod, kind: &str, status: bool, reason: &str, message: &str) {
        let conditions = pod.status.get_or_insert_default().conditions.get_or_insert_default();
        conditions.retain(|condition| condition.type_ != kind);
        conditions.push(PodCondition {
            type_: kind.to_owned(),
            status: if status { "True" } else { "False" }.to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message.to_owned()),
            last_transition_time: Some(Time(self.wall())),
            ..PodCondition::default()
        });
    }
}
