//! The image pulls that the containers of a pod wait for. They go on between the passes of the pod's task, so that a slow registry delays
//! nothing else of the pod: results of probes, restarts and ends of its other containers.

use std::{
    collections::BTreeMap,
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use futures::{FutureExt as _, future::BoxFuture};
use parking_lot::Mutex;
use vk_provider::Resolver;

use super::context::PodScope;
use crate::{
    backend::SandboxConfig,
    image::{ImageRequest, Policy, ResolvedImage},
    status::FailureReason,
};

/// The image pulls of a pod.
pub(super) struct ImagePulls {
    scope: PodScope,
    pulls: BTreeMap<PullTarget, ImagePull>,
}

/// What an image is pulled for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PullTarget {
    /// A container, by name.
    Container(String),
    /// An image volume, by name.
    Volume(String),
}

/// A pull with what it needs.
pub(super) struct PullInputs<'a> {
    pub(super) image: &'a str,
    pub(super) policy: Policy,
    pub(super) sandbox: &'a SandboxConfig,
    pub(super) resolver: &'a Arc<dyn Resolver>,
}

/// A pull of one image.
struct ImagePull {
    image: String,
    state: PullState,
}

enum PullState {
    /// Never locked: it only makes the future shareable, as everything of a pod's task must be.
    Active(Mutex<BoxFuture<'static, PullResult>>),
    Done(PullResult),
}

type PullResult = Result<ResolvedImage, FailureReason>;

// === impl ImagePulls ===

impl ImagePulls {
    pub(super) fn new(scope: PodScope) -> Self {
        Self { scope, pulls: BTreeMap::new() }
    }

    /// The result of a pull, which begins if it has not. If it is pending, [`finished`](Self::finished) resolves when to ask again.
    pub(super) fn poll(&mut self, target: &PullTarget, inputs: &PullInputs<'_>) -> Poll<PullResult> {
        let known = self.pulls.remove(target).filter(|pull| pull.image == inputs.image);
        let mut pull = known.unwrap_or_else(|| ImagePull {
            image: inputs.image.to_owned(),
            state: PullState::Active(Mutex::new(self.begin(target, inputs))),
        });
        // Often there is nothing to pull. Otherwise `finished` polls it with the waker of the pod's task.
        pull.state.advance(&mut Context::from_waker(Waker::noop()));
        let result = match &pull.state {
            PullState::Active(_) => Poll::Pending,
            PullState::Done(result) => Poll::Ready(result.clone()),
        };
        self.pulls.insert(target.clone(), pull);
        result
    }

    /// Takes the result of a pull, so that the next one begins anew.
    pub(super) fn forget(&mut self, target: &PullTarget) {
        self.pulls.remove(target);
    }

    /// Cancels the pulls for containers that are not started any more. Those of volumes go with the last one.
    pub(super) fn retain(&mut self, is_started: impl Fn(&str) -> bool) {
        self.pulls.retain(|target, _| match target {
            PullTarget::Container(name) => is_started(name),
            PullTarget::Volume(_) => true,
        });
    }

    /// Cancels all pulls and forgets all results.
    pub(super) fn clear(&mut self) {
        self.pulls.clear();
    }

    /// Forgets the results for volumes: the containers that wait together have been started.
    pub(super) fn forget_volumes(&mut self) {
        self.pulls.retain(|target, _| matches!(target, PullTarget::Container(_)));
    }

    /// Resolves when a pending pull has ended.
    pub(super) async fn finished(&mut self) {
        poll_fn(|context| {
            let ended = self.pulls.values_mut().filter_map(|pull| pull.state.advance(context).then_some(()));
            // All of them, so that each has the waker.
            if ended.count() > 0 { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    fn begin(&self, target: &PullTarget, inputs: &PullInputs<'_>) -> BoxFuture<'static, PullResult> {
        let (scope, target) = (self.scope.clone(), target.clone());
        let (image, policy) = (inputs.image.to_owned(), inputs.policy);
        let (sandbox, resolver) = (inputs.sandbox.clone(), Arc::clone(inputs.resolver));
        async move {
            let record = |kind, reason: &str, message| match &target {
                PullTarget::Container(name) => scope.record_container_event(name, kind, reason, message),
                PullTarget::Volume(_) => scope.record_event(kind, reason, message),
            };
            let (pod, resolver) = (scope.pod(), &*resolver);
            let request = ImageRequest { pod, image: &image, policy, sandbox: &sandbox, resolver };
            scope.context.puller.ensure(&request, &record).await
        }
        .boxed()
    }
}

// === impl PullState ===

impl PullState {
    /// Continues an active pull. Returns whether it has ended just now.
    fn advance(&mut self, context: &mut Context<'_>) -> bool {
        let Self::Active(pull) = self else { return false };
        match pull.get_mut().poll_unpin(context) {
            Poll::Ready(result) => {
                *self = Self::Done(result);
                true
            }
            Poll::Pending => false,
        }
    }
}
