//! Whether the lower cluster would take pods.

use std::{borrow::Cow, collections::HashSet, sync::Arc};

use k8s_openapi::api::core::v1::Pod;
use vk_fit::Query;
use vk_provider::{
    PodRef,
    ability::{Fit, LowerNode, Verdict},
    node_selector::LabelLookup,
};

use super::{ClusterProvider, VirtualNode};
use crate::translate::{ClusterClasses, translate};

impl Fit for ClusterProvider {
    /// Translates the pods as if they were to be created, so that everything counts that the translation drops, maps, adds or rejects.
    fn fit(&self, held: &[Arc<Pod>], pods: &[Arc<Pod>], without: &[Arc<str>]) -> Vec<Verdict> {
        let node = &self.node;
        if node.is_abandoned() {
            return vec![Verdict::refused("the lower cluster is abandoned", true); pods.len()];
        }
        if node.lower.check_synced().is_err() {
            return vec![Verdict::unknown("the lower cluster is not listed yet"); pods.len()];
        }
        if node.health.error().is_some() {
            return vec![Verdict::unknown("the lower cluster does not answer"); pods.len()];
        }
        let classes = node.lower.classes();
        let lower: Vec<Result<Arc<Pod>, Verdict>> =
            pods.iter().map(|pod| node.to_lower(pod, &classes)).collect();
        let accepted: Vec<Arc<Pod>> = lower.iter().filter_map(|pod| pod.as_ref().ok().cloned()).collect();
        let includes = |labels: LabelLookup<'_>| node.settings.share.includes(labels);
        let query = Query {
            held: &node.held_below(held, without, &classes),
            pods: &accepted,
            without: &node.pods_below(without),
            nodes: Some(&includes),
        };
        let verdicts = node.lower.with_snapshot(|snapshot| snapshot.fit(&query));
        let verdicts = verdicts.unwrap_or_else(|why| vec![Verdict::unknown(why); accepted.len()]);
        let mut verdicts = verdicts.into_iter();
        let verdict = |lower: Result<_, Verdict>| match lower {
            Ok(_) => verdicts.next().expect("invariant: one verdict for each pod"),
            Err(refused) => refused,
        };
        lower.into_iter().map(verdict).collect()
    }

    fn best_nodes(&self, pod: &Pod, count: usize) -> Vec<LowerNode> {
        let node = &self.node;
        let includes = |labels: LabelLookup<'_>| node.settings.share.includes(labels);
        let query = Query { nodes: Some(&includes), ..Query::default() };
        let Ok(lower) = node.to_lower(pod, &node.lower.classes()) else { return Vec::new() };
        let best = node.lower.with_snapshot(|snapshot| snapshot.best_nodes(&query, &lower, count));
        best.unwrap_or_default()
    }

    /// The lower scheduler decides about every pod, and [`status`](crate::status) reports it.
    fn takes_trials(&self) -> bool {
        true
    }
}

impl VirtualNode {
    /// The lower pod that would be created for an upper pod, or why none would.
    fn to_lower(&self, upper: &Pod, classes: &ClusterClasses) -> Result<Arc<Pod>, Verdict> {
        let refused = |why: String| Verdict::refused(why.replace('\n', " "), true);
        if let Some(why) = self.not_offloaded(upper) {
            return Err(refused(why));
        }
        let translated = translate(&with_identity(upper), &self.owner, &self.settings.policy, classes);
        translated.map(|translated| Arc::new(translated.pod)).map_err(|rejection| refused(rejection.0))
    }

    /// The lower pods that will be there although the watch does not show them: those of `held`, and those that are about to be created.
    fn held_below(&self, held: &[Arc<Pod>], without: &[Arc<str>], classes: &ClusterClasses) -> Vec<Arc<Pod>> {
        let mut expected = self.records.lock().expected();
        for upper in held {
            let Some(pod) = PodRef::of(upper) else { continue };
            if self.lower_pod(&pod).is_none()
                && let Ok(lower) = self.to_lower(upper, classes)
            {
                expected.entry(pod.uid).or_insert(lower);
            }
        }
        for uid in without {
            expected.remove(uid);
        }
        expected.into_values().collect()
    }

    /// The lower pods of upper pods with these UIDs.
    fn pods_below(&self, uids: &[Arc<str>]) -> Vec<Arc<Pod>> {
        if uids.is_empty() {
            return Vec::new();
        }
        let uids: HashSet<&str> = uids.iter().map(|uid| &**uid).collect();
        let all = self.own_pods().into_iter().filter(|(pod, _)| uids.contains(&*pod.uid));
        all.map(|(_, lower)| lower).collect()
    }
}

/// The pod with a name and a UID, which one that is not stored yet may lack.
fn with_identity(pod: &Pod) -> Cow<'_, Pod> {
    let is_set = |field: &Option<String>| field.as_ref().is_some_and(|text| !text.is_empty());
    if is_set(&pod.metadata.name) && is_set(&pod.metadata.uid) {
        return Cow::Borrowed(pod);
    }
    let mut pod = pod.clone();
    let metadata = &mut pod.metadata;
    if !is_set(&metadata.name) {
        metadata.name = Some(format!("{}0", metadata.generate_name.as_deref().unwrap_or("pod-")));
    }
    if !is_set(&metadata.uid) {
        metadata.uid = Some("00000000-0000-0000-0000-000000000000".to_owned());
    }
    Cow::Owned(pod)
}
