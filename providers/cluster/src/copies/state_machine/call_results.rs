//! The results of calls to the lower cluster.

use std::time::Duration;

use vk_kube::{Error, Kind as ErrorKind};

use super::{
    super::{
        copy_state::{LowerCall, LowerState},
        diff::CopyKey,
    },
    Action, CallOutcome, CopyStateMachine,
};

/// A copy that a lower pod still uses is checked again after this.
const IN_USE_RECHECK: Duration = Duration::from_mins(5);

impl CopyStateMachine {
    pub(super) fn handle_call_result(
        &mut self,
        now: Duration,
        key: &CopyKey,
        answer: Result<CallOutcome, Error>,
        actions: &mut Vec<Action>,
    ) {
        let grace_end = self.jittered(now, self.grace);
        let check_again_at = self.jittered(now, IN_USE_RECHECK);
        let Some(entry) = self.entries.get_mut(key) else { return };
        let Some(call) = entry.in_flight.take() else { return };
        entry.handle_call_end(&call);
        match answer {
            Ok(CallOutcome::Object(found)) if call == LowerCall::Read => {
                entry.handle_read(found.map(|found| *found), (now, grace_end), &mut self.rng);
            }
            Ok(CallOutcome::Object(found)) => {
                entry.last_error = None;
                entry.backoff.reset();
                entry.record_write(&call, now, &mut self.rng);
                match found {
                    Some(found) => entry.observe(*found, grace_end),
                    None => entry.lower = LowerState::Unknown,
                }
            }
            Ok(CallOutcome::Deleting) => {
                entry.last_error = None;
                // The watch reports the deletion. In case it does not, the object is read later.
                if let (LowerState::Present(found), LowerCall::Delete(deletion)) = (&mut entry.lower, &call) {
                    found.deleting |= found.uid == deletion.uid;
                }
                entry.not_before = now + entry.backoff.next(None, &mut self.rng);
            }
            Ok(CallOutcome::InUse(used)) => {
                entry.last_error = None;
                match call {
                    LowerCall::CheckUse(check) => entry.handle_use_check(check, used, check_again_at),
                    _ if used => entry.handle_late_use(check_again_at),
                    _ => {}
                }
            }
            Err(error) => self.handle_call_error(now, key, &call, error, actions),
        }
        self.advance(now, key, actions);
    }

    fn handle_call_error(
        &mut self,
        now: Duration,
        key: &CopyKey,
        call: &LowerCall,
        error: Error,
        actions: &mut Vec<Action>,
    ) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        let lost = matches!(
            error.kind,
            ErrorKind::NotFound | ErrorKind::AlreadyExists | ErrorKind::Conflict | ErrorKind::Replaced
        );
        match (call, error.kind) {
            // The namespace does not exist.
            (LowerCall::Create(..), ErrorKind::NotFound) => {
                entry.not_before = now + entry.backoff.next(None, &mut self.rng);
                if let Some(namespace) = self.lower_namespaces.get_mut(&key.namespace) {
                    namespace.mark_lost(now);
                }
            }
            // The name is taken. An object known to be foreign stays so until it was read.
            (LowerCall::Create(..), ErrorKind::AlreadyExists) => {
                entry.stale = true;
                if !entry.is_foreign() {
                    entry.lower = LowerState::Unknown;
                }
                entry.backoff.next(None, &mut self.rng);
            }
            // Somebody else changed, replaced or deleted the object.
            (LowerCall::Create(..) | LowerCall::Patch(..) | LowerCall::Delete(_), _) if lost => {
                entry.lower = LowerState::Unknown;
                let first = entry.backoff.failures() == 0;
                let wait = entry.backoff.next(None, &mut self.rng);
                if !first {
                    entry.not_before = now + wait;
                }
            }
            (_, kind) => {
                entry.not_before = now + entry.backoff.next(error.retry_after, &mut self.rng);
                if matches!(kind, ErrorKind::Invalid | ErrorKind::Forbidden) {
                    let message = format!("cannot be copied to the lower cluster as {key}: {error}");
                    for pod in entry.pods.difference(&entry.notified) {
                        let (pod, message) = (pod.clone(), message.clone());
                        actions.push(Action::Warn { pod, reason: "FailedReflection", message });
                    }
                    entry.notified = entry.pods.clone();
                }
                entry.last_error = Some(error);
            }
        }
    }
}
