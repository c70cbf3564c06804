//! Whether pods fit.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::api::resource::Quantity};
use vk_provider::ability::{Cause, Verdict};

use crate::conformance::{
    context::CaseContext,
    pod_builder::changed,
    result::{Outcome, Stop, ensure},
};

/// More than any node has.
const TOO_MUCH: &str = "1000000";
const LITTLE: &str = "100m";

/// Each pod gets a well-formed verdict of its own.
pub(crate) async fn every_pod_gets_one_verdict(context: &CaseContext) -> Outcome {
    let caller = context.open().await?;
    let fit = caller.fit()?;
    let advice = "answer for each pod in turn, and say why where it does not fit";
    for cpus in [&[][..], &[LITTLE], &[LITTLE, TOO_MUCH, LITTLE]] {
        let pods = pods(context, cpus);
        let verdicts = fit.fit(&[], &pods, &[]);
        let seen = || format!("for {} pods the verdicts {verdicts:?}", pods.len());
        let in_order = verdicts.iter().zip(cpus).all(|(verdict, cpu)| !(verdict.fits() && *cpu == TOO_MUCH));
        ensure(verdicts.len() == pods.len() && in_order, seen, advice)?;
        ensure(verdicts.iter().all(is_well_formed), seen, advice)?;
    }
    Ok(())
}

/// A pod that is larger than anything is not said to fit.
pub(crate) async fn a_pod_that_no_node_can_have_does_not_fit(context: &CaseContext) -> Outcome {
    let caller = context.open().await?;
    let verdicts = caller.fit()?.fit(&[], &pods(context, &[TOO_MUCH]), &[]);
    ensure(
        !verdicts.iter().any(Verdict::fits),
        || format!("a pod that requests {TOO_MUCH} CPUs: {verdicts:?}"),
        "compare the requests with what each lower node has left, or answer Unknown",
    )
}

/// The texts of causes do not change from pod to pod.
pub(crate) async fn a_cause_has_one_text(context: &CaseContext) -> Outcome {
    let caller = context.open().await?;
    let fit = caller.fit()?;
    let texts = || {
        let verdicts = fit.fit(&[], &pods(context, &[TOO_MUCH]), &[]);
        verdicts.into_iter().flat_map(texts_of).collect::<Vec<String>>()
    };
    let (first, second) = (texts(), texts());
    ensure(
        first == second,
        || format!("for two equal pods {first:?} and {second:?}"),
        "put no names, numbers or times of pods into the text of a cause",
    )
}

/// Of two pods in one question, the second finds less room.
pub(crate) async fn pods_before_take_room(context: &CaseContext) -> Outcome {
    let caller = context.open().await?;
    let verdicts = caller.fit()?.fit(&[], &pods(context, &[LITTLE, LITTLE]), &[]);
    let [Verdict::Fits { room: first, .. }, second] = verdicts.as_slice() else {
        return undecided(&verdicts);
    };
    ensure(
        room_of(second) < *first || *first == u32::MAX,
        || format!("of two equal pods {verdicts:?}"),
        "count each pod that fits before the next one is evaluated",
    )
}

/// With a held pod there is less room.
pub(crate) async fn held_pods_take_room(context: &CaseContext) -> Outcome {
    let caller = context.open().await?;
    let fit = caller.fit()?;
    let asked = pods(context, &[LITTLE]);
    let (free, held) = (fit.fit(&[], &asked, &[]), fit.fit(&pods(context, &[LITTLE]), &asked, &[]));
    let [Verdict::Fits { room, .. }] = free.as_slice() else { return undecided(&free) };
    ensure(
        held.iter().all(|verdict| room_of(verdict) < *room) || *room == u32::MAX,
        || format!("{free:?}, and with another pod held {held:?}"),
        "count the pods of `held` before the first pod is evaluated",
    )
}

/// Without one of its pods a node has more room.
pub(crate) async fn pods_to_be_without_leave_room(context: &CaseContext) -> Outcome {
    let caller = context.open().await?;
    let fit = caller.fit()?;
    let present = with_cpu(&context.pod().build(), LITTLE);
    let (made, _) = caller.start(&present).await?;
    let asked = pods(context, &[LITTLE]);
    let advice = "leave out the pods of `without` when the room is computed";
    let compare = || async {
        let (with, without) = (fit.fit(&[], &asked, &[]), fit.fit(&[], &asked, &[Arc::clone(&made.uid)]));
        let (less, more) = (with.first().map_or(0, room_of), without.first().map_or(0, room_of));
        let open = without.iter().any(|verdict| matches!(verdict, Verdict::Unknown { .. }));
        if less < more || more == u32::MAX || open {
            return Ok(());
        }
        Err(format!("{with:?}, and without a pod of the node {without:?}"))
    };
    caller.until("there is more room without one of the pods", advice, compare).await
}

