//! Containers that exit: exit codes, restarts, init containers.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use vk_provider::{PodRef, error::Kind};

use crate::conformance::{
    caller::Caller,
    context::{CaseContext, lacking},
    pod_builder::{APP, INIT, reference},
    pod_status,
    result::{Outcome, Stop, ensure},
    subject::{ContainerBehavior, Feature},
};

/// An exit code that only the container itself chooses.
const CODE: i32 = 3;

/// A pod whose containers all exit with 0 and are not restarted has succeeded.
pub(crate) async fn a_pod_that_ends_well_has_succeeded(context: &CaseContext) -> Outcome {
    let advice = "report the phase Succeeded when every container has ended with 0 and none starts again";
    ends_with(context, "Never", 0, "Succeeded", advice).await
}

/// A pod with a failed container has failed, and the container shows its exit code.
pub(crate) async fn a_pod_that_ends_badly_has_failed(context: &CaseContext) -> Outcome {
    let advice = "report the phase Failed, and in the container's state the exit code that it ended with";
    ends_with(context, "Never", CODE, "Failed", advice).await
}

/// `OnFailure` does not restart a successful container.
pub(crate) async fn success_is_not_restarted_on_failure(context: &CaseContext) -> Outcome {
    let advice = "with restartPolicy OnFailure start a container again only after a code other than 0";
    ends_with(context, "OnFailure", 0, "Succeeded", advice).await
}

async fn ends_with(
    context: &CaseContext,
    restart: &'static str,
    code: i32,
    phase: &str,
    advice: &'static str,
) -> Outcome {
    context.needs(Feature::Endings)?;
    let caller = context.open().await?;
    let pod = context.pod().restart(restart).behaves(ContainerBehavior::Ends(code)).build();
    let made = caller.create(&pod).await?;
    let what = format!("the pod has ended with the phase {phase} and container {APP} with code {code}");
    let wanted =
        |status: &PodStatus| pod_status::phase(status) == phase && exit_code(status, APP) == Some(code);
    caller.shows(&made, &what, advice, wanted).await?;
    Ok(())
}

/// `Always` restarts any container, with a new ID and a higher restart count.
pub(crate) async fn always_restarts_and_counts(context: &CaseContext) -> Outcome {
    restarts(context, "Always", 0).await
}

/// `OnFailure` restarts a failed container.
pub(crate) async fn a_failure_is_restarted_on_failure(context: &CaseContext) -> Outcome {
    restarts(context, "OnFailure", 1).await
}

async fn restarts(context: &CaseContext, policy: &'static str, code: i32) -> Outcome {
    context.needs(Feature::Endings)?;
    context.needs(Feature::Restarts)?;
    let caller = context.open().await?;
    let made =
        caller.create(&context.pod().restart(policy).behaves(ContainerBehavior::Ends(code)).build()).await?;
    let advice = "start an ended container again as restartPolicy says, and add one to its restartCount";
    let id = |status: &PodStatus| pod_status::container(status, APP).and_then(|it| it.container_id.clone());
    let has_id = |status: &PodStatus| id(status).is_some();
    let first = caller.shows(&made, "the container has started", advice, has_id).await?;
    let count = |status: &PodStatus| pod_status::container(status, APP).map_or(0, |it| it.restart_count);
    let later = |status: &PodStatus| count(status) > count(&first) && pod_status::is_running(status);
    let again = caller.shows(&made, "the container has started again, and that is counted", advice, later);
    let again = again.await?;
    ensure(
        id(&first) != id(&again),
        || format!("the container started again under the same ID {:?}", id(&again)),
        "give every start of a container an ID of its own",
    )?;
    let container = pod_status::container(&again, APP);
    let last = container.and_then(|it| it.last_state.as_ref()).and_then(|last| last.terminated.as_ref());
    ensure(
        last.is_some_and(|last| last.exit_code == code),
        || format!("after a restart the last state is {last:?}, and the container ended with {code}"),
        "keep how the instance before ended in lastState.terminated",
    )
}

