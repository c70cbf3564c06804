//! The sandboxes, containers and images of the fake.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write as _,
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use jiff::Timestamp;
use vk_provider::{Error, Result, error::Kind};

use super::{
    Pull, Quirks, Seen,
    fault::error,
    script::{KILLED, Oom, Script},
};
use crate::{
    backend::{ContainerConfig, Image, SandboxConfig, Share},
    snapshot::{Container, ContainerState, Mounted, Sandbox, SandboxState, annotation, label},
};

const OOM_KILLED: &str = "OOMKilled";
/// How long after its end the runtime learns that a process ended for want of memory, where it learns it late.
const LEARNS_AFTER: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct Machine {
    pub(super) sandboxes: BTreeMap<String, Room>,
    pub(super) containers: BTreeMap<String, Process>,
    pub(super) images: BTreeMap<String, Image>,
    /// Images that containers use of which nobody here knows.
    pub(super) elsewhere: BTreeSet<String>,
    /// How full the disk of images is, in percent.
    pub(super) full: u8,
    pub(super) pulls: BTreeMap<String, Pull>,
    pub(super) files: BTreeSet<(String, String)>,
    pub(super) down: bool,
    pub(super) no_network: bool,
    pub(super) violations: Vec<String>,
    /// How late the next sandbox comes.
    pub(super) late: Option<Duration>,
    /// Sandboxes that come at these times.
    coming: Vec<(Timestamp, SandboxConfig)>,
    made: u32,
}

/// A sandbox.
pub(super) struct Room {
    pub(super) sandbox: Sandbox,
    pub(super) pod: vk_provider::PodRef,
}

/// A container with what it does.
pub(super) struct Process {
    pub(super) container: Container,
    pub(super) env: Vec<(String, String)>,
    pub(super) uid: String,
    /// Images that are mounted in it.
    pub(super) mounted: Vec<String>,
    pub(super) pod: vk_provider::PodRef,
    script: Result<Script, String>,
    termination_file: Option<String>,
    /// When it ends because somebody asked it to, and with which code.
    asked: Option<(Timestamp, i32)>,
    /// Lines that are in the log.
    written: usize,
}

// === impl Machine ===

impl Machine {
    fn id(&mut self) -> String {
        self.made += 1;
        format!("{:08x}{:056x}", self.made, 0xfa_u32)
    }

    pub(super) fn run_sandbox(&mut self, config: &SandboxConfig, now: Timestamp) -> Result<String> {
        let same = |it: &&Room| it.pod.uid == config.pod.uid && it.sandbox.attempt == config.attempt;
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
        self.sandboxes.insert(id.clone(), Room { sandbox, pod: config.pod.clone() });
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
        self.sandboxes.insert(id.clone(), Room { sandbox, pod });
        id
    }

