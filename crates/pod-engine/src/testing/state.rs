//! The state of the fake runtime: sandboxes, containers and images.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write as _,
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use jiff::Timestamp;
use vk_provider::{Error, Result, error::Kind};

use super::{
    ContainerView, Pull, Quirks,
    fault::error,
    script::{KILLED, Oom, Script},
};
use crate::{
    backend::{ContainerConfig, Image, SandboxConfig, Share},
    snapshot::{Container, ContainerState, Mounted, Sandbox, SandboxState, annotation, label},
};

const OOM_KILLED: &str = "OOMKilled";
/// The delay after which the runtime learns of an out-of-memory kill that it learns late.
const OOM_DELAY: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct FakeState {
    pub(super) sandboxes: BTreeMap<String, FakeSandbox>,
    pub(super) containers: BTreeMap<String, FakeContainer>,
    pub(super) images: BTreeMap<String, Image>,
    /// Images that containers of other clients use.
    pub(super) elsewhere: BTreeSet<String>,
    /// Usage of the disk of images, in percent.
    pub(super) full: u8,
    pub(super) pulls: BTreeMap<String, Pull>,
    pub(super) files: BTreeSet<(String, String)>,
    pub(super) down: bool,
    pub(super) no_network: bool,
    pub(super) violations: Vec<String>,
    /// The delay of the next sandbox.
    pub(super) late: Option<Duration>,
    /// Sandboxes that are created at these times.
    coming: Vec<(Timestamp, SandboxConfig)>,
    made: u32,
}

/// A sandbox.
pub(super) struct FakeSandbox {
    pub(super) sandbox: Sandbox,
    pub(super) pod: vk_provider::PodRef,
}

/// A container and its script.
pub(super) struct FakeContainer {
    pub(super) container: Container,
    pub(super) env: Vec<(String, String)>,
    pub(super) uid: String,
    /// Images that it mounts.
    pub(super) mounted: Vec<String>,
    pub(super) pod: vk_provider::PodRef,
    script: Result<Script, String>,
    termination_file: Option<String>,
    /// When it exits because of a stop request, and with which code.
    stopping: Option<(Timestamp, i32)>,
    /// Number of lines in the log.
    written: usize,
}

// === impl Machine ===

impl FakeState {
    fn id(&mut self) -> String {
        self.made += 1;
        format!("{:08x}{:056x}", self.made, 0xfa_u32)
    }

    pub(super) fn run_sandbox(&mut self, config: &SandboxConfig, now: Timestamp) -> Result<String> {
        let same = |it: &&FakeSandbox| it.pod.uid == config.pod.uid && it.sandbox.attempt == config.attempt;
        if let Some(known) = self.sandboxes.values().find(same) {
            let text = format!(
                "failed to reserve sandbox name \"{}_{}_{}_{}\": name is reserved for \"{}\"",
                config.pod.name, config.pod.namespace, config.pod.uid, config.attempt, known.sandbox.id
            );
            return Err(error(Kind::Internal, &text));
        }
        if self.no_network && config.security.namespaces.network != Share::Node {
            return Err(error(
                Kind::Internal,
                "failed to setup network for sandbox: cni plugin not initialized",
            ));
        }
        let id = self.id();
        let host_network = config.security.namespaces.network == Share::Node;
        let [_, _, high, low] = self.made.to_be_bytes();
        let ips = if host_network { Vec::new() } else { vec![IpAddr::V4(Ipv4Addr::new(10, 88, high, low))] };
        let sandbox = Sandbox {
            id: id.clone(),
            attempt: config.attempt,
            state: SandboxState::Ready,
            created: now,
            ips,
            host_network,
            handler: config.handler.clone(),
            labels: config.labels.clone(),
            annotations: config.annotations.clone(),
        };
        self.sandboxes.insert(id.clone(), FakeSandbox { sandbox, pod: config.pod.clone() });
        Ok(id)
    }

    pub(super) fn foreign(&mut self, labels: BTreeMap<String, String>, now: Timestamp) -> String {
        let id = self.id();
        let part = |key: &str| labels.get(key).cloned().unwrap_or_default();
        let pod =
            vk_provider::PodRef::new(part(label::POD_NAMESPACE), part(label::POD_NAME), part(label::POD_UID));
        let sandbox = Sandbox {
            id: id.clone(),
            attempt: 0,
            state: SandboxState::Ready,
            created: now,
            ips: Vec::new(),
            host_network: false,
            handler: String::new(),
            labels,
            annotations: BTreeMap::new(),
        };
        self.sandboxes.insert(id.clone(), FakeSandbox { sandbox, pod });
        id
    }

