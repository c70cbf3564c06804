use std::{fs, path::Path};

use serde_json::{Value, json};

use super::*;
use crate::spec::tests::settings;

/// A directory like the cgroup filesystem of version 2.
fn host() -> (tempfile::TempDir, HostCgroups) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("cgroup.controllers"), "cpu memory pids\n").unwrap();
    let cgroups = HostCgroups::detect(folder.path()).unwrap();
    (folder, cgroups)
}

fn pod_cgroups(cgroups: HostCgroups) -> PodCgroups {
    let allocatable = spec::node_limits(Some(Quantity::units(2)), Some(Quantity::bytes(1 << 30)));
    let settings =
        Settings { cgroups: Some(cgroups), cgroup_root: Some("/vk".to_owned()), allocatable, ..settings() };
    PodCgroups::new(&settings).unwrap()
}

fn pod(uid: &str, resources: &Value) -> (Pod, PodRef) {
    let pod = json!({
        "metadata": { "name": uid, "namespace": "default", "uid": uid },
        "spec": { "containers": [{ "name": "c", "resources": resources }] },
    });
    (serde_json::from_value(pod).unwrap(), PodRef::new("default", uid, uid))
}

fn text(folder: &Path, path: &str) -> String {
    fs::read_to_string(folder.join("vk").join(path)).unwrap_or_default()
}

#[test]
fn the_node_is_limited_to_what_is_allocatable_and_best_effort_pods_weigh_least() {
    let (folder, cgroups) = host();
    let cgroups = pod_cgroups(cgroups);
    cgroups.set_up().unwrap();
    assert_eq!(text(folder.path(), "memory.max"), (1 << 30).to_string());
    // 2048 shares, and 2.
    assert_eq!(text(folder.path(), "cpu.weight"), "79");
    assert_eq!(text(folder.path(), "besteffort/cpu.weight"), "1");
    assert_eq!(text(folder.path(), "burstable/cpu.weight"), "1", "no pod requests anything yet");
}

#[test]
fn burstable_pods_weigh_as_much_as_they_request_together_while_they_run() {
    let (folder, cgroups) = host();
    let cgroups = pod_cgroups(cgroups);
    let weight = |milli: i64| (1 + (milli * 1024 / 1000 - 2) * 9999 / 262_142).to_string();
    let now = || text(folder.path(), "burstable/cpu.weight");
    let features = HostFeatures::default();
    for (uid, cpu, sum) in [("a", "1", 1000), ("b", "3", 4000), ("b", "3", 4000)] {
        let (pod, reference) = pod(uid, &json!({ "requests": { "cpu": cpu } }));
        cgroups.ensure(&pod, &reference, &features).unwrap();
        assert_eq!(now(), weight(sum), "{uid}");
    }
    let same = json!({ "cpu": "5", "memory": "1Gi" });
    let (guaranteed, reference) = pod("c", &json!({ "requests": same, "limits": same }));
    cgroups.ensure(&guaranteed, &reference, &features).unwrap();
    assert_eq!(now(), weight(4000), "a guaranteed pod is beside them");
    assert_eq!(text(folder.path(), "podc/cpu.weight"), weight(5000));
    assert_eq!(text(folder.path(), "podc/memory.max"), (1 << 30).to_string());
    cgroups.release("a");
    cgroups.release("c");
    assert_eq!(now(), weight(3000));
    // Whatever somebody else wrote is corrected.
    fs::write(folder.path().join("vk/burstable/cpu.weight"), "100").unwrap();
    cgroups.set_up().unwrap();
    assert_eq!(now(), weight(3000));
}

#[test]
fn only_empty_cgroups_of_unknown_pods_are_removed() {
    let (folder, cgroups) = host();
    let cgroups = pod_cgroups(cgroups);
    for path in ["burstable/podgone", "burstable/podkept", "podgone", "shims", "burstable/podbusy"] {
        fs::create_dir_all(folder.path().join("vk").join(path)).unwrap();
    }
    // The kernel refuses to remove a cgroup with a process; here a file does the same.
    fs::write(folder.path().join("vk/burstable/podbusy/cgroup.procs"), "1\n").unwrap();
    cgroups.remove_unknown(|uid| uid == "kept");
    let left = |path: &str| folder.path().join("vk").join(path).exists();
    assert!(!left("burstable/podgone") && !left("podgone"));
    assert!(left("burstable/podkept") && left("shims") && left("burstable/podbusy"));
}
