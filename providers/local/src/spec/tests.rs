//! Tests of the essentials of containerd's specs.

use oci_spec::runtime::{LinuxNamespaceType, Spec};
use proptest::prelude::*;
use serde_json::{Value, json};
use vk_pod_engine::backend::{Capabilities, ContainerSecurity, Mount, Namespaces, UserNamespace};
use vk_provider::PodRef;

use super::*;

pub(super) fn container() -> ContainerConfig {
    let config = json!({
        "name": "main", "attempt": 0, "image": "sha256:1", "userImage": "web:1", "command": [], "args": [],
        "workingDir": "", "env": [["MODE", "test"], ["PATH", "/own"]], "mounts": [], "devices": [], "labels": {},
        "annotations": {}, "logPath": "main/0.log", "stdin": false, "stdinOnce": false, "tty": false,
        "resources": Resources { cpu_period: 100_000, cpu_quota: 50_000, cpu_shares: 512, memory_limit: 1 << 26, ..Resources::default() },
        "security": ContainerSecurity {
            masked_paths: vec!["/proc/kcore".into()],
            read_only_paths: vec!["/proc/sys".into()],
            namespaces: Namespaces { pid: Share::Container, ..Namespaces::default() },
            ..ContainerSecurity::default()
        },
        "stopSignal": null,
    });
    serde_json::from_value(config).unwrap()
}

fn sandbox() -> SandboxConfig {
    let config = json!({
        "pod": PodRef::new("default", "web-0", "uid-1"), "attempt": 0, "handler": "", "hostname": "web-0",
        "logDirectory": "/logs", "dns": null, "ports": [], "labels": {}, "annotations": {}, "cgroupParent": "/vk/poduid-1",
        "sysctls": {}, "security": vk_pod_engine::backend::SandboxSecurity::default(), "overhead": null, "resources": null,
    });
    serde_json::from_value(config).unwrap()
}

fn host() -> HostFeatures {
    let capabilities = ["CHOWN", "NET_RAW", "MKNOD", "SYS_ADMIN", "NET_ADMIN", "KILL"];
    HostFeatures {
        hierarchies: vec!["memory".into()],
        cgroup_namespace: true,
        pids: true,
        capabilities: capabilities.iter().map(|name| (*name).to_owned()).collect(),
        devices: vec![DeviceNode {
            path: "/dev/kvm".into(),
            kind: "c",
            major: 10,
            minor: 232,
            mode: 0o666,
            uid: 0,
            gid: 0,
        }],
        ..HostFeatures::default()
    }
}

fn paths() -> PodPaths {
    PodPaths {
        rootfs: "/c/rootfs".into(),
        network: Some("/s/net".into()),
        ipc: Some("/s/ipc".into()),
        uts: Some("/s/uts".into()),
        pid: None,
        shm: Some("/s/shm".into()),
        resolv_conf: Some("/s/resolv.conf".into()),
        hostname: Some("/s/hostname".into()),
    }
}

fn image() -> image::Config {
    let config = json!({
        "Entrypoint": ["/entry"], "Cmd": ["serve"], "Env": ["MODE=image", "LANG=C"], "WorkingDir": "/srv", "StopSignal": "SIGQUIT",
    });
    serde_json::from_value(config).unwrap()
}

fn build_spec(container: &ContainerConfig, host: &HostFeatures, paths: &PodPaths) -> Result<Spec> {
    let image = image();
    let input = SpecInput {
        container,
        sandbox: &sandbox(),
        image: Some(&image),
        identity: &ProcessIdentity { uid: 7, gid: 8, groups: vec![8, 9] },
        paths,
        images: &BTreeMap::from([("/data".to_owned(), PathBuf::from("/images/0"))]),
        devices: &[],
        seccomp: None,
        apparmor: container.security.apparmor.as_deref(),
        host,
        cgroup: "/vk/poduid-1/id",
        pids_limit: Some(100),
        node_hostname: "machine",
    };
    build(&input)
}

fn value(container: &ContainerConfig) -> Value {
    serde_json::to_value(build_spec(container, &host(), &paths()).unwrap()).unwrap()
}

