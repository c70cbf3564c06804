use crate::backend::MemoryUsage;

use super::*;

/// A directory tree like a cgroup filesystem.
fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    folder
}

/// From a host with cgroup v2 only, shortened.
fn v2() -> tempfile::TempDir {
    tree(&[
        ("cgroup.controllers", "cpuset cpu io memory hugetlb pids rdma misc\n"),
        ("cgroup.subtree_control", "cpu memory pids\n"),
        ("vk/cgroup.subtree_control", ""),
        ("vk/pod1/cgroup.subtree_control", ""),
        ("vk/pod1/cgroup.procs", ""),
        ("vk/pod1/cpu.stat", "usage_usec 1234567\nuser_usec 1000000\nsystem_usec 234567\nnr_periods 0\n"),
        ("vk/pod1/memory.current", "10485760\n"),
        ("vk/pod1/memory.max", "20971520\n"),
        (
            "vk/pod1/memory.stat",
            "anon 4194304\nfile 6000000\ninactive_file 2097152\npgfault 900\npgmajfault 3\n",
        ),
        ("vk/pod1/pids.current", "5\n"),
        ("vk/pod1/c/cgroup.procs", ""),
        ("vk/pod1/c/memory.current", "4096\n"),
        ("vk/pod1/c/memory.max", "max\n"),
    ])
}

fn v1() -> tempfile::TempDir {
    tree(&[
        ("cpu,cpuacct/tasks", ""),
        ("cpu,cpuacct/vk/p/cpuacct.usage", "987654321\n"),
        ("cpu,cpuacct/vk/p/cgroup.procs", ""),
        ("memory/tasks", ""),
        ("memory/vk/p/memory.usage_in_bytes", "1000000\n"),
        ("memory/vk/p/memory.limit_in_bytes", "9223372036854771712\n"),
        (
            "memory/vk/p/memory.stat",
            "rss 1\ntotal_rss 300000\ntotal_inactive_file 400000\ntotal_pgfault 7\ntotal_pgmajfault 1\n",
        ),
        ("pids/tasks", ""),
        ("pids/vk/p/pids.current", "2\n"),
        ("unified/cgroup.controllers", ""),
    ])
}

fn limits() -> Resources {
    Resources {
        cpu_period: 100_000,
        cpu_quota: 50_000,
        cpu_shares: 1024,
        memory_limit: 1 << 26,
        ..Resources::default()
    }
}

#[test]
fn usage_is_read_from_version_2() {
    let folder = v2();
    let cgroups = HostCgroups::detect(folder.path()).unwrap();
    assert!(cgroups.is_unified() && cgroups.hierarchies().is_empty());
    let usage = cgroups.usage("/vk/pod1").unwrap();
    assert_eq!(usage.cpu_nanos, Some(1_234_567_000));
    assert_eq!(usage.processes, Some(5));
    let expected = MemoryUsage {
        working_set: 10_485_760 - 2_097_152,
        available: Some(20_971_520 - (10_485_760 - 2_097_152)),
        usage: Some(10_485_760),
        rss: Some(4_194_304),
        page_faults: Some(900),
        major_page_faults: Some(3),
    };
    assert_eq!(usage.memory, Some(expected));
    let inner = cgroups.usage("/vk/pod1/c").unwrap().memory.unwrap();
    assert_eq!((inner.working_set, inner.available), (4096, None), "`max` means no limit");
    assert_eq!(cgroups.usage("/vk/gone"), None);
}

#[test]
fn usage_is_read_from_version_1() {
    let folder = v1();
    let cgroups = HostCgroups::detect(folder.path()).unwrap();
    assert!(!cgroups.is_unified());
    assert_eq!(cgroups.hierarchies(), ["cpu,cpuacct", "memory", "pids"]);
    assert!(cgroups.has("cpuacct") && cgroups.has("cpu") && !cgroups.has("hugetlb"));
    let usage = cgroups.usage("vk/p").unwrap();
    assert_eq!((usage.cpu_nanos, usage.processes), (Some(987_654_321), Some(2)));
    let memory = usage.memory.unwrap();
    assert_eq!((memory.working_set, memory.available, memory.rss), (600_000, None, Some(300_000)));
    assert_eq!(cgroups.usage("vk/gone"), None);
}

#[test]
fn limits_are_written_for_version_2_and_controllers_are_enabled() {
    let folder = v2();
    let cgroups = HostCgroups::detect(folder.path()).unwrap();
    let limits = Resources {
        unified: [
            ("memory.oom.group".to_owned(), "1".to_owned()),
            ("memory.swap.max".to_owned(), "0".to_owned()),
        ]
        .into(),
        ..limits()
    };
    cgroups.create("/vk/pod1", Some(&limits)).unwrap();
    let text = |path: &str| fs::read_to_string(folder.path().join("vk/pod1").join(path)).unwrap_or_default();
    assert_eq!(text("cpu.weight"), "39");
    assert_eq!(text("cpu.max"), "50000 100000");
    assert_eq!(text("memory.max"), "67108864");
    assert_eq!(text("memory.swap.max"), "0");
    assert_eq!(text("memory.oom.group"), "", "it only applies to the cgroup of a container");
    // Each controller is written separately; a regular file keeps the last one.
    assert_eq!(text("cgroup.subtree_control"), "+pids");
}

