//! Calls that are dropped before they return.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use vk_provider::Result;

use super::create::listed_once;
use crate::conformance::{
    caller::Caller, context::CaseContext, pod_builder::reference, resolver::bundle, result::Outcome,
    subject::ContainerBehavior,
};

/// How often a call is polled before it is dropped.
const CUTS: [usize; 4] = [1, 2, 3, 5];

/// A delete removes everything that a dropped create left.
pub(crate) async fn an_abandoned_create_can_be_deleted(context: &CaseContext) -> Outcome {
    let caller = context.open().await?;
    for cut in CUTS {
        let pod = context.pod().build();
        abandon_create(&caller, &pod, cut).await?;
        caller.delete(&pod, Duration::ZERO).await?;
        caller.over(&reference(&pod)).await?;
    }
    Ok(())
}

/// A dropped create that is repeated results in one instance.
pub(crate) async fn an_abandoned_create_can_be_repeated(context: &CaseContext) -> Outcome {
    let advice = "look the UID up in the backend before anything is started, and hold nothing across an await \
                  that a dropped call would leave behind";
    let caller = context.open().await?;
    for cut in CUTS {
        let pod = context.pod().build();
        abandon_create(&caller, &pod, cut).await?;
        let (made, _) = caller.start(&pod).await?;
        listed_once(&caller, &made, advice).await?;
    }
    Ok(())
}

/// A dropped delete that is repeated ends the pod.
pub(crate) async fn an_abandoned_delete_can_be_repeated(context: &CaseContext) -> Outcome {
    let caller = context.open().await?;
    for cut in CUTS {
        let pod = context.pod().behaves(ContainerBehavior::UntilKilled).build();
        let (made, _) = caller.start(&pod).await?;
        let delete = caller.provider().delete_pod(&made, Some(Arc::clone(&pod)), context.first_grace());
        caller.call("delete_pod", Abandoned { call: delete, polls: cut }).await?;
        caller.delete(&pod, Duration::ZERO).await?;
        caller.over(&made).await?;
    }
    Ok(())
}

async fn abandon_create(caller: &Caller, pod: &Arc<Pod>, cut: usize) -> Outcome {
    let create = caller.provider().create_pod(bundle(pod, true));
    caller.call("create_pod", Abandoned { call: create, polls: cut }).await
}

/// Polls a call this often and drops it if it has not returned.
struct Abandoned<'a> {
    call: BoxFuture<'a, Result<()>>,
    polls: usize,
}

impl Future for Abandoned<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let ready = self.call.as_mut().poll(context).is_ready();
        self.polls = self.polls.saturating_sub(1);
        if ready || self.polls == 0 { Poll::Ready(()) } else { Poll::Pending }
    }
}
