use super::*;
use crate::testing::host::{fake_host, write_file};

#[test]
fn a_node_is_as_big_as_the_machine_and_pods_get_what_is_not_reserved() {
    let folder = tempfile::tempdir().unwrap();
    let host = fake_host(folder.path());
    let mut node = NodeTemplate::default();
    let reserved = ReservedResources {
        cpu: Some(Quantity::milli(500)),
        memory: Some(Quantity::bytes(1 << 30)),
        ephemeral_storage: None,
    };
    host.describe(&mut node, &reserved, 110);
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
    assert_eq!(node.system.system_uuid, "mid", "the machine id if the firmware has none");
}

#[test]
fn more_reserved_than_there_is_leaves_nothing_and_not_less() {
    let folder = tempfile::tempdir().unwrap();
    let mut node = NodeTemplate::default();
    let reserved = ReservedResources { cpu: Some(Quantity::units(9)), ..ReservedResources::default() };
    fake_host(folder.path()).describe(&mut node, &reserved, 110);
    assert_eq!(node.allocatable["cpu"], Quantity::units(0));
}

#[test]
fn the_floor_of_oom_scores_is_our_own_score_without_the_right_to_lower_it() {
    let folder = tempfile::tempdir().unwrap();
    let host = fake_host(folder.path());
    assert_eq!(host.oom_score_floor(), -1000);
    write_file(folder.path(), "proc/self/status", "CapEff:\t000001fffeffffff\n");
    assert_eq!(host.has_capability(CAP_SYS_RESOURCE), Some(false));
    assert_eq!(host.oom_score_floor(), -5);
}

#[test]
fn all_pods_together_are_limited_to_what_is_not_reserved() {
    let folder = tempfile::tempdir().unwrap();
    let host = fake_host(folder.path());
    let limits = |cpu: Option<i64>, memory: Option<i64>| {
        let reserved = ReservedResources {
            cpu: cpu.map(Quantity::milli),
            memory: memory.map(Quantity::bytes),
            ephemeral_storage: None,
        };
        let made = host.allocatable_limits(&reserved);
        assert_eq!(made.cpu_quota, 0, "processors are a weight, as in a kubelet");
        (made.cpu_shares, made.memory_limit)
    };
    assert_eq!(limits(None, None), (4096, 7 << 30), "1 GiB is in huge pages");
    assert_eq!(limits(Some(500), Some(1 << 30)), (3584, 6 << 30));
    assert_eq!(limits(None, Some(100 << 30)), (4096, 1), "nothing is left, which is not no limit");
}

#[test]
fn the_agent_is_spared_by_the_oom_killer_where_it_may_ask_for_that() {
    let folder = tempfile::tempdir().unwrap();
    let host = fake_host(folder.path());
    host.protect_from_oom_killer().unwrap();
    assert_eq!(host.read("proc/self/oom_score_adj").unwrap(), "-999");
}

#[test]
fn this_machine_can_be_read() {
    let local = Host::local(std::env::temp_dir().join("not/made/yet"));
    assert!(local.memory().unwrap() > local.available_memory().unwrap());
    assert!(local.processors().unwrap() > 0);
    assert!(local.space().unwrap().bytes > 0);
    let (left, most) = local.processes().unwrap();
    assert!(left <= most && left > 0);
}
