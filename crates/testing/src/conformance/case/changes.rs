//! `changes`.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use vk_provider::PodRef;

use crate::conformance::{
    caller::Caller,
    context::CaseContext,
    pod_status,
    result::{Outcome, Stop, ensure},
    subject::{ContainerBehavior, Feature},
};

/// Advice for a change that was not reported.
const ADVICE: &str = "push a Status or a Refresh for every change of a pod, or answer Changes::Poll";

/// A polled provider returns a positive period.
pub(crate) async fn a_poll_has_a_period(context: &CaseContext) -> Outcome {
    let caller = context.open().await?;
    let Some(period) = caller.period() else {
        return Err(Stop::DoesNotApply("the provider pushes its changes".to_owned()));
    };
    let advice = "answer Changes::Poll with a time that the backend can bear";
    ensure(period > Duration::ZERO, || "the core is to ask without a pause".to_owned(), advice)
}

/// The start of a pod is reported.
pub(crate) async fn a_start_is_told(context: &CaseContext) -> Outcome {
    let caller = pushing(context).await?;
    let mark = caller.mark();
    let (made, _) = caller.start(&context.pod().build()).await?;
    reported(&caller, mark, &made, "the start of the pod", pod_status::is_running).await
}

/// The end of a pod that completes is reported.
pub(crate) async fn an_end_is_told(context: &CaseContext) -> Outcome {
    context.needs(Feature::Endings)?;
    let caller = pushing(context).await?;
    let mut mark = caller.mark();
    let made =
        caller.create(&context.pod().restart("Never").behaves(ContainerBehavior::Ends(0)).build()).await?;
    let begun = |status: &PodStatus| pod_status::is_running(status) || pod_status::is_final(status);
    let seen = caller.shows(&made, "the pod has started", ADVICE, begun).await?;
    if !pod_status::is_final(&seen) {
        mark = caller.mark();
    }
    caller.shows(&made, "the pod has ended", ADVICE, pod_status::is_final).await?;
    reported(&caller, mark, &made, "the end of the pod", pod_status::is_final).await
}

/// The end of a deleted pod is reported.
pub(crate) async fn the_end_of_a_deleted_pod_is_told(context: &CaseContext) -> Outcome {
    let caller = pushing(context).await?;
    let (pod, made) = running(context, &caller).await?;
    let mark = caller.mark();
    caller.delete(&pod, Duration::from_secs(30)).await?;
    caller.over(&made).await?;
    reported(&caller, mark, &made, "the end of the pod", pod_status::is_over).await
}

/// A pushed status equals the result of `pod_status`.
pub(crate) async fn a_told_status_is_the_status(context: &CaseContext) -> Outcome {
    let caller = pushing(context).await?;
    let (_, made) = running(context, &caller).await?;
    let advice = "build pushed statuses and those of pod_status in one place";
    let agree = || async {
        let answer = caller.status(&made).await.map_err(|_| "pod_status did not return".to_owned())?;
        let asked = answer.map_err(|error| error.report())?;
        let reported = caller.changes_since(0, &made).into_iter().next_back();
        match reported {
            None => Err("no change of the pod was reported".to_owned()),
            Some(None) => Ok(false),
            Some(Some(reported)) if pod_status::summary(&reported) == pod_status::summary(&asked) => Ok(true),
            Some(Some(reported)) => Err(format!(
                "reported {}, but pod_status returned {}",
                pod_status::summary(&reported),
                pod_status::summary(&asked)
            )),
        }
    };
    let by_status =
        caller.until("the last reported status equals the result of pod_status", advice, agree).await?;
    if by_status {
        Ok(())
    } else {
        Err(Stop::DoesNotApply("the provider only asks for refreshes".to_owned()))
    }
}

/// Opens a provider that pushes changes.
async fn pushing(context: &CaseContext) -> Outcome<Caller> {
    let caller = context.open().await?;
    match caller.period() {
        None => Ok(caller),
        Some(_) => Err(Stop::DoesNotApply("the provider is polled and does not push".to_owned())),
    }
}

/// A running pod whose start was reported.
async fn running(context: &CaseContext, caller: &Caller) -> Outcome<(Arc<Pod>, PodRef)> {
    let pod = context.pod().build();
    let (made, _) = caller.start(&pod).await?;
    Ok((pod, made))
}

/// Waits until a status of this kind or a refresh was reported since then.
async fn reported(
    caller: &Caller,
    mark: usize,
    pod: &PodRef,
    what: &str,
    wanted: impl Fn(&PodStatus) -> bool,
) -> Outcome {
    let wanted = &wanted;
    let check = || async {
        let reported = caller.changes_since(mark, pod);
        if reported.iter().any(|reported| reported.as_ref().is_none_or(wanted)) {
            return Ok(());
        }
        let seen: Vec<String> = reported.iter().flatten().map(pod_status::summary).collect();
        Err(if seen.is_empty() { "no change was reported".to_owned() } else { seen.join("; ") })
    };
    caller.until(&format!("the provider reports {what}"), ADVICE, check).await
}
