//! The node's decisions about pods, with the Node as it was seen last.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod};
use tracing::warn;
use vk_kube::Objects;

use super::{
    Answer, Shell,
    admission::{Delay, Verdict},
    worker::Event,
};

impl Shell {
    fn node_seen(&self) -> Option<Arc<Node>> {
        self.facts.borrow().clone()
    }

    /// Decides whether the node takes a pod. Where the Node may have changed meanwhile, it is read first.
    pub(super) fn admit(&mut self, uid: &Arc<str>, pod: Arc<Pod>, before: bool) {
        if let Some(node) = self.node_seen() {
            let verdict = self.ledger.admit(uid, &pod, before, &node);
            if !verdict.may_be_outdated() {
                return self.tell(uid, Event::Judged(verdict));
            }
        }
        let nodes: Objects<Node> = Objects::all(self.client.clone());
        let (name, uid) = (self.node.clone(), Arc::clone(uid));
        self.tasks.spawn(async move {
            let answer = nodes.get(&name).await.map(Box::new);
            Answer::Node(uid, pod, before, answer)
        });
    }

    pub(super) fn fetched(
        &mut self,
        uid: &Arc<str>,
        pod: &Pod,
        before: bool,
        answer: Result<Box<Node>, vk_kube::Error>,
    ) {
        let verdict = match (answer, self.node_seen()) {
            (Ok(node), _) => self.ledger.admit(uid, pod, before, &node),
            (Err(error), Some(node)) => {
                warn!(%error, "cannot read the Node: deciding by what was seen of it last");
                self.ledger.admit(uid, pod, before, &node)
            }
            (Err(error), None) => {
                warn!(%error, "cannot read the Node: the pod is taken without a check");
                self.ledger.claim(uid, pod);
                Verdict::Admitted
            }
        };
        self.tell(uid, Event::Judged(verdict));
        // The pod may have gone while the Node was read.
        if !self.workers.contains_key(uid) {
            self.release(uid);
        }
    }

    /// Decides whether the node has room for another size of a pod.
    pub(super) fn resize(&mut self, uid: &Arc<str>, pod: &Arc<Pod>) {
        let answer = match self.node_seen() {
            Some(node) => self.ledger.resize(uid, pod, &node),
            None => Err(Delay { infeasible: false, message: "the Node is not known yet".to_owned() }),
        };
        if answer.is_err() {
            self.waiting.insert(Arc::clone(uid));
        }
        self.tell(uid, Event::Sized(answer));
    }

    pub(super) fn release(&mut self, uid: &Arc<str>) {
        self.waiting.remove(uid);
        if self.ledger.release(uid) {
            self.room();
        }
    }

    /// There may be more room than before.
    pub(super) fn room(&mut self) {
        for uid in std::mem::take(&mut self.waiting) {
            self.tell(&uid, Event::Room);
        }
    }
}
