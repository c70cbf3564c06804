use std::{fs, io};

use vk_pod_engine::machine::pretend::{machine, put};

use super::*;

/// A host that meets all needs.
pub(crate) fn good(folder: &Path) -> Machine {
    let machine = machine(folder);
    status(folder, 0, 0x1ff_ffff_ffff);
    put(folder, "sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory pids\n");
    put(folder, "proc/filesystems", "nodev\tsysfs\nnodev\toverlay\n\text4\n");
    for kind in NAMESPACES {
        put(folder, &format!("proc/self/ns/{kind}"), "");
    }
    machine
}

pub(crate) fn status(folder: &Path, uid: u32, capabilities: u64) {
    let text = format!("Name:\tx\nUid:\t1\t{uid}\t1\t1\nCapEff:\t{capabilities:016x}\nSeccomp:\t0\n");
    put(folder, "proc/self/status", &text);
}

#[expect(clippy::unnecessary_wraps, reason = "the shape of a trial")]
fn works(_: &Path) -> io::Result<()> {
    Ok(())
}

fn refused(_: &Path) -> io::Result<()> {
    Err(io::Error::from(io::ErrorKind::InvalidInput))
}

/// The only unmet need.
fn obstacle(folder: &Path, machine: &Machine, trial: &Trial<'_>) -> Need {
    let allowed = Allowed::on(machine, trial, folder);
    assert_eq!(allowed.level(), Level::Process);
    let obstacles: Vec<&Need> = allowed.obstacles().collect();
    assert_eq!(obstacles.len(), 1, "{obstacles:?}");
    assert!(allowed.why().contains(" -> "), "{}", allowed.why());
    obstacles[0].clone()
}

#[test]
fn a_host_that_meets_all_needs_runs_containers() {
    let folder = tempfile::tempdir().unwrap();
    let machine = good(folder.path());
    let allowed = Allowed::on(&machine, &works, folder.path());
    assert_eq!((allowed.level(), allowed.why().as_str()), (Level::Oci, ""), "{allowed:?}");
    let names: Vec<&str> = allowed.needs.iter().map(|need| need.what).collect();
    assert_eq!(names, ["user", "capabilities", "namespaces", "cgroups", "overlay"]);
}

#[test]
fn without_root_only_the_user_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let machine = good(folder.path());
    status(folder.path(), 1000, 0);
    let need = obstacle(folder.path(), &machine, &refused);
    assert_eq!(need.what, "user");
    assert!(need.found.contains("1000") && need.remedy.unwrap().contains("as root"));
}

#[test]
fn each_unmet_need_is_reported_with_its_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let machine = good(path);
    status(path, 0, 0x1ff_ffff_ffff & !(1 << 21) & !(1 << 27));
    let need = obstacle(path, &machine, &works);
    assert!(need.found.contains("CAP_SYS_ADMIN, CAP_MKNOD"), "{need:?}");
    assert!(need.remedy.unwrap().contains("privileged"));

    status(path, 0, 0x1ff_ffff_ffff);
    fs::remove_file(path.join("proc/self/ns/net")).unwrap();
    let need = obstacle(path, &machine, &works);
    assert!(need.what == "namespaces" && need.found.contains("net"), "{need:?}");
    put(path, "proc/self/ns/net", "");

    put(path, "sys/fs/cgroup/cgroup.controllers", "cpu pids\n");
    let need = obstacle(path, &machine, &works);
    assert!(need.what == "cgroups" && need.found.contains("memory"), "{need:?}");
    fs::remove_file(path.join("sys/fs/cgroup/cgroup.controllers")).unwrap();
    let need = obstacle(path, &machine, &works);
    assert!(need.found.contains("none are mounted"), "{need:?}");
    put(path, "proc/cgroups", "#name\nmemory\t1\t2\t1\ncpu\t2\t1\t1\npids\t3\t1\t1\n");
    for controller in ["memory", "cpu", "pids"] {
        fs::create_dir_all(path.join("sys/fs/cgroup").join(controller)).unwrap();
    }
    assert_eq!(Allowed::on(&machine, &works, path).level(), Level::Oci, "cgroup v1 is supported");

    let need = obstacle(path, &machine, &refused);
    assert!(need.what == "overlay" && need.remedy.unwrap().contains("stateDir"));
    put(path, "proc/filesystems", "\text4\n");
    let need = obstacle(path, &machine, &refused);
    assert!(need.found.contains("not supported by the kernel"), "{need:?}");
    assert_eq!(Allowed::on(&machine, &works, path).level(), Level::Oci, "the test loads the module");
}

#[test]
fn the_overlay_test_leaves_nothing_behind_and_accepts_missing_storage() {
    let folder = tempfile::tempdir().unwrap();
    // The result depends on the user who runs the test; that nothing is left does not.
    drop(try_overlay(folder.path()));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    let machine = good(folder.path());
    let asked = std::cell::RefCell::new(None);
    let trial = |path: &Path| {
        *asked.borrow_mut() = Some(path.to_owned());
        Ok(())
    };
    Allowed::on(&machine, &trial, &folder.path().join("not/made/yet"));
    assert_eq!(asked.into_inner().as_deref(), Some(folder.path()));
}
