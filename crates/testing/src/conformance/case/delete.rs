//! `delete_pod`.

use std::time::Duration;

use vk_provider::{PodRef, Result, error::Kind};

use crate::conformance::{
    caller::{Caller, describe_error},
    context::CaseContext,
    pod_builder::reference,
    pod_status,
    result::{Outcome, Stop, ensure},
    subject::{ContainerBehavior, Feature},
};

const HOUR: Duration = Duration::from_hours(1);

/// A deleted pod ends, and its status shows it.
pub(crate) async fn a_deleted_pod_ends(context: &CaseContext) -> Outcome {
    let caller = context.open().await?;
    let pod = context.pod().with_second().build();
    let (made, _) = caller.start(&pod).await?;
    caller.delete(&pod, Duration::from_secs(30)).await?;
    caller.over(&made).await?;
    Ok(())
}

/// A delete returns while the pod still stops: the core does not wait for a long grace period.
pub(crate) async fn a_delete_returns_before_the_end(context: &CaseContext) -> Outcome {
    let caller = context.open().await?;
    let pod = context.pod().behaves(ContainerBehavior::UntilKilled).build();
    let (made, _) = caller.start(&pod).await?;
    let answer = caller.try_delete(&made, Some(&pod), HOUR).await?;
    match answer {
        Err(error) if *error.kind() != Kind::NotFound => Err(Stop::violated(
            describe_error("delete_pod", &error),
            "answer Ok once stopping has begun, whatever the pod makes of it",
        )),
        _ => Ok(()),
    }
}

/// A slow pod has a status and is listed until it has ended.
pub(crate) async fn a_stopping_pod_is_found_until_it_has_ended(context: &CaseContext) -> Outcome {
    let advice = "answer NotFound only when nothing of the pod runs; while it stops, report what still runs";
    let caller = context.open().await?;
    let pod = context.pod().behaves(ContainerBehavior::UntilKilled).build();
    let (made, _) = caller.start(&pod).await?;
    caller.delete(&pod, HOUR).await?;
    // Status before list: a pod that had ended then cannot be listed as running now.
    let status = caller.status(&made).await?;
    let gone = status.as_ref().map_or_else(|error| *error.kind() == Kind::NotFound, pod_status::is_over);
    let alive = caller.listed(&made).await?.iter().any(|observed| !pod_status::is_over(&observed.status));
    let contradiction = gone && alive;
    ensure(!contradiction, || format!("pods lists a running pod whose status is {status:?}"), advice)?;
    let vanished = !gone && !alive && status.is_ok() && !over_now(&caller, &made).await?;
    ensure(!vanished, || "pods does not list a pod that is still stopping".to_owned(), advice)
}

/// Whether nothing of a pod runs now.
async fn over_now(caller: &Caller, pod: &PodRef) -> Outcome<bool> {
    let status = caller.status(pod).await?;
    Ok(status.map_or_else(|error| *error.kind() == Kind::NotFound, |status| pod_status::is_over(&status)))
}

/// A second delete with a shorter grace period takes effect.
pub(crate) async fn a_shorter_grace_hastens_the_end(context: &CaseContext) -> Outcome {
    context.needs(Feature::ShortenGrace)?;
    let caller = context.open().await?;
    let pod = context.pod().behaves(ContainerBehavior::UntilKilled).build();
    let (made, _) = caller.start(&pod).await?;
    caller.delete(&pod, HOUR).await?;
    caller.delete(&pod, Duration::from_secs(1)).await?;
    caller.over(&made).await?;
    Ok(())
}

/// Without a grace period a pod is killed, even if it ignores SIGTERM.
pub(crate) async fn no_grace_is_at_once(context: &CaseContext) -> Outcome {
    let caller = context.open().await?;
    let pod = context.pod().behaves(ContainerBehavior::UntilKilled).build();
    let (made, _) = caller.start(&pod).await?;
    caller.delete(&pod, Duration::ZERO).await?;
    caller.over(&made).await?;
    Ok(())
}

/// A delete can be repeated, while the pod stops and after it has ended.
pub(crate) async fn a_delete_can_be_repeated(context: &CaseContext) -> Outcome {
    let advice = "answer Ok for a pod that is stopping, and Ok or NotFound for one that has ended";
    let caller = context.open().await?;
    let pod = context.pod().build();
    let (made, _) = caller.start(&pod).await?;
    for _ in 0..3 {
        check_repeat(caller.try_delete(&made, Some(&pod), Duration::from_secs(30)).await?, advice)?;
    }
    caller.over(&made).await?;
    for _ in 0..2 {
        check_repeat(caller.try_delete(&made, Some(&pod), Duration::ZERO).await?, advice)?;
    }
    caller.over(&made).await?;
    Ok(())
}

fn check_repeat(answer: Result<()>, advice: &'static str) -> Outcome {
    match answer {
        Err(error) if *error.kind() != Kind::NotFound => {
            Err(Stop::violated(describe_error("a repeated delete_pod", &error), advice))
        }
        _ => Ok(()),
    }
}

/// An orphan is deleted by its identity alone.
pub(crate) async fn a_delete_needs_no_last_known_pod(context: &CaseContext) -> Outcome {
    let caller = context.open().await?;
    let (made, _) = caller.start(&context.pod().build()).await?;
    match caller.try_delete(&made, None, Duration::ZERO).await? {
        Err(error) if *error.kind() != Kind::NotFound => Err(Stop::violated(
            describe_error("delete_pod without a last known pod", &error),
            "find what the delete needs in the backend, by the UID",
        )),
        _ => caller.over(&made).await.map(drop),
    }
}

/// A pod that is deleted right after its creation ends.
pub(crate) async fn a_pod_that_has_not_started_can_be_deleted(context: &CaseContext) -> Outcome {
    let caller = context.open().await?;
    let pod = context.pod().build();
    caller.create(&pod).await?;
    caller.delete(&pod, Duration::from_secs(30)).await?;
    caller.over(&reference(&pod)).await?;
    Ok(())
}

/// An ended pod stays ended: neither status nor list shows it running again.
pub(crate) async fn a_deleted_pod_does_not_come_back(context: &CaseContext) -> Outcome {
    let advice =
        "a delete is final for its UID: do not restart its containers, and show none of them running";
    let caller = context.open().await?;
    let pod = context.pod().build();
    let (made, _) = caller.start(&pod).await?;
    caller.delete(&pod, Duration::from_secs(30)).await?;
    caller.over(&made).await?;
    // Another pod starts meanwhile, so that time passes in the backend.
    caller.start(&context.pod().build()).await?;
    ensure(over_now(&caller, &made).await?, || "pod_status shows the pod running again".to_owned(), advice)?;
    let listed = caller.listed(&made).await?;
    let alive = listed.iter().find(|observed| !pod_status::is_over(&observed.status));
    ensure(alive.is_none(), || format!("pods lists the pod again: {alive:?}"), advice)
}
