//! The node: `ping` and `configure_node`.

use k8s_openapi::api::core::v1::NodeAddress;
use vk_provider::{NodeTemplate, Quantity};

use crate::conformance::{
    caller::{Caller, describe_error},
    context::CaseContext,
    result::{Outcome, Stop, ensure},
};

/// A working backend answers a ping in time.
pub(crate) async fn a_ping_is_answered(context: &CaseContext) -> Outcome {
    let caller = context.open().await?;
    for _ in 0..3 {
        let answer = caller.call("ping", caller.provider().ping()).await?;
        answer.map_err(|error| {
            Stop::violated(
                describe_error("ping", &error),
                "answer Ok while the backend can take and run pods",
            )
        })?;
    }
    Ok(())
}

/// `configure_node` is idempotent: the same template gives the same result.
pub(crate) async fn the_node_is_described_the_same_each_time(context: &CaseContext) -> Outcome {
    let caller = context.open().await?;
    let (first, second) = (described_node(&caller), described_node(&caller));
    ensure(
        first == second,
        || format!("first {first:?}, then {second:?}"),
        "state the whole truth each time, from what the backend has and not from earlier calls",
    )
}

/// The node reports its capacity, including the number of pods.
pub(crate) async fn the_node_has_capacity(context: &CaseContext) -> Outcome {
    let node = described_node(&context.open().await?);
    for resource in ["cpu", "memory", "pods"] {
        let amount = node.capacity.get(resource);
        ensure(
            amount.is_some_and(|amount| *amount > Quantity::units(0)),
            || format!("the capacity for {resource} is {amount:?}"),
            "set cpu, memory and pods: the scheduler sends no pod to a node without them",
        )?;
    }
    Ok(())
}

/// Allocatable resources do not exceed the capacity.
pub(crate) async fn no_more_is_allocatable_than_there_is(context: &CaseContext) -> Outcome {
    let node = described_node(&context.open().await?);
    for (resource, amount) in &node.allocatable {
        let capacity = node.capacity.get(resource);
        ensure(
            !amount.is_negative() && capacity.is_some_and(|capacity| amount <= capacity),
            || format!("of {resource} pods may use {amount:?} and there is {capacity:?}"),
            "keep allocatable at or below the capacity of the same resource",
        )?;
    }
    Ok(())
}

/// `ping` decides readiness, and each condition appears once.
pub(crate) async fn readiness_is_left_to_ping(context: &CaseContext) -> Outcome {
    let node = described_node(&context.open().await?);
    let mut kinds: Vec<&str> = node.conditions.iter().map(|condition| condition.kind.as_str()).collect();
    ensure(
        !kinds.contains(&"Ready"),
        || "configure_node sets the condition Ready".to_owned(),
        "answer ping with an error instead: the core makes Ready of it",
    )?;
    let all = kinds.len();
    kinds.sort_unstable();
    kinds.dedup();
    ensure(
        kinds.len() == all,
        || format!("of {all} conditions only {kinds:?} are different"),
        "set conditions with NodeTemplate::set_condition",
    )
}

/// The node that the provider describes, from a template like the core's.
fn described_node(caller: &Caller) -> NodeTemplate {
    let address = |kind: &str, text: &str| NodeAddress { type_: kind.to_owned(), address: text.to_owned() };
    let mut template = NodeTemplate {
        labels: [("kubernetes.io/os".to_owned(), "linux".to_owned())].into(),
        addresses: vec![address("InternalIP", "192.0.2.10"), address("Hostname", "conformance")],
        ..NodeTemplate::default()
    };
    caller.provider().configure_node(&mut template);
    template
}
