//! Complete sandboxes and containers, in the situations of the kubelet's own tests.

use std::{path::Path, sync::Mutex};

use serde_json::{Value, json};
use vk_provider::resolve::{CommandLine, Origin, Variable};

use super::*;
use crate::{
    backend::{Image, Propagation, Seccomp},
    containers::find_container,
    snapshot::{annotation, label},
};

/// A pod in the default namespace with this spec.
pub(crate) fn pod(spec: Value) -> Pod {
    let meta = json!({ "name": "web", "namespace": "team", "uid": "u-1", "labels": { "app": "web" } });
    let mut pod = json!({ "metadata": meta });
    pod["spec"] = spec;
    serde_json::from_value(pod).unwrap()
}

pub(crate) fn settings() -> Settings {
    let second = std::time::Duration::from_secs(1);
    Settings {
        node: "node-1".to_owned(),
        node_ips: vec!["192.0.2.1".parse().unwrap()],
        root: "/var/lib/vk".into(),
        log_root: "/var/log/pods".into(),
        seccomp_root: "/var/lib/vk/seccomp".into(),
        cluster_dns: vec!["10.96.0.10".parse().unwrap()],
        cluster_domain: "cluster.local".to_owned(),
        resolv_conf: "/etc/resolv.conf".into(),
        hosts_file: "/etc/hosts".into(),
        cgroup_root: None,
        cgroups: None,
        allocatable: crate::backend::Resources::default(),
        memory: 8_000_000_000,
        oom_score_floor: -1000,
        seccomp_default: false,
        parallel_pulls: None,
        pull_records: None,
        max_crash_backoff: second * 300,
        relist: second,
        resync: second * 60,
    }
}

/// Collects events.
#[derive(Debug, Default)]
pub(crate) struct RecordedEvents(Mutex<Vec<(EventKind, String, String)>>);

impl RecordedEvents {
    pub(crate) fn record(&self) -> impl Fn(EventKind, &str, String) + Send + Sync {
        |kind, reason, message| self.0.lock().unwrap().push((kind, reason.to_owned(), message))
    }

    /// The events since the last call, as `Reason: message`.
    pub(crate) fn take(&self) -> Vec<String> {
        let recorded = std::mem::take(&mut *self.0.lock().unwrap());
        recorded.into_iter().map(|(_, reason, message)| format!("{reason}: {message}")).collect()
    }
}

fn host_dns() -> Dns {
    Dns {
        servers: vec!["192.0.2.53".to_owned()],
        searches: vec!["example.com".to_owned()],
        options: Vec::new(),
    }
}

fn try_sandbox(
    pod: &Pod,
    settings: &Settings,
    class: Option<&RuntimeClass>,
    runtime: &RuntimeInfo,
) -> Result<SandboxConfig> {
    let (features, host_dns, events) = (HostFeatures::default(), host_dns(), RecordedEvents::default());
    let builder = SandboxBuilder {
        pod,
        attempt: 2,
        settings,
        features: &features,
        runtime,
        runtime_class: class,
        host_dns: &host_dns,
    };
    builder.build(&events.record())
}

fn sandbox_of(spec: Value) -> SandboxConfig {
    try_sandbox(&pod(spec), &settings(), None, &RuntimeInfo::default()).unwrap()
}

/// The inputs of a container besides its pod.
#[derive(Default)]
struct ContainerFixture {
    mounts: Vec<Mount>,
    image: Image,
    target: Option<&'static str>,
    settings: Option<Settings>,
}

impl ContainerFixture {
    fn container(&self, pod: &Pod, name: &str) -> Result<ContainerConfig, FailureReason> {
        let settings = self.settings.clone().unwrap_or_else(settings);
        let (features, runtime) = (HostFeatures::default(), RuntimeInfo::default());
        let container = find_container(pod, name).unwrap();
        let sandbox = try_sandbox(pod, &settings, None, &runtime).unwrap();
        let image = image::ResolvedImage { image_ref: "sha256:1234".to_owned(), image: self.image.clone() };
        let inputs = ContainerInputs {
            env: vec![Variable::new("A", "1", Origin::Literal)],
            command: Some(CommandLine::literal(["run"])),
            args: None,
        };
        let builder = ContainerBuilder {
            pod,
            container: &container,
            attempt: 3,
            hash: 0xabc,
            settings: &settings,
            features: &features,
            runtime: &runtime,
            sandbox: &sandbox,
            image: &image,
            inputs: &inputs,
            mounts: &self.mounts,
            hosts_file: Some(Path::new("/pods/u-1/etc-hosts")),
            termination_file: Some(Path::new("/pods/u-1/containers/c/00000001")),
            target: self.target,
        };
        builder.build()
    }
}

