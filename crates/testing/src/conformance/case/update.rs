//! `update_pod`.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::{
    api::core::v1::{EphemeralContainer, Pod, PodStatus, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity,
};
use vk_provider::{PodRef, error::Kind};

use crate::conformance::{
    caller::{Caller, describe_error},
    context::{CaseContext, lacking},
    pod_builder::{APP, changed, container},
    pod_status,
    result::{Outcome, Stop, ensure},
    subject::{ContainerBehavior, Feature},
};

/// The name of the ephemeral container.
const DEBUGGER: &str = "debugger";

/// A change of labels and annotations does not affect the containers.
pub(crate) async fn new_labels_leave_the_containers_alone(context: &CaseContext) -> Outcome {
    let advice = "change only what differs: labels and annotations need no restart";
    let caller = context.open().await?;
    let pod = context.pod().build();
    let (made, before) = caller.start(&pod).await?;
    let labelled = changed(&pod, |pod| {
        let mark = || ("conformance".to_owned(), "changed".to_owned());
        pod.metadata.labels.get_or_insert_default().extend([mark()]);
        pod.metadata.annotations.get_or_insert_default().extend([mark()]);
    });
    taken(&caller, &labelled).await?;
    caller.undisturbed(&made, &before, advice).await
}

/// An update without a change does nothing.
pub(crate) async fn a_repeated_update_changes_nothing(context: &CaseContext) -> Outcome {
    let advice = "compare the bundle with what is there, and do nothing where they agree";
    let caller = context.open().await?;
    let pod = context.pod().build();
    let (made, before) = caller.start(&pod).await?;
    for _ in 0..3 {
        taken(&caller, &changed(&pod, |_| {})).await?;
    }
    caller.undisturbed(&made, &before, advice).await
}

/// A new image is started; if the backend rejects it, the pod is unchanged.
pub(crate) async fn a_new_image_runs_or_is_refused(context: &CaseContext) -> Outcome {
    let image = "busybox:1.36";
    let advice = "start the container again with the new image, or answer Unsupported and leave it alone";
    let caller = context.open().await?;
    let pod = context.pod().build();
    let (made, before) = caller.start(&pod).await?;
    let newer = changed(&pod, |pod| {
        for container in &mut pod.spec.get_or_insert_default().containers {
            container.image = Some(image.to_owned());
        }
    });
    if !taken(&caller, &newer).await? {
        return caller.undisturbed(&made, &before, advice).await;
    }
    let runs = |status: &PodStatus| {
        let app = pod_status::container(status, APP);
        pod_status::is_running(status) && app.is_some_and(|app| app.image.ends_with(image))
    };
    caller.shows(&made, "the container runs the new image", advice, runs).await?;
    Ok(())
}

/// A memory resize is applied or rejected; the pod keeps running in both cases.
pub(crate) async fn new_resources_are_taken_or_refused(context: &CaseContext) -> Outcome {
    let advice = "resize the container, or answer Unsupported or Invalid and leave it alone";
    let caller = context.open().await?;
    let pod = context.pod().build();
    let (made, _) = caller.start(&pod).await?;
    let larger = changed(&pod, |pod| {
        let amount = |text: &str| BTreeMap::from([("memory".to_owned(), Quantity(text.to_owned()))]);
        let resources = ResourceRequirements {
            requests: Some(amount("32Mi")),
            limits: Some(amount("64Mi")),
            ..ResourceRequirements::default()
        };
        for container in &mut pod.spec.get_or_insert_default().containers {
            container.resources = Some(resources.clone());
        }
    });
    taken(&caller, &larger).await?;
    caller.shows(&made, "the pod goes on after a resize", advice, pod_status::is_running).await?;
    Ok(())
}

/// An ephemeral container joins the pod; a backend that cannot do this rejects it instead of ignoring it.
pub(crate) async fn an_ephemeral_container_joins_or_is_refused(context: &CaseContext) -> Outcome {
    let advice =
        "start the ephemeral container and report it in ephemeralContainerStatuses, or answer Unsupported";
    let caller = context.open().await?;
    let pod = context.pod().build();
    let (made, before) = caller.start(&pod).await?;
    let debugged = changed(&pod, |pod| {
        let like = container(DEBUGGER, ContainerBehavior::UntilStopped);
        let debugger = EphemeralContainer {
            name: like.name,
            image: like.image,
            command: like.command,
            ..EphemeralContainer::default()
        };
        pod.spec.get_or_insert_default().ephemeral_containers = Some(vec![debugger]);
    });
    match (taken(&caller, &debugged).await?, context.lacks(Feature::EphemeralContainers)) {
        (true, false) => joined(&caller, &made, advice).await?,
        (false, true) => {
            caller.undisturbed(&made, &before, advice).await?;
            return Err(lacking(Feature::EphemeralContainers));
        }
        (taken, _) => {
            let seen = if taken { "accepted one all the same" } else { "refused one, which is not declared" };
            let what = Feature::EphemeralContainers;
            let seen = format!("Subject::lacks and update_pod disagree about {what}: update_pod {seen}");
            return Err(Stop::violated(seen, advice));
        }
    }
    caller.undisturbed(&made, &before, "leave the other containers alone when one joins").await
}

async fn joined(caller: &Caller, pod: &PodRef, advice: &'static str) -> Outcome {
    let wanted = |status: &PodStatus| {
        let mut all = status.ephemeral_container_statuses.iter().flatten();
        all.any(|status| status.name == DEBUGGER && pod_status::state(status).waiting.is_none())
    };
    caller.shows(pod, "the ephemeral container has started", advice, wanted).await.map(drop)
}

/// Whether an update was accepted or rejected; any other result is a violation.
async fn taken(caller: &Caller, pod: &Arc<Pod>) -> Outcome<bool> {
    match caller.try_update(pod).await? {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.kind(), Kind::Invalid | Kind::Unsupported) => Ok(false),
        Err(error) => Err(Stop::violated(
            describe_error("update_pod", &error),
            "take the update, or answer Unsupported or Invalid where the backend cannot",
        )),
    }
}

/// The last of several updates takes effect.
pub(crate) async fn the_newest_update_wins(context: &CaseContext) -> Outcome {
    let caller = context.open().await?;
    let pod = context.pod().build();
    let (made, _) = caller.start(&pod).await?;
    let images = ["busybox:1.35", "busybox:1.36"];
    for image in images {
        let newer = changed(&pod, |pod| {
            for container in &mut pod.spec.get_or_insert_default().containers {
                container.image = Some(image.to_owned());
            }
        });
        if !taken(&caller, &newer).await? {
            return Err(Stop::DoesNotApply("the provider refuses new images".to_owned()));
        }
    }
    let advice = "the bundle is the whole desired state: bring the pod to the last one that came";
    let newest = |status: &PodStatus| {
        let app = pod_status::container(status, APP);
        pod_status::is_running(status) && app.is_some_and(|app| app.image.ends_with(images[1]))
    };
    let status = caller.shows(&made, "the container runs the newest image", advice, newest).await?;
    ensure(pod_status::is_running(&status), || pod_status::summary(&status), advice)
}
