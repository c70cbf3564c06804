//! Test support: a fake container runtime with faults, and a fake host. For tests of this crate and of crates that use it.
//!
//! The behaviour of fake containers follows from their commands (see [`FakeRuntime`]). The state is computed on each access: there are no
//! tasks, and everything follows tokio's clock, paused or not.

mod backend;
mod fault;
pub mod host;
mod script;
mod session;
mod state;

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::sync::Notify;
use vk_supervisor::Clock;

pub use self::fault::{Call, Effect, Fault};

use self::{fault::Faults, state::FakeState};

/// A container runtime in memory. Clones share the same state.
///
/// The command of a container determines its behaviour: `sh -c` with statements separated by semicolons: `echo TEXT`, `message TEXT` (the
/// termination message), `sleep SECONDS`, `exit CODE`, `oom`, `oom late` (the runtime learns why a second later), `trap '' TERM`, `trap 'exit CODE' TERM` and `while`, which never ends. A command
/// without a shell is a missing program. Commands in containers ([`run`](crate::ContainerBackend::run) and
/// [`exec`](crate::ContainerBackend::exec)) know these and `cat`, `env`, `true`, `false` and `test -f FILE`, which checks for files of
/// [`touch`](Self::touch).
#[derive(Clone)]
pub struct FakeRuntime(Arc<Inner>);

struct Inner {
    clock: Clock,
    state: Mutex<FakeState>,
    faults: Mutex<Faults>,
    quirks: Mutex<Quirks>,
    /// A pod changed.
    happened: Notify,
    /// UIDs of changed pods. Each reader remembers its position.
    events: Mutex<Vec<String>>,
}

/// Differences between runtimes.
#[derive(Clone, Debug)]
pub struct Quirks {
    /// Whether a missing program fails the creation of its container, as in CRI-O, and not its start.
    pub bad_command_at_create: bool,
    /// Whether a second creation with the same name and attempt returns the first container, as in CRI-O, and not an error.
    pub duplicate_is_existing: bool,
    /// The events of the runtime.
    pub events: Events,
    /// Whether a command that timed out has exited with -1, as in CRI-O.
    pub timeout_is_an_end: bool,
    /// How long a container takes to stop.
    pub stop_takes: Duration,
}

/// The events of a runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Events {
    /// It does not support events.
    None,
    /// It supports events and sends none.
    Silent,
    /// It sends events.
    Flowing,
}

/// The result of a pull.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pull {
    /// It succeeds after this time.
    After(Duration),
    /// It fails with this message.
    Fails(String),
}

/// A container, for assertions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerView {
    /// Its id.
    pub id: String,
    /// The pod's UID.
    pub uid: String,
    /// Its name in the pod.
    pub name: String,
    /// Its attempt number.
    pub attempt: u32,
    /// Whether it runs.
    pub running: bool,
}

// === impl Quirks ===

impl Default for Quirks {
    /// Those of containerd.
    fn default() -> Self {
        Self {
            bad_command_at_create: false,
            duplicate_is_existing: false,
            events: Events::None,
            timeout_is_an_end: false,
            stop_takes: Duration::ZERO,
        }
    }
}

// === impl Runtime ===

impl FakeRuntime {
    /// A runtime without containers. Its clock must follow tokio's time.
    pub fn new(clock: Clock) -> Self {
        Self(Arc::new(Inner {
            clock,
            state: Mutex::default(),
            faults: Mutex::default(),
            quirks: Mutex::default(),
            happened: Notify::new(),
            events: Mutex::default(),
        }))
    }

    /// Changes its quirks.
    pub fn set(&self, change: impl FnOnce(&mut Quirks)) {
        change(&mut self.0.quirks.lock());
    }

    /// Adds a fault.
    pub fn fault(&self, fault: Fault) {
        self.0.faults.lock().add(fault);
    }

