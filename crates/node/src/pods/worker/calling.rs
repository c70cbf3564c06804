//! What becomes of the lifecycle calls.

use std::time::Duration;

use rand::rngs::StdRng;
use vk_provider::{
    EventKind,
    error::{Kind, Reaction},
};

use super::{Action, Call, Held, Presence, Refusal, Worker};
use crate::now::Now;

impl Worker {
    pub(super) fn called(
        &mut self,
        now: Now,
        call: Call,
        answer: Result<(), Refusal>,
        rng: &mut StdRng,
        actions: &mut Vec<Action>,
    ) {
        if self.call != Some(call) {
            return; // It was cancelled, and answered all the same.
        }
        self.call = None;
        self.look_old = true;
        let refusal = match answer {
            Ok(()) => {
                self.life.done();
                self.succeeded(now, call, actions);
                return;
            }
            Err(refusal) => refusal,
        };
        let (reason, verb) = match call {
            Call::Create => ("ProviderCreateFailed", "create"),
            Call::Update => ("ProviderUpdateFailed", "update"),
            Call::Delete => ("ProviderDeleteFailed", "delete"),
        };
        let first = self.life.backoff.failures() == 0;
        match (call, refusal.kind.reaction()) {
            (Call::Delete | Call::Update, Reaction::Gone) => {
                self.life.done();
                // A look that is under way began when it was still there.
                self.look_passed = true;
                return self.vanished(actions);
            }
            (Call::Create, Reaction::Done) => {
                self.life.done();
                self.succeeded(now, call, actions);
                return;
            }
            (Call::Create, Reaction::Refuse) => {
                self.life.done();
                self.presence = Presence::Absent;
                self.refuse(self.policy.refused, "ProviderFailed".to_owned(), refusal.message.clone());
            }
            (Call::Update, Reaction::Refuse) => {
                // The pod goes on as it is, until it is changed again.
                self.life.done();
                if !self.resize_refused(&refusal, actions) {
                    self.unchanged = Some((refusal.kind.name().to_owned(), refusal.message.clone()));
                }
            }
            (Call::Create, reaction) => {
                // It may have been created before the error came.
                self.presence = Presence::Present;
                self.acted_on = None;
                self.settled = None;
                if refusal.kind != Kind::Cancelled {
                    self.held = Some(Held {
                        state: refusal.state().to_owned(),
                        reason: (reaction != Reaction::Await).then(|| "ProviderFailed".to_owned()),
                        message: refusal.message.clone(),
                        parked: false,
                    });
                }
                self.life.failed(now.elapsed, refusal.patience(), rng);
            }
            (Call::Update, _) => {
                // It may have taken effect before the error came.
                self.acted_on = None;
                self.settled = None;
                self.resize_failed(&refusal);
                self.life.failed(now.elapsed, refusal.patience(), rng);
            }
            (Call::Delete, _) => {
                self.stop_by = None;
                self.life.failed(now.elapsed, refusal.patience(), rng);
            }
        }
        // Whoever found that an object is missing has told so.
        if let Kind::Unresolved(reference) = refusal.kind {
            actions.push(Action::Await(reference));
            return;
        }
        // Nobody needs to know of a call that was given up and is made again.
        if first && refusal.kind != Kind::Cancelled {
            let message = format!("cannot {verb} the pod: {}", refusal.message);
            actions.push(Action::Announce(EventKind::Warning, reason.into(), message));
        }
    }

    /// What was missing is there: no need to wait. If it turns out again and again to be missing all the same, somebody is
    /// mistaken, and that must not keep us busy.
    pub(super) fn appeared(&mut self, now: Now) {
        let wait = match self.recalls {
            0 => Duration::ZERO,
            recalls => Duration::from_millis(50) * 2_u32.saturating_pow(recalls.min(10)),
        };
        self.recalls = self.recalls.saturating_add(1);
        self.life.not_before = self.life.not_before.min(now.elapsed + wait);
    }

    fn succeeded(&mut self, now: Now, call: Call, actions: &mut Vec<Action>) {
        self.recalls = 0;
        match call {
            Call::Create => {
                self.accepted = true;
                self.presence = Presence::Present;
                self.held = None;
                self.settled = self.acted_on;
                self.unchanged = None;
                self.resize_taken(actions);
                actions.push(Action::Announce(
                    EventKind::Normal,
                    "ProviderCreateSuccess".into(),
                    "the provider has taken the pod".to_owned(),
                ));
                self.look_due = Some(now.elapsed);
            }
            Call::Update => {
                self.settled = self.acted_on;
                self.unchanged = None;
                self.resize_taken(actions);
                actions.push(Action::Announce(
                    EventKind::Normal,
                    "ProviderUpdateSuccess".into(),
                    "the provider has taken the change".to_owned(),
                ));
                self.look_due = Some(now.elapsed);
            }
            Call::Delete => {
                if !std::mem::replace(&mut self.stopping, true) {
                    actions.push(Action::Announce(
                        EventKind::Normal,
                        "ProviderDeleteSuccess".into(),
                        "the provider stops the pod".to_owned(),
                    ));
                }
                self.look_due = Some(now.elapsed);
            }
        }
    }
}
