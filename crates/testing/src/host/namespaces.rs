//! Mount and PID namespaces for programs that expect to own the host.

use std::{
    fs::File,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};

use crate::{Process, eventually};

const SOON: Duration = Duration::from_mins(1);
/// The file that the init script creates when the namespaces are ready.
const READY: &str = "namespaces";

/// The first process in the namespaces. It hides the host's folders and kernel settings, which these programs would write to. Mounts of kubelet
/// and runtime propagate to each other, but not to the host. It ends when its standard input is closed, which also happens when this process is
/// killed, and it reaps orphans.
const INIT_SCRIPT: &str = r#"
set -e
mount --make-rshared /
for folder in /var/lib /var/log /run; do mount -t tmpfs tmpfs "$folder"; done
mkdir /run/settings
for setting in vm/overcommit_memory kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
  copy="/run/settings/${setting##*/}"
  cat "/proc/sys/$setting" >"$copy" && mount --bind "$copy" "/proc/sys/$setting"
done
touch "$1"
cat >/dev/null
"#;

/// A process in [`Namespaces`], which is killed when this is dropped.
#[derive(Debug)]
pub struct NamespacedProcess {
    /// `nsenter`, which waits for the program.
    nsenter: Process,
    /// The program, in our PID namespace.
    pid: Pid,
}

/// Mount and PID namespaces. Dropping them ends all processes in them.
#[derive(Debug)]
pub struct Namespaces {
    /// `unshare`, outside of the namespaces.
    unshare: Process,
    /// The first process inside, in our PID namespace.
    init: Pid,
}

// === impl NamespacedProcess ===

impl NamespacedProcess {
    /// Starts a command of [`Host::command`](super::Host::command).
    pub async fn start(command: &mut Command) -> Self {
        let nsenter = Process::spawn(command).expect("util-linux is installed");
        let pid = child_of(nsenter.id()).await;
        Self { nsenter, pid }
    }

    pub(super) fn signal(&self, signal: Signal) {
        // It may have ended already.
        let _ = kill_process(self.pid, signal);
    }

    /// Kills it with SIGKILL and waits for its end.
    pub(super) fn kill(mut self) {
        self.signal(Signal::KILL);
        // It ends when the program has ended.
        self.nsenter.child().wait().expect("nsenter is our child");
    }

    /// Its process id outside of the namespaces.
    pub fn id(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }
}

impl Drop for NamespacedProcess {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

// === impl Namespaces ===

impl Namespaces {
    /// Creates namespaces. Their log is in `folder`.
    pub async fn new(folder: &Path) -> Self {
        // Of earlier namespaces.
        let ready = folder.join(READY);
        if ready.exists() {
            std::fs::remove_file(&ready).expect("remove our own file");
        }
        let log = File::create(folder.join("namespaces.log")).expect("a log file");
        let unshare = Process::spawn(
            Command::new("unshare")
                .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
                .args(["--propagation", "slave", "sh", "-c", INIT_SCRIPT, "sh"])
                .arg(&ready)
                .stdin(Stdio::piped())
                .stdout(log.try_clone().expect("the same file"))
                .stderr(log),
        )
        .expect("util-linux is installed");
        let init = child_of(unshare.id()).await;
        let namespaces = Self { unshare, init };
        eventually("the namespaces are ready", SOON, || async {
            let log = || std::fs::read_to_string(folder.join("namespaces.log")).unwrap_or_default();
            ready.exists().then_some(()).ok_or_else(log)
        })
        .await;
        namespaces
    }

    /// The first process in them, in our PID namespace.
    pub fn init_pid(&self) -> u32 {
        self.init.as_raw_nonzero().get().unsigned_abs()
    }

    /// A command that runs in them and ends with them at the latest.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--mount", "--pid", "--target", &self.init_pid().to_string()]);
        command.arg(program).stdin(Stdio::null());
        command
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        let _ = kill_process(self.init, Signal::KILL);
        // It ends after the first process, which ends after all others.
        let _ = self.unshare.child().wait();
    }
}

/// Waits for the first child of a process.
async fn child_of(parent: u32) -> Pid {
    let children = format!("/proc/{parent}/task/{parent}/children");
    eventually("a process is started in the namespaces", SOON, || async {
        let list = std::fs::read_to_string(&children).map_err(|error| error.to_string())?;
        let child = list.split_whitespace().next().and_then(|pid| pid.parse().ok());
        child.and_then(Pid::from_raw).ok_or_else(|| list.clone())
    })
    .await
}
