//! What becomes of the lifecycle calls.

use rand::rngs::StdRng;
use vk_provider::{EventKind, error::Reaction};

use super::{Action, Call, Presence, Refusal, Worker};
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
                self.ended = true;
                self.failed = Some(("ProviderFailed".to_owned(), refusal.message.clone()));
            }
            (Call::Update, Reaction::Refuse) => {
                // The pod goes on as it is, until it is changed again.
                self.life.done();
            }
            (Call::Create, reaction) => {
                // It may have been created before the error came.
                self.presence = Presence::Present;
                self.acted_on = None;
                let state = if reaction == Reaction::Await {
                    "CreateContainerConfigError"
                } else {
                    "CreateContainerError"
                };
                self.held = Some((state.to_owned(), refusal.message.clone()));
                self.life.failed(now.elapsed, refusal.patience(), rng);
            }
            (Call::Update, _) => {
                self.acted_on = None;
                self.life.failed(now.elapsed, refusal.patience(), rng);
            }
            (Call::Delete, _) => {
                self.stop_by = None;
                self.life.failed(now.elapsed, refusal.patience(), rng);
            }
        }
        if first {
            let message = format!("cannot {verb} the pod: {}", refusal.message);
            actions.push(Action::Announce(EventKind::Warning, reason, message));
        }
    }

    fn succeeded(&mut self, now: Now, call: Call, actions: &mut Vec<Action>) {
        match call {
            Call::Create => {
                self.accepted = true;
                self.presence = Presence::Present;
                self.held = None;
                actions.push(Action::Announce(
                    EventKind::Normal,
                    "ProviderCreateSuccess",
                    "the provider has taken the pod".to_owned(),
                ));
                self.look_due = Some(now.elapsed);
            }
            Call::Update => {
                actions.push(Action::Announce(
                    EventKind::Normal,
                    "ProviderUpdateSuccess",
                    "the provider has taken the change".to_owned(),
                ));
                self.look_due = Some(now.elapsed);
            }
            Call::Delete => {
                self.stopping = true;
                self.look_due = Some(now.elapsed);
            }
        }
    }
}