    /// Stops a sandbox: its containers are killed.
    pub(super) fn stop_sandbox(&mut self, id: &str, now: Timestamp) {
        if let Some(known) = self.sandboxes.get_mut(id) {
            known.sandbox.state = SandboxState::NotReady;
        }
        for process in self.containers.values_mut().filter(|process| process.container.sandbox == id) {
            process.advance(now);
            process.end(now, KILLED, "Error");
        }
    }

    pub(super) fn create(
        &mut self,
        sandbox: &str,
        config: &ContainerConfig,
        whole: &SandboxConfig,
        quirks: &Quirks,
        now: Timestamp,
    ) -> Result<String> {
        let ready = self.sandboxes.get(sandbox).is_some_and(|it| it.sandbox.state == SandboxState::Ready);
        if !ready {
            return Err(error(
                Kind::NotFound,
                &format!("failed to find sandbox id \"{sandbox}\": not found"),
            ));
        }
        let same = |it: &&FakeContainer| {
            it.container.sandbox == sandbox
                && it.container.name == config.name
                && it.container.attempt == config.attempt
        };
        if let Some(known) = self.containers.values().find(same) {
            let id = known.container.id.clone();
            if quirks.duplicate_is_existing {
                return Ok(id);
            }
            let text = format!("failed to reserve container name \"{}\": reserved for \"{id}\"", config.name);
            return Err(error(Kind::Internal, &text));
        }
        if config.user_image.is_empty() {
            return Err(error(Kind::Invalid, "CreateContainerRequest.ContainerConfig.Image.Image is empty"));
        }
        let Some(image) = self.images.values().find(|image| {
            image.id == config.image
                || image.tags.contains(&config.image)
                || image.digests.contains(&config.image)
        }) else {
            return Err(error(Kind::NotFound, &format!("image \"{}\": not found", config.image)));
        };
        // As in containerd: the digest of the manifest if it was pulled, and no id.
        let image_ref = image.digests.first().unwrap_or(&image.id).clone();
        let command: Vec<String> = config.command.iter().chain(&config.args).cloned().collect();
        let script = Script::read(&command);
        if let (Err(why), true) = (&script, quirks.bad_command_at_create) {
            return Err(error(Kind::Internal, &format!("container create failed: {why}")));
        }
        let path = config.annotations.get(annotation::TERMINATION_PATH);
        let mounted = |mount: &&crate::backend::Mount| Some(&mount.container_path) == path;
        let termination_file = config.mounts.iter().find(mounted).map(|mount| mount.host_path.clone());
        let id = self.id();
        let container = Container {
            id: id.clone(),
            name: config.name.clone(),
            attempt: config.attempt,
            sandbox: sandbox.to_owned(),
            state: ContainerState::Created,
            created: now,
            started: None,
            finished: None,
            exit_code: 0,
            reason: String::new(),
            message: String::new(),
            image: config.user_image.clone(),
            image_ref,
            image_id: String::new(),
            log_path: format!("{}/{}", whole.log_directory, config.log_path),
            user: None,
            mounts: config
                .mounts
                .iter()
                .map(|mount| Mounted {
                    container_path: mount.container_path.clone(),
                    host_path: mount.host_path.clone(),
                    read_only: mount.read_only,
                })
                .collect(),
            labels: config.labels.clone(),
            annotations: config.annotations.clone(),
        };
        let process = FakeContainer {
            container,
            env: config.env.clone(),
            uid: whole.pod.uid.to_string(),
            mounted: config.mounts.iter().filter_map(|mount| mount.image.clone()).collect(),
            pod: whole.pod.clone(),
            script,
            termination_file,
            stopping: None,
            written: 0,
        };
        self.containers.insert(id.clone(), process);
        Ok(id)
    }

