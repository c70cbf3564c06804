//! `virtual-kubelet dev`: a temporary control plane that leaves nothing behind.

mod containers;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use rustix::process::Signal;
use tempfile::TempDir;
use vk_testing::eventually;

use super::{Process, ports};
use crate::vk;

/// A control plane with its scheduler and controllers, on a machine that does other things too.
const STARTED: Duration = Duration::from_secs(80);
const GONE: Duration = Duration::from_secs(15);

struct Dev {
    process: Process,
    /// Where it keeps what is temporary. Its path is on the command line of everything it starts.
    temporary: TempDir,
}

impl Dev {
    /// Starts it and waits until its nodes are there.
    async fn start(flags: &[&str]) -> Self {
        let mut dev = Self::begin(flags);
        dev.says("Ctrl-C stops everything").await;
        dev
    }

    fn begin(flags: &[&str]) -> Self {
        let temporary = TempDir::new().unwrap();
        let port = ports(5).to_string();
        let common =
            ["dev", "--kubeconfig-out", "below/kubeconfig", "--metrics-addr", "off", "--port", port.as_str()];
        let mut run = vk(&[&common, flags].concat()).env("TMPDIR", temporary.path().to_str().unwrap());
        // Where the programs of the control plane are.
        let cache = std::env::var("XDG_CACHE_HOME")
            .unwrap_or_else(|_| format!("{}/.cache", std::env::var("HOME").unwrap()));
        run = run.env("XDG_CACHE_HOME", &cache);
        for name in ["PATH", "VK_CONTROL_PLANE", "KUBEBUILDER_ASSETS"] {
            if let Ok(value) = std::env::var(name) {
                run = run.env(name, &value);
            }
        }
        Self { process: run.start(), temporary }
    }

    async fn says(&mut self, words: &str) {
        let process = &mut self.process;
        eventually(&format!("dev says {words:?}"), STARTED, || {
            assert!(process.is_running(), "dev has ended");
            let said = process.stdout().contains(words);
            async move { said.then_some(()).ok_or("it does not yet") }
        })
        .await;
    }

    /// The control plane's programs that run, by name.
    fn programs(&self) -> Vec<String> {
        let mut programs: Vec<String> =
            processes(self.temporary.path()).iter().filter_map(|line| line.first()).map(program).collect();
        programs.retain(|name| name.starts_with("kube-") || name == "etcd");
        programs.sort();
        programs
    }

    /// What is in the temporary folder.
    fn folders(&self) -> Vec<PathBuf> {
        fs::read_dir(self.temporary.path()).unwrap().flatten().map(|entry| entry.path()).collect()
    }