/// A pod that is held and present is one pod.
pub(crate) async fn a_held_pod_that_the_node_has_counts_once(context: &CaseContext) -> Outcome {
    let caller = context.open().await?;
    let fit = caller.fit()?;
    let present = with_cpu(&context.pod().build(), LITTLE);
    caller.start(&present).await?;
    let asked = pods(context, &[LITTLE]);
    let advice = "leave out the pods of `held` that the backend has, by their UID";
    let compare = || async {
        let (plain, held) = (fit.fit(&[], &asked, &[]), fit.fit(&[Arc::clone(&present)], &asked, &[]));
        if plain == held {
            return Ok(());
        }
        Err(format!("{plain:?}, and with one of its own pods held {held:?}"))
    };
    caller.until("a held pod that the node has changes nothing", advice, compare).await
}

/// The same question has the same answer.
pub(crate) async fn a_question_changes_nothing(context: &CaseContext) -> Outcome {
    let caller = context.open().await?;
    let fit = caller.fit()?;
    let (held, asked) = (pods(context, &[LITTLE]), pods(context, &[LITTLE, LITTLE]));
    let (first, second) = (fit.fit(&held, &asked, &[]), fit.fit(&held, &asked, &[]));
    ensure(
        first == second,
        || format!("first {first:?}, then {second:?}"),
        "evaluate on a copy: a pod that is asked about is not created",
    )
}

/// The best lower nodes are as many as were asked for, or fewer, and each is named once.
pub(crate) async fn the_best_lower_nodes_are_different_ones(context: &CaseContext) -> Outcome {
    let caller = context.open().await?;
    let fit = caller.fit()?;
    for count in [0, 1, 3] {
        for pod in pods(context, &[LITTLE, TOO_MUCH]) {
            let nodes = fit.best_nodes(&pod, count);
            let names: BTreeSet<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
            ensure(
                nodes.len() <= count && names.len() == nodes.len() && !names.contains(""),
                || format!("of {count} nodes that were asked for, {nodes:?}"),
                "name each lower node once, and no more than were asked for",
            )?;
        }
    }
    Ok(())
}

/// Pods that are not bound yet, with these requests.
fn pods(context: &CaseContext, cpus: &[&str]) -> Vec<Arc<Pod>> {
    let unbound = |pod: &Pod| changed(pod, |pod| pod.spec.get_or_insert_default().node_name = None);
    cpus.iter().map(|cpu| with_cpu(&unbound(&context.pod().build()), cpu)).collect()
}

/// The pod with this request.
fn with_cpu(pod: &Pod, cpu: &str) -> Arc<Pod> {
    changed(pod, |pod| {
        for container in &mut pod.spec.get_or_insert_default().containers {
            let requests = container.resources.get_or_insert_default().requests.get_or_insert_default();
            requests.insert("cpu".to_owned(), Quantity(cpu.to_owned()));
        }
    })
}

fn room_of(verdict: &Verdict) -> u32 {
    match verdict {
        Verdict::Fits { room, .. } => *room,
        Verdict::Unknown { .. } | Verdict::Refused { .. } => 0,
    }
}

fn texts_of(verdict: Verdict) -> Vec<String> {
    match verdict {
        Verdict::Fits { .. } => Vec::new(),
        Verdict::Unknown { why } => vec![why],
        Verdict::Refused { why, .. } => why.into_iter().map(|cause| cause.text).collect(),
    }
}

fn is_well_formed(verdict: &Verdict) -> bool {
    let is_line = |text: &str| !text.is_empty() && !text.contains('\n');
    match verdict {
        Verdict::Fits { room, fullness } => *room > 0 && *fullness <= 100,
        Verdict::Unknown { why } => is_line(why),
        Verdict::Refused { why, .. } => {
            !why.is_empty()
                && why.iter().all(|cause| is_line(&cause.text))
                && why.is_sorted_by_key(|Cause { nodes, .. }| std::cmp::Reverse(*nodes))
        }
    }
}

/// The rule is about pods that fit.
fn undecided(verdicts: &[Verdict]) -> Outcome {
    let seen = verdicts.first().map_or_else(|| "no verdict".to_owned(), ToString::to_string);
    Err(Stop::DoesNotApply(format!("the provider does not say that a small pod fits: {seen}")))
}