    pub(super) fn start(&mut self, id: &str, now: Timestamp) -> Result<()> {
        self.advance(now);
        let process = self.process(id)?;
        if process.container.state != ContainerState::Created {
            let text = format!("container {id} is in {:?} state", process.container.state);
            return Err(error(Kind::Internal, &text));
        }
        if let Err(why) = &process.script {
            let text = format!("failed to create containerd task: failed to start: {why}: unknown");
            process.container.message.clone_from(&text);
            process.container.started = Some(Timestamp::UNIX_EPOCH);
            process.end(now, 128, "StartError");
            return Err(error(Kind::Internal, &text));
        }
        process.container.state = ContainerState::Running;
        process.container.started = Some(now);
        process.advance(now);
        let (uid, name, id) =
            (process.uid.clone(), process.container.name.clone(), process.container.id.clone());
        let duplicate = self.containers.values().find(|other| {
            other.uid == uid
                && other.container.name == name
                && other.container.id != id
                && other.container.state == ContainerState::Running
        });
        if let Some(duplicate) = duplicate {
            let text = format!("{name} of {uid} runs twice: {id} beside {}", duplicate.container.id);
            self.violations.push(text);
        }
        Ok(())
    }

    /// Requests the stop of a container. Returns the time when it exits.
    pub(super) fn request_stop(
        &mut self,
        id: &str,
        grace: Duration,
        takes: Duration,
        now: Timestamp,
    ) -> Timestamp {
        self.advance(now);
        let Some(process) = self.containers.get_mut(id) else { return now };
        if process.container.state != ContainerState::Running {
            return now;
        }
        let answer = process.script.as_ref().ok().and_then(|script| script.on_stop);
        let (at, code) = match answer {
            Some(code) if takes <= grace => (later(now, takes), code),
            _ => (later(now, grace), KILLED),
        };
        let (at, code) = match process.stopping {
            Some(stopping) if stopping.0 <= at => stopping,
            _ => (at, code),
        };
        process.stopping = Some((at, code));
        process.advance(now);
        at
    }

    /// The caller of a stop hung up: the kill at the end of the grace period is cancelled.
    pub(super) fn cancel_stop(&mut self, id: &str) {
        if let Some(process) = self.containers.get_mut(id)
            && process.stopping.is_some_and(|(_, code)| code == KILLED)
        {
            process.stopping = None;
        }
    }

    pub(super) fn finish(&mut self, uid: &str, name: &str, code: i32, now: Timestamp) {
        self.advance(now);
        for process in self.containers.values_mut() {
            if process.uid == uid && process.container.name == name {
                process.end(now, code, if code == 0 { "Completed" } else { "Error" });
            }
        }
    }

    pub(super) fn reboot(&mut self, now: Timestamp) -> Vec<String> {
        self.advance(now);
        for known in self.sandboxes.values_mut() {
            known.sandbox.state = SandboxState::NotReady;
        }
        for process in self.containers.values_mut() {
            process.end(now, 255, "Unknown");
        }
        self.sandboxes.values().map(|known| known.pod.uid.to_string()).collect()
    }

    pub(super) fn process(&mut self, id: &str) -> Result<&mut FakeContainer> {
        let missing = || {
            let text = format!("an error occurred when try to find container \"{id}\": not found");
            error(Kind::NotFound, &text)
        };
        self.containers.get_mut(id).ok_or_else(missing)
    }

    /// A running container.
    pub(super) fn running(&mut self, id: &str, now: Timestamp) -> Result<&mut FakeContainer> {
        self.advance(now);
        let process = self.process(id)?;
        if process.container.state == ContainerState::Running {
            return Ok(process);
        }
        Err(error(Kind::Internal, &format!("container {id} is not running")))
    }

    /// Delays the creation of a sandbox. Returns the time when it is created.
    pub(super) fn postpone(&mut self, config: &SandboxConfig, delay: Duration, now: Timestamp) -> Timestamp {
        let at = later(now, delay);
        self.coming.push((at, config.clone()));
        at
    }

    /// Advances the state to this time.
    pub(super) fn advance(&mut self, now: Timestamp) {
        let (due, coming): (Vec<_>, Vec<_>) = self.coming.drain(..).partition(|(at, _)| *at <= now);
        self.coming = coming;
        for (at, config) in due {
            // A failure has no consequence.
            let _ = self.run_sandbox(&config, at);
        }
        for process in self.containers.values_mut() {
            process.advance(now);
        }
    }

    /// When the next container exits.
    pub(super) fn next(&self) -> Option<Timestamp> {
        self.containers.values().filter_map(FakeContainer::ends).map(|(at, ..)| at).min()
    }

    /// UIDs of pods with a container that exited between these times.
    pub(super) fn ended(&self, from: Timestamp, to: Timestamp) -> Vec<String> {
        let within = |at: Timestamp| at > from && at <= to;
        let ended = |process: &&FakeContainer| process.container.finished.is_some_and(within);
        self.containers.values().filter(ended).map(|process| process.uid.clone()).collect()
    }

