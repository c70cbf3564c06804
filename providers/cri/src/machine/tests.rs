use std::path::Path;

use super::*;

/// A machine of files, for tests: 4 processors, 8 GiB, pages of 2 MiB.
pub(crate) fn machine(folder: &Path) -> Machine {
    for (path, text) in [
        ("proc/meminfo", "MemTotal:        8388608 kB\nMemFree: 1 kB\nMemAvailable:    4194304 kB\n"),
        (
            "proc/cpuinfo",
            "processor\t: 0\nmodel\t: x\n\nprocessor\t: 1\n\nprocessor\t: 2\n\nprocessor\t: 3\n",
        ),
        ("proc/loadavg", "0.1 0.2 0.3 2/345 9999\n"),
        ("proc/sys/kernel/pid_max", "32768\n"),
        ("proc/sys/kernel/osrelease", "6.18.1-test\n"),
        ("proc/sys/kernel/random/boot_id", "boot\n"),
        ("proc/self/status", "Name:\tx\nCapEff:\t000001ffffffffff\n"),
        ("proc/self/oom_score_adj", "-5\n"),
        ("etc/machine-id", "mid\n"),
        ("etc/os-release", "NAME=x\nPRETTY_NAME=\"Test Linux 1\"\n"),
        ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "512\n"),
        ("sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "0\n"),
    ] {
        put(folder, path, text);
    }
    Machine::at(folder, folder)
}

pub(crate) fn put(folder: &Path, path: &str, text: &str) {
    let path = folder.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

#[test]
fn a_node_is_as_big_as_the_machine_and_pods_get_what_is_not_reserved() {
    let folder = tempfile::tempdir().unwrap();
    let machine = machine(folder.path());
    let mut node = NodeTemplate::default();
    let reserved = Reserved {
        cpu: Some(Quantity::milli(500)),
        memory: Some(Quantity::bytes(1 << 30)),
        ephemeral_storage: None,
    };
    machine.describe(&mut node, &reserved, 110);
    let capacity = |name: &str| node.capacity[name];
    assert_eq!(capacity("cpu"), Quantity::units(4));
    assert_eq!(capacity("memory"), Quantity::bytes(8 << 30));
    assert_eq!(capacity("pods"), Quantity::units(110));
    assert_eq!(capacity("hugepages-2Mi"), Quantity::bytes(1 << 30));
    assert_eq!(capacity("hugepages-1Gi"), Quantity::bytes(0));
    assert!(capacity("ephemeral-storage") > Quantity::bytes(0));
    let allocatable = |name: &str| node.allocatable[name];
    assert_eq!(allocatable("cpu"), Quantity::milli(3500));
    assert_eq!(allocatable("memory"), Quantity::bytes(6 << 30), "1 GiB reserved, 1 GiB in huge pages");
    assert_eq!(allocatable("pods"), Quantity::units(110));
    assert_eq!(node.system.kernel_version, "6.18.1-test");
    assert_eq!(node.system.os_image, "Test Linux 1");
    assert_eq!((node.system.machine_id.as_str(), node.system.boot_id.as_str()), ("mid", "boot"));
    assert_eq!(node.system.system_uuid, "mid", "the next best where the firmware tells none");
}

#[test]
fn more_reserved_than_there_is_leaves_nothing_and_not_less() {
    let folder = tempfile::tempdir().unwrap();
    let mut node = NodeTemplate::default();
    let reserved = Reserved { cpu: Some(Quantity::units(9)), ..Reserved::default() };
    machine(folder.path()).describe(&mut node, &reserved, 110);
    assert_eq!(node.allocatable["cpu"], Quantity::units(0));
}

#[test]
fn the_floor_of_oom_scores_is_our_own_score_without_the_right_to_lower_it() {
    let folder = tempfile::tempdir().unwrap();
    let machine = machine(folder.path());
    assert_eq!(machine.oom_score_floor(), -1000);
    put(folder.path(), "proc/self/status", "CapEff:\t000001fffeffffff\n");
    assert_eq!(machine.capable(CAP_SYS_RESOURCE), Some(false));
    assert_eq!(machine.oom_score_floor(), -5);
}

#[test]
fn this_machine_can_be_read() {
    let here = Machine::here(std::env::temp_dir().join("not/made/yet"));
    assert!(here.memory().unwrap() > here.available_memory().unwrap());
    assert!(here.processors().unwrap() > 0);
    assert!(here.space().unwrap().bytes > 0);
    let (left, most) = here.processes().unwrap();
    assert!(left <= most && left > 0);
}