fn pod_with(container: Value) -> Pod {
    pod(json!({ "containers": Value::Array(vec![container]) }))
}

#[test]
fn a_sandbox_carries_the_pods_identity_and_the_nodes_name() {
    let config = sandbox_of(json!({ "containers": [{ "name": "c", "image": "x" }] }));
    assert_eq!((config.pod.to_string().as_str(), config.attempt), ("team/web (uid u-1)", 2));
    assert_eq!(config.hostname, "web");
    assert_eq!(config.log_directory, "/var/log/pods/team_web_u-1");
    let labels: Vec<_> = config.labels.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    let expected = [
        ("app", "web"),
        (label::POD_NAME, "web"),
        (label::POD_NAMESPACE, "team"),
        (label::POD_UID, "u-1"),
        (label::NODE, "node-1"),
    ];
    assert_eq!(labels, expected);
    assert_eq!(config.security.seccomp, Seccomp::RuntimeDefault);
    assert_eq!(config.cgroup_parent, "");
    assert!(config.overhead.is_none() && config.ports.is_empty() && !config.security.privileged);
}

#[test]
fn a_pods_labels_cannot_make_it_another_nodes() {
    let mut pod = pod_with(json!({ "name": "c" }));
    pod.metadata.labels = Some([(label::NODE.to_owned(), "other".to_owned())].into());
    let config = try_sandbox(&pod, &settings(), None, &RuntimeInfo::default()).unwrap();
    assert_eq!(config.labels[label::NODE], "node-1");
}

#[test]
fn namespaces_are_shared_as_the_spec_says() {
    for (spec, network, pid, ipc) in [
        (json!({}), Share::Pod, Share::Container, Share::Pod),
        (json!({ "shareProcessNamespace": true }), Share::Pod, Share::Pod, Share::Pod),
        (json!({ "hostPID": true, "shareProcessNamespace": true }), Share::Pod, Share::Node, Share::Pod),
        (json!({ "hostNetwork": true, "hostIPC": true }), Share::Node, Share::Container, Share::Node),
    ] {
        let mut whole = spec.clone();
        whole["containers"] = json!([{ "name": "c", "image": "x" }]);
        let config = sandbox_of(whole.clone());
        let namespaces = Namespaces { network, pid, ipc, user: None };
        assert_eq!(config.security.namespaces, namespaces, "{spec}");
        let container = ContainerFixture::default().container(&pod(whole), "c").unwrap();
        assert_eq!(container.security.namespaces, namespaces, "{spec}");
    }
}

#[test]
fn a_pod_in_the_hosts_network_has_no_name_of_its_own() {
    let config = sandbox_of(json!({ "hostNetwork": true, "hostname": "me", "containers": [] }));
    assert_eq!(config.hostname, "");
}

#[test]
fn only_ports_of_the_host_are_mapped_and_each_once() {
    let config = sandbox_of(json!({ "containers": [{ "name": "c", "ports": [
        { "containerPort": 80, "hostPort": 8080 },
        { "containerPort": 80, "hostPort": 8080 },
        { "containerPort": 81 },
        { "containerPort": 53, "hostPort": 5353, "protocol": "UDP", "hostIP": "192.0.2.1" },
        { "containerPort": 90, "hostPort": 9090, "name": "a" },
        { "containerPort": 91, "hostPort": 9091, "name": "a" },
    ] }] }));
    let ports: Vec<_> =
        config.ports.iter().map(|port| (port.protocol, port.container_port, port.host_port)).collect();
    assert_eq!(ports, [(Protocol::Tcp, 80, 8080), (Protocol::Udp, 53, 5353), (Protocol::Tcp, 90, 9090)]);
    assert_eq!(config.ports[1].host_ip, "192.0.2.1");
}

#[test]
fn a_sandbox_runs_as_the_pod_says_and_is_privileged_with_its_containers() {
    let config = sandbox_of(json!({
        "securityContext": {
            "runAsUser": 1000, "runAsGroup": 2000, "fsGroup": 3000, "supplementalGroups": [4000, 5000],
            "supplementalGroupsPolicy": "Strict", "seLinuxOptions": { "type": "t", "level": "s0" },
            "sysctls": [{ "name": "net.ipv4.ip_unprivileged_port_start", "value": "0" }],
        },
        "initContainers": [{ "name": "i", "securityContext": { "privileged": true } }],
        "containers": [{ "name": "c" }],
    }));
    let security = &config.security;
    assert_eq!((security.user, security.group), (Some(1000), Some(2000)));
    assert_eq!(security.supplemental_groups, [3000, 4000, 5000]);
    assert_eq!(security.supplemental_groups_policy, crate::backend::SupplementalGroupsPolicy::Strict);
    assert_eq!(security.selinux.as_ref().unwrap().kind, "t");
    assert!(security.privileged);
    assert_eq!(config.sysctls["net.ipv4.ip_unprivileged_port_start"], "0");
}

