use std::os::unix::net::UnixListener;

use serde_json::json;
use vk_pod_engine::config::EngineConfig;
use vk_pod_engine::testing::host::{fake_host, write_file};
use vk_provider::finding::FindingLevel;

use super::*;

fn level_of(findings: &[Finding], what: &str) -> (FindingLevel, String) {
    let found = findings.iter().find(|finding| finding.what == what);
    let found = found.unwrap_or_else(|| panic!("nothing about {what}: {findings:?}"));
    (found.level, found.to_string())
}

/// A host with cgroup v2 and all capabilities.
fn good(folder: &Path) -> Host {
    let machine = fake_host(folder);
    write_file(folder, "sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory pids\n");
    machine
}

#[tokio::test]
async fn a_missing_runtime_is_reported_with_the_tried_sockets() {
    let folder = tempfile::tempdir().unwrap();
    let machine = good(folder.path());
    let settings = Settings { socket: Some("/nonexistent/cri.sock".into()), ..Settings::default() };
    let findings = examine(&settings, "node", &machine).await;
    let (level, line) = level_of(&findings, "runtime socket");
    assert_eq!(level, FindingLevel::Error);
    assert!(
        line.contains("/nonexistent/cri.sock") && line.contains(" -> ") && line.contains("`socket`"),
        "{line}"
    );
    assert_eq!(level_of(&findings, "cgroups").0, FindingLevel::Ok, "the rest is looked at all the same");
    assert_eq!(level_of(&findings, "another kubelet").0, FindingLevel::Ok);
}

#[tokio::test]
async fn a_socket_that_does_not_answer_times_out_soon() {
    let folder = tempfile::tempdir().unwrap();
    let machine = good(folder.path());
    let socket = folder.path().join("dead.sock");
    drop(UnixListener::bind(&socket).unwrap());
    let settings = Settings { socket: Some(socket), ..Settings::default() };
    let findings = examine(&settings, "node", &machine).await;
    let (level, line) = level_of(&findings, "runtime");
    assert_eq!(level, FindingLevel::Error);
    assert!(line.contains("connection refused"), "{line}");
}

#[test]
fn a_kubelet_on_the_same_runtime_is_an_error_and_one_on_another_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let machine = good(folder.path());
    let socket = Path::new("/run/containerd/containerd.sock");
    let check = |command: &str| {
        write_file(folder.path(), "proc/4242/comm", "kubelet\n");
        write_file(folder.path(), "proc/4242/cmdline", &command.replace(' ', "\0"));
        kubelet::other_kubelet(Some(socket), &machine)
    };
    let usual = check("/usr/bin/kubelet --v=2");
    assert_eq!(usual.level, FindingLevel::Error);
    assert!(usual.found.contains("4242") && !usual.remedy.is_empty(), "{usual}");
    let same = check("kubelet --container-runtime-endpoint=unix:///var/run/containerd/containerd.sock");
    assert_eq!(same.level, FindingLevel::Error, "{same}");
    let other = check("kubelet --container-runtime-endpoint unix:///run/crio/crio.sock");
    assert_eq!(other.level, FindingLevel::Ok, "{other}");
    write_file(
        folder.path(),
        "var/lib/kubelet/config.yaml",
        "kind: x\ncontainerRuntimeEndpoint: \"unix:///run/crio/crio.sock\"\n",
    );
    let configured = check("kubelet --config=/var/lib/kubelet/config.yaml");
    assert_eq!(configured.level, FindingLevel::Ok, "{configured}");
    assert_eq!(
        kubelet::other_kubelet(Some(Path::new("/run/crio/crio.sock")), &machine).level,
        FindingLevel::Error
    );
}

