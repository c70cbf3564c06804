//! The provider `local` with real containers and without a container runtime, as a node of a real control plane.

#![allow(clippy::print_stdout, reason = "what was measured on the way")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use vk_testing::{
    eventually,
    host::{BareHost, Host as _, HostResources, Image, Registry},
};

use super::container_node::{ContainerNode, IMAGE, LATER, instances, number};
use crate::network_cleanup::NetworkCleanup;

/// What nobody may find.
const SECRET: &str = "open-sesame-7351";
/// Counts, a line for each number.
const COUNTS: &str = "i=0; while :; do echo $i; i=$((i + 1)); usleep 20000; done";

/// A node, and what is to be put back of it outside of its namespaces.
struct Node {
    container_node: ContainerNode<BareHost>,
}

/// A host of its own with these images, and how the provider is told to use it.
pub(super) async fn host(images: &[Image]) -> (BareHost, Value) {
    let host = BareHost::start(HostResources::any()).await;
    let (folder, cgroup) = (host.resources().folder().to_owned(), host.resources().cgroup());
    let archive = host.archive(images);
    let import = host
        .command(Path::new(env!("CARGO_BIN_EXE_virtual-kubelet")))
        .args(["image", "import", "--state-dir"])
        .args([&folder.join("state"), &archive])
        .output()
        .unwrap();
    assert!(import.status.success(), "{}", String::from_utf8_lossy(&import.stderr));
    let config = json!({ "cgroupRoot": format!("/{cgroup}"), "level": "oci", "network": "bridge", "minFreeDisk": "1Mi" });
    (host, config)
}

impl Node {
    async fn start(name: &str, flags: &[&str]) -> Self {
        let (host, config) = host(&Image::standard()).await;
        Self { container_node: ContainerNode::start(host, "local", config, name, flags).await }
    }

    /// The processes in the cgroups of its containers, as they are numbered out here.
    fn contained(&self) -> BTreeSet<i32> {
        let group = Path::new("/sys/fs/cgroup/memory").join(self.container_node.host.resources().cgroup());
        let mut pids = BTreeSet::new();
        let mut folders = vec![group];
        while let Some(folder) = folders.pop() {
            let text = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
            pids.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()));
            let below = fs::read_dir(&folder).into_iter().flatten().flatten();
            folders.extend(below.map(|entry| entry.path()).filter(|path| path.is_dir()));
        }
        pids
    }

    /// The processes of our program in its namespaces that are not the command itself: shims and those that make containers.
    fn shims(&self) -> Vec<Pid> {
        let ours = fs::read_link(format!("/proc/{}/ns/pid", self.inside())).unwrap();
        let command = self.container_node.pid();
        let all = fs::read_dir("/proc").unwrap().flatten();
        all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
            .filter_map(Pid::from_raw)
            .filter(|pid| Some(*pid) != command)
            .filter(|pid| fs::read_link(format!("/proc/{pid}/ns/pid")).is_ok_and(|space| space == ours))
            .filter(|pid| {
                let said = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                said.split(|byte| *byte == 0).any(|word| word == b"shim")
            })
            .collect()
    }

    /// Where Secrets are: on what kind of file system, and whether there is something.
    fn secrets(&self) -> Vec<(String, bool)> {
        let mounts = fs::read_to_string(format!("/proc/{}/mounts", self.inside())).unwrap();
        let directory = self.directory().join("pods").display().to_string();
        let secrets = mounts
            .lines()
            .map(|line| line.split(' ').collect::<Vec<_>>())
            .filter(|mount| mount[1].starts_with(&directory) && mount[1].contains("/kubernetes.io~secret/"));
        let root = Path::new("/proc").join(self.inside().to_string()).join("root");
        let filled = |path: &str| {
            let container_node = root.join(path.trim_start_matches('/'));
            fs::read_dir(container_node).is_ok_and(|mut entries| entries.next().is_some())
        };
        secrets.map(|mount| (mount[2].to_owned(), filled(mount[1]))).collect()
    }

    fn inside(&self) -> u32 {
        self.container_node.host.init_pid()
    }

    fn directory(&self) -> PathBuf {
        self.container_node.folder().join("state").join(&self.container_node.node)
    }

    /// Nothing of any container is left: no process, no cgroup, no mount, no record.
    async fn nothing_is_left(&self) {
        let directory = self.directory();
        let group = Path::new("/sys/fs/cgroup/memory").join(self.container_node.host.resources().cgroup());
        let count = |folder: PathBuf| fs::read_dir(folder).map_or(0, Iterator::count);
        eventually("nothing is left of the containers", LATER, || async {
            let mounts = fs::read_to_string(format!("/proc/{}/mounts", self.inside())).unwrap();
            let mounts = mounts.lines().filter(|line| line.contains(&*directory.to_string_lossy())).count();
            let groups = fs::read_dir(&group)
                .into_iter()
                .flatten()
                .flatten()
                .filter(|entry| entry.path().is_dir())
                .flat_map(|entry| fs::read_dir(entry.path()).into_iter().flatten().flatten())
                .filter(|entry| entry.file_name().to_string_lossy().contains("pod"))
                .count();
            let left = [
                ("processes", self.contained().len()),
                ("shims", self.shims().len()),
                ("mounts", mounts),
                ("groups of pods", groups),
                ("containers", count(directory.join("local/containers"))),
                ("sandboxes", count(directory.join("local/sandboxes"))),
                ("pods", count(directory.join("pods"))),
            ];
            let left: Vec<_> = left.into_iter().filter(|(_, count)| *count > 0).collect();
            if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
        })
        .await;
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        drop(NetworkCleanup(self.directory().join("local/network")));
    }
}

