//! Whether a listing of the provider's pods still says something about a pod, or is older than what is known of it.

use std::time::Duration;

use vk_provider::error::Kind;

use super::worker::Event;

/// When the provider last said or did something about a pod.
#[derive(Clone, Copy, Debug, Default)]
pub struct Freshness {
    heard: Option<Duration>,
}

impl Freshness {
    /// The worker is told this.
    pub fn note(&mut self, now: Duration, event: &Event) {
        let news = match event {
            // Whatever a call was answered, it may have changed something.
            Event::Reported(_) | Event::Called(..) => true,
            Event::Looked(answer) => answer.as_ref().err().is_none_or(|why| why.kind == Kind::NotFound),
            _ => false,
        };
        if news {
            self.heard = Some(now);
        }
    }

    /// A call was dropped: it may have taken effect until now.
    pub fn cancelled(&mut self, now: Duration) {
        self.heard = Some(now);
    }

    /// Whether the worker shall hear of a listing that was asked for at this time. What the provider said since then counts
    /// more; and a listing that was made during a call (`busy`) may miss the pod that the call creates.
    pub fn admits(&self, asked: Duration, busy: bool, there: bool) -> bool {
        self.heard.is_none_or(|heard| heard < asked) && (there || !busy)
    }
}
