use std::{io, path::PathBuf};

use vk_pod_engine::testing::host::write_file;
use vk_provider::finding::FindingLevel as Severity;

use super::*;
use crate::isolation::tests::{capable_host, status};

fn examine_host(settings: &Settings, folder: &Path, works: bool) -> Vec<Finding> {
    examine_behind_firewall(settings, folder, works, None)
}

fn examine_behind_firewall(
    settings: &Settings,
    folder: &Path,
    works: bool,
    firewall: Option<&str>,
) -> Vec<Finding> {
    let overlay_test =
        |_: &Path| if works { Ok(()) } else { Err(io::Error::from(io::ErrorKind::InvalidInput)) };
    let node = folder.join("state/node");
    let images: PathBuf = folder.join("state/images");
    let machine = Host::with_root(folder, folder);
    let firewall = || firewall.map(str::to_owned);
    examine(settings, &machine, &overlay_test, &firewall, &NodePaths { node: &node, images: &images })
}

fn finding_about(findings: &[Finding], what: &str) -> (Severity, String) {
    let found = findings.iter().find(|finding| finding.what == what);
    let found = found.unwrap_or_else(|| panic!("nothing about {what}: {findings:?}"));
    (found.level, found.to_string())
}

fn machine(folder: &Path) {
    capable_host(folder);
    write_file(folder, "proc/sys/net/ipv4/ip_forward", "0\n");
}

#[test]
fn a_host_that_meets_all_needs_has_no_warnings() {
    let folder = tempfile::tempdir().unwrap();
    machine(folder.path());
    let findings = examine_host(&Settings::default(), folder.path(), true);
    // The free space depends on the machine that runs the tests.
    let wrong = |finding: &&Finding| finding.level != Severity::Ok && finding.what != "disk";
    assert_eq!(findings.iter().find(wrong), None, "{findings:#?}");
    assert!(finding_about(&findings, "isolation").1.contains("level oci"));
    assert!(finding_about(&findings, "image store").1.contains("to be created"));
}

#[test]
fn without_root_the_level_and_the_reason_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    machine(folder.path());
    status(folder.path(), 1000, 0);
    let findings = examine_host(&Settings::default(), folder.path(), false);
    let (severity, line) = finding_about(&findings, "isolation");
    assert!(severity == Severity::Warning && line.contains("level process"), "{line}");
    let (severity, line) = finding_about(&findings, "user");
    assert!(severity == Severity::Warning && line.contains("-> run virtual-kubelet as root"), "{line}");
    assert!(findings.iter().all(|finding| finding.level != Severity::Error), "pods can run: {findings:#?}");
}

#[test]
fn a_configured_level_that_the_host_does_not_allow_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    machine(folder.path());
    let demanding = Settings { level: Some(Isolation::Oci), ..Settings::default() };
    let findings = examine_host(&demanding, folder.path(), false);
    assert_eq!(finding_about(&findings, "isolation").0, Severity::Error);
    let (severity, line) = finding_about(&findings, "overlay");
    assert!(severity == Severity::Error && line.contains("stateDir"), "{line}");
    let modest = Settings { level: Some(Isolation::Process), ..Settings::default() };
    let (severity, line) = finding_about(&examine_host(&modest, folder.path(), true), "isolation");
    assert!(severity == Severity::Warning && line.contains("allows oci"), "{line}");
}

#[test]
fn missing_capabilities_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    machine(folder.path());
    status(folder.path(), 0, 0x1ff_ffff_ffff & !(1 << CAP_NET_ADMIN) & !(1 << CAP_SYS_RESOURCE));
    let findings = examine_host(&Settings::default(), folder.path(), true);
    let (severity, line) = finding_about(&findings, "pod network");
    assert!(severity == Severity::Warning && line.contains("the host's network"), "{line}");
    let (severity, line) = finding_about(&findings, "OOM scores");
    assert!(severity == Severity::Warning && line.contains("below -5"), "{line}");
    assert_eq!(finding_about(&findings, "resource limits").0, Severity::Warning);
    let bridge = Settings { network: NetworkMode::Bridge, ..Settings::default() };
    assert_eq!(finding_about(&examine_host(&bridge, folder.path(), true), "pod network").0, Severity::Error);
    let host = Settings { network: NetworkMode::Host, ..Settings::default() };
    assert_eq!(finding_about(&examine_host(&host, folder.path(), true), "pod network").0, Severity::Warning);
    write_file(folder.path(), "proc/self/status", "Uid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff\n");
    assert_eq!(
        finding_about(&examine_host(&Settings::default(), folder.path(), true), "seccomp").0,
        Severity::Warning
    );
}

#[test]
fn too_little_free_disk_space_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    machine(folder.path());
    let at = |bytes| {
        disk(&Host::with_root(folder.path(), folder.path()).with_min_free_space(Some(bytes))).unwrap()
    };
    assert_eq!(at(0).level, Severity::Ok);
    let short = at(u64::MAX);
    assert!(short.level == Severity::Warning && short.remedy.contains("`minFreeDisk`"), "{short}");
}

#[test]
fn a_directory_that_cannot_be_created_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    machine(folder.path());
    write_file(folder.path(), "state", "a file in its place");
    let findings = examine_host(&Settings::default(), folder.path(), true);
    let (severity, line) = finding_about(&findings, "image store");
    assert!(
        severity == Severity::Error && line.contains("is not a directory") && line.contains("`imageDir`"),
        "{line}"
    );
}

#[test]
fn a_process_in_a_systemd_service_is_told_how_pods_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    machine(folder.path());
    let service = "/system.slice/virtual-kubelet.service";
    for (cgroups, is_reported) in [
        (format!("0::{service}\n"), true),
        (format!("0::{service}/inner\n"), true),
        (format!("12:memory:/x.slice\n1:name=systemd:{service}\n"), true),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/app-7.scope\n".to_owned(), false),
        ("0::/user.slice/user-0.slice/session-1.scope\n".to_owned(), false),
        ("0::/\n".to_owned(), false),
        ("5:memory:/a.service\n".to_owned(), false),
    ] {
        write_file(folder.path(), "proc/self/cgroup", &cgroups);
        let findings = examine_host(&Settings::default(), folder.path(), true);
        let found = findings.iter().find(|finding| finding.what == "systemd");
        assert_eq!(found.is_some(), is_reported, "{cgroups}");
        if let Some(found) = found {
            let line = found.to_string();
            assert!(line.contains("virtual-kubelet.service") && line.contains("KillMode=process"), "{line}");
        }
    }
}

#[test]
fn a_firewall_that_drops_pod_traffic_is_reported_unless_pods_use_the_hosts_network() {
    let folder = tempfile::tempdir().unwrap();
    machine(folder.path());
    let obstacle = Some("another firewall drops (chain ip filter FORWARD): let it accept vk1");
    let (severity, line) = finding_about(
        &examine_behind_firewall(&Settings::default(), folder.path(), true, obstacle),
        "firewall",
    );
    assert!(severity == Severity::Warning && line.contains("FORWARD) -> let it accept vk1"), "{line}");
    let host = Settings { network: NetworkMode::Host, ..Settings::default() };
    let findings = examine_behind_firewall(&host, folder.path(), true, obstacle);
    assert!(findings.iter().all(|finding| finding.what != "firewall"), "{findings:#?}");
}
