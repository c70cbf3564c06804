//! A containerd of a test's own: its folders, its socket, its network.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::json;

use super::{Image, Machine, image, make_folder, run, write};
use crate::{Process, eventually};

const SOON: Duration = Duration::from_mins(1);

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
touch "$1/house"
cat >/dev/null
"#;

/// What to start.
#[derive(Clone, Debug)]
pub struct Options {
    /// The program; one without folders is looked for in `PATH`. `containerd-shim-runc-v2` and `ctr` are taken from beside it.
    pub program: PathBuf,
    /// The images that it has.
    pub images: Vec<Image>,
}

/// A running containerd and the namespaces that it lives in. Dropping it ends everything in them, and gives the machine back.
#[derive(Debug)]
pub struct Containerd {
    program: PathBuf,
    version: String,
    /// `None` while it is killed.
    process: Option<Resident>,
    house: House,
    machine: Machine,
}

/// A process in the namespaces of a runtime, which is killed when this is dropped.
#[derive(Debug)]
pub struct Resident {
    /// Went in and waits there for what it started.
    _door: Process,
    /// The program itself, as it is numbered out here.
    pid: Pid,
}

/// The namespaces.
#[derive(Debug)]
struct House {
    /// Outside of the PID namespace.
    outside: Process,
    /// The first process inside, as it is numbered out here.
    inside: Pid,
}

// === impl Options ===

impl Default for Options {
    fn default() -> Self {
        Self { program: PathBuf::from("containerd"), images: Image::standard() }
    }
}

// === impl Containerd ===

impl Containerd {
    /// Starts one on a machine, with its images, and waits until it answers.
    pub async fn start(machine: Machine, options: Options) -> Self {
        let folder = machine.folder().to_owned();
        make_folder(&folder.join("cni"));
        write(&folder.join("cni/10-peer.conflist"), network(&machine));
        let printed = run(&options.program.to_string_lossy(), &["--version"]);
        let version = printed.split_whitespace().nth(2).unwrap_or_default();
        let version = version.trim_start_matches('v').split(['~', '+', '-']).next().unwrap_or_default();
        write(&folder.join("containerd.toml"), config(&folder, version.starts_with("1.")));
        let house = House::build(&folder).await;
        let (program, version) = (options.program, version.to_owned());
        let mut containerd = Self { program, version, process: None, house, machine };
        containerd.restart().await;
        let images = folder.join("images");
        make_folder(&images);
        containerd.import(&image::archive(&images, &options.images));
        containerd
    }

    /// Where it listens.
    pub fn socket(&self) -> PathBuf {
        self.machine.folder().join("containerd.sock")
    }

    /// The machine that it is on.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Its version, such as `1.6.20`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// What it wrote to its log.
    pub fn log(&self) -> PathBuf {
        self.machine.folder().join("containerd.log")
    }

    /// A command that runs in the same mount and PID namespaces. It ends with them at the latest.
    pub fn beside(&self, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--mount", "--pid", "--target", &self.house.inside.to_string()]);
        command.arg(program).stdin(Stdio::null());
        command
    }

    /// Its process, for those who measure it. There is none while it is killed.
    pub fn id(&self) -> Option<u32> {
        self.process.as_ref().map(Resident::id)
    }

    /// Starts such a command, so that its process can be reached.
    pub async fn start_beside(&self, command: &mut Command) -> Resident {
        Resident::start(command).await
    }

