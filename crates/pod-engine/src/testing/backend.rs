//! The fake runtime as a [`ContainerBackend`].

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    time::Duration,
};

use async_trait::async_trait;
use futures::{StreamExt as _, stream, stream::BoxStream};
use vk_provider::{
    Result,
    ability::{AttachOptions, ExecOptions, Forward, Started},
    error::Kind,
    resolve::PullCredentials,
};

use super::{
    Events, FakeRuntime, Pull,
    fault::{Call, before, error},
    session::{Command, connection, session, silent},
    state::{later, refused},
};
use crate::{
    backend::{
        self, ContainerBackend, ContainerConfig, ContainerEntry, ContainerUsage, CpuUsage, ExecOutput,
        FsUsage, Image, Listing, MemoryUsage, PodUsage, RuntimeCondition, RuntimeHandler, SandboxConfig,
        SandboxEntry,
    },
    image::DiskUsage,
    snapshot::{Container, ContainerState, Mounted, Sandbox, SandboxState},
};

/// CPU usage of a pod: one over this number.
const SHARE: u32 = 4;
/// The port on which every pod listens.
const OPEN_PORT: u16 = 80;

type Labels = BTreeMap<String, String>;

impl FakeRuntime {
    /// Makes a call: counts it, applies its fault, and executes it.
    async fn call<T>(&self, call: Call, work: impl AsyncFnOnce(&Self) -> Result<T>) -> Result<T> {
        let effect = self.0.faults.lock().hit(call);
        let lost = before(effect, call).await?;
        if self.0.state.lock().down {
            return Err(refused());
        }
        let answer = work(self).await;
        match lost {
            Some(error) => answer.and(Err(error)),
            None => answer,
        }
    }

    fn notify_container(&self, id: &str) {
        let uid = self.0.state.lock().containers.get(id).map(|process| process.uid.clone());
        self.notify(uid);
    }

    fn notify_sandbox(&self, id: &str) {
        let uid = self.0.state.lock().sandboxes.get(id).map(|known| known.pod.uid.to_string());
        self.notify(uid);
    }

    fn command(&self, container: &str, words: &[String]) -> Result<Command> {
        let mut state = self.0.state.lock();
        let process = state.running(container, self.0.clock.now())?;
        let (env, name) = (process.env.clone(), process.container.name.clone());
        let file = words.last().cloned().unwrap_or_default();
        let on_host = mounted_path(&process.container.mounts, &file);
        let file_there = state.files.contains(&(name, file));
        Ok(Command { words: words.to_vec(), env, file_there, on_host })
    }
}

/// Where a file in a mount of a container is on the host.
fn mounted_path(mounts: &[Mounted], path: &str) -> Option<PathBuf> {
    mounts.iter().find_map(|mount| {
        let inner = Path::new(path).strip_prefix(&mount.container_path).ok()?;
        Some(Path::new(&mount.host_path).join(inner))
    })
}

fn carries(labels: &Labels, wanted: &Labels) -> bool {
    wanted.iter().all(|(key, value)| labels.get(key) == Some(value))
}

/// Cancels the kill of a container when the caller of its stop hangs up, as runtimes do.
struct StopGuard<'a>(&'a FakeRuntime, &'a str);

impl Drop for StopGuard<'_> {
    fn drop(&mut self) {
        self.0.0.state.lock().cancel_stop(self.1);
    }
}

#[async_trait]
impl ContainerBackend for FakeRuntime {
    async fn runtime(&self) -> Result<backend::RuntimeInfo> {
        self.call(Call::Runtime, async |this| {
            let lacks = this.0.state.lock().no_network;
            let network = RuntimeCondition {
                ok: !lacks,
                reason: if lacks { "NetworkPluginNotReady".to_owned() } else { String::new() },
                message: if lacks {
                    "Network plugin returns error: cni plugin not initialized".to_owned()
                } else {
                    String::new()
                },
            };
            Ok(backend::RuntimeInfo {
                name: "fake".to_owned(),
                version: "1.0.0".to_owned(),
                ready: RuntimeCondition { ok: true, ..RuntimeCondition::default() },
                network,
                handlers: vec![RuntimeHandler::default()],
                cgroup_driver: Some("cgroupfs".to_owned()),
            })
        })
        .await
    }

