//! `virtual-kubelet dev` with real containers, which leaves nothing behind.

use std::{collections::BTreeSet, fs, path::Path, time::Duration};

use rustix::process::Signal;
use tempfile::TempDir;
use vk_testing::eventually;

use super::{Dev, GONE, listed};

/// Containers on a machine that does other things too.
const SWEPT: Duration = Duration::from_secs(30);

/// What containers leave on a machine: by the temporary folder, the node's name and the bridge.
#[derive(Debug, PartialEq, Eq)]
struct Traces {
    mounts: Vec<String>,
    cgroups: BTreeSet<String>,
    processes: Vec<String>,
    links: Vec<String>,
}

impl Traces {
    fn of(dev: &Dev, node: &str) -> Self {
        let mark = dev.temporary.path().to_str().unwrap();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mounts = mounts.lines().filter(|line| line.contains(mark)).map(str::to_owned).collect();
        let group = format!("virtual-kubelet-{node}-");
        let processes = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
            let groups = fs::read_to_string(entry.path().join("cgroup")).ok()?;
            let name = fs::read_to_string(entry.path().join("comm")).ok()?;
            groups.contains(&group).then(|| name.trim().to_owned())
        });
        let links = bridge(dev).into_iter().flat_map(|bridge| {
            let ports = Path::new("/sys/class/net").join(&bridge).join("brif");
            let ports = fs::read_dir(ports).into_iter().flatten().flatten();
            let ports: Vec<String> = ports.map(|port| port.file_name().into_string().unwrap()).collect();
            let there = Path::new("/sys/class/net").join(&bridge).exists();
            there.then_some(bridge).into_iter().chain(ports)
        });
        Self { mounts, cgroups: groups(&group), processes: processes.collect(), links: links.collect() }
    }

    fn is_empty(&self) -> bool {
        self.mounts.is_empty()
            && self.cgroups.is_empty()
            && self.processes.is_empty()
            && self.links.is_empty()
    }
}

/// Groups of this name, below any controller.
fn groups(prefix: &str) -> BTreeSet<String> {
    let roots = fs::read_dir("/sys/fs/cgroup").unwrap().flatten().map(|entry| entry.path());
    let roots = roots.filter(|path| path.is_dir()).chain(["/sys/fs/cgroup".into()]);
    let below = roots.flat_map(|root| fs::read_dir(root).into_iter().flatten().flatten());
    let found = below.filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix));
    found.map(|entry| entry.path().display().to_string()).collect()
}

/// The bridge, as the log names it.
fn bridge(dev: &Dev) -> Option<String> {
    let log = dev.process.stderr();
    let (_, rest) = log.split_once("\"bridge\":\"")?;
    Some(rest.chars().take_while(char::is_ascii_alphanumeric).collect())
}

