//! A container from its start to its end.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rustix::process::Signal;
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncRead, BufReader},
    process::Child,
    task::JoinSet,
};

use super::{
    Handle,
    command::{self, User, Weak, processes},
    hook, probe, root, stop,
};
use crate::{cloud::Outcome, emulator::Emulator};

/// Longest termination message.
const MAX_MESSAGE: usize = 4096;
const MAX_LINE: usize = 16 << 10;

/// A container to start.
pub(super) struct Start {
    pub(super) group: u64,
    pub(super) container: usize,
    pub(super) run: u64,
    pub(super) spec: Value,
    pub(super) is_init: bool,
    pub(super) group_spec: Value,
    pub(super) ip: String,
}

/// Runs a container to its end.
pub(super) async fn run(weak: Weak, start: Start) {
    let start = Arc::new(start);
    let outcome = match launch(&weak, &start).await {
        Ok((child, root)) => attend(&weak, &start, child, &root).await,
        Err(error) => Outcome {
            code: 128,
            signal: 0,
            reason: "StartError".to_owned(),
            message: format!("failed to start the container: {error}"),
        },
    };
    let Some(emulator) = weak.upgrade() else { return };
    let key = (start.group, start.container);
    let mut running = processes(&emulator).running.lock();
    if running.get(&key).is_some_and(|handle| handle.run == start.run) {
        running.remove(&key);
    }
    drop(running);
    emulator.with_cloud(|cloud| cloud.exited(start.group, start.container, start.run, outcome));
}

async fn launch(weak: &Weak, start: &Start) -> io::Result<(Child, PathBuf)> {
    let emulator = weak.upgrade().ok_or_else(|| io::Error::other("the emulator has ended"))?;
    let processes = processes(&emulator);
    let folder = processes.folder_of(start.group);
    let root = folder.join(format!("root-{}-{}", start.container, start.run));
    let volumes = folder.join("volumes");
    let mut mounts = processes.base.make_root(&root)?;
    root::write_network_files(&root, &start.group_spec, &start.ip)?;
    root::make_volumes(&volumes, &start.group_spec)?;
    mounts.extend(root::make_mounts(&root, &volumes, &start.group_spec, &start.spec)?);
    if let Some(folder) = start.spec["WorkingDir"].as_str() {
        fs::create_dir_all(root.join(folder.trim_start_matches('/')))?;
    }
    let host = root::host_name(&start.group_spec);
    let environment = command::environment(&start.spec, &start.ip, host);
    let process = command::launch(host, &root, &mounts, &start.spec, &environment);
    let mut child = processes.spawner.spawn(process).await?;
    let Some(pid) = own_process(&mut child, &root).await else {
        // It has ended already: its end is read below.
        return Ok((child, root));
    };
    let handle = Handle { run: start.run, pid, user: User::of(&start.spec), environment };
    processes.running.lock().insert((start.group, start.container), handle);
    // A container that was stopped meanwhile is not stopped by anybody else.
    let is_wanted = emulator.with_cloud(|cloud| {
        let container = cloud.container_of_run(start.group, start.container, start.run);
        container.is_some_and(|container| container.is_running())
    });
    if !is_wanted {
        stop::signal(pid, Signal::KILL);
    }
    Ok((child, root))
}

