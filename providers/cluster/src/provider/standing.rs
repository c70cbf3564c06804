//! How the virtual node stands: what it has, and whether the lower cluster answers.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use vk_provider::{
    Error, NodeTemplate, Result,
    node::{Condition, ConditionStatus},
};
use vk_supervisor::task;

use super::VirtualNode;
use crate::{
    names::{ABANDON, CLUSTER, CLUSTER_ID, REACHABLE},
    node::{Sum, describe},
};

/// So many times in a row the lower cluster may fail to answer.
const MISSES: u32 = 3;
/// How long a ping waits for an answer that does not come at once.
const SOON: Duration = Duration::from_millis(500);
/// What is said of a cluster that is being asked.
const NO_ANSWER: &str = "it was asked, and has not said anything yet";
/// The node is described anew no more often.
const PACE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct NodeStanding {
    sum: Mutex<Arc<Sum>>,
    health: Mutex<Health>,
    below: Arc<Notify>,
    /// Counts what the node's description has changed by.
    changes: watch::Sender<u64>,
    /// Counts the answers of the lower cluster.
    heard: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Health {
    misses: u32,
    /// It is being asked.
    asked: bool,
    /// Why it does not answer; `None` if it does.
    fault: Option<String>,
    /// It has answered once.
    met: bool,
    /// What the node has was reckoned when all was known.
    reckoned: bool,
}

// === impl NodeStanding ===

impl Default for NodeStanding {
    fn default() -> Self {
        Self {
            sum: Mutex::default(),
            health: Mutex::default(),
            below: Arc::default(),
            changes: watch::Sender::new(0),
            heard: watch::Sender::new(0),
        }
    }
}

impl NodeStanding {
    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Something is another than before below.
    pub(super) fn changed_below(&self) {
        self.below.notify_one();
    }

    pub(super) fn changed(&self) {
        self.changes.send_modify(|count| *count = count.wrapping_add(1));
    }
}

// === impl Health ===

impl Health {
    /// Whether it is to be asked: not while it is being asked.
    fn begin(&mut self) -> bool {
        !std::mem::replace(&mut self.asked, true)
    }

    /// What its answer, or that there was none, makes of it. Whether it is another than before.
    fn heard(&mut self, answer: Result<(), String>) -> bool {
        let before = self.fault.is_some();
        self.asked = false;
        match answer {
            Ok(()) => (self.misses, self.fault, self.met) = (0, None, true),
            Err(why) => self.miss(why),
        }
        before != self.fault.is_some()
    }

    /// Whoever waits for its answer waits no longer. Whether it is another than before.
    fn waited(&mut self) -> bool {
        let before = self.fault.is_some();
        if self.asked {
            self.miss(NO_ANSWER.to_owned());
        }
        before != self.fault.is_some()
    }

    fn miss(&mut self, why: String) {
        self.misses = self.misses.saturating_add(1);
        // One that never answered is not waited for.
        if self.misses >= MISSES || !self.met {
            self.fault = Some(why);
        }
    }
}

// === impl VirtualNode ===

impl VirtualNode {
    /// Answers soon, whatever the lower cluster does: one that hangs would else look like a provider that hangs.
    pub(super) async fn ping(self: &Arc<Self>) -> Result<()> {
        if self.is_abandoned() {
            return Err(Error::unavailable(format!(
                "the lower cluster was given up ({ABANDON}): delete this Node when it is no longer wanted"
            )));
        }
        let mut heard = self.standing.heard.subscribe();
        if self.standing.health.lock().begin() {
            self.ask();
        }
        // Most answer at once. That something was heard or was not is in the health.
        drop(tokio::time::timeout(SOON, heard.changed()).await);
        let server = self.lower.client().server();
        let fault = {
            let mut health = self.standing.health.lock();
            if health.waited() {
                self.standing.changed();
            }
            health.fault.clone()
        };
        if let Some(why) = fault {
            return Err(Error::unavailable(format!("the lower cluster {server} does not answer: {why}")));
        }
        self.check_apart()?;
        self.lower.known()?;
        // Ready, and with what it has: a scheduler that finds nothing would have to be called back.
        if !std::mem::replace(&mut self.standing.health.lock().reckoned, true) {
            self.reckon();
        }
        Ok(())
    }

    /// Asks the lower cluster, however long that takes.
    fn ask(self: &Arc<Self>) {
        let (node, supervisor) = (Arc::clone(self), self.supervisor.clone());
        let guard = supervisor.clone();
        supervisor.spawn("question to the lower cluster", task::Kind::Work, async move {
            let client = node.lower.client();
            let question = async {
                client.read_text("readyz", "/readyz").await?;
                node.lower.identity().ask(client).await
            };
            let answer = tokio::select! {
                answer = question => answer,
                () = guard.stopping() => return,
            };
            let news = matches!(answer, Ok(true));
            let turned =
                node.standing.health.lock().heard(answer.map(drop).map_err(|error| error.to_string()));
            if news || turned {
                node.standing.changed();
            }
            node.standing.heard.send_modify(|count| *count = count.wrapping_add(1));
        });
    }

    /// A cluster is no node of itself: its pods would be in their own way.
    fn check_apart(&self) -> Result<()> {
        if self.lower.identity().known().id.as_deref() == Some(&self.owner.origin) {
            return Err(Error::unavailable(
                "the lower cluster is the upper one: give the kubeconfig of another",
            ));
        }
        Ok(())
    }

    /// Reckons what the node has, from what is there now.
    pub(super) fn reckon(&self) {
        let sum = Arc::new(self.lower.sum(&self.owner, &self.settings.share));
        let before = std::mem::replace(&mut *self.standing.sum.lock(), Arc::clone(&sum));
        if before != sum {
            self.standing.changed();
        }
    }

    pub(super) fn describe(&self, template: &mut NodeTemplate) {
        let known = self.lower.identity().known();
        let sum = Arc::clone(&self.standing.sum.lock());
        describe(&sum, &known.cluster, &known.version, template);
        if known.cluster.is_empty() {
            for key in [CLUSTER, CLUSTER_ID] {
                template.labels.remove(key);
            }
        }
        let fault = self.standing.health.lock().fault.clone();
        let (status, reason) = match &fault {
            None => (ConditionStatus::True, "LowerClusterAnswers"),
            Some(_) => (ConditionStatus::False, "LowerClusterSilent"),
        };
        let server = self.lower.client().server();
        let message = fault.map_or_else(|| format!("{server} answers"), |why| format!("{server}: {why}"));
        template.set_condition(Condition {
            kind: REACHABLE.to_owned(),
            status,
            reason: reason.to_owned(),
            message,
        });
    }
}

/// Reckons again what the node has whenever something has changed below, from what is there then.
pub(super) fn keep(node: &Arc<VirtualNode>) {
    let (weak, supervisor) = (Arc::downgrade(node), node.supervisor.clone());
    let guard = supervisor.clone();
    supervisor.spawn("sum of the lower nodes", task::Kind::Work, async move {
        tokio::select! {
            () = reckon(weak) => {}
            () = guard.stopping() => {}
        }
    });
}

async fn reckon(node: Weak<VirtualNode>) {
    let mut last: Option<Instant> = None;
    loop {
        if let Some(last) = last {
            tokio::time::sleep_until(last + PACE).await;
        }
        let Some(node) = node.upgrade() else { return };
        last = Some(Instant::now());
        node.reckon();
        let below = Arc::clone(&node.standing.below);
        drop(node);
        below.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_node_is_unready_after_three_misses_and_at_once_if_it_never_answered() {
        let silent = || Err("no route".to_owned());
        let mut health = Health::default();
        assert!(health.heard(silent()), "it never answered");
        assert!(health.heard(Ok(())) && health.fault.is_none());
        assert!(!health.heard(silent()) && !health.heard(silent()) && health.fault.is_none());
        assert!(health.heard(silent()));
        assert_eq!(health.fault.as_deref(), Some("no route"));
        assert!(!health.heard(silent()), "told once");
        assert!(health.heard(Ok(())));
        assert!(!health.heard(silent()), "the count begins anew");
    }

    #[test]
    fn a_cluster_that_hangs_is_asked_once_and_missed_each_time_that_somebody_waits_for_it() {
        let mut health = Health { met: true, ..Health::default() };
        assert!(health.begin() && !health.begin(), "it is being asked");
        assert!(!health.waited() && !health.waited() && health.fault.is_none());
        assert!(health.waited());
        assert_eq!(health.fault.as_deref(), Some(NO_ANSWER));
        assert!(health.heard(Ok(())) && health.begin());
        assert!(!health.heard(Ok(())) && !health.waited(), "nobody waits for what is there");
    }
}