async fn nothing_is_left(dev: &Dev, node: &str) {
    eventually("no mount, link, cgroup or process remains", SWEPT, || async {
        let traces = Traces::of(dev, node);
        if traces.is_empty() { Ok(()) } else { Err(format!("{traces:?}")) }
    })
    .await;
    dev.nothing_remains().await;
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn dev_runs_containers_that_answer_and_leaves_nothing_after_ctrl_c() {
    let node = "dev-containers";
    let mut dev = Dev::start(&["--nodename", node]).await;
    let stdout = dev.process.stdout();
    for words in
        ["local://", "six times seven is 42", "Hello from a container", "Running ", "nothing is pulled"]
    {
        assert!(stdout.contains(words), "{words:?} in {stdout}");
    }
    let pods = dev.kubectl(&["get", "pods", "-o", "wide"]);
    assert_eq!(pods.matches(" Running ").count(), 2, "{pods}");
    assert_eq!(pods.matches(" Completed ").count(), 1, "{pods}");
    assert_eq!(listed(&pods).len(), 0, "these are no nodes");
    assert_eq!(dev.kubectl(&["exec", "deployment/hello", "--", "id", "-u"]).trim(), "0");
    let page = dev.kubectl(&["exec", "deployment/hello", "--", "cat", "/www/index.html"]);
    assert!(page.contains("Hello from"), "{page}");
    assert!(dev.kubectl(&["logs", "deployment/hello"]).contains("serves /www on port 8080"));
    let isolation = "jsonpath={.items[*].metadata.labels.virtual-kubelet\\.io/isolation}";
    assert_eq!(dev.kubectl(&["get", "nodes", "-o", isolation]), "oci");

    eventually("the Job's pod has given its network back", SWEPT, || async {
        let links = Traces::of(&dev, node).links;
        // A bridge, and a link for each pod that runs.
        if links.len() == 3 { Ok(()) } else { Err(format!("{links:?}")) }
    })
    .await;
    let traces = Traces::of(&dev, node);
    assert!(!traces.mounts.is_empty() && !traces.cgroups.is_empty(), "{traces:?}");
    assert_eq!(traces.processes.iter().filter(|name| *name == "httpd").count(), 2, "{traces:?}");
    dev.process.signal(Signal::INT);
    let outcome = dev.process.end(SWEPT + GONE).await;
    assert_eq!(outcome.code, 0, "{outcome:?}");
    assert!(Traces::of(&dev, node).is_empty(), "what is over is gone: {:?}", Traces::of(&dev, node));
    nothing_is_left(&dev, node).await;
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_killed_dev_takes_its_containers_along() {
    let node = "dev-killed";
    let mut dev = Dev::start(&["--nodename", node]).await;
    assert!(!Traces::of(&dev, node).is_empty());
    dev.process.kill();
    nothing_is_left(&dev, node).await;
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn dev_that_is_stopped_while_its_pods_start_leaves_nothing() {
    let node = "dev-hasty";
    let mut dev = Dev::begin(&["--nodename", node]);
    dev.says("kubectl apply").await;
    dev.process.signal(Signal::INT);
    let outcome = dev.process.end(SWEPT + GONE).await;
    assert_eq!(outcome.code, 0, "{outcome:?}");
    nothing_is_left(&dev, node).await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn dev_without_root_shows_plain_processes_and_says_so() {
    let node = "dev-processes";
    let folder = TempDir::new().unwrap();
    let config = folder.path().join("local.yaml");
    fs::write(&config, "level: process\n").unwrap();
    let mut dev = Dev::begin(&["--nodename", node, "--provider-config", config.to_str().unwrap()]);
    dev.says("Ctrl-C stops everything").await;
    let stdout = dev.process.stdout();
    for words in ["six times seven is 42", "Hello from a container"] {
        assert!(stdout.contains(words), "{words:?} in {stdout}");
    }
    let condition =
        "jsonpath={.items[*].status.conditions[?(@.type==\"virtual-kubelet.io/Isolated\")].status}";
    assert_eq!(dev.kubectl(&["get", "nodes", "-o", condition]), "False");
    dev.process.signal(Signal::INT);
    let outcome = dev.process.end(SWEPT + GONE).await;
    assert_eq!(outcome.code, 0, "{outcome:?}");
    nothing_is_left(&dev, node).await;
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn dev_on_eci_runs_its_pods_on_an_emulator_and_leaves_nothing() {
    let node = "dev-eci";
    let mut dev = Dev::start(&["--provider", "eci", "--nodename", node]).await;
    let stdout = dev.process.stdout();
    for words in [
        "An emulator of ECI is at http://127.0.0.1:",
        "six times seven is 42",
        "Hello from a container group!",
    ] {
        assert!(stdout.contains(words), "{words:?} in {stdout}");
    }
    let pods = dev.kubectl(&["get", "pods", "-o", "wide"]);
    assert_eq!(pods.matches(" Running ").count(), 2, "{pods}");
    for annotation in ["group", "size", "price"] {
        let path = format!("jsonpath={{.items[*].metadata.annotations.virtual-kubelet\\.io/{annotation}}}");
        let count = eventually(&format!("every pod has its {annotation}"), SWEPT, || async {
            let shown = dev.kubectl(&["get", "pods", "-o", &path]);
            // A price is a number and a currency.
            let words = shown.split_whitespace().count() / if annotation == "price" { 2 } else { 1 };
            if words == 3 { Ok(shown) } else { Err(shown) }
        })
        .await;
        assert!(annotation != "price" || count.contains("USD"), "{count}");
    }
    eventually("the events of the cloud are those of the pods", SWEPT, || async {
        let events = dev.kubectl(&["get", "events", "-o", "jsonpath={.items[*].reason}"]);
        let is_there = |reason: &&str| events.split_whitespace().any(|one| one == *reason);
        if ["Scheduled", "Pulled", "Started"].iter().all(is_there) { Ok(()) } else { Err(events) }
    })
    .await;
    let described = dev.kubectl(&["describe", "pods", "-l", "app=hello"]);
    assert!(described.contains("virtual-kubelet.io/size: "), "{described}");
    assert!(dev.kubectl(&["logs", "deployment/hello"]).contains(": hello "));
    let page = dev.kubectl(&["exec", "deployment/hello", "--", "cat", "/www/index.html"]);
    assert!(page.contains("Hello from a container group!"), "{page}");
    dev.process.signal(Signal::INT);
    let outcome = dev.process.end(SWEPT + GONE).await;
    assert_eq!(outcome.code, 0, "{outcome:?}");
    dev.nothing_remains().await;
}
