//! What the runtime has of a pod: asked anew, and in full only where it changed or may yet change.

use std::{collections::HashSet, sync::Arc, time::Duration};

use futures::future::join_all;
use jiff::SignedDuration;
use vk_provider::{Error, Result, error::Kind};

use super::{
    actor::{Actor, complain},
    listed,
    slot::Brief,
};
use crate::{
    backend::{ContainerEntry, Runtime, SandboxEntry, told},
    snapshot::{Container, ContainerState, Sandbox, Snapshot},
    volume::message,
};

/// How long after its end a container is asked again that was killed, and how often.
const SETTLED: SignedDuration = SignedDuration::from_secs(3);
pub(super) const SETTLING: Duration = Duration::from_secs(1);
/// How long after its end a pod is not ended that might have ended for want of memory.
const SETTLING_FIRST: SignedDuration = SignedDuration::from_secs(1);
/// The exit code of a process that SIGKILL ended.
const KILLED: i32 = 137;

/// How long something may take to say what it is where the list is enough.
const INSPECTION: Duration = Duration::from_secs(10);

/// How much must be known of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Depth {
    /// Everything: containers are started by it.
    Full,
    /// What the runtime lists, and more where it can be had: enough to stop a pod, and to show that it is there. One thing that the runtime
    /// cannot tell about must not keep a pod from being deleted.
    Listed,
}

impl Actor {
    /// Asks the runtime about the pod. Only what changed is asked in full.
    pub(super) async fn refresh(&mut self, depth: Depth) -> Result<()> {
        let answer = match self.runtime().await {
            Ok(_) => self.snapshot_now(depth).await,
            Err(error) => Err(error),
        };
        match answer {
            Ok((snapshot, partial)) => {
                let snapshot = Arc::new(snapshot);
                self.asking.reset();
                if !partial.is_empty() {
                    // It is asked again by whoever looks next.
                    self.slot.outdate();
                }
                self.partial = partial;
                self.stopped.lock().retain(&snapshot);
                self.snapshot = Arc::clone(&snapshot);
                self.slot.view.send_modify(|view| {
                    view.snapshot = snapshot;
                    view.trouble = None;
                });
                Ok(())
            }
            Err(error) => {
                // What is known stays so; it is only asked again.
                self.slot.view.send_modify(|view| view.trouble = Some(told(&error)));
                self.slot.outdate();
                Err(error)
            }
        }
    }

    /// The runtime as it answered last; it is asked where it has not been yet, because its name is part of every container's id.
    pub(super) async fn runtime(&self) -> Result<Arc<Runtime>> {
        if self.shared.health.runtime().is_none() {
            // That it is not well shows where it matters.
            let _ = self.shared.health.ask(&self.shared).await;
        }
        let missing = || {
            let pod = &self.slot.pod;
            Error::unavailable(format!("look at pod {pod}: the container runtime has not answered yet"))
        };
        self.shared.health.runtime().ok_or_else(missing)
    }