/// The container's own process: the one below the shell that is in the container's root. `None` if it has ended already.
async fn own_process(child: &mut Child, root: &Path) -> Option<i32> {
    let outer = child.id()?;
    loop {
        let found = children(outer)
            .into_iter()
            .flat_map(children)
            .find(|pid| fs::read_link(format!("/proc/{pid}/root")).is_ok_and(|path| path == root));
        if let Some(pid) = found {
            return i32::try_from(pid).ok();
        }
        if !matches!(child.try_wait(), Ok(None)) {
            return None;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn children(pid: u32) -> Vec<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// Waits for the end, with logs, hooks and probes.
async fn attend(weak: &Weak, start: &Arc<Start>, mut child: Child, root: &Path) -> Outcome {
    let mut readers = JoinSet::new();
    if let Some(out) = child.stdout.take() {
        readers.spawn(read_log(weak.clone(), Arc::clone(start), out));
    }
    if let Some(err) = child.stderr.take() {
        readers.spawn(read_log(weak.clone(), Arc::clone(start), err));
    }
    let mut attendants = JoinSet::new();
    if !start.is_init {
        attendants.spawn(after_start(weak.clone(), Arc::clone(start)));
    }
    let status = child.wait().await;
    drop(attendants);
    // A process that a container has left behind is gone with it, so the pipes end.
    let _ =
        tokio::time::timeout(Duration::from_secs(2), async { while readers.join_next().await.is_some() {} })
            .await;
    let (code, signal) = status.map_or((-1, 0), stop::code);
    let mut outcome = if signal == 0 { Outcome::exit(code) } else { Outcome::signal(signal) };
    outcome.message = termination_message(weak, start, root, code);
    outcome
}

async fn after_start(weak: Weak, start: Arc<Start>) {
    let Some(emulator) = weak.upgrade() else { return };
    let Some(handle) = processes(&emulator).handle(start.group, start.container) else { return };
    if let Err(error) = hook::post_start(&emulator, &handle, &start.spec).await {
        emulator.with_cloud(|cloud| {
            let now = cloud.now();
            if let Some(group) = cloud.group_mut(start.group) {
                group.push_event(now, "Failed", &format!("PostStartHook failed: {error}"));
            }
        });
        stop::signal(handle.pid, Signal::KILL);
        return;
    }
    if !start.spec["ReadinessProbe"].is_object() {
        emulator.with_cloud(|cloud| cloud.set_ready(start.group, start.container, start.run, true));
    }
    drop(emulator);
    let mut probes = JoinSet::new();
    for (name, is_liveness) in [("LivenessProbe", true), ("ReadinessProbe", false)] {
        if start.spec[name].is_object() {
            probes.spawn(probe::run(weak.clone(), Arc::clone(&start), handle.clone(), is_liveness));
        }
    }
    while probes.join_next().await.is_some() {}
}

async fn read_log(weak: Weak, start: Arc<Start>, from: impl AsyncRead + Unpin) {
    let mut from = BufReader::with_capacity(MAX_LINE, from);
    let mut line = Vec::new();
    loop {
        line.clear();
        match from.read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let text = String::from_utf8_lossy(line.strip_suffix(b"\n").unwrap_or(&line)).into_owned();
        let Some(emulator) = weak.upgrade() else { return };
        emulator.append_log(start.group, start.container, start.run, text);
    }
}

fn termination_message(weak: &Weak, start: &Start, root: &Path, code: i32) -> String {
    let path = start.spec["TerminationMessagePath"].as_str().unwrap_or("/dev/termination-log");
    let file = root.join(path.trim_start_matches('/'));
    let mut message =
        fs::read(file).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let falls_back = start.spec["TerminationMessagePolicy"] == "FallbackToLogsOnError";
    if message.is_empty()
        && code != 0
        && falls_back
        && let Some(emulator) = weak.upgrade()
    {
        message = emulator.last_lines(start.group, start.container, start.run);
    }
    let mut end = message.len().min(MAX_MESSAGE);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    message.truncate(end);
    message
}

// === impl Emulator ===

impl Emulator {
    /// Appends a line to the log of a container.
    fn append_log(&self, group: u64, container: usize, run: u64, text: String) {
        let now = self.clock.now();
        if let Some(container) = self.cloud.lock().container_of_run(group, container, run) {
            container.append_log(now, text);
        }
    }

    fn last_lines(&self, group: u64, container: usize, run: u64) -> String {
        let mut cloud = self.cloud.lock();
        let Some(container) = cloud.container_of_run(group, container, run) else { return String::new() };
        let log = &container.log;
        let lines: Vec<&str> =
            log[log.len().saturating_sub(80)..].iter().map(|line| line.text.as_str()).collect();
        lines.join("\n")
    }
}