    /// Removes all faults.
    pub fn clear_faults(&self) {
        self.0.faults.lock().clear();
    }

    /// Number of calls of this kind.
    pub fn count(&self, call: Call) -> u64 {
        self.0.faults.lock().count(call)
    }

    /// Number of all calls.
    pub fn calls(&self) -> u64 {
        self.0.faults.lock().total()
    }

    /// Sets the result of pulls of an image. Other images are pulled at once.
    pub fn pulls(&self, image: &str, pull: Pull) {
        self.0.state.lock().pulls.insert(image.to_owned(), pull);
    }

    /// Creates a file in the containers with this name, for `test -f FILE`.
    pub fn touch(&self, container: &str, file: &str) {
        self.0.state.lock().files.insert((container.to_owned(), file.to_owned()));
    }

    /// Removes such a file.
    pub fn untouch(&self, container: &str, file: &str) {
        self.0.state.lock().files.remove(&(container.to_owned(), file.to_owned()));
    }

    /// Makes the runtime unavailable. Its containers continue.
    pub fn down(&self) {
        self.0.state.lock().down = true;
    }

    /// Makes the runtime available again.
    pub fn up(&self) {
        self.0.state.lock().down = false;
    }

    /// Reboots the host: all containers have exited, and no sandbox is ready.
    pub fn reboot(&self) {
        let now = self.0.clock.now();
        let uids = self.0.state.lock().reboot(now);
        self.notify(uids);
    }

    /// Sets whether the network is ready.
    pub fn network(&self, ready: bool) {
        self.0.state.lock().no_network = !ready;
    }

    /// Delays the next sandbox. It is created even if its caller has given up.
    pub fn late_sandbox(&self, delay: Duration) {
        self.0.state.lock().late = Some(delay);
    }

    /// Makes a running container exit with this code.
    pub fn finish(&self, uid: &str, name: &str, code: i32) {
        let now = self.0.clock.now();
        self.0.state.lock().finish(uid, name, code, now);
        self.notify([uid.to_owned()]);
    }

    /// Adds a sandbox of another client with these labels. Returns its id.
    pub fn foreign(&self, labels: BTreeMap<String, String>) -> String {
        let now = self.0.clock.now();
        self.0.state.lock().foreign(labels, now)
    }

    /// Adds an image that a container of another client uses.
    pub fn foreign_image(&self, image: &str) {
        let mut state = self.0.state.lock();
        state.image(image);
        state.elsewhere.insert(image.to_owned());
    }

    /// Sets the usage of the disk of images, in percent.
    pub fn fill(&self, percent: u8) {
        self.0.state.lock().full = percent.min(100);
    }

    /// All containers, oldest first.
    pub fn containers(&self) -> Vec<ContainerView> {
        let now = self.0.clock.now();
        self.0.state.lock().seen(now)
    }

    /// The running containers of a pod.
    pub fn running(&self, uid: &str) -> Vec<ContainerView> {
        let mut all = self.containers();
        all.retain(|container| container.running && container.uid == uid);
        all
    }

    /// The ids of all sandboxes.
    pub fn sandboxes(&self) -> Vec<String> {
        let now = self.0.clock.now();
        let mut state = self.0.state.lock();
        state.advance(now);
        state.sandboxes.keys().cloned().collect()
    }

    /// The local images.
    pub fn image_names(&self) -> Vec<String> {
        self.0.state.lock().images.keys().cloned().collect()
    }

    /// Violated invariants: two containers with one name that ran at the same time.
    pub fn violations(&self) -> Vec<String> {
        self.0.state.lock().violations.clone()
    }

    fn notify(&self, uids: impl IntoIterator<Item = String>) {
        if self.0.quirks.lock().events == Events::Flowing {
            self.0.events.lock().extend(uids);
            self.0.happened.notify_waiters();
        }
    }
}

impl fmt::Debug for FakeRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FakeRuntime").field(&self.containers()).finish()
    }
}