    async fn run_sandbox(&self, config: &SandboxConfig) -> Result<String> {
        self.call(Call::RunSandbox, async |this| {
            let late = this.0.state.lock().late.take();
            if let Some(delay) = late {
                this.0.state.lock().postpone(config, delay, this.0.clock.now());
                tokio::time::sleep(delay).await;
                return Err(error(Kind::Unavailable, "context deadline exceeded"));
            }
            let id = this.0.state.lock().run_sandbox(config, this.0.clock.now())?;
            this.notify_sandbox(&id);
            Ok(id)
        })
        .await
    }

    async fn stop_sandbox(&self, id: &str) -> Result<()> {
        self.call(Call::StopSandbox, async |this| {
            this.0.state.lock().stop_sandbox(id, this.0.clock.now());
            this.notify_sandbox(id);
            Ok(())
        })
        .await
    }

    async fn remove_sandbox(&self, id: &str) -> Result<()> {
        self.call(Call::RemoveSandbox, async |this| {
            this.notify_sandbox(id);
            let mut state = this.0.state.lock();
            state.stop_sandbox(id, this.0.clock.now());
            state.sandboxes.remove(id);
            state.containers.retain(|_, process| process.container.sandbox != id);
            Ok(())
        })
        .await
    }

    async fn sandbox(&self, id: &str) -> Result<Sandbox> {
        self.call(Call::Sandbox, async |this| {
            let state = this.0.state.lock();
            let known = state.sandboxes.get(id);
            let missing = || {
                error(
                    Kind::NotFound,
                    &format!("an error occurred when try to find sandbox \"{id}\": not found"),
                )
            };
            known.map(|known| known.sandbox.clone()).ok_or_else(missing)
        })
        .await
    }

    async fn create_container(
        &self,
        sandbox: &str,
        container: &ContainerConfig,
        config: &SandboxConfig,
    ) -> Result<String> {
        self.call(Call::CreateContainer, async |this| {
            let quirks = this.0.quirks.lock().clone();
            let now = this.0.clock.now();
            let id = this.0.state.lock().create(sandbox, container, config, &quirks, now)?;
            this.notify_container(&id);
            Ok(id)
        })
        .await
    }

    async fn start_container(&self, id: &str) -> Result<()> {
        self.call(Call::StartContainer, async |this| {
            let answer = this.0.state.lock().start(id, this.0.clock.now());
            this.notify_container(id);
            answer
        })
        .await
    }

    async fn stop_container(&self, id: &str, grace: Duration) -> Result<()> {
        self.call(Call::StopContainer, async |this| {
            let takes = this.0.quirks.lock().stop_takes;
            let until = this.0.state.lock().request_stop(id, grace, takes, this.0.clock.now());
            let waiting = StopGuard(this, id);
            loop {
                let now = this.0.clock.now();
                if now >= until {
                    break;
                }
                let left = Duration::try_from(until.duration_since(now)).unwrap_or_default();
                tokio::time::sleep(left.max(Duration::from_millis(1))).await;
            }
            this.0.state.lock().advance(this.0.clock.now());
            drop(waiting);
            this.notify_container(id);
            Ok(())
        })
        .await
    }

    async fn remove_container(&self, id: &str) -> Result<()> {
        self.call(Call::RemoveContainer, async |this| {
            this.notify_container(id);
            this.0.state.lock().containers.remove(id);
            Ok(())
        })
        .await
    }

    async fn container(&self, id: &str) -> Result<Container> {
        self.call(Call::Container, async |this| {
            let mut state = this.0.state.lock();
            state.advance(this.0.clock.now());
            Ok(state.process(id)?.container.clone())
        })
        .await
    }