    /// Runs the client of the same build.
    pub fn ctr(&self, args: &[&str]) -> Output {
        let program = match self.program.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            Some(folder) => folder.join("ctr"),
            None => PathBuf::from("ctr"),
        };
        // It leaves pipes for containers where only the runtime's own kind looks for them.
        self.beside(&program)
            .arg("--address")
            .arg(self.socket())
            .args(["--namespace", "k8s.io"])
            .args(args)
            .output()
            .expect("containerd comes with ctr")
    }

    /// Takes images from an archive.
    pub fn import(&self, archive: &Path) {
        let output = self.ctr(&["images", "import", &archive.to_string_lossy()]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Kills it as by `kill -9`. What runs in containers goes on.
    pub fn kill(&mut self) {
        if let Some(process) = self.process.take() {
            process.signal(Signal::SIGKILL);
        }
    }

    /// Starts it again after a kill, and waits until it answers.
    pub async fn restart(&mut self) {
        self.kill();
        let log = File::options().append(true).create(true).open(self.log()).expect("a log file");
        let mut command = self.beside(&self.program);
        if let Some(folder) = self.program.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            let path = std::env::var("PATH").unwrap_or_default();
            command.env("PATH", format!("{}:{path}", folder.display()));
        }
        command.arg("--config").arg(self.machine.folder().join("containerd.toml"));
        command.stdout(log.try_clone().expect("the same file")).stderr(log);
        self.process = Some(Resident::start(&mut command).await);
        eventually("containerd listens", SOON, || async {
            let output = self.ctr(&["plugins", "ls"]);
            let text = String::from_utf8_lossy(&output.stdout);
            let ready = text.lines().any(|line| line.contains("cri") && line.trim_end().ends_with("ok"));
            if ready { Ok(()) } else { Err(format!("{text}{}", String::from_utf8_lossy(&output.stderr))) }
        })
        .await;
    }

    /// Lets it hang: it takes connections and answers nothing.
    pub fn pause(&self) {
        self.signal(Signal::SIGSTOP);
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.signal(Signal::SIGCONT);
    }

    fn signal(&self, signal: Signal) {
        self.process.as_ref().expect("containerd runs").signal(signal);
    }
}

// === impl Resident ===

impl Resident {
    async fn start(command: &mut Command) -> Self {
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
    async fn build(folder: &Path) -> Self {
        let log = File::create(folder.join("house.log")).expect("a log file");
        let outside = Process::spawn(
            Command::new("unshare")
                .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
                .args(["--propagation", "slave", "sh", "-c", HOUSE, "sh"])
                .arg(folder)
                .stdin(Stdio::piped())
                .stdout(log.try_clone().expect("the same file"))
                .stderr(log),
        )
        .expect("util-linux is installed");
        let inside = child_of(outside.id()).await;
        let house = Self { outside, inside };
        eventually("the namespaces are made", SOON, || async {
            let said = || std::fs::read_to_string(folder.join("house.log")).unwrap_or_default();
            folder.join("house").exists().then_some(()).ok_or_else(said)
        })
        .await;
        house
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

fn config(folder: &Path, old: bool) -> String {
    let folder = folder.display();
    let sandbox = image::SANDBOX;
    let general = format!(
        r#"
root = "{folder}/containerd"
state = "{folder}/containerd-state"

[grpc]
address = "{folder}/containerd.sock"
"#
    );
    // Where even root may not lower the score of a process, every sandbox would fail without the restriction. Large files are
    // printed as one line.
    if old {
        format!(
            r#"version = 2
{general}
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{sandbox}"
restrict_oom_score_adj = true
max_container_log_line_size = -1

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{folder}/cni"
"#
        )
    } else {
        format!(
            r#"version = 3
{general}
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{sandbox}"

[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true
max_container_log_line_size = -1

[plugins."io.containerd.cri.v1.runtime".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{folder}/cni"
"#
        )
    }
}

/// Pods are on the node's own bridge, with an address of each family; nothing is translated but ports of the host.
fn network(machine: &Machine) -> String {
    let number = machine.number();
    let [four, six] = machine.addresses();
    let ranges = json!([
        [{"subnet": format!("10.{number}.0.0/16"), "rangeStart": format!("10.{number}.1.1"), "gateway": four}],
        [{"subnet": format!("fd00:{number}::/64"), "rangeStart": format!("fd00:{number}::1:1"), "gateway": six}],
    ]);
    json!({
        "cniVersion": "1.0.0",
        "name": machine.bridge(),
        "plugins": [
            {
                "type": "bridge",
                "bridge": machine.bridge(),
                "ipam": {"type": "host-local", "dataDir": machine.folder().join("addresses"), "ranges": ranges},
            },
            {"type": "portmap", "capabilities": {"portMappings": true}, "snat": false},
        ],
    })
    .to_string()
}