#[test]
fn a_runtime_that_cannot_lower_oom_scores_must_restrict_them() {
    let folder = tempfile::tempdir().unwrap();
    let machine = good(folder.path());
    write_file(folder.path(), "proc/77/status", "CapEff:\t000001fffeffffff\n");
    let mut info = RuntimeInfo { name: "containerd".into(), pid: Some(77), ..RuntimeInfo::default() };
    let findings = capabilities::examine(&info, &machine);
    let (level, line) = level_of(&findings, "OOM scores");
    assert_eq!(level, FindingLevel::Error);
    assert!(line.contains("restrict_oom_score_adj = true"), "{line}");
    assert_eq!(level_of(&findings, "resource limits").0, FindingLevel::Warning);
    info.config = json!({"restrictOOMScoreAdj": true});
    assert_eq!(level_of(&capabilities::examine(&info, &machine), "OOM scores").0, FindingLevel::Ok);
    let crio = RuntimeInfo { name: "cri-o".into(), pid: Some(77), ..RuntimeInfo::default() };
    assert_eq!(level_of(&capabilities::examine(&crio, &machine), "OOM scores").0, FindingLevel::Ok);
    let unseen = RuntimeInfo { name: "containerd".into(), pid: Some(78), ..RuntimeInfo::default() };
    let (level, line) = level_of(&capabilities::examine(&unseen, &machine), "OOM scores");
    assert_eq!(level, FindingLevel::Ok, "our own rights are the best guess: {line}");
    write_file(folder.path(), "proc/self/status", "CapEff:\t0000000000000000\n");
    assert_eq!(level_of(&capabilities::examine(&unseen, &machine), "mounts").0, FindingLevel::Error);
}

#[test]
fn the_cgroup_layout_is_detected() {
    let folder = tempfile::tempdir().unwrap();
    let machine = fake_host(folder.path());
    let check = || {
        let findings = cgroup::examine(&RuntimeInfo::default(), &Settings::default(), &machine);
        level_of(&findings, "cgroups")
    };
    assert_eq!(check().0, FindingLevel::Error, "none at all");
    write_file(folder.path(), "proc/cgroups", "#name\nmemory\t1\t2\t1\ncpu\t2\t1\t1\npids\t3\t1\t1\n");
    for controller in ["memory", "cpu"] {
        std::fs::create_dir_all(folder.path().join("sys/fs/cgroup").join(controller)).unwrap();
    }
    let (level, line) = check();
    assert!(level == FindingLevel::Error && line.contains("pids"), "{line}");
    std::fs::create_dir_all(folder.path().join("sys/fs/cgroup/pids")).unwrap();
    let (level, line) = check();
    assert!(level == FindingLevel::Warning && line.contains("version 1") && line.contains("crun"), "{line}");
    std::fs::create_dir_all(folder.path().join("sys/fs/cgroup/unified")).unwrap();
    assert!(check().1.contains("side by side"));
    write_file(folder.path(), "sys/fs/cgroup/cgroup.controllers", "cpu pids\n");
    let (level, line) = check();
    assert!(level == FindingLevel::Error && line.contains("memory"), "{line}");
}

#[test]
fn the_runtimes_cgroup_driver_must_fit_the_machine_and_the_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let machine = good(folder.path());
    let check = |driver: &str, root: Option<&str>| {
        let info = RuntimeInfo { cgroup_driver: Some(driver.into()), ..RuntimeInfo::default() };
        let settings = Settings {
            engine: EngineConfig { cgroup_root: root.map(str::to_owned), ..EngineConfig::default() },
            ..Settings::default()
        };
        level_of(&cgroup::examine(&info, &settings, &machine), "cgroup driver").0
    };
    assert_eq!(check("cgroupfs", None), FindingLevel::Ok);
    assert_eq!(check("cgroupfs", Some("/pods")), FindingLevel::Ok);
    assert_eq!(check("cgroupfs", Some("pods.slice")), FindingLevel::Error);
    assert_eq!(check("systemd", None), FindingLevel::Error, "systemd does not run");
    std::fs::create_dir_all(folder.path().join("run/systemd/system")).unwrap();
    assert_eq!(check("systemd", Some("pods.slice")), FindingLevel::Warning, "no limits of whole pods");
    assert_eq!(check("systemd", None), FindingLevel::Warning);
    assert_eq!(check("systemd", Some("/pods")), FindingLevel::Error);
}
