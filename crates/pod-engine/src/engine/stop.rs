//! How a pod ends: its containers in their order and with their grace, its sandboxes, its volumes; and how what is left is removed.

use std::{collections::HashMap, net::IpAddr, sync::Arc, time::Duration};

use futures::future::{BoxFuture, join_all};
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use tokio::{sync::watch, time::Instant};
use vk_provider::{Error, EventKind, PodBundle, Result, error::Kind};

use super::{
    actor::{Actor, Next, Stopped, complain, unprobed},
    look::Depth,
    shared::Shared,
    slot::{Order, Slot},
};
use crate::{
    backend::told,
    decide::{self, Why},
    hook, log, parts,
    snapshot::{Container, Snapshot},
};

/// How long the end of a deleted pod can be asked for and its logs be read, before what is left of it is removed.
const KEEP: Duration = Duration::from_secs(30);
/// The least grace of a pod, as a kubelet's pod worker has it.
const LEAST: Duration = Duration::from_secs(1);

impl Actor {
    /// Stops a pod, and removes later what is left of it, where it is deleted. One whose time is over stays: people ask how it ended.
    pub(super) async fn stop(&mut self, order: &Order, bundle: Option<&PodBundle>) -> Result<Next> {
        if let Some(forget_at) = self.forget_at
            && !self.snapshot.is_live()
        {
            return match forget_at.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
                Some(left) => Ok(Next::In(left)),
                None => self.forget().await,
            };
        }
        // Nothing is mounted any more.
        self.unmounted = false;
        if !order.forget && self.over && !self.snapshot.is_live() {
            return Ok(Next::In(self.resync()));
        }
        let last_known = order.last_known.clone().or_else(|| bundle.map(|bundle| Arc::clone(&bundle.pod)));
        // The order in which it is stopped is in the pod that an earlier process noted, too, and in no mark.
        let last_known = match last_known {
            Some(pod) => Some(pod),
            None => self.as_noted().await,
        };
        let shown = match &last_known {
            Some(pod) => Arc::clone(pod),
            None => self.stray().await,
        };
        if !self.over {
            self.publish(&shown, false);
        }
        self.probes.stopping();
        let left = order.by.saturating_duration_since(Instant::now()).max(LEAST);
        self.end(last_known.as_deref(), &shown, Some(left)).await?;
        if !order.forget {
            return Ok(Next::In(self.resync()));
        }
        self.forget_at = Some(Instant::now() + KEEP);
        Ok(Next::In(KEEP))
    }

    /// Stops whatever runs, and shows the pod's end. `remaining`: what a deletion leaves of its grace.
    pub(super) async fn end(
        &mut self,
        pod: Option<&Pod>,
        shown: &Pod,
        remaining: Option<Duration>,
    ) -> Result<()> {
        let stopped = self.stop_all(pod, shown, remaining).await;
        if let Err(error) = stopped {
            let message = format!("error killing pod: {}", told(&error));
            self.tell(EventKind::Warning, "FailedKillPod", message);
            return Err(error);
        }
        // Nobody waits with a deletion for what the runtime cannot tell.
        let depth = if remaining.is_some() { Depth::Listed } else { Depth::Full };
        self.refresh(depth).await?;
        if self.snapshot.is_live() {
            return Err(Error::internal(format!("stop pod {}: something of it still runs", self.slot.pod)));
        }
        // What has ended is not probed any more.
        self.probes = unprobed(&self.shared, &self.slot);
        // The volumes of a pod are unmounted before anybody hears that it has ended.
        if let Err(error) = self.volumes.tear_down().await {
            complain(&self.slot.pod, "cannot remove the pod's volumes: trying again later", &error);
        }
        self.unmounted = false;
        self.over = true;
        self.publish(shown, true);
        Ok(())
    }

    /// Stops all containers by their turns, then all sandboxes. Readiness is told meanwhile.
    pub(super) async fn stop_all(
        &mut self,
        pod: Option<&Pod>,
        shown: &Pod,
        remaining: Option<Duration>,
    ) -> Result<()> {
        let (shared, slot) = (Arc::clone(&self.shared), Arc::clone(&self.slot));
        let (snapshot, stopped) = (Arc::clone(&self.snapshot), Arc::clone(&self.stopped));
        let ending = Ending { shared: &shared, slot: &slot, pod, snapshot: &snapshot, stopped: &stopped };
        let mut work = std::pin::pin!(ending.all(remaining));
        let mut verdicts = self.probes.changes();
        loop {
            tokio::select! {
                biased;
                answer = &mut work => return answer,
                Ok(()) = verdicts.changed(), if !self.over => {
                    self.publish(shown, false);
                }
            }
        }
    }

    /// Stops one container. `message` is that of the event.
    pub(super) async fn stop_one(&self, pod: &Pod, id: &str, message: String, why: Why) -> Result<()> {
        let snapshot = Arc::clone(&self.snapshot);
        // One that was started in this very pass is in no snapshot yet.
        let container = match snapshot.container(id) {
            Some(container) => container.clone(),
            None => self.shared.backend.container(id).await?,
        };
        let ending = Ending {
            shared: &self.shared,
            slot: &self.slot,
            pod: Some(pod),
            snapshot: &snapshot,
            stopped: &self.stopped,
        };
        ending.one(&container, message, why, None, None).await
    }

    /// Removes all that is left of a deleted pod, and the actor with it.
    async fn forget(&mut self) -> Result<Next> {
        let (shared, pod) = (Arc::clone(&self.shared), self.slot.pod.clone());
        let garbage = decide::garbage(false, &self.snapshot, self.now());
        self.remove(&garbage).await?;
        // A sandbox goes with all its containers, those included that came late.
        for sandbox in &self.snapshot.sandboxes {
            gone(shared.backend.stop_sandbox(&sandbox.id).await)?;
            gone(shared.backend.remove_sandbox(&sandbox.id).await)?;
        }
        for container in &self.snapshot.containers {
            gone(shared.backend.remove_container(&container.id).await)?;
        }
        self.refresh(Depth::Listed).await?;
        if !self.snapshot.sandboxes.is_empty() || !self.snapshot.containers.is_empty() {
            return Ok(Next::In(Duration::ZERO));
        }
        shared.place.tear_down(&pod.uid).await?;
        log::directory::remove(&shared.settings.log_root, &pod).await?;
        shared.puller.forget(&pod.uid);
        shared.release(&self.slot, true);
        Ok(Next::Done)
    }

    pub(super) fn tell(&self, kind: EventKind, reason: &str, message: String) {
        self.shared.tell(&self.slot.pod, None, kind, reason, message);
    }
}

