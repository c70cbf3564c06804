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

/// What to do about a change that nobody heard of.
const ADVICE: &str = "push a Status or a Refresh for every change of a pod, or answer Changes::Poll";

/// A provider that wants to be asked says how often, and that is a time.
pub(crate) async fn a_poll_has_a_period(context: &CaseContext) -> Outcome {
    let caller = context.open().await?;
    let Some(period) = caller.period() else {
        return Err(Stop::DoesNotApply("the provider pushes its changes".to_owned()));
    };
    let advice = "answer Changes::Poll with a time that the backend can bear";
    ensure(period > Duration::ZERO, || "the core is to ask without a pause".to_owned(), advice)
}

/// The start of a pod is told.
pub(crate) async fn a_start_is_told(context: &CaseContext) -> Outcome {
    let caller = pushing(context).await?;
    let mark = caller.mark();
    let (made, _) = caller.start(&context.pod().build()).await?;
    told(&caller, mark, &made, "that the pod runs", pod_status::is_running).await
}

/// The end of a pod that ended by itself is told.
pub(crate) async fn an_end_is_told(context: &CaseContext) -> Outcome {
    context.needs(Feature::Endings)?;
    let caller = pushing(context).await?;
    let mut mark = caller.mark();
    let made = caller.create(&context.pod().restart("Never").run(ContainerBehavior::Ends(0)).build()).await?;
    let begun = |status: &PodStatus| pod_status::is_running(status) || pod_status::is_final(status);
    let seen = caller.shows(&made, "the pod has started", ADVICE, begun).await?;
    if !pod_status::is_final(&seen) {
        mark = caller.mark();
    }
    caller.shows(&made, "the pod has ended", ADVICE, pod_status::is_final).await?;
    told(&caller, mark, &made, "that the pod has ended", pod_status::is_final).await
}

/// The end of a deleted pod is told.
pub(crate) async fn the_end_of_a_deleted_pod_is_told(context: &CaseContext) -> Outcome {
    let caller = pushing(context).await?;
    let (pod, made) = running(context, &caller).await?;
    let mark = caller.mark();
    caller.delete(&pod, Duration::from_secs(30)).await?;
    caller.over(&made).await?;
    told(&caller, mark, &made, "that the pod is over", pod_status::is_over).await
}

/// A status that is pushed is the one that `pod_status` answers.
pub(crate) async fn a_told_status_is_the_status(context: &CaseContext) -> Outcome {
    let caller = pushing(context).await?;
    let (_, made) = running(context, &caller).await?;
    let advice = "make pushed statuses and those of pod_status in one place";
    let agree = || async {
        let answer = caller.status(&made).await.map_err(|_| "pod_status did not return".to_owned())?;
        let asked = answer.map_err(|error| error.report())?;
        let told = caller.told_since(0, &made).into_iter().next_back();
        match told {
            None => Err("nothing was told of the pod".to_owned()),
            Some(None) => Ok(false),
            Some(Some(told)) if pod_status::summary(&told) == pod_status::summary(&asked) => Ok(true),
            Some(Some(told)) => {
                Err(format!("told {}, asked {}", pod_status::summary(&told), pod_status::summary(&asked)))
            }
        }
    };
    let by_status = caller.until("what was told last is what pod_status answers", advice, agree).await?;
    if by_status { Ok(()) } else { Err(Stop::DoesNotApply("the provider tells to look".to_owned())) }
}

/// A process on a provider that pushes.
async fn pushing(context: &CaseContext) -> Outcome<Caller> {
    let caller = context.open().await?;
    match caller.period() {
        None => Ok(caller),
        Some(_) => Err(Stop::DoesNotApply("the provider is asked and does not push".to_owned())),
    }
}

/// A pod that runs, and of which that was told.
async fn running(context: &CaseContext, caller: &Caller) -> Outcome<(Arc<Pod>, PodRef)> {
    let pod = context.pod().build();
    let (made, _) = caller.start(&pod).await?;
    Ok((pod, made))
}

/// Waits until a status of this kind was told since then, or that the core shall look.
async fn told(
    caller: &Caller,
    mark: usize,
    pod: &PodRef,
    what: &str,
    wanted: impl Fn(&PodStatus) -> bool,
) -> Outcome {
    let wanted = &wanted;
    let heard = || async {
        let told = caller.told_since(mark, pod);
        if told.iter().any(|told| told.as_ref().is_none_or(wanted)) {
            return Ok(());
        }
        let seen: Vec<String> = told.iter().flatten().map(pod_status::summary).collect();
        Err(if seen.is_empty() { "nothing was told".to_owned() } else { seen.join("; ") })
    };
    caller.until(&format!("the provider tells {what}"), ADVICE, heard).await
}
