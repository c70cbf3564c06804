//! Controllers that create pods again, and what must hold whenever placement evicts one.

use std::time::Duration;

use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::Time};
use vk_kube::Kind;

use super::{Scheduled, World};
use crate::{
    effect::{CallId, Input},
    names, pod_state,
};

/// No other pod of the controller is evicted for this long, unless the first is seen to be gone.
const PATIENCE: Duration = Duration::from_mins(1);
const MINUTE: Duration = Duration::from_mins(1);

/// The evictions by the descheduler of one process that may have taken place.
#[derive(Debug, Default)]
pub(super) struct EvictionLog(Vec<SentEviction>);

#[derive(Debug)]
struct SentEviction {
    uid: String,
    controller: String,
    call: CallId,
    at: Duration,
    /// The process knows that the pod is gone, or not stuck any more.
    is_seen: bool,
}

/// Whether no lower node has taken the pod yet.
fn is_stuck(pod: &Pod) -> bool {
    let scheduled = pod_state::condition(pod, names::SCHEDULED);
    scheduled.is_some_and(|condition| condition.status == "False") && !pod_state::has_run(pod)
}

// === impl EvictionLog ===

impl EvictionLog {
    /// What the process is about to learn.
    pub(super) fn observe(&mut self, inputs: &[Input]) {
        for input in inputs {
            match input {
                Input::PodGone(pod) => {
                    for sent in self.0.iter_mut().filter(|sent| Some(&sent.uid) == pod.metadata.uid.as_ref())
                    {
                        sent.is_seen = true;
                    }
                }
                // The eviction did not take place, and the pod has found room.
                Input::Pod(pod) if !is_stuck(pod) => {
                    for sent in self.0.iter_mut().filter(|sent| Some(&sent.uid) == pod.metadata.uid.as_ref())
                    {
                        sent.is_seen = true;
                    }
                }
                // A list is delivered at once.
                Input::PodsListed => {
                    let is_listed = |uid: &String| {
                        inputs.iter().any(|input| matches!(input, Input::Pod(pod) if pod.metadata.uid.as_ref() == Some(uid)))
                    };
                    for sent in &mut self.0 {
                        sent.is_seen |= !is_listed(&sent.uid);
                    }
                }
                Input::Answered(id, Err(error)) if error.kind == Kind::Conflict => {
                    self.0.retain(|sent| sent.call != *id);
                }
                _ => {}
            }
        }
    }
}

impl World {
    /// The descheduler of a process evicts few pods a minute, and of each controller one at a time.
    pub(super) fn check_eviction_limits(&mut self, process: u32, call: CallId, uid: &str) {
        let Some(settings) = self.settings.descheduler else { return };
        let Some(pod) = self.pods.get(uid).filter(|pod| pod_state::node(pod).is_some()) else { return };
        let controller = pod_state::controller(pod).map(|owner| owner.uid.clone()).unwrap_or_default();
        let now = self.now;
        let Some(process) = self.process(process) else { return };
        let log = &mut process.evictions.0;
        let recent = log.iter().filter(|sent| sent.at + MINUTE > now).count();
        assert!(recent < settings.most, "{uid} is evicted after {recent} others in a minute: {log:?}");
        let busy = log
            .iter()
            .find(|sent| sent.controller == controller && !sent.is_seen && sent.at + PATIENCE > now);
        assert!(busy.is_none(), "{uid} is evicted before {busy:?} is gone");
        log.push(SentEviction { uid: uid.to_owned(), controller, call, at: now, is_seen: false });
    }

    /// An eviction takes effect.
    pub(super) fn evict(&mut self, uid: &str, pod: Pod) {
        let owner = pod_state::controller(&pod).unwrap_or_else(|| panic!("{uid} has no controller"));
        let ignores = owner.kind == "Job" && owner.name == "ignores";
        assert!(owner.kind != "DaemonSet", "{uid} is of a DaemonSet");
        if let Some(node) = pod_state::node(&pod) {
            assert!(owner.kind != "Job" || ignores, "the Job of {uid} counts that as a failure");
            assert!(pod_state::group(&pod).is_none(), "{uid} belongs to a group");
            let annotations = pod.metadata.annotations.as_ref();
            let permission = annotations.and_then(|all| all.get(names::DESCHEDULE)).map(String::as_str);
            assert!(permission != Some("false"), "{uid} is exempt");
            assert!(is_stuck(&pod), "{uid} is not stuck");
            let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
            let avoided = self.config_map.get(&format!("avoid.{namespace}.{}", owner.uid));
            let is_avoided =
                avoided.is_some_and(|nodes| nodes.split(',').any(|it| it.starts_with(&format!("{node}="))));
            assert!(is_avoided, "{uid} is evicted from {node}, which its controller avoids not: {avoided:?}");
            self.descheduled += 1;
        } else {
            assert!(owner.kind != "Job", "the Job of {uid} counts that as a failure");
        }
        self.evicted.push(uid.to_owned());
        self.delete_pod(uid);
        if self.recreates {
            let delay = self.delay();
            self.schedule(delay, Scheduled::Create(Box::new(pod)));
        }
    }

    /// A controller creates a pod for one that was evicted.
    pub(super) fn create_again(&mut self, mut pod: Pod) {
        let base = pod.metadata.name.take().unwrap_or_default();
        let name = format!("{}~{}", base.split('~').next().unwrap_or_default(), self.evicted.len());
        self.record(|| format!("create {name}"));
        (pod.metadata.name, pod.metadata.uid) = (Some(name.clone()), Some(name.clone()));
        pod.metadata.creation_timestamp = Some(Time(self.wall()));
        if let Some(labels) = &mut pod.metadata.labels {
            labels.remove(vk_provider::placement::TRIAL_LABEL);
        }
        if let Some(annotations) = &mut pod.metadata.annotations {
            annotations.remove(vk_provider::placement::TRIAL_UNTIL_ANNOTATION);
            annotations.remove(names::PINNED);
        }
        let spec = pod.spec.as_mut().unwrap();
        (spec.node_name, spec.node_selector) = (None, None);
        let gate = k8s_openapi::api::core::v1::PodSchedulingGate { name: names::GATE.to_owned() };
        spec.scheduling_gates = Some(vec![gate]);
        pod.status = None;
        self.set_condition(&mut pod, "PodScheduled", false, "SchedulingGated", "");
        pod.status.as_mut().unwrap().phase = Some("Pending".to_owned());
        self.change_pod(&name, pod);
    }
}
