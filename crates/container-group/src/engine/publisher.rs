//! What the core is told about pods: status, events, annotations.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::{PodCondition, PodStatus};
use tracing::debug;
use vk_provider::{Error, EventKind, ObservedPod, PodEvent, PodRef, Result};
use vk_supervisor::task::Kind;

use super::{
    context::{EngineContext, State},
    events::{EVENTS_ANNOTATION, EventMark, newest_warning},
};
use crate::{
    GroupBackend,
    backend::{Action, GroupEvent, Observed, Size},
    lifecycle::Group,
    reconciler::PodView,
    status::{PREEMPTED, StatusInput, pod_status},
};

/// How many events of a pod are kept until they can be published.
const MOST_HELD: usize = 100;

const GROUP: &str = "virtual-kubelet.io/group";
const SIZE: &str = "virtual-kubelet.io/size";
const PRICE: &str = "virtual-kubelet.io/price";
const PUBLIC_ADDRESS: &str = "virtual-kubelet.io/public-address";

/// Why the cloud took the group of a pod back, if it did.
fn disruption(status: &PodStatus) -> Option<&str> {
    let is_ours = |one: &&PodCondition| one.reason.as_deref() == Some(PREEMPTED) && one.status == "True";
    let found = status.conditions.iter().flatten().find(is_ours)?;
    found.message.as_deref()
}

impl<B: GroupBackend> EngineContext<B> {
    /// The status of a pod now.
    pub(super) fn status(&self, pod: &PodRef) -> Result<PodStatus> {
        let state = self.state.lock();
        match state.reconciler.view(&pod.uid) {
            PodView::Absent => Err(Error::not_found(format!("pod {pod} has no container group"))),
            PodView::Unclear => Err(Error::unavailable(format!(
                "read pod {pod}: it is not known yet whether it has a container group"
            ))),
            PodView::Creating => Ok(self.compute(&state, pod, None)),
            PodView::Present(group) => Ok(self.compute(&state, pod, Some(&self.told(group)))),
        }
    }

    pub(super) fn observed_pods(&self) -> Vec<ObservedPod> {
        let state = self.state.lock();
        let present = state.reconciler.present();
        present
            .map(|(pod, group)| ObservedPod {
                pod: pod.clone(),
                node: Some(self.settings.node.clone()),
                status: self.compute(&state, pod, Some(&self.told(group))),
            })
            .collect()
    }