    /// The pod as the runtime has it now, and the ids of what is only listed.
    async fn snapshot_now(&mut self, depth: Depth) -> Result<(Snapshot, HashSet<String>)> {
        let mark = self.shared.mark_of(&self.slot.pod);
        let listing = self.shared.backend.list(&mark).await?;
        // What is known from here on is what the next list is compared with.
        *self.slot.listed.lock() = Brief::of(&listing);
        let sandboxes =
            join_all(listing.sandboxes.iter().map(|entry| self.look_at_sandbox(entry, depth))).await;
        let containers = join_all(listing.containers.iter().map(|entry| self.look_at(entry, depth))).await;
        let (mut snapshot, mut partial) = (Snapshot::default(), HashSet::new());
        for (entry, seen) in listing.sandboxes.iter().zip(sandboxes) {
            match seen {
                Ok(seen) => snapshot.sandboxes.extend(seen),
                Err(error) if depth == Depth::Full => return Err(error),
                Err(error) => {
                    complain(&self.slot.pod, "cannot inspect a sandbox of the pod", &error);
                    partial.insert(entry.id.clone());
                    let known = self.snapshot.sandboxes.iter().find(|known| known.id == entry.id);
                    snapshot.sandboxes.push(listed::sandbox(known, entry, &mark, self.now()));
                }
            }
        }
        let wanted = self.slot.bundle.lock().as_ref().map(|bundle| Arc::clone(&bundle.pod));
        for (entry, seen) in listing.containers.iter().zip(containers) {
            match seen {
                Ok(seen) => snapshot.containers.extend(seen),
                Err(error) if depth == Depth::Full => return Err(error),
                Err(error) => {
                    complain(&self.slot.pod, "cannot inspect a container of the pod", &error);
                    partial.insert(entry.id.clone());
                    let pod = match &wanted {
                        Some(pod) => Some(Arc::clone(pod)),
                        None => self.as_noted().await,
                    };
                    let known = self.snapshot.container(&entry.id);
                    let container = listed::container(known, entry, pod.as_deref(), &mark, self.now());
                    snapshot.containers.push(container);
                }
            }
        }
        snapshot.sort();
        Ok((snapshot, partial))
    }

    /// A sandbox in full, or `None` where it has gone meanwhile.
    async fn look_at_sandbox(&self, entry: &SandboxEntry, depth: Depth) -> Result<Option<Sandbox>> {
        let same = |known: &&Sandbox| {
            known.id == entry.id
                && known.state == entry.state
                && (known.host_network || !known.ips.is_empty())
                && !self.partial.contains(&known.id)
        };
        match self.snapshot.sandboxes.iter().find(same) {
            Some(known) => Ok(Some(known.clone())),
            None => there(in_time(depth, self.shared.backend.sandbox(&entry.id)).await),
        }
    }

    /// Whether the runtime may yet say something else about the end of a container: that memory was short it learns on another way
    /// than that the process was killed, and sometimes later.
    pub(super) fn unsettled(&self, container: &Container) -> bool {
        let killed = container.state == ContainerState::Exited && container.exit_code == KILLED;
        let since = container.finished.map(|finished| self.now().duration_since(finished));
        killed && container.reason != "OOMKilled" && since.is_some_and(|since| since < SETTLED)
    }

    /// Whether a container was killed just now, so that the runtime has had no time to say why.
    pub(super) fn may_learn_more(&self) -> bool {
        let young = |container: &Container| {
            let since = container.finished.map(|finished| self.now().duration_since(finished));
            since.is_some_and(|since| since < SETTLING_FIRST)
        };
        self.snapshot.containers.iter().any(|container| self.unsettled(container) && young(container))
    }

    /// A container in full, or `None` where it has gone meanwhile.
    async fn look_at(&self, entry: &ContainerEntry, depth: Depth) -> Result<Option<Container>> {
        let same = |known: &&Container| {
            known.id == entry.id
                && known.state == entry.state
                && !self.partial.contains(&known.id)
                && !self.unsettled(known)
        };
        if let Some(known) = self.snapshot.containers.iter().find(same) {
            return Ok(Some(known.clone()));
        }
        let seen = in_time(depth, self.shared.backend.container(&entry.id)).await;
        let Some(mut container) = there(seen)? else { return Ok(None) };
        if container.state == ContainerState::Exited {
            message::complete(&mut container).await;
        }
        Ok(Some(container))
    }
}

/// Does not wait long where it needs not to be known.
async fn in_time<T>(depth: Depth, answer: impl Future<Output = Result<T>>) -> Result<T> {
    if depth == Depth::Full {
        return answer.await;
    }
    let late = |_| Error::unavailable("inspect an object of the container runtime: it does not answer");
    tokio::time::timeout(INSPECTION, answer).await.map_err(late)?
}

/// What an object is, or `None` where it has gone meanwhile.
fn there<T>(answer: Result<T>) -> Result<Option<T>> {
    match answer {
        Ok(object) => Ok(Some(object)),
        Err(error) if *error.kind() == Kind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
