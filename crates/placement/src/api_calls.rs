//! The calls to the API server.

use k8s_openapi::{
    api::{
        batch::v1::Job,
        core::v1::{ConfigMap, Node, PersistentVolumeClaim, Pod},
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use vk_kube::{Client, Error, Kind, Objects, Partial, Patch, Selector, Slim};
use vk_provider::{
    PodRef,
    placement::{TRIAL_LABEL, TRIAL_UNTIL_ANNOTATION, TRIED_REASON, declares_trial},
};
use vk_supervisor::Clock;

use crate::{
    effect::{Answer, ApiCall, FormerNode},
    names,
    policy::NAME,
    watched_pod::WatchedPod,
};

/// The reason of the condition of pods for which a node was chosen by what it had answered.
const ESTIMATED: &str = "Estimated";

/// Makes the calls.
#[derive(Clone)]
pub(crate) struct ApiCalls {
    pub(crate) client: Client,
    /// The namespace of the ConfigMap.
    pub(crate) namespace: String,
    pub(crate) clock: Clock,
}

// === impl ApiCalls ===

impl ApiCalls {
    pub(crate) async fn send(&self, call: ApiCall) -> Result<Answer, Error> {
        match call {
            ApiCall::Nominate { pod, version, node } => {
                let condition = self.placed("True", ESTIMATED, &format!("placed on {node}"));
                let status = json!({"nominatedNodeName": &*node, "conditions": [condition]});
                return self.patch_status(&pod, metadata(&pod, Some(&version)), &status).await;
            }
            ApiCall::ReportWaiting { pod, version, reason, message, is_first } => {
                let mut condition = self.placed("False", reason, &message);
                if !is_first {
                    condition.as_object_mut().map(|it| it.remove("lastTransitionTime"));
                }
                let status = json!({"nominatedNodeName": null, "conditions": [condition]});
                return self.patch_status(&pod, metadata(&pod, Some(&version)), &status).await;
            }
            ApiCall::Ungate { pod, version, pin, trial_until } => {
                let mut patch = json!({
                    "metadata": metadata(&pod, Some(&version)),
                    "spec": {"schedulingGates": [{"name": names::GATE, "$patch": "delete"}]},
                });
                if let Some(hostname) = pin {
                    patch["metadata"]["annotations"] = json!({names::PINNED: "true"});
                    patch["spec"]["nodeSelector"] = json!({names::HOSTNAME: hostname});
                }
                if let Some(until) = trial_until {
                    patch["metadata"]["annotations"][TRIAL_UNTIL_ANNOTATION] = json!(until.to_string());
                }
                let Partial(pod) = self.pods(&pod).patch(&pod.name, Patch::Strategic(&patch)).await?;
                return Ok(patched(pod));
            }
            ApiCall::ReadClaims { namespace, names } => {
                let claims = Objects::<PersistentVolumeClaim>::namespaced(self.client.clone(), namespace);
                for name in names {
                    let claim = match claims.get(&name).await {
                        Ok(claim) => claim,
                        Err(error) if error.kind == Kind::NotFound => return Ok(Answer::ClaimsBound(false)),
                        Err(error) => return Err(error),
                    };
                    if claim.status.and_then(|status| status.phase).as_deref() != Some("Bound") {
                        return Ok(Answer::ClaimsBound(false));
                    }
                }
                return Ok(Answer::ClaimsBound(true));
            }
            ApiCall::StartTrial { pod, version, node, until } => {
                let mut metadata = metadata(&pod, Some(&version));
                metadata["labels"] = json!({TRIAL_LABEL: &*node});
                metadata["annotations"] = json!({TRIAL_UNTIL_ANNOTATION: until.to_string()});
                let placed = self.placed("Unknown", names::ON_TRIAL, &format!("on trial on {node}"));
                let scheduled = json!({"type": names::SCHEDULED, "status": "Unknown", "reason": names::ON_TRIAL,
                    "message": "", "lastTransitionTime": Time(self.clock.now())});
                let status = json!({"nominatedNodeName": &*node, "conditions": [placed, scheduled]});
                return self.patch_status(&pod, metadata, &status).await;
            }
            ApiCall::ExtendTrial { pod, version, until } => {
                let mut metadata = metadata(&pod, Some(&version));
                metadata["annotations"] = json!({TRIAL_UNTIL_ANNOTATION: until.to_string()});
                let patch = json!({"metadata": metadata});
                let Partial(pod) = self.pods(&pod).patch(&pod.name, Patch::Strategic(&patch)).await?;
                return Ok(patched(pod));
            }
            ApiCall::EndTrial { pod, version } => {
                let mut metadata = metadata(&pod, Some(&version));
                metadata["annotations"] = json!({TRIAL_UNTIL_ANNOTATION: null});
                return self.patch_status(&pod, metadata, &json!({"nominatedNodeName": null})).await;
            }
            ApiCall::RemoveTrial { pod, version, former } => {
                if let Some(former) = former {
                    self.check_former_node(&former).await?;
                }
                let mut metadata = metadata(&pod, Some(&version));
                metadata["labels"] = json!({TRIAL_LABEL: null});
                metadata["annotations"] = json!({TRIAL_UNTIL_ANNOTATION: null});
                let scheduled = json!({"type": names::SCHEDULED, "$patch": "delete"});
                let status = json!({"nominatedNodeName": null, "conditions": [scheduled]});
                return self.patch_status(&pod, metadata, &status).await;
            }
            ApiCall::ReportPlaced { pod, node } => {
                let condition = self.placed("True", TRIED_REASON, &format!("placed on {node} after a trial"));
                self.patch_status(&pod, metadata(&pod, None), &json!({"conditions": [condition]})).await?;
            }
            ApiCall::Evict { pod, version } => {
                let eviction = json!({
                    "apiVersion": "policy/v1",
                    "kind": "Eviction",
                    "metadata": {"name": &*pod.name, "namespace": &*pod.namespace},
                    "deleteOptions": {"preconditions": {"uid": &*pod.uid, "resourceVersion": version}},
                });
                let pods = self.pods(&pod);
                pods.create_subresource::<_, IgnoredAny>(&pod.name, "eviction", &eviction).await?;
            }
            ApiCall::WriteAvoidTable(changes) => {
                let maps = Objects::<ConfigMap>::namespaced(self.client.clone(), &self.namespace);
                maps.patch(NAME, Patch::Merge(&json!({"data": changes}))).await?;
            }
            ApiCall::ReadJob { namespace, name, uid } => {
                let job = Objects::<Job>::namespaced(self.client.clone(), namespace).get(&name).await?;
                if job.metadata.uid.as_deref() != Some(&uid) {
                    return Err(Error::new(Kind::NotFound, "another Job has the name"));
                }
                return Ok(Answer::JobIgnoresDisruption(ignores_disruption(&job)));
            }
        }
        Ok(Answer::Done)
    }

    /// An error if a node may remove what is left of a trial after all: the watch may be behind. The roles permit to list Nodes, not to get
    /// them.
    async fn check_former_node(&self, former: &FormerNode) -> Result<(), Error> {
        let (FormerNode::Gone(node) | FormerNode::WithoutTrials(node)) = former;
        let nodes = Objects::<Slim<Node>>::all(self.client.clone());
        let name = Selector { fields: Some(format!("metadata.name={node}")), ..Selector::default() };
        let found = nodes.list(&name).await?.objects;
        let why = match former {
            FormerNode::Gone(_) if !found.is_empty() => "exists",
            FormerNode::WithoutTrials(_) if found.iter().any(|Slim(node)| declares_trial(node)) => {
                "takes pods on trial"
            }
            _ => return Ok(()),
        };
        Err(Error::new(Kind::Conflict, format!("Node {node} {why}")))
    }

    fn pods(&self, pod: &PodRef) -> Objects<WatchedPod> {
        Objects::namespaced(self.client.clone(), &*pod.namespace)
    }

    async fn patch_status(&self, pod: &PodRef, metadata: Value, status: &Value) -> Result<Answer, Error> {
        let patch = json!({"metadata": metadata, "status": status});
        let Partial(pod) = self.pods(pod).patch_status(&pod.name, Patch::Strategic(&patch)).await?;
        Ok(patched(pod))
    }

    /// The condition that says whether the pod has a node, as of now.
    fn placed(&self, status: &str, reason: &str, message: &str) -> Value {
        let now = Time(self.clock.now());
        json!({"type": names::PLACED, "status": status, "reason": reason, "message": message, "lastTransitionTime": now})
    }
}

/// The metadata of a patch, with its preconditions.
fn metadata(pod: &PodRef, version: Option<&str>) -> Value {
    match version {
        Some(version) => json!({"uid": &*pod.uid, "resourceVersion": version}),
        None => json!({"uid": &*pod.uid}),
    }
}

fn patched(pod: Pod) -> Answer {
    Answer::Patched(pod.metadata.resource_version.unwrap_or_default())
}

/// Whether an evicted pod does not count as a failed one.
fn ignores_disruption(job: &Job) -> bool {
    let policy = job.spec.as_ref().and_then(|spec| spec.pod_failure_policy.as_ref());
    let rules = policy.map(|policy| policy.rules.as_slice()).unwrap_or_default();
    // The first rule that matches decides; those about exit codes match no pod that has never run.
    let about_disruption = rules.iter().find(|rule| {
        let patterns = rule.on_pod_conditions.iter().flatten();
        patterns.into_iter().any(|pattern| {
            pattern.type_ == "DisruptionTarget" && pattern.status.as_deref().is_none_or(|it| it == "True")
        })
    });
    about_disruption.is_some_and(|rule| rule.action == "Ignore")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(rules: &Value) -> Job {
        let spec = json!({"template": {}, "podFailurePolicy": {"rules": rules}});
        serde_json::from_value(json!({"spec": spec})).unwrap()
    }

    #[test]
    fn a_job_ignores_disruption_if_its_first_rule_about_it_says_so() {
        let rule = |action: &str, kind: &str, status: &str| json!({"action": action, "onPodConditions": [{"type": kind, "status": status}]});
        for (rules, expected) in [
            (json!([rule("Ignore", "DisruptionTarget", "True")]), true),
            (
                json!([
                    rule("Count", "DisruptionTarget", "True"),
                    rule("Ignore", "DisruptionTarget", "True")
                ]),
                false,
            ),
            (json!([rule("Ignore", "ConfigIssue", "True")]), false),
            (json!([rule("Ignore", "DisruptionTarget", "False")]), false),
            (json!([{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [1]}}]), false),
        ] {
            assert_eq!(ignores_disruption(&job(&rules)), expected, "{rules}");
        }
        assert!(!ignores_disruption(&Job::default()));
    }
}