    /// What is told of a group. Its end is told only with what the cloud says about it: the first status of a failed pod is the one that
    /// controllers act on.
    fn told<'a>(&self, group: &'a Group) -> Cow<'a, Observed> {
        let observed = group.observed();
        if group.awaits_explanation(self.now()) {
            return Cow::Owned(Observed { state: None, ..observed.clone() });
        }
        Cow::Borrowed(observed)
    }

    fn compute(&self, state: &State<B::Request>, pod: &PodRef, observed: Option<&Observed>) -> PodStatus {
        let record = state.records.get(&pod.uid);
        pod_status(&StatusInput {
            pod: record.and_then(|record| record.pod.as_deref()),
            observed,
            previous: record.and_then(|record| record.published.as_ref()),
            warning: record.and_then(|record| record.warning.as_deref()),
            is_resizing: record.is_some_and(|record| record.resize.is_some()),
            node_ips: &self.settings.node_ips,
            runtime: &self.settings.runtime,
            now: self.clock.now(),
        })
    }

    /// Publishes the status of a pod if it has changed. A pod that the core has not spoken of is not reported.
    pub(super) fn publish(self: &Arc<Self>, state: &mut State<B::Request>, pod: &PodRef) {
        if !state.reconciler.is_leading() {
            return;
        }
        let observed = match state.reconciler.view(&pod.uid) {
            PodView::Absent => return self.outbox.refresh(pod),
            PodView::Unclear => return,
            PodView::Creating => None,
            PodView::Present(group) => Some(self.told(group).into_owned()),
        };
        let Some(record) = state.records.get_mut(&pod.uid).filter(|record| record.pod.is_some()) else {
            return;
        };
        record.check_resize(self.now(), observed.as_ref().and_then(|observed| observed.size.as_ref()));
        let held = std::mem::take(&mut record.held);
        if !held.is_empty() {
            self.publish_events(state, pod, held);
        }
        let status = self.compute(state, pod, observed.as_ref());
        let record = state.record(pod);
        let stored = || record.pod.as_ref().and_then(|pod| pod.status.as_ref());
        let before = record.published.as_ref().or_else(stored);
        let is_disrupted =
            disruption(&status).filter(|_| before.is_none_or(|before| disruption(before).is_none()));
        if let Some(message) = is_disrupted {
            self.event(pod, EventKind::Warning, PREEMPTED, message.to_owned());
        }
        if record.published.as_ref() != Some(&status) {
            record.published = Some(status.clone());
            self.outbox.status(pod, status);
        }
        if let Some(observed) = observed {
            self.annotate(state, pod, &observed);
        }
    }

    fn annotate(self: &Arc<Self>, state: &mut State<B::Request>, pod: &PodRef, observed: &Observed) {
        let price = observed.size.as_ref().and_then(|size| self.price(state, size));
        let record = state.record(pod);
        let planned = record.plan.as_ref().and_then(|plan| plan.size.as_ref());
        let size = observed.size.as_ref().or(planned);
        let values: BTreeMap<String, Option<String>> = [
            (GROUP, Some(observed.group.id.to_string())),
            (SIZE, size.map(ToString::to_string)),
            (PRICE, price),
            (PUBLIC_ADDRESS, observed.public_address.map(|address| address.to_string())),
            (EVENTS_ANNOTATION, record.mark.as_ref().map(ToString::to_string)),
        ]
        .into_iter()
        .filter(|(_, value)| value.is_some())
        .map(|(key, value)| (key.to_owned(), value))
        .filter(|(key, value)| record.annotations.get(key) != Some(value))
        .collect();
        if !values.is_empty() {
            record.annotations.extend(values.clone());
            self.annotations.annotations(pod, values);
        }
    }

    /// The price per hour of a size, if it is known. Asks for it once otherwise.
    fn price(self: &Arc<Self>, state: &mut State<B::Request>, size: &Size) -> Option<String> {
        if !self.settings.prices {
            return None;
        }
        let key = size.to_string();
        if let Some(price) = state.prices.get(&key) {
            return price.as_ref().map(|price| format!("{price}/h"));
        }
        state.prices.insert(key.clone(), None);
        let (this, size) = (Arc::clone(self), size.clone());
        self.supervisor.spawn("price", Kind::Work, async move {
            let price = tokio::select! {
                price = this.call(Action::Price, this.backend.price(&size)) => price,
                () = this.supervisor.stopping() => return,
            };
            let mut state = this.state.lock();
            match price {
                Ok(price) => {
                    state.prices.insert(key, price);
                }
                Err(error) => {
                    debug!(%error, "the price is not known");
                    // The next change of a pod asks again.
                    state.prices.remove(&key);
                    return;
                }
            }
            let pods: Vec<PodRef> = state.reconciler.present().map(|(pod, _)| pod.clone()).collect();
            for pod in &pods {
                this.publish(&mut state, pod);
            }
        });
        None
    }

    /// Publishes those events of the cloud that are new, warnings first.
    pub(super) fn publish_events(
        self: &Arc<Self>,
        state: &mut State<B::Request>,
        pod: &PodRef,
        events: Vec<GroupEvent>,
    ) {
        let leading = state.reconciler.is_leading();
        let record = state.record(pod);
        if record.pod.is_none() || !leading {
            // What was published before is known only with the pod, and is published only by the owner of the node.
            record.held.extend(events);
            let surplus = record.held.len().saturating_sub(MOST_HELD);
            record.held.drain(..surplus);
            return;
        }
        let mut new: Vec<GroupEvent> = Vec::new();
        for event in events.iter().filter(|event| event.time.is_none()) {
            if record.untimed.insert((event.reason.clone(), event.message.clone())) {
                new.push(event.clone());
            }
        }
        let warning = newest_warning(&events);
        let (timed, mark) = EventMark::select(record.mark.take(), events);
        new.extend(timed);
        record.mark = mark;
        let warned = warning.is_some() && record.warning != warning;
        if warned {
            record.warning = warning;
        }
        new.sort_by_key(|event| event.kind != EventKind::Warning);
        let changed = !new.is_empty();
        for event in new {
            self.outbox.event(PodEvent {
                pod: pod.clone(),
                container: event.container,
                kind: event.kind,
                reason: event.reason,
                message: event.message,
            });
        }
        if changed || warned {
            self.publish(state, pod);
        }
    }
}
