use std::{fs, io};

use vk_pod_engine::testing::host::{fake_host, write_file};

use super::*;

/// A host that meets all needs.
pub(crate) fn capable_host(folder: &Path) -> Host {
    let host = fake_host(folder);
    status(folder, 0, 0x1ff_ffff_ffff);
    write_file(folder, "sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory pids\n");
    write_file(folder, "proc/filesystems", "nodev\tsysfs\nnodev\toverlay\n\text4\n");
    for kind in NAMESPACES {
        write_file(folder, &format!("proc/self/ns/{kind}"), "");
    }
    host
}

pub(crate) fn status(folder: &Path, uid: u32, capabilities: u64) {
    let text = format!("Name:\tx\nUid:\t1\t{uid}\t1\t1\nCapEff:\t{capabilities:016x}\nSeccomp:\t0\n");
    write_file(folder, "proc/self/status", &text);
}

#[expect(clippy::unnecessary_wraps, reason = "the shape of a test")]
fn succeeds(_: &Path) -> io::Result<()> {
    Ok(())
}

fn fails(_: &Path) -> io::Result<()> {
    Err(io::Error::from(io::ErrorKind::InvalidInput))
}

/// The only unmet need.
fn only_unmet(folder: &Path, host: &Host, test: &OverlayTest<'_>) -> Requirement {
    let support = IsolationSupport::check(host, test, folder);
    assert_eq!(support.best(), Isolation::Process);
    let unmet: Vec<&Requirement> = support.unmet().collect();
    assert_eq!(unmet.len(), 1, "{unmet:?}");
    assert!(support.reasons().contains(" -> "), "{}", support.reasons());
    unmet[0].clone()
}

#[test]
fn a_host_that_meets_all_needs_runs_containers() {
    let folder = tempfile::tempdir().unwrap();
    let host = capable_host(folder.path());
    let support = IsolationSupport::check(&host, &succeeds, folder.path());
    assert_eq!((support.best(), support.reasons().as_str()), (Isolation::Oci, ""), "{support:?}");
    let names: Vec<&str> = support.requirements.iter().map(|requirement| requirement.what).collect();
    assert_eq!(names, ["user", "capabilities", "namespaces", "cgroups", "overlay"]);
}

#[test]
fn without_root_only_the_user_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let host = capable_host(folder.path());
    status(folder.path(), 1000, 0);
    let requirement = only_unmet(folder.path(), &host, &fails);
    assert_eq!(requirement.what, "user");
    assert!(requirement.found.contains("1000") && requirement.remedy.unwrap().contains("as root"));
}

#[test]
fn each_unmet_need_is_reported_with_its_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let host = capable_host(path);
    status(path, 0, 0x1ff_ffff_ffff & !(1 << 21) & !(1 << 27));
    let requirement = only_unmet(path, &host, &succeeds);
    assert!(requirement.found.contains("CAP_SYS_ADMIN, CAP_MKNOD"), "{requirement:?}");
    assert!(requirement.remedy.unwrap().contains("privileged"));

    status(path, 0, 0x1ff_ffff_ffff);
    fs::remove_file(path.join("proc/self/ns/net")).unwrap();
    let requirement = only_unmet(path, &host, &succeeds);
    assert!(requirement.what == "namespaces" && requirement.found.contains("net"), "{requirement:?}");
    write_file(path, "proc/self/ns/net", "");

    write_file(path, "sys/fs/cgroup/cgroup.controllers", "cpu pids\n");
    let requirement = only_unmet(path, &host, &succeeds);
    assert!(requirement.what == "cgroups" && requirement.found.contains("memory"), "{requirement:?}");
    fs::remove_file(path.join("sys/fs/cgroup/cgroup.controllers")).unwrap();
    let requirement = only_unmet(path, &host, &succeeds);
    assert!(requirement.found.contains("none are mounted"), "{requirement:?}");
    write_file(path, "proc/cgroups", "#name\nmemory\t1\t2\t1\ncpu\t2\t1\t1\npids\t3\t1\t1\n");
    for controller in ["memory", "cpu", "pids"] {
        fs::create_dir_all(path.join("sys/fs/cgroup").join(controller)).unwrap();
    }
    assert_eq!(
        IsolationSupport::check(&host, &succeeds, path).best(),
        Isolation::Oci,
        "cgroup v1 is supported"
    );

    let requirement = only_unmet(path, &host, &fails);
    assert!(requirement.what == "overlay" && requirement.remedy.unwrap().contains("stateDir"));
    write_file(path, "proc/filesystems", "\text4\n");
    let requirement = only_unmet(path, &host, &fails);
    assert!(requirement.found.contains("not supported by the kernel"), "{requirement:?}");
    assert_eq!(
        IsolationSupport::check(&host, &succeeds, path).best(),
        Isolation::Oci,
        "the test loads the module"
    );
}

#[test]
fn the_overlay_test_leaves_nothing_behind_and_accepts_missing_storage() {
    let folder = tempfile::tempdir().unwrap();
    // The result depends on the user who runs the test; that nothing is left does not.
    drop(test_overlay(folder.path()));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    let host = capable_host(folder.path());
    let asked = std::cell::RefCell::new(None);
    let test = |path: &Path| {
        *asked.borrow_mut() = Some(path.to_owned());
        Ok(())
    };
    IsolationSupport::check(&host, &test, &folder.path().join("not/made/yet"));
    assert_eq!(asked.into_inner().as_deref(), Some(folder.path()));
}
