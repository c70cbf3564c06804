use serde_json::{Value, json};
use vk_pod_engine::host::ReservedResources;
use vk_provider::Quantity;

use super::*;

fn read(value: Value) -> Result<Settings> {
    Settings::read(&Config::Inline(value))
}

fn context(node: &str) -> Context {
    Context {
        node_name: node.to_owned(),
        internal_ip: [192, 0, 2, 1].into(),
        kubelet_port: 10250,
        operating_system: "linux".to_owned(),
        cluster_domain: "cluster.local".to_owned(),
        cluster: None,
        state_dir: PathBuf::from("/state").join(node),
        shared_dir: PathBuf::from("/state"),
        extensions: vk_provider::Extensions::default(),
        supervisor: vk_provider::Supervisor::new(),
    }
}

#[test]
fn nothing_written_takes_the_best_of_the_machine() {
    let settings = Settings::read(&Config::Default).unwrap();
    assert_eq!(settings, Settings::default());
    assert_eq!((settings.level, settings.network), (None, NetworkMode::Auto));
    assert!(!settings.host_image, "the operator has to switch it on");
    assert_eq!(settings.engine.max_pods, 110);
    assert_eq!(settings.engine.max_crash_backoff, Duration::from_mins(5));
    assert_eq!(settings.pull_timeout, None);
}

#[test]
fn every_key_is_read() {
    let text = "
level: process
hostImage: true
reserved: {cpu: 500m, memory: 1Gi, ephemeralStorage: 10Gi}
maxPods: 40
minFreeDisk: 2Gi
logRoot: /data/logs
root: /data/pods
imageDir: /data/images
clusterDNS: [10.96.0.10, 'fd00::a']
resolvConf: /run/resolv.conf
seccompRoot: /etc/seccomp
seccompDefault: true
cgroupRoot: /vk
parallelPulls: 0
pullTimeout: 10m
insecureRegistries: ['localhost:5000']
maxCrashBackoff: 1m30s
network: bridge
podCIDR: 10.222.0.0/16
";
    let settings = Settings::read(&Config::File { path: "local.yaml".into(), text: text.into() }).unwrap();
    let engine = EngineConfig {
        reserved: ReservedResources {
            cpu: Some(Quantity::milli(500)),
            memory: Some(Quantity::bytes(1 << 30)),
            ephemeral_storage: Some(Quantity::bytes(10 << 30)),
        },
        max_pods: 40,
        log_root: Some("/data/logs".into()),
        root: Some("/data/pods".into()),
        cluster_dns: vec!["10.96.0.10".parse().unwrap(), "fd00::a".parse().unwrap()],
        resolv_conf: "/run/resolv.conf".into(),
        seccomp_root: "/etc/seccomp".into(),
        seccomp_default: true,
        cgroup_root: Some("/vk".into()),
        parallel_pulls: None,
        max_crash_backoff: Duration::from_secs(90),
    };
    let expected = Settings {
        engine,
        level: Some(Isolation::Process),
        host_image: true,
        min_free_disk: Some(2 << 30),
        image_dir: Some("/data/images".into()),
        pull_timeout: Some(Duration::from_mins(10)),
        insecure_registries: vec!["localhost:5000".into()],
        network: NetworkMode::Bridge,
        pod_cidr: Some("10.222.0.0/16".parse().unwrap()),
    };
    assert_eq!(settings, expected);
}

#[test]
fn what_is_wrong_is_refused_with_the_place_and_what_to_write() {
    for (value, parts) in [
        (json!({"levle": "oci"}), ["levle", "did you mean `level`?"]),
        (json!({"level": "rootless"}), ["level", "process"]),
        (json!({"network": "none"}), ["network", "bridge"]),
        (json!({"reserved": {"memry": "1Gi"}}), ["reserved", "did you mean `memory`?"]),
        (json!({"minFreeDisk": "10%"}), ["minFreeDisk", "64Mi"]),
        (json!({"maxPods": 0}), ["maxPods", "1 or more"]),
        (json!({"logRoot": "logs"}), ["logRoot", "absolute path"]),
        (json!({"imageDir": "images"}), ["imageDir", "/var/lib/virtual-kubelet/images"]),
        (json!({"clusterDNS": ["dns.local"]}), ["clusterDNS", "IP address"]),
        (json!({"parallelPulls": -1}), ["parallelPulls", "0 for no limit"]),
        (json!({"pullTimeout": "soon"}), ["pullTimeout", "30s"]),
        (json!({"cgroupRoot": "/../x"}), ["cgroupRoot", "/virtual-kubelet"]),
        (json!({"cgroupRoot": "pods.slice"}), ["cgroupRoot", "/virtual-kubelet"]),
        (json!({"insecureRegistries": ["http://x/y"]}), ["insecureRegistries", "localhost:5000"]),
        (json!({"podCIDR": "10.0.0.1/24"}), ["podCIDR", "10.0.0.0/24"]),
        (json!({"podCIDR": "10.0.0.0"}), ["podCIDR", "10.222.0.0/24"]),
        (json!({"podCIDR": "fd00::/64"}), ["podCIDR", "IPv4"]),
        (json!({"podCIDR": "10.0.0.0/31"}), ["podCIDR", "prefix"]),
        (json!(["level"]), ["providerConfig", "maxPods: 50"]),
    ] {
        let error = read(value.clone()).unwrap_err();
        assert_eq!(*error.kind(), vk_provider::error::Kind::Invalid, "{value}");
        for part in parts {
            assert!(error.message().contains(part), "{value}: {error}");
        }
    }
}

#[test]
fn two_nodes_share_images_and_nothing_else() {
    let plain = read(json!({})).unwrap();
    assert_eq!(plain.node_dir(&context("one")), PathBuf::from("/state/one"));
    assert_eq!(plain.logs(&context("one")), PathBuf::from("/state/one/logs"));
    assert_eq!(plain.logs(&context("two")), PathBuf::from("/state/two/logs"));
    assert_eq!(plain.images(&context("one")), plain.images(&context("two")));
    let configured = read(json!({ "root": "/data" })).unwrap();
    assert_eq!(configured.node_dir(&context("one")), PathBuf::from("/data/one"));
    assert_eq!(configured.logs(&context("two")), PathBuf::from("/data/two/logs"));
    let named = read(json!({ "logRoot": "/var/log/pods", "imageDir": "/images" })).unwrap();
    assert_eq!(named.logs(&context("one")), PathBuf::from("/var/log/pods"));
    assert_eq!(named.images(&context("one")), PathBuf::from("/images"));
}
