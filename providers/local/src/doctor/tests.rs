use std::{io, path::PathBuf};

use vk_pod_engine::testing::host::write_file;
use vk_provider::finding::Level as Gravity;

use super::*;
use crate::level::tests::{good, status};

fn look(settings: &Settings, folder: &Path, works: bool) -> Vec<Finding> {
    behind(settings, folder, works, None)
}

fn behind(settings: &Settings, folder: &Path, works: bool, firewall: Option<&str>) -> Vec<Finding> {
    let trial = |_: &Path| if works { Ok(()) } else { Err(io::Error::from(io::ErrorKind::InvalidInput)) };
    let node = folder.join("state/node");
    let images: PathBuf = folder.join("state/images");
    let machine = Host::with_root(folder, folder);
    let firewall = || firewall.map(str::to_owned);
    examine(settings, &machine, &trial, &firewall, &Places { node: &node, images: &images })
}

fn about(findings: &[Finding], what: &str) -> (Gravity, String) {
    let found = findings.iter().find(|finding| finding.what == what);
    let found = found.unwrap_or_else(|| panic!("nothing about {what}: {findings:?}"));
    (found.level, found.to_string())
}

fn machine(folder: &Path) {
    good(folder);
    write_file(folder, "proc/sys/net/ipv4/ip_forward", "0\n");
}

#[test]
fn a_good_machine_has_nothing_to_complain_about() {
    let folder = tempfile::tempdir().unwrap();
    machine(folder.path());
    let findings = look(&Settings::default(), folder.path(), true);
    // How full the disk is that tests write to is not theirs to say.
    let wrong = |finding: &&Finding| finding.level != Gravity::Ok && finding.what != "disk";
    assert_eq!(findings.iter().find(wrong), None, "{findings:#?}");
    assert!(about(&findings, "isolation").1.contains("level oci"));
    assert!(about(&findings, "image store").1.contains("will be made"));
}

#[test]
fn a_machine_without_root_is_told_its_level_and_why_not_a_higher_one() {
    let folder = tempfile::tempdir().unwrap();
    machine(folder.path());
    status(folder.path(), 1000, 0);
    let findings = look(&Settings::default(), folder.path(), false);
    let (gravity, line) = about(&findings, "isolation");
    assert!(gravity == Gravity::Warning && line.contains("level process"), "{line}");
    let (gravity, line) = about(&findings, "user");
    assert!(gravity == Gravity::Warning && line.contains("-> run virtual-kubelet as root"), "{line}");
    assert!(findings.iter().all(|finding| finding.level != Gravity::Error), "pods do run: {findings:#?}");
}

#[test]
fn a_level_that_is_demanded_and_not_allowed_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    machine(folder.path());
    let demanding = Settings { level: Some(Level::Oci), ..Settings::default() };
    let findings = look(&demanding, folder.path(), false);
    assert_eq!(about(&findings, "isolation").0, Gravity::Error);
    let (gravity, line) = about(&findings, "overlay");
    assert!(gravity == Gravity::Error && line.contains("stateDir"), "{line}");
    let modest = Settings { level: Some(Level::Process), ..Settings::default() };
    let (gravity, line) = about(&look(&modest, folder.path(), true), "isolation");
    assert!(gravity == Gravity::Warning && line.contains("allows oci"), "{line}");
}

#[test]
fn what_pods_would_miss_is_told_beside_the_level() {
    let folder = tempfile::tempdir().unwrap();
    machine(folder.path());
    status(folder.path(), 0, 0x1ff_ffff_ffff & !(1 << CAP_NET_ADMIN) & !(1 << CAP_SYS_RESOURCE));
    let findings = look(&Settings::default(), folder.path(), true);
    let (gravity, line) = about(&findings, "pod network");
    assert!(gravity == Gravity::Warning && line.contains("the machine's network"), "{line}");
    let (gravity, line) = about(&findings, "OOM scores");
    assert!(gravity == Gravity::Warning && line.contains("below -5"), "{line}");
    assert_eq!(about(&findings, "resource limits").0, Gravity::Warning);
    let bridge = Settings { network: NetworkMode::Bridge, ..Settings::default() };
    assert_eq!(about(&look(&bridge, folder.path(), true), "pod network").0, Gravity::Error);
    let host = Settings { network: NetworkMode::Host, ..Settings::default() };
    assert_eq!(about(&look(&host, folder.path(), true), "pod network").0, Gravity::Warning);
    write_file(folder.path(), "proc/self/status", "Uid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff\n");
    assert_eq!(about(&look(&Settings::default(), folder.path(), true), "seccomp").0, Gravity::Warning);
}

#[test]
fn a_disk_with_too_little_free_is_told() {
    let folder = tempfile::tempdir().unwrap();
    machine(folder.path());
    let at = |bytes| {
        disk(&Host::with_root(folder.path(), folder.path()).with_min_free_space(Some(bytes))).unwrap()
    };
    assert_eq!(at(0).level, Gravity::Ok);
    let short = at(u64::MAX);
    assert!(short.level == Gravity::Warning && short.remedy.contains("`minFreeDisk`"), "{short}");
}

#[test]
fn a_directory_that_cannot_be_made_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    machine(folder.path());
    write_file(folder.path(), "state", "a file in its place");
    let findings = look(&Settings::default(), folder.path(), true);
    let (gravity, line) = about(&findings, "image store");
    assert!(
        gravity == Gravity::Error && line.contains("is no directory") && line.contains("`imageDir`"),
        "{line}"
    );
}

#[test]
fn a_process_in_a_service_of_systemd_is_told_how_pods_outlive_it() {
    let folder = tempfile::tempdir().unwrap();
    machine(folder.path());
    let service = "/system.slice/virtual-kubelet.service";
    for (cgroups, told) in [
        (format!("0::{service}\n"), true),
        (format!("0::{service}/inner\n"), true),
        (format!("12:memory:/x.slice\n1:name=systemd:{service}\n"), true),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/app-7.scope\n".to_owned(), false),
        ("0::/user.slice/user-0.slice/session-1.scope\n".to_owned(), false),
        ("0::/\n".to_owned(), false),
        ("5:memory:/a.service\n".to_owned(), false),
    ] {
        write_file(folder.path(), "proc/self/cgroup", &cgroups);
        let findings = look(&Settings::default(), folder.path(), true);
        let found = findings.iter().find(|finding| finding.what == "systemd");
        assert_eq!(found.is_some(), told, "{cgroups}");
        if let Some(found) = found {
            let line = found.to_string();
            assert!(line.contains("virtual-kubelet.service") && line.contains("KillMode=process"), "{line}");
        }
    }
}

#[test]
fn another_firewall_is_told_with_its_remedy_unless_pods_have_the_machines_network() {
    let folder = tempfile::tempdir().unwrap();
    machine(folder.path());
    let obstacle = Some("another firewall drops (chain ip filter FORWARD): let it accept vk1");
    let (gravity, line) = about(&behind(&Settings::default(), folder.path(), true, obstacle), "firewall");
    assert!(gravity == Gravity::Warning && line.contains("FORWARD) -> let it accept vk1"), "{line}");
    let host = Settings { network: NetworkMode::Host, ..Settings::default() };
    let findings = behind(&host, folder.path(), true, obstacle);
    assert!(findings.iter().all(|finding| finding.what != "firewall"), "{findings:#?}");
}