fn names(value: &Value) -> Vec<String> {
    let mut names: Vec<String> =
        value.as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

fn mount<'a>(value: &'a Value, path: &str) -> &'a Value {
    let mut mounts = value["mounts"].as_array().unwrap().iter();
    mounts.find(|mount| mount["destination"] == path).unwrap_or_else(|| panic!("nothing at {path}"))
}

fn at(container_path: &str, host_path: &str) -> Mount {
    serde_json::from_value(json!({
        "containerPath": container_path, "hostPath": host_path, "image": null, "imageSubPath": "", "readOnly": false,
        "recursiveReadOnly": false, "selinuxRelabel": false, "propagation": "Private", "uids": [], "gids": [],
    }))
    .unwrap()
}

#[test]
fn a_simple_container_gets_the_spec_of_containerd() {
    let value = value(&container());
    let process = &value["process"];
    assert_eq!(process["args"], json!(["/entry", "serve"]));
    assert_eq!(process["cwd"], "/srv");
    assert_eq!(process["env"], json!(["PATH=/own", "HOSTNAME=web-0", "MODE=test", "LANG=C"]));
    assert_eq!(process["user"], json!({ "uid": 7, "gid": 8, "additionalGids": [8, 9] }));
    assert_eq!(
        names(&process["capabilities"]["bounding"]),
        ["CAP_CHOWN", "CAP_KILL", "CAP_MKNOD", "CAP_NET_RAW"]
    );
    for absent in ["oomScoreAdj", "rlimits", "noNewPrivileges"] {
        assert_eq!(process.get(absent), None, "{absent}");
    }
    let linux = &value["linux"];
    assert_eq!(linux["cgroupsPath"], "/vk/poduid-1/id");
    assert_eq!(linux["maskedPaths"], json!(["/proc/kcore"]));
    assert_eq!(linux["readonlyPaths"], json!(["/proc/sys", "/sys/fs/cgroup"]));
    assert_eq!(linux["resources"]["cpu"], json!({ "shares": 512, "quota": 50_000, "period": 100_000 }));
    assert_eq!(linux["resources"]["memory"], json!({ "limit": 1 << 26 }));
    assert_eq!(linux["resources"]["pids"], json!({ "limit": 100 }));
    assert_eq!(linux["resources"]["devices"][0], json!({ "allow": false, "access": "rwm" }));
    assert_eq!(linux.get("seccomp"), None);
    assert_eq!(
        linux["namespaces"],
        json!([
            { "type": "mount" },
            { "type": "pid" },
            { "type": "network", "path": "/s/net" },
            { "type": "ipc", "path": "/s/ipc" },
            { "type": "uts", "path": "/s/uts" },
            { "type": "cgroup" },
        ])
    );
    assert_eq!(mount(&value, "/dev/shm")["source"], "/s/shm");
    assert_eq!(mount(&value, "/etc/resolv.conf")["source"], "/s/resolv.conf");
    assert_eq!(mount(&value, "/sys/fs/cgroup/memory")["source"], "/sys/fs/cgroup/memory/vk/poduid-1/id");
    for read_only in ["/sys", "/sys/fs/cgroup/memory"] {
        assert!(mount(&value, read_only)["options"].as_array().unwrap().contains(&json!("ro")));
    }
}

#[test]
fn a_privileged_container_gets_all_capabilities_and_devices() {
    let mut container = container();
    container.security.privileged = true;
    let value = value(&container);
    assert_eq!(names(&value["process"]["capabilities"]["effective"]).len(), 6);
    assert_eq!(value["linux"]["devices"][0]["path"], "/dev/kvm");
    assert_eq!(value["linux"]["resources"]["devices"], json!([{ "allow": true, "access": "rwm" }]));
    assert_eq!(value["linux"]["maskedPaths"], json!([]));
    assert_eq!(value["linux"]["readonlyPaths"], json!([]));
    assert!(!mount(&value, "/sys")["options"].as_array().unwrap().contains(&json!("ro")));
}

#[test]
fn capabilities_are_added_and_dropped_as_in_containerd() {
    let set = |add: &[&str], drop: &[&str]| {
        let all = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let mut container = container();
        container.security.capabilities = Capabilities { add: all(add), drop: all(drop) };
        names(&value(&container)["process"]["capabilities"]["permitted"])
    };
    assert_eq!(set(&["NET_ADMIN"], &["ALL"]), ["CAP_NET_ADMIN"]);
    assert_eq!(set(&["cap_net_admin"], &["CHOWN", "KILL", "MKNOD"]), ["CAP_NET_ADMIN", "CAP_NET_RAW"]);
    assert_eq!(set(&["ALL"], &["SYS_ADMIN"]).len(), 5);
    assert_eq!(
        set(&["SYS_TIME", "NONSENSE"], &["ALL"]),
        Vec::<String>::new(),
        "capabilities that this process lacks are not granted"
    );
}

