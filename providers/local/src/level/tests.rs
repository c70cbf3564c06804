use std::{fs, io};

use vk_pod_engine::testing::host::{fake_host, write_file};

use super::*;

/// A machine on which everything is allowed.
pub(crate) fn good(folder: &Path) -> Host {
    let machine = fake_host(folder);
    status(folder, 0, 0x1ff_ffff_ffff);
    write_file(folder, "sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory pids\n");
    write_file(folder, "proc/filesystems", "nodev\tsysfs\nnodev\toverlay\n\text4\n");
    for kind in NAMESPACES {
        write_file(folder, &format!("proc/self/ns/{kind}"), "");
    }
    machine
}

pub(crate) fn status(folder: &Path, uid: u32, capabilities: u64) {
    let text = format!("Name:\tx\nUid:\t1\t{uid}\t1\t1\nCapEff:\t{capabilities:016x}\nSeccomp:\t0\n");
    write_file(folder, "proc/self/status", &text);
}

#[expect(clippy::unnecessary_wraps, reason = "the shape of a trial")]
fn works(_: &Path) -> io::Result<()> {
    Ok(())
}

fn refused(_: &Path) -> io::Result<()> {
    Err(io::Error::from(io::ErrorKind::InvalidInput))
}

/// The only thing that stands in the way.
fn obstacle(folder: &Path, machine: &Host, trial: &Trial<'_>) -> Need {
    let allowed = Allowed::on(machine, trial, folder);
    assert_eq!(allowed.level(), Level::Process);
    let obstacles: Vec<&Need> = allowed.obstacles().collect();
    assert_eq!(obstacles.len(), 1, "{obstacles:?}");
    assert!(allowed.why().contains(" -> "), "{}", allowed.why());
    obstacles[0].clone()
}

#[test]
fn a_machine_that_has_everything_runs_containers() {
    let folder = tempfile::tempdir().unwrap();
    let machine = good(folder.path());
    let allowed = Allowed::on(&machine, &works, folder.path());
    assert_eq!((allowed.level(), allowed.why().as_str()), (Level::Oci, ""), "{allowed:?}");
    let names: Vec<&str> = allowed.needs.iter().map(|need| need.what).collect();
    assert_eq!(names, ["user", "capabilities", "namespaces", "cgroups", "overlay"]);
}

#[test]
fn without_root_that_is_the_one_thing_to_be_told() {
    let folder = tempfile::tempdir().unwrap();
    let machine = good(folder.path());
    status(folder.path(), 1000, 0);
    let need = obstacle(folder.path(), &machine, &refused);
    assert_eq!(need.what, "user");
    assert!(need.found.contains("1000") && need.remedy.unwrap().contains("as root"));
}

#[test]
fn each_obstacle_is_told_by_name_with_its_remedy() {
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
    write_file(path, "proc/self/ns/net", "");

    write_file(path, "sys/fs/cgroup/cgroup.controllers", "cpu pids\n");
    let need = obstacle(path, &machine, &works);
    assert!(need.what == "cgroups" && need.found.contains("memory"), "{need:?}");
    fs::remove_file(path.join("sys/fs/cgroup/cgroup.controllers")).unwrap();
    let need = obstacle(path, &machine, &works);
    assert!(need.found.contains("none are mounted"), "{need:?}");
    write_file(path, "proc/cgroups", "#name\nmemory\t1\t2\t1\ncpu\t2\t1\t1\npids\t3\t1\t1\n");
    for controller in ["memory", "cpu", "pids"] {
        fs::create_dir_all(path.join("sys/fs/cgroup").join(controller)).unwrap();
    }
    assert_eq!(Allowed::on(&machine, &works, path).level(), Level::Oci, "version 1 is as good");

    let need = obstacle(path, &machine, &refused);
    assert!(need.what == "overlay" && need.remedy.unwrap().contains("stateDir"));
    write_file(path, "proc/filesystems", "\text4\n");
    let need = obstacle(path, &machine, &refused);
    assert!(need.found.contains("the kernel has none"), "{need:?}");
    assert_eq!(Allowed::on(&machine, &works, path).level(), Level::Oci, "the trial has loaded it");
}

#[test]
fn a_trial_leaves_nothing_and_storage_may_not_be_there_yet() {
    let folder = tempfile::tempdir().unwrap();
    // Whether it works depends on who runs this; that it leaves nothing does not.
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