#[test]
fn the_runtime_class_names_the_handler_and_an_unknown_one_is_said_as_by_a_kubelet() {
    let class: RuntimeClass =
        serde_json::from_value(json!({ "metadata": { "name": "safe" }, "handler": "runsc" })).unwrap();
    let pod = pod(json!({ "containers": [], "overhead": { "cpu": "250m", "memory": "120Mi" } }));
    let config = try_sandbox(&pod, &settings(), Some(&class), &RuntimeInfo::default()).unwrap();
    assert_eq!(config.handler, "runsc");
    let overhead = config.overhead.unwrap();
    assert_eq!((overhead.cpu_shares, overhead.cpu_quota, overhead.cpu_period), (256, 25_000, 100_000));
    assert_eq!(overhead.memory_limit, 120 << 20);
    let (kind, reason, message) = sandbox_failure(&no_runtime_class("nope"));
    assert_eq!((kind, reason), (EventKind::Warning, "FailedCreatePodSandBox"));
    assert_eq!(message, "Failed to create pod sandbox: runtimeclass.node.k8s.io \"nope\" not found");
}

#[test]
fn users_of_its_own_are_refused_with_the_reason() {
    let spec = pod(json!({ "hostUsers": false, "containers": [] }));
    let able = RuntimeHandler { user_namespaces: true, ..RuntimeHandler::default() };
    let class: RuntimeClass = serde_json::from_value(json!({ "metadata": {}, "handler": "kata" })).unwrap();
    for (handlers, class, message) in [
        (vec![], None, "can't set `spec.hostUsers: false`, runtime does not support user namespaces"),
        (
            vec![able.clone()],
            Some(&class),
            "can't set `spec.hostUsers: false`, RuntimeClass handler \"kata\" does not support user namespaces",
        ),
        (
            vec![able],
            None,
            "can't set `spec.hostUsers: false`: this node allocates no user id ranges; remove the field or set it to true",
        ),
    ] {
        let runtime = RuntimeInfo { handlers, ..RuntimeInfo::default() };
        let error = try_sandbox(&spec, &settings(), class, &runtime).unwrap_err();
        assert_eq!(error.message(), message);
    }
    assert!(
        try_sandbox(
            &pod(json!({ "hostUsers": true, "containers": [] })),
            &settings(),
            None,
            &RuntimeInfo::default()
        )
        .is_ok()
    );
}

#[test]
fn cgroups_are_named_by_class_as_the_cgroupfs_driver_does() {
    let settings = Settings { cgroup_root: Some("/kubepods/".to_owned()), ..settings() };
    let same = json!({ "cpu": "1", "memory": "1Gi" });
    for (resources, parent) in [
        (json!({}), "/kubepods/besteffort/podu-1"),
        (json!({ "requests": { "cpu": "1" } }), "/kubepods/burstable/podu-1"),
        (json!({ "requests": same, "limits": same }), "/kubepods/podu-1"),
    ] {
        let pod = pod_with(json!({ "name": "c", "resources": resources }));
        assert_eq!(
            try_sandbox(&pod, &settings, None, &RuntimeInfo::default()).unwrap().cgroup_parent,
            parent
        );
    }
}

