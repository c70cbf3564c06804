//! A container runtime in memory, with faults: for tests of this crate and of what is built on it.
//!
//! What containers do is read off their commands ([`Runtime`] says how), and what has happened until now is worked out whenever
//! somebody looks: there are no tasks, and everything follows tokio's clock, paused or not.

mod backend;
mod fault;
mod machine;
mod script;
mod session;

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::sync::Notify;
use vk_supervisor::Clock;

pub use self::fault::{Call, Effect, Fault};

use self::{fault::Faults, machine::Machine};

/// A runtime in memory. Clones are the same runtime; it outlives the engines that use it.
///
/// A container's command says what it does: `sh -c` with statements between semicolons, of which it knows `echo TEXT`, `message TEXT` (the
/// termination message), `sleep SECONDS`, `exit CODE`, `oom`, `oom late` (the runtime learns why a second later), `trap '' TERM`, `trap 'exit CODE' TERM` and `while`, which never ends. A command
/// that is none of a shell's is a program that is not there. Commands in containers ([`run`](crate::ContainerBackend::run) and
/// [`exec`](crate::ContainerBackend::exec)) know these and `cat`, `env`, `true`, `false` and `test -f FILE`, which looks for what
/// [`touch`](Self::touch) made.
#[derive(Clone)]
pub struct Runtime(Arc<Inner>);

struct Inner {
    clock: Clock,
    machine: Mutex<Machine>,
    faults: Mutex<Faults>,
    quirks: Mutex<Quirks>,
    /// Something happened to a pod.
    happened: Notify,
    /// What happened, by the pods' UIDs: for each reader of events, as far as it has read.
    news: Mutex<Vec<String>>,
}

/// In what runtimes differ.
#[derive(Clone, Debug)]
pub struct Quirks {
    /// Whether a program that is not there is found out at the creation of its container, as by CRI-O, and not at its start.
    pub bad_command_at_create: bool,
    /// Whether a second creation under the same name and number answers the first container, as by CRI-O, and not an error.
    pub duplicate_is_existing: bool,
    /// What is told of events.
    pub events: Events,
    /// Whether a command whose time is over has ended with -1, as by CRI-O.
    pub timeout_is_an_end: bool,
    /// How long a container that is asked to end takes for it.
    pub stop_takes: Duration,
}

/// What a runtime tells by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Events {
    /// It has no events.
    None,
    /// It has the call, and tells nothing.
    Silent,
    /// It tells.
    Flowing,
}

/// What becomes of a pull.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pull {
    /// It is there after so long.
    After(Duration),
    /// It fails in these words.
    Fails(String),
}

/// A container, as a test sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its id.
    pub id: String,
    /// The pod's UID.
    pub uid: String,
    /// Its name in the pod.
    pub name: String,
    /// Which one of this name.
    pub attempt: u32,
    /// Whether it runs.
    pub running: bool,
}

// === impl Quirks ===

impl Default for Quirks {
    /// containerd.
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

impl Runtime {
    /// A runtime without containers. Its clock must go with tokio's time.
    pub fn new(clock: Clock) -> Self {
        Self(Arc::new(Inner {
            clock,
            machine: Mutex::default(),
            faults: Mutex::default(),
            quirks: Mutex::default(),
            happened: Notify::new(),
            news: Mutex::default(),
        }))
    }

    /// Lets it differ.
    pub fn set(&self, change: impl FnOnce(&mut Quirks)) {
        change(&mut self.0.quirks.lock());
    }

    /// Lets something go wrong.
    pub fn fault(&self, fault: Fault) {
        self.0.faults.lock().add(fault);
    }

    /// Nothing goes wrong any more.
    pub fn clear_faults(&self) {
        self.0.faults.lock().clear();
    }

    /// How often a call was made.
    pub fn count(&self, call: Call) -> u64 {
        self.0.faults.lock().count(call)
    }

    /// How many calls were made.
    pub fn calls(&self) -> u64 {
        self.0.faults.lock().total()
    }

    /// What becomes of pulls of an image, by the name under which it is pulled. Others are there at once.
    pub fn pulls(&self, image: &str, pull: Pull) {
        self.0.machine.lock().pulls.insert(image.to_owned(), pull);
    }

    /// Makes a file in the containers of this name, for `test -f FILE`.
    pub fn touch(&self, container: &str, file: &str) {
        self.0.machine.lock().files.insert((container.to_owned(), file.to_owned()));
    }

    /// Removes such a file.
    pub fn untouch(&self, container: &str, file: &str) {
        self.0.machine.lock().files.remove(&(container.to_owned(), file.to_owned()));
    }

    /// The runtime does not answer any more. Its containers go on.
    pub fn down(&self) {
        self.0.machine.lock().down = true;
    }

    /// It answers again.
    pub fn up(&self) {
        self.0.machine.lock().down = false;
    }

    /// The machine was started anew: what ran has ended, and no sandbox is ready.
    pub fn reboot(&self) {
        let now = self.0.clock.now();
        let uids = self.0.machine.lock().reboot(now);
        self.tell(uids);
    }

    /// Takes the network away, or gives it back.
    pub fn network(&self, ready: bool) {
        self.0.machine.lock().no_network = !ready;
    }

    /// The next sandbox comes so much later, also when nobody waits for it any more.
    pub fn late_sandbox(&self, delay: Duration) {
        self.0.machine.lock().late = Some(delay);
    }

    /// Ends a running container with this code, as if its process had chosen to.
    pub fn finish(&self, uid: &str, name: &str, code: i32) {
        let now = self.0.clock.now();
        self.0.machine.lock().finish(uid, name, code, now);
        self.tell([uid.to_owned()]);
    }

    /// A sandbox that somebody else made, with these labels. Returns its id.
    pub fn foreign(&self, labels: BTreeMap<String, String>) -> String {
        let now = self.0.clock.now();
        self.0.machine.lock().foreign(labels, now)
    }

    /// An image that somebody else has pulled and uses for a container.
    pub fn foreign_image(&self, image: &str) {
        let mut machine = self.0.machine.lock();
        machine.image(image);
        machine.elsewhere.insert(image.to_owned());
    }

    /// Fills the disk of images: so many percent.
    pub fn fill(&self, percent: u8) {
        self.0.machine.lock().full = percent.min(100);
    }

    /// All containers that there are, oldest first.
    pub fn containers(&self) -> Vec<Seen> {
        let now = self.0.clock.now();
        self.0.machine.lock().seen(now)
    }

    /// The containers of a pod that run.
    pub fn running(&self, uid: &str) -> Vec<Seen> {
        let mut all = self.containers();
        all.retain(|container| container.running && container.uid == uid);
        all
    }

    /// The ids of all sandboxes that there are.
    pub fn sandboxes(&self) -> Vec<String> {
        let now = self.0.clock.now();
        let mut machine = self.0.machine.lock();
        machine.settle(now);
        machine.sandboxes.keys().cloned().collect()
    }

    /// The images that are there.
    pub fn image_names(&self) -> Vec<String> {
        self.0.machine.lock().images.keys().cloned().collect()
    }

    /// What must never be: two containers of one name that ran at the same time, one that was created in a sandbox that was gone.
    pub fn violations(&self) -> Vec<String> {
        self.0.machine.lock().violations.clone()
    }

    fn tell(&self, uids: impl IntoIterator<Item = String>) {
        if self.0.quirks.lock().events == Events::Flowing {
            self.0.news.lock().extend(uids);
            self.0.happened.notify_waiters();
        }
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Runtime").field(&self.containers()).finish()
    }
}