#[test]
fn limits_are_written_for_version_1() {
    let folder = v1();
    let cgroups = HostCgroups::detect(folder.path()).unwrap();
    cgroups.create("/vk/p", Some(&limits())).unwrap();
    let text = |path: &str| fs::read_to_string(folder.path().join(path)).unwrap_or_default();
    assert_eq!(text("cpu,cpuacct/vk/p/cpu.shares"), "1024");
    assert_eq!(text("cpu,cpuacct/vk/p/cpu.cfs_quota_us"), "50000");
    assert_eq!(text("memory/vk/p/memory.limit_in_bytes"), "67108864");
}

#[test]
fn a_limit_that_is_gone_is_removed() {
    let weight = Resources { cpu_shares: 2, ..Resources::default() };
    let folder = v2();
    let cgroups = HostCgroups::detect(folder.path()).unwrap();
    cgroups.create("/vk/pod1", Some(&limits())).unwrap();
    cgroups.create("/vk/pod1", Some(&weight)).unwrap();
    let text = |path: &str| fs::read_to_string(folder.path().join("vk/pod1").join(path)).unwrap_or_default();
    assert_eq!(
        (text("cpu.weight"), text("cpu.max"), text("memory.max")),
        ("1".into(), "max".into(), "max".into())
    );
    let folder = v1();
    let cgroups = HostCgroups::detect(folder.path()).unwrap();
    cgroups.create("/vk/p", Some(&limits())).unwrap();
    cgroups.create("/vk/p", None).unwrap();
    let text = |path: &str| fs::read_to_string(folder.path().join(path)).unwrap_or_default();
    assert_eq!(text("memory/vk/p/memory.limit_in_bytes"), "67108864", "nothing was asked for");
    cgroups.create("/vk/p", Some(&weight)).unwrap();
    assert_eq!(text("cpu,cpuacct/vk/p/cpu.shares"), "2");
    assert_eq!(text("cpu,cpuacct/vk/p/cpu.cfs_quota_us"), "-1");
    assert_eq!(text("memory/vk/p/memory.limit_in_bytes"), "-1");
}

#[test]
fn the_root_and_paths_outside_of_it_are_rejected() {
    let folder = v2();
    let cgroups = HostCgroups::detect(folder.path()).unwrap();
    for path in ["", "/", "/vk/../..", "..", "/vk/./../x"] {
        assert_eq!(cgroups.kill(path).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{path:?}");
        assert!(cgroups.remove(path).is_err() && cgroups.create(path, None).is_err(), "{path:?}");
        assert_eq!(cgroups.usage(path), None);
    }
    assert!(folder.path().join("vk/pod1").exists());
}

#[test]
fn a_missing_controller_is_reported() {
    let folder = tree(&[("cgroup.controllers", "cpu pids\n")]);
    let error = HostCgroups::detect(folder.path()).unwrap_err().to_string();
    assert!(error.contains("no cgroup controller \"memory\""), "{error}");
    assert!(HostCgroups::detect("/nowhere").is_err());
}

#[test]
fn killing_and_removing_a_missing_cgroup_is_not_an_error() {
    let folder = v2();
    let cgroups = HostCgroups::detect(folder.path()).unwrap();
    cgroups.kill("/vk/gone").unwrap();
    cgroups.remove("/vk/gone").unwrap();
    assert!(!cgroups.exists("/vk/gone") && cgroups.exists("/vk/pod1"));
}

#[test]
fn oom_kills_are_counted_in_both_versions() {
    let folder = v2();
    let events = "low 0\nhigh 0\nmax 3\noom 1\noom_kill 1\noom_group_kill 0\n";
    fs::write(folder.path().join("vk/pod1/memory.events"), events).unwrap();
    assert_eq!(HostCgroups::detect(folder.path()).unwrap().oom_kills("/vk/pod1"), 1);
    let folder = v1();
    fs::create_dir_all(folder.path().join("memory/vk/p")).unwrap();
    fs::write(folder.path().join("memory/cgroup.procs"), "").unwrap();
    let control = "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n";
    fs::write(folder.path().join("memory/vk/p/memory.oom_control"), control).unwrap();
    assert_eq!(HostCgroups::detect(folder.path()).unwrap().oom_kills("/vk/p"), 2);
}