    async fn list(&self, labels: &Labels) -> Result<Listing> {
        self.call(Call::List, async |this| {
            let mut state = this.0.state.lock();
            state.advance(this.0.clock.now());
            let sandboxes = state.sandboxes.values().filter(|known| carries(&known.sandbox.labels, labels));
            let containers =
                state.containers.values().filter(|process| carries(&process.container.labels, labels));
            Ok(Listing {
                sandboxes: sandboxes
                    .map(|known| SandboxEntry {
                        id: known.sandbox.id.clone(),
                        pod: known.pod.clone(),
                        state: known.sandbox.state,
                        attempt: known.sandbox.attempt,
                    })
                    .collect(),
                containers: containers
                    .map(|process| ContainerEntry {
                        id: process.container.id.clone(),
                        pod: process.pod.clone(),
                        sandbox: process.container.sandbox.clone(),
                        name: process.container.name.clone(),
                        state: process.container.state,
                        attempt: process.container.attempt,
                    })
                    .collect(),
            })
        })
        .await
    }

    async fn run(&self, container: &str, command: &[String], limit: Duration) -> Result<ExecOutput> {
        self.call(Call::Run, async |this| {
            let outcome = this.command(container, command)?.outcome();
            if outcome.takes <= limit {
                tokio::time::sleep(outcome.takes).await;
                return Ok(ExecOutput::Exited { code: outcome.code, output: outcome.output });
            }
            tokio::time::sleep(limit).await;
            let message = format!("command timed out: {:?} timed out after {limit:?}", command.join(" "));
            if this.0.quirks.lock().timeout_is_an_end {
                return Ok(ExecOutput::Exited { code: -1, output: message.into_bytes() });
            }
            Ok(ExecOutput::TimedOut { message })
        })
        .await
    }

    async fn exec(&self, container: &str, command: &[String], options: &ExecOptions) -> Result<Started> {
        self.call(Call::Exec, async |this| {
            let outcome = this.command(container, command)?.outcome();
            Ok(Started::Session(session(outcome, *options)))
        })
        .await
    }

    async fn attach(&self, container: &str, options: &AttachOptions) -> Result<Started> {
        self.call(Call::Attach, async |this| {
            this.0.state.lock().running(container, this.0.clock.now())?;
            Ok(Started::Session(silent(*options)))
        })
        .await
    }

    async fn port_forward(&self, sandbox: &str, port: u16) -> Result<Forward> {
        self.call(Call::PortForward, async |this| {
            let state = this.0.state.lock();
            let ready =
                state.sandboxes.get(sandbox).is_some_and(|it| it.sandbox.state == SandboxState::Ready);
            if !ready || port != OPEN_PORT {
                return Err(error(Kind::Unavailable, &format!("dial port {port}: connection refused")));
            }
            let (here, _) = connection();
            Ok(Forward::Stream(here))
        })
        .await
    }

    async fn reopen_log(&self, container: &str) -> Result<()> {
        self.call(Call::ReopenLog, async |this| {
            this.0.state.lock().running(container, this.0.clock.now()).map(drop)
        })
        .await
    }

    async fn image(&self, image: &str, _handler: &str) -> Result<Option<Image>> {
        self.call(Call::Image, async |this| {
            let state = this.0.state.lock();
            let is = |known: &&Image| {
                known.id == image || known.tags.iter().chain(&known.digests).any(|name| name == image)
            };
            Ok(state.images.values().find(is).cloned())
        })
        .await
    }

    async fn images(&self) -> Result<Vec<Image>> {
        self.call(Call::Images, async |this| Ok(this.0.state.lock().images.values().cloned().collect())).await
    }

    async fn pull(
        &self,
        image: &str,
        _credentials: Option<&PullCredentials>,
        _sandbox: &SandboxConfig,
    ) -> Result<String> {
        self.call(Call::Pull, async |this| {
            let pull = this.0.state.lock().pulls.get(image).cloned();
            match pull {
                Some(Pull::Fails(why)) => return Err(error(Kind::NotFound, &why)),
                Some(Pull::After(time)) => tokio::time::sleep(time).await,
                None => {}
            }
            let mut state = this.0.state.lock();
            state.image(image);
            Ok(state.images[image].id.clone())
        })
        .await
    }

    async fn remove_image(&self, image: &str) -> Result<()> {
        self.call(Call::RemoveImage, async |this| {
            let is = |known: &Image| known.id == image || known.tags.iter().any(|name| name == image);
            this.0.state.lock().images.retain(|_, known| !is(known));
            Ok(())
        })
        .await
    }

