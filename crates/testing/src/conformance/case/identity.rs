//! Pods are identified by UID, also in the list.

use std::time::Duration;

use vk_provider::{PodRef, error::Kind};

use crate::conformance::{
    caller::describe_error,
    context::{CaseContext, NODE, lacking},
    pod_builder::reference,
    pod_status,
    result::{Outcome, Stop, ensure},
    subject::{ContainerBehavior, Feature},
};

const HOUR: Duration = Duration::from_hours(1);

/// A newer pod starts while an older pod of the same name still stops; each has its own status and list entry.
pub(crate) async fn pods_of_one_name_are_kept_apart(context: &CaseContext) -> Outcome {
    let advice = "key everything in the backend by UID and never by namespace and name";
    let caller = context.open().await?;
    let older = context.pod().behaves(ContainerBehavior::UntilKilled).build();
    let (old, _) = caller.start(&older).await?;
    caller.delete(&older, HOUR).await?;
    let newer = context.pod().named(&old.name).build();
    if context.lacks(Feature::Namesakes) {
        let answer = caller.try_create(&newer).await?;
        let waits = matches!(&answer, Err(error) if *error.kind() == Kind::Unavailable);
        let seen = || format!("create_pod of a pod whose namesake stops answered {answer:?}");
        ensure(waits, seen, "answer Unavailable until the older pod is gone")?;
        ensure(caller.status(&old).await?.is_ok(), || format!("{old} is gone"), "leave the older pod alone")?;
        return Err(lacking(Feature::Namesakes));
    }
    let (new, _) = caller.start(&newer).await?;
    let listed = caller.listed(&new).await?;
    ensure(listed.len() == 1, || format!("pods lists the newer pod {} times", listed.len()), advice)?;
    if let Ok(status) = caller.status(&old).await? {
        let unlisted = caller.listed(&old).await?.is_empty() && !pod_status::is_over(&status);
        ensure(
            !unlisted,
            || format!("the older pod is {} but not listed", pod_status::summary(&status)),
            advice,
        )?;
    }
    Ok(())
}

/// The end of an older pod does not affect a newer one of the same name.
pub(crate) async fn a_delete_leaves_the_namesake_alone(context: &CaseContext) -> Outcome {
    context.needs(Feature::Namesakes)?;
    let advice = "delete by UID: the newer pod of the same name is a different pod";
    let caller = context.open().await?;
    let older = context.pod().build();
    let (old, _) = caller.start(&older).await?;
    let newer = context.pod().named(&old.name).build();
    let (new, before) = caller.start(&newer).await?;
    caller.delete(&older, Duration::ZERO).await?;
    caller.over(&old).await?;
    caller.undisturbed(&new, &before, advice).await?;
    let listed = caller.listed(&new).await?.len();
    ensure(listed == 1, || format!("pods lists the newer pod {listed} times"), advice)
}

/// The status of an unknown pod is `NotFound`, also when another pod has its name.
pub(crate) async fn an_unknown_pod_is_not_found(context: &CaseContext) -> Outcome {
    let advice = "answer NotFound for a UID that the backend does not have";
    let caller = context.open().await?;
    let (made, _) = caller.start(&context.pod().build()).await?;
    let stranger = reference(&context.pod().build());
    let namesake = PodRef { uid: stranger.uid.clone(), ..made };
    for pod in [stranger, namesake] {
        let answer = caller.status(&pod).await?;
        let not_found = answer.as_ref().err().is_some_and(|error| *error.kind() == Kind::NotFound);
        ensure(
            not_found,
            || format!("pod_status of {pod}, which was never created, answered {answer:?}"),
            advice,
        )?;
    }
    Ok(())
}

/// A delete of an unknown pod succeeds.
pub(crate) async fn a_delete_of_an_unknown_pod_succeeds(context: &CaseContext) -> Outcome {
    let caller = context.open().await?;
    let stranger = reference(&context.pod().build());
    match caller.try_delete(&stranger, None, Duration::ZERO).await? {
        Ok(()) => Ok(()),
        Err(error) if *error.kind() == Kind::NotFound => Ok(()),
        Err(error) => Err(Stop::violated(
            describe_error("delete_pod of an unknown pod", &error),
            "answer NotFound for a UID that the backend does not have, or Ok",
        )),
    }
}

/// An update of a pod that the backend does not have is not lost: `NotFound` makes the core create it. A provider that creates it itself then
/// has it.
pub(crate) async fn an_update_of_an_unknown_pod_is_not_lost(context: &CaseContext) -> Outcome {
    let advice = "answer NotFound for a UID that the backend does not have";
    let caller = context.open().await?;
    let pod = context.pod().build();
    match caller.try_update(&pod).await? {
        Err(error) if *error.kind() == Kind::NotFound => Ok(()),
        Err(error) => Err(Stop::violated(describe_error("update_pod of an unknown pod", &error), advice)),
        Ok(()) => {
            let there = !caller.listed(&reference(&pod)).await?.is_empty();
            ensure(there, || "update_pod of an unknown pod answered Ok and did nothing".to_owned(), advice)
        }
    }
}

/// The list contains every pod once, with its full identity.
pub(crate) async fn the_list_is_complete(context: &CaseContext) -> Outcome {
    let advice = "record namespace, name and UID with what is created in the backend, and list all of it";
    let caller = context.open().await?;
    let mut made = Vec::new();
    for _ in 0..3 {
        made.push(caller.start(&context.pod().build()).await?.0);
    }
    for pod in made {
        let listed = caller.listed(&pod).await?;
        let right = listed.len() == 1 && listed[0].pod == pod;
        let seen: Vec<String> = listed.iter().map(|observed| observed.pod.to_string()).collect();
        ensure(right, || format!("pods lists {pod} as {seen:?}"), advice)?;
    }
    Ok(())
}

/// Every listed pod carries the name of its node.
pub(crate) async fn a_listed_pod_carries_the_mark_of_its_node(context: &CaseContext) -> Outcome {
    let caller = context.open().await?;
    let (made, _) = caller.start(&context.pod().build()).await?;
    for observed in caller.listed(&made).await? {
        ensure(
            observed.node.as_deref() == Some(NODE),
            || format!("the pod was created for node {:?} and is listed with {:?}", NODE, observed.node),
            "record the node's name (Context::node_name) with the pod in the backend, and list it",
        )?;
    }
    Ok(())
}

/// List and status agree about a pod.
pub(crate) async fn the_list_agrees_with_the_status(context: &CaseContext) -> Outcome {
    let caller = context.open().await?;
    let (made, _) = caller.start(&context.pod().build()).await?;
    let agree = || async {
        let stop = |_| "a call took too long".to_owned();
        let listed = caller.listed(&made).await.map_err(stop)?;
        let status = caller.status(&made).await.map_err(stop)?.map_err(|error| error.report())?;
        let listed = listed.first().ok_or("the pod is not listed")?;
        let same = pod_status::summary(&listed.status) == pod_status::summary(&status)
            && pod_status::disturbed(&status, &listed.status).is_none();
        if same {
            return Ok(());
        }
        Err(format!(
            "listed as {}, status {}",
            pod_status::summary(&listed.status),
            pod_status::summary(&status)
        ))
    };
    let advice = "make both from the same facts of the backend";
    caller.until("pods and pod_status agree", advice, agree).await
}
