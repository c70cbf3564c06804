//! A containerd with its own folders, socket and network.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::Output,
    time::Duration,
};

use rustix::process::Signal;
use serde_json::json;

use super::{Host, HostResources, Image, NamespacedProcess, Namespaces, image, make_folder, run, write};
use crate::eventually;

const SOON: Duration = Duration::from_mins(1);

/// How to start containerd.
#[derive(Clone, Debug)]
pub struct Options {
    /// The program; a name without folders is searched in `PATH`. `containerd-shim-runc-v2` and `ctr` are taken from the same folder.
    pub program: PathBuf,
    /// The images to import.
    pub images: Vec<Image>,
}

/// A running containerd in its own namespaces. Dropping it ends everything in them and frees the host resources.
#[derive(Debug)]
pub struct Containerd {
    program: PathBuf,
    version: String,
    /// `None` after it was killed.
    process: Option<NamespacedProcess>,
    namespaces: Namespaces,
    resources: HostResources,
}

// === impl Options ===

impl Default for Options {
    fn default() -> Self {
        Self { program: PathBuf::from("containerd"), images: Image::standard() }
    }
}

// === impl Containerd ===

impl Containerd {
    /// Starts containerd, waits until it is ready, and imports the images.
    pub async fn start(resources: HostResources, options: Options) -> Self {
        let folder = resources.folder().to_owned();
        make_folder(&folder.join("cni"));
        write(&folder.join("cni/10-peer.conflist"), network(&resources));
        let printed = run(&options.program.to_string_lossy(), &["--version"]);
        let version = printed.split_whitespace().nth(2).unwrap_or_default();
        let version = version.trim_start_matches('v').split(['~', '+', '-']).next().unwrap_or_default();
        write(&folder.join("containerd.toml"), config(&folder, version.starts_with("1.")));
        let namespaces = Namespaces::new(&folder).await;
        let (program, version) = (options.program, version.to_owned());
        let mut containerd = Self { program, version, process: None, namespaces, resources };
        containerd.restart().await;
        containerd.import(&containerd.archive(&options.images));
        containerd
    }

    /// Its socket.
    pub fn socket(&self) -> PathBuf {
        self.resources.folder().join("containerd.sock")
    }

    /// Its version, such as `1.6.20`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Its log file.
    pub fn log(&self) -> PathBuf {
        self.resources.folder().join("containerd.log")
    }

    /// Its process id, unless it was killed.
    pub fn id(&self) -> Option<u32> {
        self.process.as_ref().map(NamespacedProcess::id)
    }

    /// Runs `ctr` of the same build.
    pub fn ctr(&self, args: &[&str]) -> Output {
        let program = match self.program.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            Some(folder) => folder.join("ctr"),
            None => PathBuf::from("ctr"),
        };
        // In the namespaces: it creates pipes that only processes there can open.
        self.command(&program)
            .arg("--address")
            .arg(self.socket())
            .args(["--namespace", "k8s.io"])
            .args(args)
            .output()
            .expect("containerd comes with ctr")
    }

    /// Imports images from an archive.
    pub fn import(&self, archive: &Path) {
        let output = self.ctr(&["images", "import", &archive.to_string_lossy()]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Kills it with SIGKILL and waits for its end. Containers keep running.
    pub fn kill(&mut self) {
        if let Some(process) = self.process.take() {
            process.kill();
        }
    }

    /// Kills and starts it again, and waits until it is ready.
    pub async fn restart(&mut self) {
        self.kill();
        let log = File::options().append(true).create(true).open(self.log()).expect("a log file");
        let mut command = self.command(&self.program);
        if let Some(folder) = self.program.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            let path = std::env::var("PATH").unwrap_or_default();
            command.env("PATH", format!("{}:{path}", folder.display()));
        }
        command.arg("--config").arg(self.resources.folder().join("containerd.toml"));
        command.stdout(log.try_clone().expect("the same file")).stderr(log);
        self.process = Some(NamespacedProcess::start(&mut command).await);
        eventually("containerd is ready", SOON, || async {
            let output = self.ctr(&["plugins", "ls"]);
            let text = String::from_utf8_lossy(&output.stdout);
            let ready = text.lines().any(|line| line.contains("cri") && line.trim_end().ends_with("ok"));
            let problems = || {
                let log = std::fs::read_to_string(self.log()).unwrap_or_default();
                log.lines()
                    .filter(|line| line.contains("failed to load plugin"))
                    .collect::<Vec<_>>()
                    .join("\n")
            };
            if ready {
                return Ok(());
            }
            Err(format!("{text}{}{}", String::from_utf8_lossy(&output.stderr), problems()))
        })
        .await;
    }

    /// Pauses it: connections are accepted and never answered.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Resumes it.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        self.process.as_ref().expect("containerd runs").signal(signal);
    }
}

impl Host for Containerd {
    fn resources(&self) -> &HostResources {
        &self.resources
    }

    fn namespaces(&self) -> &Namespaces {
        &self.namespaces
    }
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
fn network(resources: &HostResources) -> String {
    let number = resources.number();
    let [four, six] = resources.addresses();
    let ranges = json!([
        [{"subnet": format!("10.{number}.0.0/16"), "rangeStart": format!("10.{number}.1.1"), "gateway": four}],
        [{"subnet": format!("fd00:{number}::/64"), "rangeStart": format!("fd00:{number}::1:1"), "gateway": six}],
    ]);
    json!({
        "cniVersion": "1.0.0",
        "name": resources.bridge(),
        "plugins": [
            {
                "type": "bridge",
                "bridge": resources.bridge(),
                "ipam": {"type": "host-local", "dataDir": resources.folder().join("addresses"), "ranges": ranges},
            },
            {"type": "portmap", "capabilities": {"portMappings": true}, "snat": false},
        ],
    })
    .to_string()
}
