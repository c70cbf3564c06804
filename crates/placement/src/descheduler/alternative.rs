//! Another node for a stuck pod.

use std::{sync::Arc, time::Duration};

use vk_provider::ability::Verdict;

use super::stuck_pod::StuckPod;
use crate::{
    choose::LOCAL,
    cluster_state::{LocalVerdict, may_be_local},
    context::PlacementContext,
    explain::{machines_verdict, summary_of},
    fit_answers::{Knowledge, PATIENCE},
};

/// Another node for a stuck pod.
pub(super) enum Alternative {
    /// This one has room.
    Node(Arc<str>),
    /// Answers are awaited until then.
    Wait(Duration),
    /// There is none, for these reasons.
    None(String),
}

/// Finds a node that has room for a pod, other than the one that it is stuck on and those that it avoids.
/// `promised` is the number of pods for which room was found on a node before, and that have not come yet.
pub(super) fn find(
    now: Duration,
    stuck: &StuckPod,
    own: &str,
    promised: impl Fn(&str) -> usize,
    considers_local: bool,
    context: &mut PlacementContext,
) -> Alternative {
    let promised = |node: &str| u32::try_from(promised(node)).unwrap_or(u32::MAX);
    let pod = &stuck.again;
    let avoided: Vec<String> = context.avoid.nodes(pod).into_iter().map(str::to_owned).collect();
    let (mut reasons, mut wait, mut to_ask) = (Vec::new(), None::<Duration>, Vec::new());
    let mut wait_for = |until: Duration| wait = Some(wait.map_or(until, |wait| wait.min(until)));
    for upper in context.cluster.upper_verdicts(std::slice::from_ref(pod), None) {
        let name = &upper.node;
        if **name == *own {
            continue;
        }
        if avoided.iter().any(|node| **node == **name) {
            reasons.push(format!("{name}: other pods of its controller were stuck there"));
            continue;
        }
        let room_above = match upper.verdict {
            Ok(fit) => fit.room,
            Err(why) => {
                reasons.push(format!("{name}: {why}"));
                continue;
            }
        };
        if !upper.is_certain {
            reasons.push(format!("{name}: only kube-scheduler knows whether it may go there"));
            continue;
        }
        match context.answers.knowledge(now, &stuck.shape, name) {
            Knowledge::Current(Verdict::Fits { room, .. }, placed)
                if promised(name) < room.saturating_sub(placed).min(room_above) =>
            {
                return Alternative::Node(Arc::clone(name));
            }
            Knowledge::Current(Verdict::Fits { .. }, _) => {
                reasons.push(format!("{name}: its room is for other pods"));
            }
            Knowledge::Current(verdict, _) => reasons.push(format!("{name}: {verdict}")),
            Knowledge::Pending(until) => wait_for(until),
            Knowledge::Ask(at) if at <= now => to_ask.push(Arc::clone(name)),
            Knowledge::Ask(at) => wait_for(at),
            Knowledge::Silent(why) => reasons.push(format!("{name}: not asked: {why}")),
        }
    }
    if considers_local && context.cluster.local_nodes() > 0 && may_be_local(pod) {
        match context.cluster.local_verdict(pod) {
            Some(LocalVerdict { verdict: Verdict::Fits { room, .. }, .. }) if promised(LOCAL) < room => {
                return Alternative::Node(LOCAL.into());
            }
            Some(local) => {
                reasons.push(format!("{LOCAL}: {}", machines_verdict(&local.verdict)));
            }
            None => {}
        }
    }
    if !to_ask.is_empty() {
        if let Err(until) = context.budget.take(now, &to_ask) {
            return Alternative::Wait(until);
        }
        for node in to_ask {
            context.ask(now, &stuck.shape, std::slice::from_ref(pod), &node);
        }
        wait = Some(wait.map_or(now + PATIENCE, |wait| wait.min(now + PATIENCE)));
    }
    match wait {
        Some(until) => Alternative::Wait(until),
        None if reasons.is_empty() => Alternative::None("no other node can be asked".to_owned()),
        None => Alternative::None(format!("no other node fits: {}", summary_of(0, reasons.len(), reasons))),
    }
}