/// Each number once, in order, up to some.
fn counted(log: &str) -> usize {
    let numbers: Vec<usize> = log.lines().map(|line| line.parse().unwrap()).collect();
    assert!(numbers.iter().copied().eq(0..numbers.len()), "a line is lost or doubled: {log}");
    numbers.len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane and root: make test"]
async fn kubectl_reaches_into_containers_without_a_runtime() {
    for (way, flags) in [("websocket", &[][..]), ("spdy", &["--stream-websockets=false"])] {
        let node = Node::start(&format!("local-kubectl-{way}"), flags).await;
        node.container_node.kubectl_reaches_in().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane and root: make test"]
async fn a_killed_process_finds_its_containers_with_their_pids_and_no_line_is_lost() {
    let count = number("VK_LOCAL_PODS", 10);
    let mut node = Node::start("local-killed", &[]).await;
    let namespace = node.container_node.namespace("local-killed").await;
    let container = json!({"name": "main", "image": IMAGE, "command": ["sh", "-c", COUNTS]});
    for number in 0..count {
        node.container_node.create(&namespace, &format!("pod-{number}"), &container).await;
    }
    let before = node.container_node.all_ready(&namespace, count).await;
    let first: BTreeSet<i32> = init_pids(&node);
    node.container_node.kill();
    let written = size_of_logs(&node);
    eventually("containers write while nobody is there", LATER, || async {
        let now = size_of_logs(&node);
        if now > written { Ok(()) } else { Err(format!("{now} bytes")) }
    })
    .await;
    node.container_node.launch();
    node.container_node.becomes("True", "").await;
    let after = node.container_node.all_ready(&namespace, count).await;
    assert_eq!(instances(&after), instances(&before));
    assert_eq!(init_pids(&node), first, "the same processes");
    assert_eq!(first.len(), count);
    for number in 0..count {
        assert!(counted(&node.container_node.log(&namespace, &format!("pod-{number}"), &[]).await) > 0);
    }
    node.container_node.remove(&namespace).await;
    node.nothing_is_left().await;
}

fn parent(pid: Pid) -> Option<Pid> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    Pid::from_raw(parent.trim().parse().ok()?)
}

/// The first process of each container.
fn init_pids(node: &Node) -> BTreeSet<i32> {
    let is_first = |pid: &i32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
        numbers.and_then(|numbers| numbers.split_whitespace().last()) == Some("1")
    };
    node.contained().into_iter().filter(is_first).collect()
}

fn size_of_logs(node: &Node) -> u64 {
    let mut folders = vec![node.directory().join("logs")];
    let mut size = 0;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(there) if there.is_dir() => folders.push(entry.path()),
                Ok(there) => size += there.len(),
                Err(_) => {}
            }
        }
    }
    size
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane and root: make test"]
async fn a_container_whose_shim_is_killed_is_told_to_have_been_killed_and_started_again() {
    let node = Node::start("local-shim", &[]).await;
    let namespace = node.container_node.namespace("local-shim").await;
    node.container_node.crowd(&namespace, 1).await;
    let (shims, pids) = (node.shims(), node.contained());
    // A probe makes the shim fork, and until it executes the command the child looks like a shim.
    let shim = shims.iter().copied().find(|pid| parent(*pid).is_none_or(|parent| !shims.contains(&parent)));
    kill_process(shim.expect("the container has a shim"), Signal::KILL).unwrap();
    let status = node
        .container_node
        .container(&namespace, "pod-0", "runs again", |status| {
            status["restartCount"] == 1 && status["ready"] == true
        })
        .await;
    let ended = &status["lastState"]["terminated"];
    assert_eq!((&ended["exitCode"], &ended["reason"]), (&json!(137), &json!("Error")), "{status}");
    assert!(node.contained().is_disjoint(&pids), "what had no owner is gone");
    node.container_node.remove(&namespace).await;
    node.nothing_is_left().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane and root: make test"]
async fn after_a_reboot_containers_are_started_again_and_their_restarts_counted() {
    let mut node = Node::start("local-reboot", &[]).await;
    let namespace = node.container_node.namespace("local-reboot").await;
    node.container_node.crowd(&namespace, 3).await;
    node.container_node.kill();
    // Everything that ran and everything that was mounted is gone; the files are there.
    node.container_node.host.reboot().await;
    node.container_node.launch();
    for number in 0..3 {
        let status = node
            .container_node
            .container(&namespace, &format!("pod-{number}"), "runs again", |status| {
                status["restartCount"] == 1 && status["ready"] == true
            })
            .await;
        assert!(status["lastState"]["terminated"].is_object(), "{status}");
    }
    node.container_node.remove(&namespace).await;
    node.nothing_is_left().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane and root: make test"]
async fn a_node_on_a_machine_without_room_for_threads_goes_on_when_there_is_room_again() {
    let node = Node::start("local-starved", &[]).await;
    let namespace = node.container_node.namespace("local-starved").await;
    node.container_node.crowd(&namespace, 2).await;
    let pid = node.container_node.pid().unwrap();
    // As beside a fork bomb.
    let group =
        Path::new("/sys/fs/cgroup/pids").join(node.container_node.host.resources().cgroup()).join("starved");
    fs::create_dir(&group).unwrap();
    fs::write(group.join("pids.max"), "1").unwrap();
    fs::write(group.join("cgroup.procs"), pid.to_string()).unwrap();
    node.container_node.pods(&namespace).delete("pod-0", &kube::api::DeleteParams::default()).await.unwrap();
    let container = json!({"name": "main", "image": IMAGE, "command": ["/stay"]});
    node.container_node.create(&namespace, "pod-2", &container).await;
    eventually("it has met the limit", LATER, || async {
        let log = fs::read_to_string(node.container_node.folder().join("virtual-kubelet.log")).unwrap();
        if log.contains("esource temporarily unavailable") { Ok(()) } else { Err(log) }
    })
    .await;
    fs::write(group.join("pids.max"), "max").unwrap();
    let all = node.container_node.all_ready(&namespace, 2).await;
    assert!(all.keys().eq(["pod-1", "pod-2"]), "{all:?}");
    assert_eq!(node.container_node.pid(), Some(pid), "it was started anew");
    node.container_node.remove(&namespace).await;
    node.nothing_is_left().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane and root: make test"]
async fn no_container_is_left_without_an_owner_however_often_anything_is_killed() {
    let kills = number("VK_LOCAL_KILLS", 10);
    let seed = number("VK_SEED", 7);
    let mut random = StdRng::seed_from_u64(seed as u64);
    let mut node = Node::start("local-kills", &[]).await;
    let namespace = node.container_node.namespace("local-kills").await;
    let container = json!({"name": "main", "image": IMAGE, "command": ["/stay"]});
    let mut left = 0;
    for turn in 0..kills {
        node.container_node.create(&namespace, &format!("pod-{turn}"), &container).await;
        left += 1;
        // Of three pods one stays: no more than a node takes.
        if turn % 3 != 0 && turn > 2 {
            let old = format!("pod-{}", turn - 3);
            node.container_node
                .pods(&namespace)
                .delete(&old, &kube::api::DeleteParams::default())
                .await
                .unwrap();
            left -= 1;
        }
        // Some moment of whatever is under way.
        tokio::time::sleep(std::time::Duration::from_millis(random.random_range(0..400))).await;
        let shims = node.shims();
        if turn % 2 == 0 || shims.is_empty() {
            node.container_node.kill();
            node.container_node.launch();
        } else {
            // It may have ended meanwhile.
            let _ = kill_process(shims[random.random_range(0..shims.len())], Signal::KILL);
        }
    }
    let all: BTreeMap<String, Value> = node.container_node.all_ready(&namespace, left).await;
    assert_eq!(all.len(), left);
    eventually("every container has one shim, and every shim a container", LATER, || async {
        let (shims, inits) = (node.shims().len(), init_pids(&node).len());
        if shims == left && inits == left {
            Ok(())
        } else {
            Err(format!("{shims} shims, {inits} containers"))
        }
    })
    .await;
    node.container_node.remove(&namespace).await;
    node.nothing_is_left().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane and root: make test"]
async fn a_container_at_full_speed_loses_no_line_and_harms_nobody() {
    let node = Node::start("local-torrent", &[]).await;
    let rate = node.container_node.takes_a_torrent().await;
    println!("{rate:.0} lines a second");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane and root: make test"]
async fn containers_see_neither_the_machines_processes_nor_others_files_and_secrets_go_with_the_pod() {
    let node = Node::start("local-apart", &[]).await;
    let namespace = node.container_node.namespace("local-apart").await;
    let script = "hostname; ps | grep -c . ; ls /; cat /proc/1/comm; echo here > /mine; sleep infinity";
    let container = json!({"name": "main", "image": IMAGE, "command": ["sh", "-c", script]});
    node.container_node.create(&namespace, "one", &container).await;
    node.container_node.create(&namespace, "two", &container).await;
    node.container_node.secret(&namespace, "password", "Opaque", "word", SECRET).await;
    let reads = json!({"name": "main", "image": IMAGE, "command": ["sh", "-c", "wc -c < /secret/word; exec /stay"],
        "volumeMounts": [{"name": "secret", "mountPath": "/secret"}]});
    let volumes = json!({"volumes": [{"name": "secret", "secret": {"secretName": "password"}}]});
    node.container_node.create_with(&namespace, "reader", &reads, volumes).await;
    node.container_node.all_ready(&namespace, 3).await;
    eventually("it has read the Secret", LATER, || async {
        let log = node.container_node.log(&namespace, "reader", &[]).await;
        if log.trim() == SECRET.len().to_string() { Ok(()) } else { Err(log) }
    })
    .await;
    assert_eq!(node.secrets(), [("tmpfs".to_owned(), true)]);
    assert!(!holds(&node.container_node.folder().join("state"), SECRET), "it is on the disk");
    for pod in ["one", "two"] {
        let log = eventually("it has looked around", LATER, || async {
            let log = node.container_node.log(&namespace, pod, &[]).await;
            if log.lines().count() > 3 { Ok(log) } else { Err(log) }
        })
        .await;
        assert_eq!(log.lines().next(), Some(pod));
        assert!(!log.lines().any(|line| line == "mine"), "another's file: {log}");
        let processes: usize = log.lines().nth(1).unwrap().parse().unwrap();
        assert!(processes <= 5, "only its own processes: {log}");
    }
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&fs::metadata(node.directory()).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o700);
    node.container_node.remove(&namespace).await;
    assert_eq!(node.secrets(), [], "a Secret outlives its pod");
}

/// Whether a file below a folder has these words in it. What is mounted there is not looked at from out here.
fn holds(folder: &Path, words: &str) -> bool {
    fs::read_dir(folder).into_iter().flatten().flatten().any(|entry| {
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            return holds(&entry.path(), words);
        }
        let has = |bytes: Vec<u8>| bytes.windows(words.len()).any(|part| part == words.as_bytes());
        kind.is_file() && fs::read(entry.path()).is_ok_and(has)
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane and root: make test"]
async fn a_disk_that_is_full_fails_the_pull_and_nothing_else() {
    let host = BareHost::start(HostResources::any()).await;
    // NamespacePair for a small image, and not for a large one.
    let images = host.resources().folder().join("images");
    let mounted = "mkdir -p $0 && mount -t tmpfs -o size=16m tmpfs $0";
    let mounted = host.command(Path::new("/bin/sh")).args(["-c", mounted]).arg(&images).status().unwrap();
    assert!(mounted.success());
    let noise = |seed| StdRng::seed_from_u64(seed).random_iter::<char>().take(6_000_000).collect::<String>();
    let large = Image::new("vk.test/large:1").file("/large", &noise(1));
    let small = Image::standard().remove(0).named("vk.test/small:1");
    let registry = Registry::start(host.resources(), &[large, small]).await;
    let cgroup = format!("/{}", host.resources().cgroup());
    let config = json!({"cgroupRoot": cgroup, "imageDir": images, "minFreeDisk": "1Mi"});
    let node = Node { container_node: ContainerNode::start(host, "local", config, "local-full", &[]).await };
    let namespace = node.container_node.namespace("local-full").await;
    let kind = "kubernetes.io/dockerconfigjson";
    node.container_node
        .secret(&namespace, "registry", kind, ".dockerconfigjson", &registry.docker_config())
        .await;
    let create = async |name: &str| {
        let image = format!("{}/{name}:1", registry.address());
        let container = json!({"name": "main", "image": image, "command": ["sleep", "infinity"]});
        let spec = json!({"imagePullSecrets": [{"name": "registry"}]});
        node.container_node.create_with(&namespace, name, &container, spec).await;
    };
    create("large").await;
    let why = node.container_node.container(&namespace, "large", "cannot be pulled", |status| {
        status["state"]["waiting"]["reason"] == "ImagePullBackOff"
    });
    let why = why.await.to_string();
    assert!(why.contains("no space left on device"), "{why}");
    create("small").await;
    let runs = |status: &Value| status["state"]["running"].is_object();
    node.container_node.container(&namespace, "small", "runs, where the large one left nothing", runs).await;
    node.container_node.becomes("True", "").await;
    node.container_node.remove(&namespace).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane and root: make test"]
async fn bad_pods_are_told_why_in_a_kubelets_words_and_the_node_stays_well() {
    let node = Node::start("local-bad", &[]).await;
    let namespace = node.container_node.namespace("local-bad").await;
    let bomb = "bomb() { bomb | bomb & }; bomb; sleep infinity";
    let bad = [
        ("no-command", json!({"command": ["/no/such/program"]})),
        ("no-image", json!({"image": "vk.test/nosuch:1", "imagePullPolicy": "Never"})),
        ("no-name", json!({"image": "UPPER/not a name"})),
        ("bomb", json!({"command": ["sh", "-c", bomb]})),
    ];
    for (name, more) in &bad {
        let mut container = json!({"name": "main", "image": IMAGE});
        container.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        node.container_node.create(&namespace, name, &container).await;
    }
    let waits = |reasons: &'static [&'static str]| {
        move |status: &Value| {
            let reason = status["state"]["waiting"]["reason"].as_str().unwrap_or_default();
            reasons.contains(&reason)
        }
    };
    let told = node.container_node.container(&namespace, "no-command", "is told", |status| {
        let ended = [&status["state"]["terminated"], &status["lastState"]["terminated"]];
        ended.iter().any(|ended| ended["reason"] == "StartError" && ended["exitCode"] == 128)
    });
    let told = told.await.to_string();
    assert!(told.contains("no such file or directory"), "{told}");
    node.container_node.container(&namespace, "no-image", "is told", waits(&["ErrImageNeverPull"])).await;
    node.container_node.container(&namespace, "no-name", "is told", waits(&["InvalidImageName"])).await;
    node.container_node.crowd(&namespace, 1).await;
    node.container_node.becomes("True", "").await;
    node.container_node.remove(&namespace).await;
}
