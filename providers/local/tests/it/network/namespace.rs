//! Namespaces that are held by mounts.

use std::{
    collections::BTreeMap,
    fs, io,
    net::TcpListener,
    path::{Path, PathBuf},
    thread,
};

use tempfile::TempDir;
use tokio::io::AsyncReadExt as _;
use vk_provider_local::namespace::{
    self, Kind, PodNamespaces, connect, is_pinned, pin, run_inside, set_sysctls, unpin,
};

/// A sandbox directory whose mounts are removed on drop.
struct Dir(TempDir);

impl Dir {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn net(&self) -> PathBuf {
        Kind::Net.path(self.path())
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let dir = self.path().to_owned();
        let tidied = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(unpin(&dir)).unwrap();
        });
        assert!(tidied.join().is_ok() || thread::panicking());
    }
}

fn own() -> PodNamespaces {
    PodNamespaces { network: true, ipc: true, hostname: Some("pod-name".to_owned()) }
}

fn settings(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// The number of mounts below a directory.
fn mounts(dir: &Path) -> usize {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    table.lines().filter(|line| line.contains(dir.to_str().unwrap())).count()
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn namespaces_persist_while_pinned_and_unpin_is_idempotent() {
    let dir = Dir::new();
    assert!(!is_pinned(dir.path(), Kind::Net));
    pin(dir.path(), &own()).await.unwrap();
    assert!(Kind::ALL.into_iter().all(|kind| is_pinned(dir.path(), kind)));
    assert_eq!(mounts(dir.path()), 3);
    // A repeated attempt.
    pin(dir.path(), &own()).await.unwrap();
    assert_eq!(mounts(dir.path()), 3);

    unpin(dir.path()).await.unwrap();
    unpin(dir.path()).await.unwrap();
    assert_eq!(mounts(dir.path()), 0);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn namespaces_shared_with_the_host_are_not_pinned() {
    let dir = Dir::new();
    pin(dir.path(), &PodNamespaces { network: false, ipc: true, hostname: None }).await.unwrap();
    assert!(is_pinned(dir.path(), Kind::Ipc));
    assert!(!is_pinned(dir.path(), Kind::Net) && !is_pinned(dir.path(), Kind::Uts));
    assert!(!dir.net().exists());
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn an_error_leaves_nothing_behind() {
    let dir = Dir::new();
    let wrong = PodNamespaces { hostname: Some("x".repeat(65)), ..own() };
    let error = pin(dir.path(), &wrong).await.unwrap_err().to_string();
    assert!(error.starts_with("set the host name"), "{error}");
    assert_eq!((mounts(dir.path()), fs::read_dir(dir.path()).unwrap().count()), (0, 0));
    let error = pin(&dir.path().join("missing"), &own()).await.unwrap_err().to_string();
    assert!(error.contains("missing/net"), "{error}");
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn other_threads_of_the_process_stay_in_their_namespaces() {
    let host = fs::read_link("/proc/self/ns/net").unwrap();
    let dir = Dir::new();
    pin(dir.path(), &own()).await.unwrap();
    let there = run_inside(&dir.net(), || fs::read_link("/proc/thread-self/ns/net").unwrap()).await.unwrap();
    assert_ne!(there, host);
    for task in fs::read_dir("/proc/self/task").unwrap() {
        let task = task.unwrap().path();
        // A thread may exit meanwhile, and threads of other tests may be in other namespaces.
        let Ok(name) = fs::read_to_string(task.join("comm")) else { continue };
        let Ok(found) = fs::read_link(task.join("ns/net")) else { continue };
        assert!(found == host || name.trim() == "vk-namespace", "{name}");
    }
    assert_eq!(fs::read_link("/proc/thread-self/ns/net").unwrap(), host);
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_sandbox_has_its_own_host_name_and_no_domain() {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let dir = Dir::new();
    pin(dir.path(), &own()).await.unwrap();
    let uts = Kind::Uts.path(dir.path());
    let names = thread::spawn(move || {
        nix::sched::setns(fs::File::open(uts).unwrap(), nix::sched::CloneFlags::CLONE_NEWUTS).unwrap();
        ["hostname", "domainname"].map(|file| fs::read_to_string(format!("/proc/sys/kernel/{file}")).unwrap())
    });
    assert_eq!(names.join().unwrap(), ["pod-name\n", "\n"]);
    assert_eq!(fs::read_to_string("/proc/sys/kernel/hostname").unwrap(), host);
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn sysctls_only_apply_to_the_sandbox() {
    let dir = Dir::new();
    pin(dir.path(), &own()).await.unwrap();
    let before = fs::read_to_string("/proc/sys/kernel/shmmax").unwrap();
    let wanted = settings(&[
        ("net.ipv4.ip_local_port_range", "40000 41000"),
        ("net.ipv4.conf.lo.accept_local", "1"),
        ("kernel.shmmax", "4096"),
        ("fs.mqueue.msg_max", "7"),
    ]);
    set_sysctls(dir.path(), &wanted).await.unwrap();
    let net = dir.net();
    let range = run_inside(&net, || fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap());
    assert_eq!(range.await.unwrap().split_whitespace().collect::<Vec<_>>(), ["40000", "41000"]);
    let ipc = Kind::Ipc.path(dir.path());
    let inner = thread::spawn(move || {
        nix::sched::setns(fs::File::open(ipc).unwrap(), nix::sched::CloneFlags::CLONE_NEWIPC).unwrap();
        ["kernel/shmmax", "fs/mqueue/msg_max"]
            .map(|file| fs::read_to_string(format!("/proc/sys/{file}")).unwrap())
    });
    assert_eq!(inner.join().unwrap(), ["4096\n", "7\n"]);
    assert_eq!(fs::read_to_string("/proc/sys/kernel/shmmax").unwrap(), before);

    let error =
        set_sysctls(dir.path(), &settings(&[("net.ipv4.no_such", "1")])).await.unwrap_err().to_string();
    assert!(error.contains("net.ipv4.no_such") && error.contains("No such file"), "{error}");
    let error =
        set_sysctls(dir.path(), &settings(&[("net.core.somaxconn", "many")])).await.unwrap_err().to_string();
    assert!(error.contains("\"many\"") && error.contains("Invalid argument"), "{error}");
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_sysctl_of_a_shared_namespace_is_rejected() {
    let dir = Dir::new();
    pin(dir.path(), &PodNamespaces { network: true, ..PodNamespaces::default() }).await.unwrap();
    let error = set_sysctls(dir.path(), &settings(&[("kernel.shmmax", "1")])).await.unwrap_err().to_string();
    assert_eq!(error, "sysctl \"kernel.shmmax\" is not allowed in the hosts ipc namespace");
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn connect_reaches_ipv4_and_ipv6_loopback() {
    let dir = Dir::new();
    pin(dir.path(), &own()).await.unwrap();
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let listener = run_inside(&dir.net(), move || TcpListener::bind(address)).await.unwrap().unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            io::Write::write_all(&mut stream, b"hello").unwrap();
        });
        let mut stream = connect("sandbox", Some(&dir.net()), port).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "hello", "{address}");
        server.join().unwrap();
    }
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_refused_connection_has_the_error_of_containerd() {
    let dir = Dir::new();
    pin(dir.path(), &own()).await.unwrap();
    let error = connect("abc", Some(&dir.net()), 81).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    assert_eq!(
        error.to_string(),
        format!(
            "failed to execute portforward in network namespace \"{}\": failed to connect to localhost:81 inside namespace \"abc\", \
             IPv4: dial tcp4 127.0.0.1:81: connect: connection refused IPv6 dial tcp6 [::1]:81: connect: connection refused ",
            dir.net().display()
        )
    );
    namespace::unpin(dir.path()).await.unwrap();
    let error = connect("abc", Some(&dir.net()), 81).await.unwrap_err().to_string();
    assert!(error.contains("No such file or directory"), "{error}");
}
