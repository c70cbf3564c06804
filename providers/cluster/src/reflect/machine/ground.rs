//! Lower namespaces: that there are such, each with our anchor.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use vk_kube::Error;
use vk_supervisor::Backoff;

use super::{
    super::{Kind, twin::Place},
    Action, Machine,
};

/// A lower namespace.
#[derive(Debug)]
pub(super) struct Ground {
    pub(super) above: String,
    pub(super) anchor: Option<OwnerReference>,
    under_way: bool,
    /// It was lost while it was looked for.
    lost: bool,
    pub(super) not_before: Duration,
    backoff: Backoff,
    pub(super) trouble: Option<Error>,
}

impl Machine {
    /// Sees to it that there is a namespace.
    pub(super) fn settle(&mut self, now: Duration, below: &str, above: &str, actions: &mut Vec<Action>) {
        let ground = self.grounds.entry(below.to_owned()).or_insert_with(|| Ground::new(above));
        if ground.is_waiting() && now >= ground.not_before {
            ground.under_way = true;
            actions.push(Action::Settle { below: below.to_owned(), above: ground.above.clone() });
        }
    }

    /// Without the anchor all that hangs on it goes, and what would hang on it too.
    pub(super) fn unsettle_if_anchor(&mut self, now: Duration, place: &Place, actions: &mut Vec<Action>) {
        if place.kind != Kind::ConfigMap || place.name != self.anchor {
            return;
        }
        let Some(ground) = self.grounds.get_mut(&place.namespace) else { return };
        ground.lose(now);
        let above = ground.above.clone();
        self.settle(now, &place.namespace, &above, actions);
    }

    pub(super) fn settle_again(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let waiting = self.grounds.iter().filter(|(_, it)| it.is_waiting() && now >= it.not_before);
        let waiting: Vec<(String, String)> =
            waiting.map(|(below, ground)| (below.clone(), ground.above.clone())).collect();
        for (below, above) in waiting {
            self.settle(now, &below, &above, actions);
        }
    }

    pub(super) fn settled(
        &mut self,
        now: Duration,
        below: &str,
        answer: Result<OwnerReference, Error>,
        actions: &mut Vec<Action>,
    ) {
        let Some(ground) = self.grounds.get_mut(below) else { return };
        ground.under_way = false;
        match answer {
            // It was there when it was looked for, and has gone since.
            Ok(_) if std::mem::take(&mut ground.lost) => {
                let above = ground.above.clone();
                self.settle(now, below, &above, actions);
            }
            Ok(anchor) => {
                ground.anchor = Some(anchor);
                ground.trouble = None;
                ground.backoff.reset();
                self.advance_all(now, |place| place.namespace == below, actions);
            }
            Err(error) => {
                ground.not_before = now + ground.backoff.next(error.retry_after, &mut self.rng);
                ground.trouble = Some(error);
            }
        }
    }
}

// === impl Ground ===

impl Ground {
    fn new(above: &str) -> Self {
        Self {
            above: above.to_owned(),
            anchor: None,
            under_way: false,
            lost: false,
            not_before: Duration::ZERO,
            backoff: Backoff::new(Duration::from_millis(200), Duration::from_secs(30)),
            trouble: None,
        }
    }

    /// The anchor is gone, or the whole namespace.
    pub(super) fn lose(&mut self, now: Duration) {
        self.anchor = None;
        self.lost = self.under_way;
        self.not_before = self.not_before.min(now);
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.anchor.is_none() && !self.under_way
    }
}
