//! Namespaces for programs that think that the machine is theirs.

use std::{
    fs::File,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{Process, eventually};

const SOON: Duration = Duration::from_mins(1);
/// The file that tells that namespaces are made.
const MADE: &str = "house";

/// The first process of the namespaces. Programs that think that the machine is theirs shall not write to its folders or kernel
/// settings. Mounts that kubelet and runtime make must reach each other, and nobody else. It ends when its input does: with us,
/// whatever our end; and it takes the orphans, which a shell that waits does.
const HOUSE: &str = r#"
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

/// A process in the namespaces of a runtime, which is killed when this is dropped.
#[derive(Debug)]
pub struct Resident {
    /// Went in and waits there for what it started.
    _door: Process,
    /// The program itself, as it is numbered out here.
    pid: Pid,
}

/// Mount and PID namespaces of a test's own. Dropping them ends everything in them.
#[derive(Debug)]
pub struct House {
    /// Outside of the PID namespace.
    outside: Process,
    /// The first process inside, as it is numbered out here.
    inside: Pid,
}

// === impl Resident ===

impl Resident {
    /// Starts a command that goes into namespaces, such as [`Host::beside`](super::Host::beside) makes.
    pub async fn start(command: &mut Command) -> Self {
        let door = Process::spawn(command).expect("util-linux is installed");
        let pid = child_of(door.id()).await;
        Self { _door: door, pid }
    }

    pub(super) fn signal(&self, signal: Signal) {
        // It may have ended by itself.
        let _ = kill(self.pid, signal);
    }

    /// Its process id outside of the namespaces.
    pub fn id(&self) -> u32 {
        self.pid.as_raw().unsigned_abs()
    }
}

impl Drop for Resident {
    fn drop(&mut self) {
        self.signal(Signal::SIGKILL);
    }
}

// === impl House ===

impl House {
    /// Makes them. The folder is for what they say.
    pub async fn build(folder: &Path) -> Self {
        // Those of before it have told that they are made.
        let made = folder.join(MADE);
        if made.exists() {
            std::fs::remove_file(&made).expect("a file of ours");
        }
        let log = File::create(folder.join("house.log")).expect("a log file");
        let outside = Process::spawn(
            Command::new("unshare")
                .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
                .args(["--propagation", "slave", "sh", "-c", HOUSE, "sh"])
                .arg(&made)
                .stdin(Stdio::piped())
                .stdout(log.try_clone().expect("the same file"))
                .stderr(log),
        )
        .expect("util-linux is installed");
        let inside = child_of(outside.id()).await;
        let house = Self { outside, inside };
        eventually("the namespaces are made", SOON, || async {
            let said = || std::fs::read_to_string(folder.join("house.log")).unwrap_or_default();
            made.exists().then_some(()).ok_or_else(said)
        })
        .await;
        house
    }

    /// The first process in them, as it is numbered out here.
    pub fn inside(&self) -> u32 {
        self.inside.as_raw().unsigned_abs()
    }

    /// A command that runs in them. It ends with them at the latest.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--mount", "--pid", "--target", &self.inside.to_string()]);
        command.arg(program).stdin(Stdio::null());
        command
    }
}

impl Drop for House {
    fn drop(&mut self) {
        let _ = kill(self.inside, Signal::SIGKILL);
        // It ends when the first process is gone, and that goes last of all.
        let _ = self.outside.child().wait();
    }
}

/// The first child of a process that makes one.
async fn child_of(parent: u32) -> Pid {
    let children = format!("/proc/{parent}/task/{parent}/children");
    eventually("a process is started in the namespaces", SOON, || async {
        let list = std::fs::read_to_string(&children).map_err(|error| error.to_string())?;
        let child = list.split_whitespace().next().and_then(|pid| pid.parse().ok());
        child.map(Pid::from_raw).ok_or_else(|| list.clone())
    })
    .await
}
