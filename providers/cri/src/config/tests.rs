use std::{path::Path, time::Duration};

use serde_json::{Value, json};
use vk_pod_engine::host::ReservedResources;
use vk_provider::Quantity;

use super::*;

fn read(value: Value) -> Result<Settings> {
    Settings::read(&Config::Inline(value))
}

#[test]
fn the_defaults_are_those_of_a_kubelet() {
    let settings = Settings::read(&Config::Default).unwrap();
    assert_eq!(settings, Settings::default());
    assert_eq!(settings.engine.max_pods, 110);
    assert_eq!(settings.log_root(), Path::new("/var/log/pods"));
    assert_eq!(settings.limits.call, Duration::from_mins(2));
    assert_eq!(settings.limits.pull, None);
    assert_eq!(settings.engine.max_crash_backoff, Duration::from_mins(5));
    let empty = Config::File { path: "cri.yaml".into(), text: "\n".into() };
    assert_eq!(Settings::read(&empty).unwrap(), settings);
}

#[test]
fn every_key_is_read() {
    let text = "
socket: unix:///run/my.sock
reserved: {cpu: 500m, memory: 1Gi, ephemeralStorage: 10Gi}
maxPods: 40
logRoot: /data/logs
root: /data/pods
clusterDNS: [10.96.0.10, 'fd00::a']
resolvConf: /run/resolv.conf
seccompRoot: /etc/seccomp
seccompDefault: true
cgroupRoot: /vk
parallelPulls: 0
maxCrashBackoff: 1m30s
requestTimeout: 30s
pullTimeout: 10m
";
    let settings = Settings::read(&Config::File { path: "cri.yaml".into(), text: text.into() }).unwrap();
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
        socket: Some("/run/my.sock".into()),
        limits: Limits { call: Duration::from_secs(30), pull: Some(Duration::from_mins(10)) },
    };
    assert_eq!(settings, expected);
}

#[test]
fn an_error_names_the_position_and_what_to_write() {
    for (value, parts) in [
        (json!({"sockett": "/x"}), ["sockett", "did you mean `socket`?"]),
        (json!({"reserved": {"memry": "1Gi"}}), ["reserved", "did you mean `memory`?"]),
        (json!({"socket": "containerd.sock"}), ["socket", "/run/containerd/containerd.sock"]),
        (json!({"socket": "tcp://1.2.3.4:5"}), ["socket", "absolute path of a unix socket"]),
        (json!({"reserved": {"cpu": "-1"}}), ["reserved.cpu", "less than nothing"]),
        (json!({"reserved": {"memory": "much"}}), ["reserved.memory", "64Mi"]),
        (json!({"maxPods": 0}), ["maxPods", "1 or more"]),
        (json!({"logRoot": "logs"}), ["logRoot", "absolute path"]),
        (json!({"clusterDNS": ["dns.local"]}), ["clusterDNS", "IP address"]),
        (json!({"parallelPulls": -1}), ["parallelPulls", "0 for no limit"]),
        (json!({"maxCrashBackoff": "soon"}), ["maxCrashBackoff", "30s"]),
        (json!({"requestTimeout": "0s"}), ["requestTimeout", "30s"]),
        (json!(["socket"]), ["providerConfig", "maxPods: 50"]),
    ] {
        let error = read(value.clone()).unwrap_err();
        assert_eq!(*error.kind(), vk_provider::error::Kind::Invalid, "{value}");
        for part in parts {
            assert!(error.message().contains(part), "{value}: {error}");
        }
    }
}