#[test]
fn with_cgroup_v2_there_is_no_mknod_and_no_v1_hierarchy() {
    let host = HostFeatures { unified: true, hierarchies: vec![], ..host() };
    let spec = build_spec(&container(), &host, &paths()).unwrap();
    let value = serde_json::to_value(spec).unwrap();
    assert!(!names(&value["process"]["capabilities"]["bounding"]).contains(&"CAP_MKNOD".to_owned()));
    assert_eq!(value["linux"]["readonlyPaths"], json!(["/proc/sys"]));
}

#[test]
fn with_cgroup_v2_mknod_is_rejected_by_name_and_left_out_of_all() {
    let unified = HostFeatures { unified: true, hierarchies: vec![], ..host() };
    let requesting = |add: &[&str], drop: &[&str]| {
        let all = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let mut container = container();
        container.security.capabilities = Capabilities { add: all(add), drop: all(drop) };
        container
    };
    for name in ["MKNOD", "mknod", "CAP_MKNOD"] {
        let error = build_spec(&requesting(&[name], &[]), &unified, &paths()).unwrap_err();
        assert!(error.message().contains("capability MKNOD of container \"main\""), "{error}");
        assert!(error.message().contains("cgroup version 2"), "{error}");
        assert!(!granted_capabilities(&requesting(&[name], &["ALL"]), &unified).contains("MKNOD"));
    }
    let all = requesting(&["ALL"], &[]);
    build_spec(&all, &unified, &paths()).unwrap();
    let privileges = granted_capabilities(&all, &unified);
    assert!(privileges.contains("SYS_ADMIN") && !privileges.contains("MKNOD"), "{privileges:?}");
    build_spec(&requesting(&["MKNOD"], &["MKNOD"]), &unified, &paths()).unwrap();
    let mut privileged = requesting(&["MKNOD"], &[]);
    privileged.security.privileged = true;
    build_spec(&privileged, &unified, &paths()).unwrap();
    assert!(granted_capabilities(&privileged, &unified).contains("MKNOD"));
    assert!(
        granted_capabilities(&requesting(&["MKNOD"], &["ALL"]), &host()).contains("MKNOD"),
        "device rules restrict it with cgroup v1"
    );
}

#[test]
fn a_command_of_the_pod_drops_the_images_arguments() {
    let mut container = container();
    let image = image();
    let args = |container: &ContainerConfig| arguments(container, Some(&image)).unwrap();
    container.args = vec!["x".into()];
    assert_eq!(args(&container), ["/entry", "x"]);
    container.command = vec!["/bin/sh".into()];
    assert_eq!(args(&container), ["/bin/sh", "x"]);
    container.args.clear();
    assert_eq!(args(&container), ["/bin/sh"]);
    container.command.clear();
    let error = arguments(&container, None).unwrap_err();
    assert_eq!(error.message(), "no command specified");
}

#[test]
fn a_pod_with_the_hosts_namespaces_joins_none() {
    let mut container = container();
    container.security.namespaces =
        Namespaces { network: Share::Node, pid: Share::Node, ipc: Share::Node, user: None };
    let value = value(&container);
    assert_eq!(value["linux"]["namespaces"], json!([{ "type": "mount" }, { "type": "cgroup" }]));
    assert_eq!(mount(&value, "/dev/shm")["source"], "/dev/shm");
    let env = names(&value["process"]["env"]);
    assert!(env.contains(&"HOSTNAME=machine".to_owned()), "{env:?}");
}

#[test]
fn a_shared_pid_namespace_is_joined() {
    let mut container = container();
    container.security.namespaces.pid = Share::Pod;
    let joined = PodPaths { pid: Some("/proc/5/ns/pid".into()), ..paths() };
    let spec = build_spec(&container, &host(), &joined).unwrap();
    let namespaces = spec.linux().as_ref().unwrap().namespaces().clone().unwrap();
    let pid = namespaces.iter().find(|one| one.typ() == LinuxNamespaceType::Pid).unwrap();
    assert_eq!(pid.path().as_deref(), Some(Path::new("/proc/5/ns/pid")));
    assert!(build_spec(&container, &host(), &paths()).is_err(), "there is no namespace to share");
}

