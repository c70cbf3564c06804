//! The checks of `virtual-kubelet doctor` with a fake runtime.

use std::{collections::BTreeMap, fs, path::Path};

use vk_pod_engine::host::Host;
use vk_pod_engine::snapshot::label;
use vk_provider::{Finding, finding::FindingLevel};
use vk_provider_cri::{Settings, doctor, proto};

use crate::fake_runtime::{CriVersion, FakeRuntime};

fn condition(kind: &str, status: bool, message: &str) -> proto::RuntimeCondition {
    proto::RuntimeCondition { r#type: kind.into(), status, reason: "Reason".into(), message: message.into() }
}

fn write_file(folder: &Path, path: &str, text: &str) {
    let path = folder.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

async fn examine(fake: &FakeRuntime) -> Vec<Finding> {
    let root = fake.folder().join("root");
    write_file(&root, "proc/self/status", "CapEff:\t000001ffffffffff\n");
    write_file(&root, "sys/fs/cgroup/cgroup.controllers", "cpu memory pids\n");
    let machine = Host::with_root(&root, fake.folder());
    let settings = Settings { socket: Some(fake.socket()), ..Settings::default() };
    doctor::examine(&settings, "vk", &machine).await
}

fn line(findings: &[Finding], what: &str) -> (FindingLevel, String) {
    let finding = findings.iter().find(|finding| finding.what == what);
    let finding = finding.unwrap_or_else(|| panic!("nothing about {what}: {findings:#?}"));
    (finding.level, finding.to_string())
}

fn sandbox(name: &str, node: Option<&str>) -> proto::PodSandbox {
    let mut labels: BTreeMap<String, String> =
        [(label::POD_NAME, name), (label::POD_NAMESPACE, "default"), (label::POD_UID, name)]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
    labels.extend(node.map(|node| (label::NODE.to_owned(), node.to_owned())));
    proto::PodSandbox { id: name.into(), labels, ..Default::default() }
}

#[tokio::test]
async fn a_healthy_runtime_passes_all_checks() {
    let fake = FakeRuntime::start();
    fake.script().conditions = vec![condition("RuntimeReady", true, ""), condition("NetworkReady", true, "")];
    fake.script().sandboxes = vec![sandbox("mine", Some("vk"))];
    let findings = examine(&fake).await;
    assert!(findings.iter().all(|finding| finding.level == FindingLevel::Ok), "{findings:#?}");
    assert!(line(&findings, "runtime").1.contains("fake 1.2.3, interface v1"));
    assert!(line(&findings, "foreign pods").1.contains("1 of this node"));
}

#[tokio::test]
async fn a_network_that_is_not_ready_is_an_error_with_the_remedy() {
    let fake = FakeRuntime::start();
    fake.script().conditions = vec![
        condition("RuntimeReady", true, ""),
        condition("NetworkReady", false, "cni plugin not initialized"),
    ];
    let (level, line) = line(&examine(&fake).await, "pod network");
    assert_eq!(level, FindingLevel::Error);
    assert!(
        line.contains("cni plugin not initialized")
            && line.contains("-> ")
            && line.contains("/etc/cni/net.d"),
        "{line}"
    );
}

#[tokio::test]
async fn pods_of_a_kubelet_are_a_warning_and_those_of_another_node_of_ours_are_not() {
    let fake = FakeRuntime::start();
    fake.script().sandboxes = vec![sandbox("mine", Some("vk")), sandbox("other", Some("vk-2"))];
    assert_eq!(line(&examine(&fake).await, "foreign pods").0, FindingLevel::Ok);
    fake.script().sandboxes.push(sandbox("coredns", None));
    let (level, line) = line(&examine(&fake).await, "foreign pods");
    assert_eq!(level, FindingLevel::Warning);
    assert!(line.contains("1 with a kubelet's labels, such as default/coredns"), "{line}");
}

#[tokio::test]
async fn an_old_runtime_and_a_disabled_interface_are_distinguished() {
    for (version, words) in
        [(CriVersion::Alpha, "only version v1alpha2"), (CriVersion::Nothing, "disabled_plugins")]
    {
        let mut fake = FakeRuntime::absent();
        fake.serve(version);
        let (level, line) = line(&examine(&fake).await, "runtime");
        assert_eq!(level, FindingLevel::Error);
        assert!(line.contains(words), "{line}");
    }
}

#[tokio::test]
async fn a_runtime_that_restricts_oom_scores_needs_no_capability() {
    let fake = FakeRuntime::start();
    // Our own process listens; its capabilities are read from the files of the host.
    let pid = std::process::id();
    let root = fake.folder().join("root");
    write_file(&root, &format!("proc/{pid}/status"), "CapEff:\t0000000000000000\n");
    let (level, text) = line(&examine(&fake).await, "OOM scores");
    assert!(level == FindingLevel::Error && text.contains("restrict_oom_score_adj"), "{text}");
    fake.script().info.insert("config".into(), "{\"restrictOOMScoreAdj\": true}".into());
    assert_eq!(line(&examine(&fake).await, "OOM scores").0, FindingLevel::Ok);
}
