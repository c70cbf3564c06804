//! `create_pod`.

use std::time::Duration;

use futures::future::try_join_all;
use vk_provider::{PodRef, error::Kind};

use crate::conformance::{
    caller::{Caller, describe_error},
    context::CaseContext,
    pod_builder::{changed, reference},
    resolver::bundle,
    result::{Outcome, Stop, ensure},
};

/// How many pods are created at once: more than usually wait when a node restarts.
const MANY: usize = 16;

/// A created pod and all its containers start.
pub(crate) async fn a_created_pod_comes_to_run(context: &CaseContext) -> Outcome {
    let caller = context.open().await?;
    caller.start(&context.pod().with_second().build()).await?;
    Ok(())
}

/// A second create of the same UID starts no second pod: it is listed once, and its containers are unchanged.
pub(crate) async fn a_second_create_adopts(context: &CaseContext) -> Outcome {
    let advice = "look the UID up in the backend first, and return Ok when it is there";
    let caller = context.open().await?;
    let pod = context.pod().build();
    let (made, before) = caller.start(&pod).await?;
    for _ in 0..2 {
        let again = caller.try_create(&pod).await?;
        let done = again.as_ref().err().is_none_or(|error| *error.kind() == Kind::AlreadyExists);
        ensure(done, || format!("the second create answered {again:?}"), advice)?;
    }
    caller.running(&made).await?;
    caller.undisturbed(&made, &before, advice).await?;
    listed_once(&caller, &made, advice).await
}

/// Different pods can be created concurrently.
pub(crate) async fn many_pods_are_created_at_once(context: &CaseContext) -> Outcome {
    let advice = "let calls for different pods run beside each other, and lose none of them";
    let caller = context.open().await?;
    let pods: Vec<_> = (0..MANY).map(|_| context.pod().build()).collect();
    let made = try_join_all(pods.iter().map(|pod| caller.create(pod))).await?;
    try_join_all(made.iter().map(|pod| caller.running(pod))).await?;
    for pod in &made {
        listed_once(&caller, pod, advice).await?;
    }
    Ok(())
}

/// A pod that can never run is rejected permanently, and nothing of it is left in the backend.
pub(crate) async fn a_pod_that_can_never_run_is_refused(context: &CaseContext) -> Outcome {
    let advice = "check the pod before anything is made of it, and answer Invalid or Unsupported";
    let caller = context.open().await?;
    let pod = changed(&context.pod().build(), |pod| {
        pod.spec.get_or_insert_default().containers.clear();
    });
    let answer = caller.try_create(&pod).await?;
    let refused =
        answer.as_ref().err().is_some_and(|error| matches!(error.kind(), Kind::Invalid | Kind::Unsupported));
    ensure(refused, || format!("create_pod of a pod without containers answered {answer:?}"), advice)?;
    let left = caller.listed(&reference(&pod)).await?;
    ensure(left.is_empty(), || format!("the refused pod is listed: {left:?}"), advice)
}

/// An unresolved reference is passed on: the core waits for the object instead of failing the pod. A provider that resolves later, or never,
/// accepts the pod.
pub(crate) async fn a_missing_object_is_passed_on_as_unresolved(context: &CaseContext) -> Outcome {
    let caller = context.open().await?;
    let pod = context.pod().with_settings().build();
    let bundle = bundle(&pod, false);
    match caller.call("create_pod", caller.provider().create_pod(bundle)).await? {
        Ok(()) => Ok(()),
        Err(error) if matches!(error.kind(), Kind::Unresolved(_)) => Ok(()),
        // It does not support volumes.
        Err(error) if *error.kind() == Kind::Unsupported => Ok(()),
        Err(error) => Err(Stop::violated(
            describe_error("create_pod of a pod whose ConfigMap is missing", &error),
            "return the resolver's error as it came",
        )),
    }
}

/// The error of a failed call names the operation and the pod.
pub(crate) async fn an_error_names_its_pod(context: &CaseContext) -> Outcome {
    let advice = "write the operation and the pod (PodRef has a Display) into the error's message";
    let caller = context.open().await?;
    let nobody = reference(&context.pod().build());
    let status = caller.status(&nobody).await?.err();
    let delete = caller.try_delete(&nobody, None, Duration::ZERO).await?.err();
    for (call, error) in [("pod_status", status), ("delete_pod", delete)] {
        let Some(error) = error else { continue };
        let text = error.report();
        let named = text.contains(&*nobody.name) || text.contains(&*nobody.uid);
        ensure(named, || format!("{call} of {nobody} answered with the message {text:?}"), advice)?;
    }
    Ok(())
}

/// Checks that the list contains a pod exactly once.
pub(crate) async fn listed_once(caller: &Caller, pod: &PodRef, advice: &'static str) -> Outcome {
    let count = caller.listed(pod).await?.len();
    ensure(count == 1, || format!("pods lists {pod} {count} times"), advice)
}