#[test]
fn mounts_replace_the_pods_files_and_parents_come_first() {
    let mut container = container();
    let mut deep = at("/var/lib/web/", "/v/deep");
    deep.read_only = true;
    deep.recursive_read_only = true;
    let mut spread = at("/var", "/v/var");
    spread.propagation = Propagation::HostToContainer;
    let mut data = at("/data", "");
    data.image = Some("sha256:2".into());
    container.mounts = vec![deep, spread, at("/etc/resolv.conf", "/own/resolv.conf"), data];
    let value = value(&container);
    assert_eq!(mount(&value, "/etc/resolv.conf")["source"], "/own/resolv.conf");
    assert_eq!(mount(&value, "/data")["source"], "/images/0");
    assert_eq!(mount(&value, "/data")["options"], json!(["rbind", "rprivate", "ro"]));
    assert_eq!(mount(&value, "/var/lib/web")["options"], json!(["rbind", "rprivate", "ro", "rro"]));
    assert_eq!(mount(&value, "/var")["options"], json!(["rbind", "rslave", "rw"]));
    let place = |path: &str| {
        let mounts = value["mounts"].as_array().unwrap();
        mounts.iter().position(|mount| mount["destination"] == path).unwrap()
    };
    assert!(place("/var") < place("/var/lib/web"));
    assert_eq!(value["linux"]["rootfsPropagation"], "slave");
}

#[test]
fn invalid_containers_are_rejected_with_the_reason() {
    let message = |container: &ContainerConfig| {
        build_spec(container, &host(), &paths()).unwrap_err().message().to_owned()
    };
    let mut escaping = container();
    escaping.mounts = vec![at("/a/../../b", "/x")];
    assert!(message(&escaping).contains("must not contain '..'"));
    escaping.mounts = vec![at("//", "/x")];
    assert!(message(&escaping).contains("over the container's root"));
    escaping.mounts = vec![at("/a", "x")];
    assert!(message(&escaping).contains("is not absolute"));
    let mut users = container();
    users.security.namespaces.user = Some(UserNamespace::default());
    assert!(message(&users).contains("hostUsers"));
}

/// Point 35.
#[test]
fn selinux_options_are_refused_and_an_apparmor_profile_is_set() {
    let mut labelled = container();
    labelled.security.selinux = Some(vk_pod_engine::backend::SeLinux::default());
    let error = build_spec(&labelled, &host(), &paths()).unwrap_err();
    assert!(error.message().starts_with("seLinuxOptions of container "), "{error}");
    let mut profile = container();
    profile.security.apparmor = Some("x".into());
    assert_eq!(value(&profile)["process"]["apparmorProfile"], "x");
    assert_eq!(value(&container())["process"].get("apparmorProfile"), None);
}

#[test]
fn limits_that_the_host_does_not_support_are_left_out() {
    let mut container = container();
    container.resources.hugepages.insert("2MB".into(), 0);
    container.resources.unified.insert("memory.oom.group".into(), "1".into());
    container.resources.memory_swap_limit = 1 << 26;
    let resources = value(&container)["linux"]["resources"].clone();
    assert_eq!((resources.get("hugepageLimits"), resources.get("unified")), (None, None));
    assert_eq!(resources["memory"]["swap"], 1 << 26);
}

proptest! {
    #[test]
    fn mounts_never_leave_the_container_and_specs_are_deterministic(path in "[./a-c]{0,12}", host_path in "/[a-z/.]{0,8}") {
        let mut container = container();
        container.mounts = vec![at(&path, &host_path)];
        let first = build_spec(&container, &host(), &paths());
        if let Ok(spec) = &first {
            for mount in spec.mounts().as_ref().unwrap() {
                let path = mount.destination();
                prop_assert!(path.is_absolute() && path != Path::new("/"));
                prop_assert!(path.components().all(|part| part != std::path::Component::ParentDir));
            }
        }
        prop_assert_eq!(first.ok(), build_spec(&container, &host(), &paths()).ok());
    }
}