    async fn used_images(&self) -> Result<BTreeSet<String>> {
        self.call(Call::UsedImages, async |this| {
            let state = this.0.state.lock();
            let mut used = state.elsewhere.clone();
            for process in state.containers.values() {
                let container = &process.container;
                used.extend([container.image_ref.clone(), container.image_id.clone()]);
                used.extend(process.mounted.iter().cloned());
            }
            Ok(used)
        })
        .await
    }

    async fn disk(&self, _mount_point: &str) -> Option<DiskUsage> {
        let full = u64::from(self.0.state.lock().full);
        Some(DiskUsage { capacity: 100 << 20, available: (100 - full) << 20 })
    }

    async fn image_fs(&self) -> Result<Vec<FsUsage>> {
        self.call(Call::ImageFs, async |this| {
            let used_bytes = this.0.state.lock().images.values().map(|image| image.size).sum();
            Ok(vec![FsUsage { mount_point: "/".to_owned(), used_bytes, used_inodes: None }])
        })
        .await
    }

    async fn usage(&self, labels: &Labels) -> Result<Vec<PodUsage>> {
        self.call(Call::Usage, async |this| {
            let now = this.0.clock.now();
            let mut state = this.0.state.lock();
            state.advance(now);
            let ready = state.sandboxes.values().filter(|known| {
                known.sandbox.state == SandboxState::Ready && carries(&known.sandbox.labels, labels)
            });
            let used = |since| {
                let elapsed = Duration::try_from(now.duration_since(since)).unwrap_or_default();
                CpuUsage {
                    time: now,
                    total_nanos: u64::try_from((elapsed / SHARE).as_nanos()).unwrap_or(u64::MAX),
                    nano_cores: None,
                }
            };
            let usage = |known: &super::state::FakeSandbox| {
                let own = state.containers.values().filter(|process| {
                    process.container.sandbox == known.sandbox.id
                        && process.container.state == ContainerState::Running
                });
                PodUsage {
                    pod: known.pod.clone(),
                    started: known.sandbox.created,
                    containers: own
                        .map(|process| ContainerUsage {
                            name: process.container.name.clone(),
                            attempt: process.container.attempt,
                            cpu: process.container.started.map(used),
                            memory: Some(MemoryUsage { working_set: 1 << 20, ..MemoryUsage::default() }),
                            writable_layer: None,
                        })
                        .collect(),
                    cpu: None,
                    memory: None,
                    interfaces: Vec::new(),
                }
            };
            Ok(ready.map(usage).collect())
        })
        .await
    }

    fn events(&self) -> Option<BoxStream<'static, String>> {
        match self.0.quirks.lock().events {
            Events::None => return None,
            Events::Silent => return Some(stream::pending().boxed()),
            Events::Flowing => {}
        }
        let read = self.0.events.lock().len();
        let state = (self.clone(), read, self.0.clock.now(), Vec::<String>::new());
        Some(
            stream::unfold(state, |(this, mut read, mut seen, mut queue)| async move {
                loop {
                    let mut happened = std::pin::pin!(this.0.happened.notified());
                    happened.as_mut().enable();
                    if this.0.state.lock().down {
                        return None;
                    }
                    {
                        let events = this.0.events.lock();
                        queue.extend(events[read..].iter().cloned());
                        read = events.len();
                    }
                    let now = this.0.clock.now();
                    let next = {
                        let mut state = this.0.state.lock();
                        state.advance(now);
                        queue.extend(state.ended(seen, now));
                        state.next()
                    };
                    seen = now;
                    if let Some(uid) = queue.pop() {
                        return Some((uid, (this.clone(), read, seen, queue)));
                    }
                    let next = next.unwrap_or_else(|| later(now, Duration::from_hours(1)));
                    let wait = Duration::try_from(next.duration_since(now)).unwrap_or_default();
                    tokio::select! {
                        () = happened.as_mut() => {}
                        () = tokio::time::sleep(wait.max(Duration::from_millis(1))) => {}
                    }
                }
            })
            .boxed(),
        )
    }
}
