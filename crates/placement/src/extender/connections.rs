//! Keeps connections to nodes open: a call has less time than it may take to get a token and to connect.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::Node;
use parking_lot::Mutex;
use tokio::time::{Instant, MissedTickBehavior};
use tracing::{debug, info};
use vk_provider::placement::FitQuery;
use vk_supervisor::{Supervisor, task};

use super::Extender;

/// How soon a new node is asked.
const TICK: Duration = Duration::from_millis(500);
/// How often nodes are asked at least. Shorter than the time after which connections are closed, and than the lifetime of a token.
const PERIOD: Duration = Duration::from_mins(1);
/// How often nodes are asked that have not answered. A question takes no longer.
const RETRY_PERIOD: Duration = Duration::from_secs(5);

/// When nodes were asked about nothing, by name.
#[derive(Debug, Default)]
pub(super) struct Connections(Mutex<HashMap<Arc<str>, Attempt>>);

#[derive(Clone, Copy, Debug)]
struct Attempt {
    at: Instant,
    has_answered: bool,
}

// === impl Connections ===

impl Connections {
    /// The nodes that have to be asked now.
    fn due(&self, now: Instant, nodes: Vec<(Arc<str>, Arc<Node>)>) -> Vec<(Arc<str>, Arc<Node>)> {
        let mut attempts = self.0.lock();
        let names: HashSet<_> = nodes.iter().map(|(name, _)| Arc::clone(name)).collect();
        attempts.retain(|name, _| names.contains(name));
        let is_due = |name: &Arc<str>| {
            attempts.get(name).is_none_or(|attempt| {
                now.duration_since(attempt.at) >= if attempt.has_answered { PERIOD } else { RETRY_PERIOD }
            })
        };
        let due: Vec<_> = nodes.into_iter().filter(|(name, _)| is_due(name)).collect();
        for (name, _) in &due {
            let has_answered = attempts.get(name).is_some_and(|attempt| attempt.has_answered);
            attempts.insert(Arc::clone(name), Attempt { at: now, has_answered });
        }
        due
    }

    /// Records whether a node has answered. Returns whether that is new.
    fn record(&self, name: &str, answers: bool) -> bool {
        let mut attempts = self.0.lock();
        let Some(attempt) = attempts.get_mut(name) else { return false };
        std::mem::replace(&mut attempt.has_answered, answers) != answers
    }
}

/// Asks each node once in a while, about nothing, until the supervisor stops.
pub(super) async fn keep_open(extender: Extender, supervisor: Supervisor) {
    let mut interval = tokio::time::interval(TICK);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = interval.tick() => {}
            () = supervisor.stopping() => return,
        }
        let nodes = extender.0.state.lock().nodes();
        for (name, node) in extender.0.connections.due(Instant::now(), nodes) {
            let connecting = connect(extender.clone(), name, node);
            supervisor.spawn("extender connection", task::Kind::Work, connecting);
        }
    }
}

async fn connect(extender: Extender, name: Arc<str>, node: Arc<Node>) {
    let answer = extender.0.fit_client.ask(&node, &FitQuery::default()).await;
    let is_new = extender.0.connections.record(&name, answer.is_ok());
    match answer {
        Ok(_) if is_new => info!(node = &*name, "the node answers"),
        Ok(_) => {}
        Err(error) => debug!(node = &*name, %error, "cannot connect to the node"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_answers_is_asked_once_a_minute_and_another_one_again_soon() {
        let (connections, start) = (Connections::default(), Instant::now());
        let node = |name: &str| (Arc::from(name), Arc::new(Node::default()));
        let due = |seconds| {
            let due = connections.due(start + Duration::from_secs(seconds), vec![node("a"), node("b")]);
            due.into_iter().map(|(name, _)| name.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(due(0), ["a", "b"]);
        assert!(connections.record("a", true) && !connections.record("b", false));
        assert_eq!(due(4), [""; 0]);
        assert_eq!(due(5), ["b"]);
        assert_eq!(due(10), ["b"]);
        assert!(!connections.record("a", true) && connections.record("b", true));
        assert_eq!(due(60), ["a"]);
        assert_eq!(due(70), ["b"]);
        // A node that comes back is a new one.
        assert_eq!(connections.due(start + Duration::from_secs(71), vec![node("b")]).len(), 0);
        assert_eq!(due(72), ["a"]);
    }
}