#[test]
fn a_container_remembers_what_its_end_needs() {
    let mut pod = pod_with(json!({
        "name": "c", "image": "nginx", "workingDir": "/srv", "tty": true, "stdin": true,
        "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
        "ports": [{ "name": "http", "containerPort": 80 }],
        "lifecycle": { "preStop": { "exec": { "command": ["stop"] } }, "stopSignal": "SIGUSR1" },
    }));
    pod.metadata.deletion_grace_period_seconds = Some(7);
    pod.spec.as_mut().unwrap().termination_grace_period_seconds = Some(30);
    let config = ContainerFixture::default().container(&pod, "c").unwrap();
    let notes: Vec<_> =
        config.annotations.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    let expected = [
        (annotation::HASH, "abc"),
        (annotation::PORTS, r#"[{"containerPort":80,"name":"http"}]"#),
        (annotation::PRE_STOP, r#"{"exec":{"command":["stop"]}}"#),
        (annotation::RESTART_COUNT, "3"),
        (annotation::TERMINATION_PATH, "/dev/termination-log"),
        (annotation::TERMINATION_POLICY, "File"),
        (annotation::DELETION_GRACE, "7"),
        (annotation::TERMINATION_GRACE, "30"),
    ];
    assert_eq!(notes, expected);
    assert_eq!(
        (config.labels[label::CONTAINER_NAME].as_str(), config.labels[label::NODE].as_str()),
        ("c", "node-1")
    );
    assert!(!config.labels.contains_key("app"), "a pod's labels are on its sandbox only");
    assert_eq!((config.image.as_str(), config.user_image.as_str()), ("sha256:1234", "nginx"));
    assert_eq!((config.log_path.as_str(), config.attempt), ("c/3.log", 3));
    assert_eq!((config.command.as_slice(), config.args.len()), (["run".to_owned()].as_slice(), 0));
    assert_eq!((config.working_dir.as_str(), config.stop_signal.as_deref()), ("/srv", Some("SIGUSR1")));
    assert!(config.tty && config.stdin && !config.stdin_once);
    let mounts: Vec<_> = config.mounts.iter().map(|mount| mount.container_path.as_str()).collect();
    assert_eq!(mounts, ["/etc/hosts", "/dev/termination-log"]);
}

#[test]
fn an_ephemeral_container_sees_the_processes_of_its_target() {
    let spec = |more: Value| {
        let mut spec = json!({
            "containers": [{ "name": "c", "image": "x" }],
            "ephemeralContainers": [{ "name": "debug", "image": "x", "targetContainerName": "c" }],
        });
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        pod(spec)
    };
    let with = ContainerFixture { target: Some("id-of-c"), ..ContainerFixture::default() };
    let config = with.container(&spec(json!({})), "debug").unwrap();
    assert_eq!(config.security.namespaces.pid, Share::Target("id-of-c".to_owned()));
    let config = with.container(&spec(json!({ "shareProcessNamespace": true })), "debug").unwrap();
    assert_eq!(config.security.namespaces.pid, Share::Pod);
    let trouble = ContainerFixture::default().container(&spec(json!({})), "debug").unwrap_err();
    let expected = ("CreateContainerConfigError", "unable to find target container c");
    assert_eq!((trouble.reason.as_str(), trouble.message.as_str()), expected);
}

#[test]
fn scores_below_what_this_process_may_give_are_raised() {
    let same = json!({ "cpu": "1", "memory": "1Gi" });
    let pod = pod_with(json!({ "name": "c", "resources": { "requests": same, "limits": same } }));
    let score = |floor| {
        let settings = Some(Settings { oom_score_floor: floor, ..settings() });
        ContainerFixture { settings, ..ContainerFixture::default() }
            .container(&pod, "c")
            .unwrap()
            .resources
            .oom_score_adj
    };
    assert_eq!((score(-1000), score(-500), score(0)), (-997, -500, 0));
}

#[test]
fn mounts_are_found_by_their_path_and_a_missing_one_is_named() {
    let pod = pod_with(json!({ "name": "c", "volumeMounts": [
        { "name": "data", "mountPath": "data", "readOnly": true, "mountPropagation": "HostToContainer" },
        { "name": "own", "mountPath": "/etc/hosts" },
    ] }));
    let mount = |container_path: &str, host_path: &str| Mount {
        container_path: container_path.to_owned(),
        host_path: host_path.to_owned(),
        image: None,
        image_sub_path: String::new(),
        read_only: false,
        recursive_read_only: false,
        selinux_relabel: false,
        propagation: Propagation::Private,
        uids: Vec::new(),
        gids: Vec::new(),
    };
    let mounts = vec![mount("/etc/hosts", "/v/own"), mount("/data", "/v/data")];
    let config = ContainerFixture { mounts, ..ContainerFixture::default() }.container(&pod, "c").unwrap();
    let found: Vec<_> =
        config.mounts.iter().map(|m| (m.container_path.as_str(), m.host_path.as_str())).collect();
    assert_eq!(
        found,
        [("/data", "/v/data"), ("/etc/hosts", "/v/own")],
        "no managed hosts file beside its own"
    );
    assert!(config.mounts[0].read_only && !config.mounts[1].read_only);
    assert_eq!(config.mounts[0].propagation, Propagation::HostToContainer);
    let trouble = ContainerFixture::default().container(&pod, "c").unwrap_err();
    assert_eq!(trouble.message, "cannot find volume \"data\" to mount into container \"c\"");
}