/// Restart counts never decrease.
pub(crate) async fn a_restart_count_never_falls(context: &CaseContext) -> Outcome {
    context.needs(Feature::Endings)?;
    context.needs(Feature::Restarts)?;
    let caller = context.open().await?;
    let made = caller.create(&context.pod().behaves(ContainerBehavior::Ends(0)).build()).await?;
    let advice = "keep the count in the backend, beside the container";
    let mut highest = 0;
    for wanted in 1..=2 {
        let reached = caller.shows(&made, "the container starts again and again", advice, |status| {
            pod_status::container(status, APP).is_some_and(|app| app.restart_count >= wanted)
        });
        let count = pod_status::container(&reached.await?, APP).map_or(0, |app| app.restart_count);
        highest = highest.max(count);
        let now = look(&caller, &made).await.map_err(|seen| Stop::violated(seen, advice))?;
        let now = pod_status::container(&now, APP).map_or(0, |app| app.restart_count);
        ensure(now >= highest, || format!("restarts went from {highest} to {now}"), advice)?;
        highest = now;
    }
    Ok(())
}

/// No regular container starts before all init containers have succeeded.
pub(crate) async fn init_containers_come_first(context: &CaseContext) -> Outcome {
    let caller = context.open().await?;
    let pod = context.pod().with_init(ContainerBehavior::Ends(0)).build();
    if refused(context, &caller, &pod).await? {
        return Err(lacking(Feature::InitContainers));
    }
    let made = reference(&pod);
    let advice = "start the regular containers only after every init container has ended with 0";
    let status = caller
        .until("the pod runs after its init container", advice, || async {
            let status = look(&caller, &made).await?;
            let began = pod_status::container(&status, APP)
                .is_some_and(|app| pod_status::state(app).waiting.is_none());
            match (began, exit_code(&status, INIT)) {
                (true, code) if code != Some(0) => Ok(Err(pod_status::summary(&status))),
                _ if pod_status::is_running(&status) => Ok(Ok(status)),
                _ => Err(pod_status::summary(&status)),
            }
        })
        .await?;
    let status =
        status.map_err(|seen| Stop::violated(format!("a container runs too early: {seen}"), advice))?;
    let listed = status.init_container_statuses.iter().flatten().any(|it| it.name == INIT);
    ensure(
        listed,
        || "the init container is not in initContainerStatuses".to_owned(),
        "report init containers in the list of their own",
    )
}

/// An init container that fails permanently fails the pod, and the other containers never start.
pub(crate) async fn a_failed_init_container_fails_the_pod(context: &CaseContext) -> Outcome {
    context.needs(Feature::InitContainers)?;
    let caller = context.open().await?;
    let pod = context.pod().restart("Never").with_init(ContainerBehavior::Ends(CODE)).build();
    let made = caller.create(&pod).await?;
    let advice = "with restartPolicy Never, end the pod as Failed when an init container fails";
    let wanted = |status: &PodStatus| pod_status::phase(status) == "Failed";
    let status = caller.shows(&made, "the pod has failed", advice, wanted).await?;
    let code = exit_code(&status, INIT);
    ensure(
        code == Some(CODE),
        || format!("the init container ended with {CODE} and shows {code:?}"),
        "report the exit code that the init container ended with",
    )?;
    let started = pod_status::container(&status, APP).is_some_and(|app| app.container_id.is_some());
    ensure(!started, || format!("a container started all the same: {}", pod_status::summary(&status)), advice)
}

/// Whether a pod that the backend cannot run is rejected.
async fn refused(context: &CaseContext, caller: &Caller, pod: &Arc<Pod>) -> Outcome<bool> {
    if !context.lacks(Feature::InitContainers) {
        caller.create(pod).await?;
        return Ok(false);
    }
    match caller.try_create(pod).await? {
        Err(error) if matches!(error.kind(), Kind::Invalid | Kind::Unsupported) => Ok(true),
        answer => Err(Stop::violated(
            format!("the subject declares no init containers, and create_pod of one answered {answer:?}"),
            "answer Unsupported for a pod that the backend cannot run whole, or take the feature out of \
             Subject::lacks",
        )),
    }
}

async fn look(caller: &Caller, pod: &PodRef) -> Result<PodStatus, String> {
    let answer = caller.status(pod).await.map_err(|_| "pod_status did not return".to_owned())?;
    answer.map_err(|error| error.report())
}

fn exit_code(status: &PodStatus, name: &str) -> Option<i32> {
    Some(pod_status::state(pod_status::container(status, name)?).terminated?.exit_code)
}
