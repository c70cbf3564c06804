//! The status of a pod: computed from the observed state, and reported when it changes.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodStatus};

use super::context::PodScope;
use crate::{
    probe::ProbeResults,
    snapshot::{Container, Snapshot},
    status::{self, FailureReason, FailureReasons, StatusInput},
};

/// Computes and reports the status of a pod.
pub(super) struct StatusReporter {
    scope: PodScope,
    /// The status that was computed last.
    computed: Option<Arc<PodStatus>>,
    /// Why the pod was rejected at admission.
    rejection: Option<FailureReason>,
    /// Why containers wait.
    failures: FailureReasons,
}

// === impl StatusReporter ===

impl StatusReporter {
    pub(super) fn new(scope: PodScope) -> Self {
        Self { scope, computed: None, rejection: None, failures: FailureReasons::new() }
    }

    /// The pod fails for this reason.
    pub(super) fn reject(&mut self, rejection: FailureReason) {
        self.rejection = Some(rejection);
    }

    /// Sets why a container waits, or that it no longer does.
    pub(super) fn set_failure(&mut self, container: &str, failure: Option<FailureReason>) {
        match failure {
            Some(failure) => drop(self.failures.insert(container.to_owned(), failure)),
            None => drop(self.failures.remove(container)),
        }
    }

    /// Computes the status and reports it if it changed. `terminated`: everything was stopped and nothing is restarted.
    pub(super) fn publish(
        &mut self,
        pod: &Pod,
        snapshot: &Snapshot,
        probe_results: &ProbeResults,
        terminated: bool,
    ) -> Arc<PodStatus> {
        let PodScope { context, handle } = &self.scope;
        let runtime = context.health.runtime().unwrap_or_default();
        let computed = status::compute_status(&StatusInput {
            pod,
            snapshot,
            probe_results,
            failures: &self.failures,
            previous: self.computed.as_deref(),
            node_ips: &context.settings.node_ips,
            runtime: &runtime.name,
            recursive_read_only: runtime.supports_recursive_read_only(snapshot.handler()),
            failed: self.rejection.as_ref(),
            terminated,
            since: Some(context.started),
            now: context.clock.now(),
        });
        let computed = match &self.rejection {
            // A kubelet reports only the reason of a rejected pod.
            Some(why) if snapshot.is_empty() => status::rejected_status(pod, &computed, why),
            _ if terminated => status::terminated_status(pod, &computed),
            _ => computed,
        };
        let computed = Arc::new(computed);
        self.computed = Some(Arc::clone(&computed));
        let before = handle.view.borrow().status.clone();
        // The exit of all containers counts as the end of a pod that is being stopped: it is reported when sandbox and volumes are gone
        // too.
        let stopping = !terminated && before.is_some() && handle.stop.borrow().is_some();
        if stopping && !snapshot.containers.iter().any(Container::may_run) {
            return computed;
        }
        let live = !terminated && snapshot.is_live();
        let reported = status::reported_status(&computed, before.as_deref(), live);
        if before.as_deref() != Some(&reported) {
            // Usually both are equal: keep one copy.
            let kept = if reported == *computed { Arc::clone(&computed) } else { Arc::new(reported.clone()) };
            context.outbox.status(&handle.pod, reported);
            handle.view.send_modify(|view| view.status = Some(kept));
        }
        computed
    }
}
