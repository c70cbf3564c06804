//! Contents of a pod's status.

use std::{collections::BTreeSet, net::IpAddr, time::Duration};

use k8s_openapi::api::core::v1::PodStatus;

use crate::conformance::{
    context::CaseContext,
    pod_status,
    result::{Outcome, ensure},
};

/// The status contains every container of the pod exactly once.
pub(crate) async fn every_container_is_in_the_status_once(context: &CaseContext) -> Outcome {
    let caller = context.open().await?;
    let pod = context.pod().with_second().build();
    let (_, status) = caller.start(&pod).await?;
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut wanted: Vec<&str> = containers.map(|container| container.name.as_str()).collect();
    let mut named: Vec<&str> =
        pod_status::containers(&status).map(|container| container.name.as_str()).collect();
    wanted.sort_unstable();
    named.sort_unstable();
    let advice =
        "make one ContainerStatus for each container of the spec, in the list of its kind, and no other";
    ensure(named == wanted, || format!("the pod has {wanted:?} and the status {named:?}"), advice)
}

/// A container is always in exactly one state: waiting, running or terminated.
pub(crate) async fn a_container_is_in_one_state(context: &CaseContext) -> Outcome {
    through_a_life(context, |status| {
        for container in pod_status::containers(status) {
            let state = pod_status::state(container);
            let states = [state.waiting.is_some(), state.running.is_some(), state.terminated.is_some()];
            let count = states.into_iter().filter(|is| *is).count();
            ensure(
                count == 1,
                || format!("container {} is in {count} states at once: {state:?}", container.name),
                "set exactly one of waiting, running and terminated",
            )?;
        }
        Ok(())
    })
    .await
}

/// Phases are valid and never go backwards.
pub(crate) async fn a_phase_never_goes_back(context: &CaseContext) -> Outcome {
    let advice = "go from Pending to Running to Succeeded or Failed, and stay there";
    let mut before: Option<String> = None;
    through_a_life(context, |status| {
        let phase = pod_status::phase(status);
        let rank = |phase: &str| match phase {
            "Pending" => Some(0),
            "Running" => Some(1),
            "Succeeded" | "Failed" => Some(2),
            _ => None,
        };
        ensure(rank(phase).is_some(), || format!("the phase is {phase:?}"), advice)?;
        if let Some(before) = &before {
            let other_end = rank(before) == Some(2) && before != phase;
            let back = rank(phase) < rank(before) || other_end;
            ensure(!back, || format!("the phase went from {before} to {phase}"), advice)?;
        }
        before = Some(phase.to_owned());
        Ok(())
    })
    .await
}

/// A running container has a unique ID and a start time.
pub(crate) async fn a_running_container_has_an_id_and_a_start(context: &CaseContext) -> Outcome {
    let caller = context.open().await?;
    let (_, status) = caller.start(&context.pod().with_second().build()).await?;
    let mut ids = BTreeSet::new();
    for container in pod_status::containers(&status) {
        let id = container.container_id.clone().unwrap_or_default();
        let name = &container.name;
        let advice = "set containerID to TYPE://ID, with an ID of its own for each start of a container";
        ensure(id.contains("://"), || format!("the running container {name} has the ID {id:?}"), advice)?;
        ensure(ids.insert(id.clone()), || format!("two containers have the ID {id:?}"), advice)?;
        let started =
            pod_status::state(container).running.is_some_and(|running| running.started_at.is_some());
        ensure(
            started,
            || format!("the running container {name} does not say since when"),
            "set state.running.startedAt",
        )?;
    }
    Ok(())
}

/// Addresses are valid IP addresses.
pub(crate) async fn addresses_can_be_read(context: &CaseContext) -> Outcome {
    let caller = context.open().await?;
    let (_, status) = caller.start(&context.pod().build()).await?;
    let pods: Vec<&String> = status.pod_ips.iter().flatten().map(|address| &address.ip).collect();
    let hosts: Vec<&String> = status.host_ips.iter().flatten().map(|address| &address.ip).collect();
    let advice = "report addresses that the API server can read, and the first of the list alone as well";
    for text in pods.iter().chain(&hosts).copied().chain(&status.pod_ip).chain(&status.host_ip) {
        ensure(text.parse::<IpAddr>().is_ok(), || format!("the status has the address {text:?}"), advice)?;
    }
    for (one, list) in [(&status.pod_ip, &pods), (&status.host_ip, &hosts)] {
        if let (Some(one), Some(first)) = (one, list.first()) {
            ensure(
                one == *first,
                || format!("the address is {one:?} and the first of all {first:?}"),
                advice,
            )?;
        }
    }
    Ok(())
}

/// `ContainersReady` follows the containers, in both directions.
pub(crate) async fn containers_ready_follows_the_containers(context: &CaseContext) -> Outcome {
    let advice = "report the condition ContainersReady: True exactly while every container is ready";
    let caller = context.open().await?;
    let (made, _) = caller.start(&context.pod().with_second().build()).await?;
    let holds = |status: &PodStatus| {
        let conditions = status.conditions.iter().flatten();
        let mut found = conditions.filter(|condition| condition.type_ == "ContainersReady");
        found.next().is_some_and(|condition| condition.status == "True")
    };
    let ready =
        |status: &PodStatus| status.container_statuses.iter().flatten().all(|container| container.ready);
    let wanted = |status: &PodStatus| ready(status) && holds(status);
    caller.shows(&made, "the containers are ready and ContainersReady is True", advice, wanted).await?;
    through_a_life(context, |status| {
        let wrong = holds(status) && !ready(status);
        ensure(!wrong, || format!("ContainersReady is True with {}", pod_status::summary(status)), advice)
    })
    .await
}

/// Terminated containers have an end time, which is not before the start.
pub(crate) async fn an_ended_container_says_when(context: &CaseContext) -> Outcome {
    through_a_life(context, |status| {
        for container in pod_status::containers(status) {
            let Some(ended) = pod_status::state(container).terminated else { continue };
            let finished = ended.finished_at.as_ref();
            ensure(
                finished.is_some() && ended.started_at.as_ref() <= finished,
                || {
                    let (name, from, to) = (&container.name, &ended.started_at, &ended.finished_at);
                    format!("container {name} began at {from:?} and ended at {to:?}")
                },
                "set startedAt and finishedAt of a terminated container, in this order",
            )?;
        }
        Ok(())
    })
    .await
}

/// Observes a pod from its creation to its end, and passes each status to the check.
async fn through_a_life(context: &CaseContext, mut check: impl FnMut(&PodStatus) -> Outcome) -> Outcome {
    let caller = context.open().await?;
    let pod = context.pod().with_second().build();
    let made = caller.create(&pod).await?;
    let mut look = async || -> Outcome {
        match caller.status(&made).await? {
            Ok(status) => check(&status),
            Err(_) => Ok(()),
        }
    };
    look().await?;
    caller.running(&made).await?;
    look().await?;
    caller.delete(&pod, Duration::from_secs(30)).await?;
    look().await?;
    caller.over(&made).await?;
    look().await
}