    /// kubectl as the user is told to call it.
    fn kubectl(&self, args: &[&str]) -> String {
        let stdout = self.process.stdout();
        let told = |prefix: &str| {
            let line = stdout.lines().find_map(|line| line.trim().strip_prefix(prefix));
            line.unwrap_or_else(|| panic!("no {prefix} in {stdout}")).to_owned()
        };
        let output = Command::new(told("alias kubectl="))
            .args(args)
            .env("KUBECONFIG", told("export KUBECONFIG="))
            .env("KUBECACHEDIR", self.temporary.path().join("kubectl-cache"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    async fn nothing_remains(&self) {
        drop(fs::remove_dir_all(self.temporary.path().join("kubectl-cache")));
        eventually("no process and no folder remains", GONE, || async {
            let processes = processes(self.temporary.path());
            let files = self.folders();
            if processes.is_empty() && files.is_empty() {
                Ok(())
            } else {
                Err(format!("{processes:?} {files:?}"))
            }
        })
        .await;
    }
}

/// The command lines of all processes that have something to do with a folder.
fn processes(folder: &Path) -> Vec<Vec<String>> {
    let mark = folder.to_str().unwrap();
    let lines = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        let line = String::from_utf8_lossy(&line).into_owned();
        line.contains(mark).then(|| line.split('\0').map(str::to_owned).collect())
    });
    lines.collect()
}

fn program(path: &String) -> String {
    Path::new(path).file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Where the kernel shows the bridge of the node with this state directory, if there is one.
fn bridge(state_dir: &Path) -> PathBuf {
    let network = state_dir.join("virtual-kubelet/local/network");
    Path::new("/sys/class/net").join(vk_provider_local::network::bridge_name(&network))
}

/// Name and status of each node in a table of kubectl.
fn listed(table: &str) -> Vec<(String, String)> {
    let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let nodes = rows.filter(|row| row.len() > 4 && row[0].starts_with("virtual-kubelet"));
    nodes.map(|row| (row[0].to_owned(), row[1].to_owned())).collect()
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn dev_shows_its_nodes_and_leaves_nothing_after_ctrl_c() {
    let mut dev = Dev::start(&["--controllers", "off", "--nodes", "3"]).await;
    assert!(dev.process.stdout().contains("mock://"), "many nodes run nothing");
    let ready = |index: u32| (format!("virtual-kubelet-{index}"), "Ready".to_owned());
    let expected = [ready(0), ready(1), ready(2)];
    let stdout = dev.process.stdout();
    assert!(stdout.contains("$ kubectl get nodes -o wide\nNAME "), "{stdout}");
    assert_eq!(listed(&stdout), expected, "{stdout}");
    assert!(stdout.contains("INTERNAL-IP") && stdout.contains("  kubectl describe node\n"), "{stdout}");
    let kubeconfig = dev.process.folder.path().join("below/kubeconfig");
    assert!(stdout.contains(&format!("export KUBECONFIG={}\n", kubeconfig.display())), "{stdout}");
    assert_eq!(listed(&dev.kubectl(&["get", "nodes"])), expected);
    assert_eq!(dev.programs(), ["etcd", "kube-apiserver"]);

    dev.process.signal(Signal::INT);
    let outcome = dev.process.end(GONE).await;
    assert_eq!(outcome.code, 0, "{outcome:?}");
    dev.nothing_remains().await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_killed_dev_leaves_nothing() {
    let mut dev = Dev::start(&["--provider", "mock"]).await;
    assert_eq!(listed(&dev.kubectl(&["get", "nodes"])), [("virtual-kubelet".to_owned(), "Ready".to_owned())]);
    assert_eq!(dev.programs(), ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"]);
    dev.process.kill();
    dev.nothing_remains().await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn dev_that_is_stopped_while_it_starts_leaves_nothing() {
    stopped_as_soon_as("etcd runs", |dev| !dev.programs().is_empty()).await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn dev_that_is_stopped_while_it_makes_its_image_leaves_nothing() {
    let has_images = |path: &Path| path.join("images").is_dir();
    stopped_as_soon_as("it has images", |dev| dev.folders().iter().any(|path| has_images(path))).await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn dev_that_is_stopped_while_its_node_starts_leaves_nothing() {
    stopped_as_soon_as("the kubeconfig is there", |dev| {
        dev.process.folder.path().join("below/kubeconfig").exists()
    })
    .await;
}

async fn stopped_as_soon_as(what: &str, is_so: impl Fn(&Dev) -> bool) {
    let mut dev = Dev::begin(&[]);
    eventually(what, STARTED, || async { if is_so(&dev) { Ok(()) } else { Err("not yet") } }).await;
    let bridges: Vec<PathBuf> = dev.folders().iter().map(|state| bridge(state)).collect();
    dev.process.signal(Signal::INT);
    let outcome = dev.process.end(GONE).await;
    assert_eq!(outcome.code, 0, "{outcome:?}");
    let left: Vec<&PathBuf> = bridges.iter().filter(|bridge| bridge.exists()).collect();
    assert!(left.is_empty(), "{left:?}");
    dev.nothing_remains().await;
}
