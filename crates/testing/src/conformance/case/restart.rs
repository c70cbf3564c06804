//! Restarts of the process.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use vk_provider::PodRef;

use super::create::listed_once;
use crate::conformance::{
    caller::Caller,
    context::{CaseContext, NODE, lacking},
    pod_status,
    result::{Outcome, Stop, ensure},
    subject::{ContainerBehavior, Feature},
};

/// The next process finds every pod with its identity, its mark, and unchanged containers.
pub(crate) async fn pods_are_found_again(context: &CaseContext) -> Outcome {
    let advice = "list from the backend and not from the memory of the process";
    let (caller, _, made, before) = reopened(context, ContainerBehavior::UntilStopped).await?;
    let listed = caller.listed(&made).await?;
    let [observed] = listed.as_slice() else {
        return Err(Stop::violated(format!("the next process lists the pod {} times", listed.len()), advice));
    };
    ensure(observed.pod == made, || format!("{made} is now listed as {}", observed.pod), advice)?;
    let mark = observed.node.as_deref();
    ensure(mark == Some(NODE), || format!("the mark of the node is now {mark:?}"), advice)?;
    let difference = pod_status::disturbed(&before, &observed.status);
    ensure(difference.is_none(), || difference.clone().unwrap_or_default(), advice)
}

/// A create for a pod of an earlier process adopts it.
pub(crate) async fn a_create_in_the_next_process_adopts(context: &CaseContext) -> Outcome {
    let advice = "look the UID up in the backend before anything is started";
    let (caller, pod, made, before) = reopened(context, ContainerBehavior::UntilStopped).await?;
    caller.create(&pod).await?;
    caller.running(&made).await?;
    caller.undisturbed(&made, &before, advice).await?;
    listed_once(&caller, &made, advice).await
}

/// A pod that the next process is not asked to create keeps running: only the core decides about its removal.
pub(crate) async fn an_unknown_pod_is_left_alone(context: &CaseContext) -> Outcome {
    let advice = "stop a pod only when delete_pod is called for its UID";
    let (caller, _, made, before) = reopened(context, ContainerBehavior::UntilStopped).await?;
    let other = context.pod().build();
    let (other_made, _) = caller.start(&other).await?;
    caller.delete(&other, Duration::from_secs(30)).await?;
    caller.over(&other_made).await?;
    caller.undisturbed(&made, &before, advice).await
}

/// A delete that an earlier process began is repeated by the next and ends the pod.
pub(crate) async fn a_delete_goes_on_in_the_next_process(context: &CaseContext) -> Outcome {
    let (caller, pod, made, _) = reopened(context, ContainerBehavior::UntilKilled).await?;
    caller.delete(&pod, Duration::from_secs(1)).await?;
    caller.over(&made).await?;
    Ok(())
}

/// A pod that one process started, and the next process. A pod that ignores SIGTERM was deleted before the restart.
async fn reopened(
    context: &CaseContext,
    run: ContainerBehavior,
) -> Outcome<(Caller, Arc<Pod>, PodRef, PodStatus)> {
    let caller = context.open().await?;
    let pod = context.pod().behaves(run).build();
    let (made, before) = caller.start(&pod).await?;
    if run == ContainerBehavior::UntilKilled {
        caller.delete(&pod, context.first_grace()).await?;
    }
    drop(caller);
    let caller = context.open().await?;
    if !context.lacks(Feature::Survival) {
        return Ok((caller, pod, made, before));
    }
    let listed = caller.listed(&made).await?;
    let alive = listed.iter().any(|observed| !pod_status::is_over(&observed.status));
    ensure(
        !alive,
        || "the subject declares no pods that outlive the process, but they do".to_owned(),
        "take the feature out of Subject::lacks, so that the provider is held to its rules",
    )?;
    Err(lacking(Feature::Survival))
}