    /// Stops a sandbox: what runs in it is killed.
    pub(super) fn stop_sandbox(&mut self, id: &str, now: Timestamp) {
        if let Some(known) = self.sandboxes.get_mut(id) {
            known.sandbox.state = SandboxState::NotReady;
        }
        for process in self.containers.values_mut().filter(|process| process.container.sandbox == id) {
            process.settle(now);
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
        let same = |it: &&Process| {
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
        // As containerd tells it: by the manifest's digest where it was pulled, and without the id.
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
        let process = Process {
            container,
            env: config.env.clone(),
            uid: whole.pod.uid.to_string(),
            mounted: config.mounts.iter().filter_map(|mount| mount.image.clone()).collect(),
            pod: whole.pod.clone(),
            script,
            termination_file,
            asked: None,
            written: 0,
        };
        self.containers.insert(id.clone(), process);
        Ok(id)
    }

    pub(super) fn start(&mut self, id: &str, now: Timestamp) -> Result<()> {
        self.settle(now);
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
        process.settle(now);
        let (uid, name, id) =
            (process.uid.clone(), process.container.name.clone(), process.container.id.clone());
        let twin = self.containers.values().find(|other| {
            other.uid == uid
                && other.container.name == name
                && other.container.id != id
                && other.container.state == ContainerState::Running
        });
        if let Some(twin) = twin {
            let text = format!("{name} of {uid} runs twice: {id} beside {}", twin.container.id);
            self.violations.push(text);
        }
        Ok(())
    }

    /// Asks a container to end. The time at which it has.
    pub(super) fn ask(&mut self, id: &str, grace: Duration, takes: Duration, now: Timestamp) -> Timestamp {
        self.settle(now);
        let Some(process) = self.containers.get_mut(id) else { return now };
        if process.container.state != ContainerState::Running {
            return now;
        }
        let answer = process.script.as_ref().ok().and_then(|script| script.on_stop);
        let (at, code) = match answer {
            Some(code) if takes <= grace => (later(now, takes), code),
            _ => (later(now, grace), KILLED),
        };
        let (at, code) = match process.asked {
            Some(asked) if asked.0 <= at => asked,
            _ => (at, code),
        };
        process.asked = Some((at, code));
        process.settle(now);
        at
    }

    /// Somebody who asked does not wait any more: only the kill at the end of the grace is taken back.
    pub(super) fn unask(&mut self, id: &str) {
        if let Some(process) = self.containers.get_mut(id)
            && process.asked.is_some_and(|(_, code)| code == KILLED)
        {
            process.asked = None;
        }
    }

    pub(super) fn finish(&mut self, uid: &str, name: &str, code: i32, now: Timestamp) {
        self.settle(now);
        for process in self.containers.values_mut() {
            if process.uid == uid && process.container.name == name {
                process.end(now, code, if code == 0 { "Completed" } else { "Error" });
            }
        }
    }

    pub(super) fn reboot(&mut self, now: Timestamp) -> Vec<String> {
        self.settle(now);
        for known in self.sandboxes.values_mut() {
            known.sandbox.state = SandboxState::NotReady;
        }
        for process in self.containers.values_mut() {
            process.end(now, 255, "Unknown");
        }
        self.sandboxes.values().map(|known| known.pod.uid.to_string()).collect()
    }

    pub(super) fn process(&mut self, id: &str) -> Result<&mut Process> {
        let missing = || {
            let text = format!("an error occurred when try to find container \"{id}\": not found");
            error(Kind::NotFound, &text)
        };
        self.containers.get_mut(id).ok_or_else(missing)
    }

    /// A container that runs.
    pub(super) fn running(&mut self, id: &str, now: Timestamp) -> Result<&mut Process> {
        self.settle(now);
        let process = self.process(id)?;
        if process.container.state == ContainerState::Running {
            return Ok(process);
        }
        Err(error(Kind::Internal, &format!("container {id} is not running")))
    }

    /// Lets a sandbox come later. The time at which it does.
    pub(super) fn postpone(&mut self, config: &SandboxConfig, delay: Duration, now: Timestamp) -> Timestamp {
        let at = later(now, delay);
        self.coming.push((at, config.clone()));
        at
    }

    /// Lets happen what is due.
    pub(super) fn settle(&mut self, now: Timestamp) {
        let (due, coming): (Vec<_>, Vec<_>) = self.coming.drain(..).partition(|(at, _)| *at <= now);
        self.coming = coming;
        for (at, config) in due {
            // One that cannot be made is of no interest to anybody.
            let _ = self.run_sandbox(&config, at);
        }
        for process in self.containers.values_mut() {
            process.settle(now);
        }
    }

    /// When the next container ends.
    pub(super) fn next(&self) -> Option<Timestamp> {
        self.containers.values().filter_map(Process::ends).map(|(at, ..)| at).min()
    }

    /// The pods of which a container has ended between these times.
    pub(super) fn ended(&self, from: Timestamp, to: Timestamp) -> Vec<String> {
        let within = |at: Timestamp| at > from && at <= to;
        let ended = |process: &&Process| process.container.finished.is_some_and(within);
        self.containers.values().filter(ended).map(|process| process.uid.clone()).collect()
    }

    pub(super) fn seen(&mut self, now: Timestamp) -> Vec<Seen> {
        self.settle(now);
        let seen = |process: &Process| Seen {
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
        // The manifest has another hash than the configuration that it names.
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

// === impl Process ===

impl Process {
    /// When, with which code and why it ends, as things stand.
    fn ends(&self) -> Option<(Timestamp, i32, &'static str)> {
        if self.container.state != ContainerState::Running {
            return None;
        }
        let started = self.container.started?;
        let own = self.script.as_ref().ok().and_then(Script::end).map(|end| {
            let why = if end.oom == Some(Oom::AtOnce) { OOM_KILLED } else { word(end.code) };
            (later(started, end.after), end.code, why)
        });
        let asked = self.asked.map(|(at, code)| (at, code, word(code)));
        own.into_iter().chain(asked).min_by_key(|(at, ..)| *at)
    }

    fn settle(&mut self, now: Timestamp) {
        if self.container.state == ContainerState::Running {
            self.write(now);
        }
        if let Some((at, code, why)) = self.ends()
            && at <= now
        {
            self.end(at, code, why);
        }
        if self.learns_of_memory().is_some_and(|at| at <= now) {
            OOM_KILLED.clone_into(&mut self.container.reason);
        }
    }

    /// When the runtime learns why a process ended that it believes to have ended otherwise.
    fn learns_of_memory(&self) -> Option<Timestamp> {
        let end = self.script.as_ref().ok().and_then(Script::end)?;
        let late = end.oom == Some(Oom::Late) && self.container.exit_code == end.code;
        self.container.finished.filter(|_| late).map(|at| later(at, LEARNS_AFTER))
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

    /// Writes into the files what it has written until now.
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

fn word(code: i32) -> &'static str {
    if code == 0 { "Completed" } else { "Error" }
}

pub(super) fn later(time: Timestamp, delay: Duration) -> Timestamp {
    time.checked_add(delay).unwrap_or(Timestamp::MAX)
}

/// The answer of a runtime that is not there.
pub(super) fn refused() -> Error {
    let text =
        "connection error: desc = \"transport: Error while dialing: dial unix: connect: connection refused\"";
    error(Kind::Unavailable, text)
}