/// The end of containers of one pod.
struct Ending<'a> {
    shared: &'a Arc<Shared>,
    slot: &'a Slot,
    pod: Option<&'a Pod>,
    snapshot: &'a Snapshot,
    stopped: &'a Mutex<Stopped>,
}

/// Those after whom a container has its turn.
type Turns = HashMap<String, watch::Sender<bool>>;

// === impl Ending ===

impl Ending<'_> {
    async fn all(&self, remaining: Option<Duration>) -> Result<()> {
        let order = decide::stop_order(self.pod, self.snapshot);
        let turns: Turns = order.iter().map(|turn| (turn.id.clone(), watch::Sender::new(false))).collect();
        let stops = order.iter().filter_map(|turn| {
            let container = self.snapshot.container(&turn.id)?;
            Some(async {
                let message = decide::stopping(&turn.name);
                let after = Some((turn.after.as_slice(), &turns));
                self.one(container, message, Why::Ordinary, remaining, after).await?;
                if let Some(done) = turns.get(&turn.id) {
                    done.send_replace(true);
                }
                Ok(())
            })
        });
        let answers: Vec<Result<()>> = join_all(stops).await;
        for answer in answers {
            answer?;
        }
        for sandbox in &self.snapshot.sandboxes {
            gone(self.shared.backend.stop_sandbox(&sandbox.id).await)?;
        }
        Ok(())
    }

    /// preStop first, then its turn, then the request to end with what is left of the grace.
    async fn one(
        &self,
        container: &Container,
        message: String,
        why: Why,
        remaining: Option<Duration>,
        after: Option<(&[String], &Turns)>,
    ) -> Result<()> {
        let grace = decide::grace(self.pod, container, why, remaining);
        let name = container.name.as_str();
        if self.stopped.lock().told.insert(container.id.clone()) {
            self.shared.tell(&self.slot.pod, Some(name), EventKind::Normal, "Killing", message);
        }
        let (mut spent, mut unfinished): (Duration, Option<BoxFuture<'static, ()>>) = (Duration::ZERO, None);
        if !grace.is_zero()
            && let Some(spec) = self.spec(container)
            && self.stopped.lock().hooked.insert(container.id.clone())
        {
            let call = hook::Call {
                pod: self.slot.pod.clone(),
                container: spec,
                id: container.id.clone(),
                ip: self.address(),
                tell: self.shared.teller(),
            };
            let ran = hook::pre_stop(&self.shared.prober, &call, grace).await;
            spent = ran.took;
            unfinished = ran.unfinished;
        }
        if let Some((after, turns)) = after
            && spent < grace
        {
            let began = Instant::now();
            let others = after.iter().filter_map(|id| turns.get(id)).map(|turn| async move {
                let _ = turn.subscribe().wait_for(|done| *done).await;
            });
            let _ = tokio::time::timeout(grace.saturating_sub(spent), join_all(others)).await;
            spent += began.elapsed();
        }
        let stop = self.shared.backend.stop_container(&container.id, decide::left(grace, spent));
        let answer = match unfinished {
            // The hook goes on for as long as there is something that it can do.
            Some(hook) => tokio::select! {
                answer = stop => answer,
                answer = async { hook.await; std::future::pending().await } => answer,
            },
            None => stop.await,
        };
        gone(answer)
    }

    /// The pod's address: the node's with the host's network.
    fn address(&self) -> Option<IpAddr> {
        let sandbox = self.snapshot.sandboxes.first()?;
        let ips = if sandbox.host_network { &self.shared.settings.node_ips } else { &sandbox.ips };
        ips.first().copied()
    }

    /// The spec of a container that has a preStop hook: the pod's, or as the runtime remembers it.
    fn spec(&self, container: &Container) -> Option<k8s_openapi::api::core::v1::Container> {
        let spec = match self.pod {
            Some(pod) => parts::part(pod, &container.name).map(|part| part.container.into_owned()),
            None => None,
        };
        let spec = spec.or_else(|| hook::remembered(container))?;
        spec.lifecycle.as_ref().is_some_and(|lifecycle| lifecycle.pre_stop.is_some()).then_some(spec)
    }
}

/// What is not there needs not to be stopped or removed.
pub(super) fn gone(answer: Result<()>) -> Result<()> {
    answer.or_else(|error| if *error.kind() == Kind::NotFound { Ok(()) } else { Err(error) })
}