    pub(super) fn seen(&mut self, now: Timestamp) -> Vec<ContainerView> {
        self.advance(now);
        let seen = |process: &FakeContainer| ContainerView {
            id: process.container.id.clone(),
            uid: process.uid.clone(),
            name: process.container.name.clone(),
            attempt: process.container.attempt,
            running: process.container.state == ContainerState::Running,
        };
        self.containers.values().map(seen).collect()
    }

    pub(super) fn image(&mut self, name: &str) {
        let hash = |seed: u128| {
            let sum = name.bytes().fold(seed, |sum, byte| sum * 31 % (1 << 100) + u128::from(byte));
            format!("sha256:{sum:064x}")
        };
        // The manifest and the configuration have different hashes.
        let (id, manifest) = (hash(7), hash(11));
        let bare = name.rsplit_once('@').map_or(name, |(bare, _)| bare);
        let path = bare.rsplit_once(':').filter(|(_, tag)| !tag.contains('/')).map_or(bare, |(path, _)| path);
        let image = Image {
            digests: vec![format!("{path}@{manifest}")],
            id,
            tags: vec![name.to_owned()],
            size: 1 << 20,
            ..Image::default()
        };
        self.images.insert(name.to_owned(), image);
    }
}

// === impl FakeContainer ===

impl FakeContainer {
    /// When it exits, with which code and reason.
    fn ends(&self) -> Option<(Timestamp, i32, &'static str)> {
        if self.container.state != ContainerState::Running {
            return None;
        }
        let started = self.container.started?;
        let own = self.script.as_ref().ok().and_then(Script::end).map(|end| {
            let why = if end.oom == Some(Oom::AtOnce) { OOM_KILLED } else { exit_reason(end.code) };
            (later(started, end.after), end.code, why)
        });
        let stopped = self.stopping.map(|(at, code)| (at, code, exit_reason(code)));
        own.into_iter().chain(stopped).min_by_key(|(at, ..)| *at)
    }

    fn advance(&mut self, now: Timestamp) {
        if self.container.state == ContainerState::Running {
            self.write(now);
        }
        if let Some((at, code, why)) = self.ends()
            && at <= now
        {
            self.end(at, code, why);
        }
        if self.late_oom_time().is_some_and(|at| at <= now) {
            OOM_KILLED.clone_into(&mut self.container.reason);
        }
    }

    /// When the runtime learns of a late out-of-memory kill.
    fn late_oom_time(&self) -> Option<Timestamp> {
        let end = self.script.as_ref().ok().and_then(Script::end)?;
        let late = end.oom == Some(Oom::Late) && self.container.exit_code == end.code;
        self.container.finished.filter(|_| late).map(|at| later(at, OOM_DELAY))
    }

    fn end(&mut self, at: Timestamp, code: i32, why: &str) {
        if self.container.state == ContainerState::Exited {
            return;
        }
        if self.container.state == ContainerState::Running {
            self.write(at);
        }
        let ran = self.container.started.is_some();
        self.container.state = ContainerState::Exited;
        self.container.finished = Some(at);
        self.container.exit_code = if ran { code } else { KILLED };
        why.clone_into(&mut self.container.reason);
    }

    /// Writes its output until now to its files.
    fn write(&mut self, now: Timestamp) {
        let (Ok(script), Some(started)) = (&self.script, self.container.started) else { return };
        let elapsed = Duration::try_from(now.duration_since(started)).unwrap_or_default();
        if let (Some(file), Some(text)) = (&self.termination_file, script.message(elapsed)) {
            let _ = std::fs::write(file, text);
        }
        let lines = script.lines(elapsed);
        let Some(mut log) = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.container.log_path)
            .ok()
            .filter(|_| self.written < lines.len() || self.written == 0)
        else {
            return;
        };
        for (at, text) in lines.iter().skip(self.written) {
            let _ = writeln!(log, "{} stdout F {text}", later(started, *at));
        }
        self.written = lines.len();
    }
}

fn exit_reason(code: i32) -> &'static str {
    if code == 0 { "Completed" } else { "Error" }
}

pub(super) fn later(time: Timestamp, delay: Duration) -> Timestamp {
    time.checked_add(delay).unwrap_or(Timestamp::MAX)
}

/// The error of an unavailable runtime.
pub(super) fn refused() -> Error {
    let text =
        "connection error: desc = \"transport: Error while dialing: dial unix: connect: connection refused\"";
    error(Kind::Unavailable, text)
}
