//! Containers that are processes of this host: each has its own root with the host's static busybox, its own mounts, process
//! ids and host name. util-linux does what needs system calls; everything dies with the emulator.

mod command;
mod container;
mod hook;
mod probe;
mod root;
mod spawn;
mod stop;
mod terminal;
mod usage;

use std::{
    collections::HashMap,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::Mutex;
use serde_json::Value;
use tempfile::TempDir;
use tokio::task::JoinSet;

use self::{command::User, root::Base, spawn::Spawner};
use crate::{
    cloud::{Cloud, Effect},
    emulator::Emulator,
};

/// What a container is to the host.
#[derive(Clone, Debug)]
pub(crate) struct Handle {
    /// Of this start.
    run: u64,
    /// The container's own process, as the host numbers it.
    pid: i32,
    user: User,
    environment: Vec<(String, String)>,
}

/// The containers of an emulator.
pub(crate) struct Processes {
    folder: TempDir,
    base: Base,
    spawner: Spawner,
    running: Mutex<HashMap<(u64, usize), Handle>>,
    /// Dropped with the emulator: then all processes are killed.
    tasks: Mutex<JoinSet<()>>,
}

// === impl Processes ===

impl Processes {
    /// Containers whose files are in this folder.
    pub(crate) fn new(parent: Option<&Path>) -> io::Result<Self> {
        let parent = parent.map_or_else(std::env::temp_dir, Path::to_owned);
        fs::create_dir_all(&parent)?;
        let folder = TempDir::with_prefix_in("vk-eci-", parent)?;
        Ok(Self {
            base: Base::new(&folder.path().join("base"))?,
            spawner: Spawner::new(),
            running: Mutex::default(),
            tasks: Mutex::default(),
            folder,
        })
    }

    /// Carries out what the cloud wants. Must not wait: the cloud is locked.
    pub(crate) fn apply(&self, emulator: &Arc<Emulator>, cloud: &Cloud, effect: &Effect) {
        let mut tasks = self.tasks.lock();
        while tasks.try_join_next().is_some() {}
        match *effect {
            Effect::Start { group, container, run } => {
                let Some(of) = cloud.group(group) else { return };
                let Some(spec) = of.containers.get(container) else { return };
                let start = container::Start {
                    group,
                    container,
                    run,
                    spec: spec.spec.clone(),
                    is_init: spec.is_init,
                    group_spec: of.spec.clone(),
                    ip: of.ip.clone().unwrap_or_default(),
                };
                tasks.spawn(container::run(Arc::downgrade(emulator), start));
            }
            Effect::Stop { group, grace } => {
                let Some(of) = cloud.group(group) else { return };
                let running = self.running.lock();
                for (index, container) in of.containers.iter().enumerate() {
                    if let Some(handle) = running.get(&(group, index)) {
                        let spec = container.spec.clone();
                        let weak = Arc::downgrade(emulator);
                        let which = stop::Target { group, container: index, handle: handle.clone() };
                        tasks.spawn(stop::stop(weak, which, spec, grace));
                    }
                }
            }
            Effect::Remove { group } => {
                let folder = self.folder_of(group);
                tasks.spawn(async move {
                    // Its mounts are gone with its processes, which take a moment to go.
                    for _ in 0..50 {
                        if remove(&folder) {
                            break;
                        }
                        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                    }
                });
            }
        }
    }

    fn folder_of(&self, group: u64) -> PathBuf {
        self.folder.path().join(format!("group-{group}"))
    }

    /// Reads what containers use.
    pub(crate) fn measure(&self, emulator: &Arc<Emulator>) {
        let running: Vec<_> =
            self.running.lock().iter().map(|(key, handle)| (*key, handle.clone())).collect();
        for ((group, container), handle) in running {
            usage::measure(emulator, group, container, &handle);
        }
    }

    fn handle(&self, group: u64, container: usize) -> Option<Handle> {
        self.running.lock().get(&(group, container)).cloned()
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        // Only processes that this emulator has started.
        for handle in self.running.lock().values() {
            stop::signal(handle.pid, rustix::process::Signal::KILL);
        }
        self.tasks.get_mut().abort_all();
        // They may still write for a moment.
        for _ in 0..50 {
            if remove(self.folder.path()) {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

/// The variables of a container of this group.
pub(crate) fn variables(container: &Value, group: &Value, ip: &str) -> Vec<(String, String)> {
    command::environment(container, ip, root::host_name(group))
}

fn remove(folder: &Path) -> bool {
    !folder.exists() || fs::remove_dir_all(folder).is_ok()
}
