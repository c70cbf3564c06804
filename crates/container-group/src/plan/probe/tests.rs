use serde_json::{Value, json};

use super::*;

const PATH: &str = "spec.containers[web]";

fn plan_of(container: Value, caps: &ProbeCaps) -> (ContainerProbes, Diagnostics) {
    let mut container = container;
    container["name"] = json!("web");
    container["ports"] = json!([{"name": "http", "containerPort": 8080}]);
    let container: Container = serde_json::from_value(container).unwrap();
    let mut diagnostics = Diagnostics::default();
    (probes(PATH, &container, caps, &mut diagnostics), diagnostics)
}

fn http() -> Value {
    json!({"httpGet": {"port": "http"}})
}

#[test]
fn a_probe_has_the_defaults_of_kubernetes_and_the_number_of_its_port() {
    let (probes, diagnostics) = plan_of(json!({"readinessProbe": http()}), &ProbeCaps::default());
    let expected = ProbePlan {
        action: ProbeAction::HttpGet {
            path: "/".into(),
            port: 8080,
            scheme: "HTTP".into(),
            host: None,
            headers: Vec::new(),
        },
        initial_delay: 0,
        period: 10,
        timeout: 1,
        success_threshold: 1,
        failure_threshold: 3,
    };
    assert_eq!(probes.readiness, Some(expected));
    assert_eq!(diagnostics, Diagnostics::default());
}

#[test]
fn the_liveness_probe_starts_later_by_the_time_of_the_startup_probe() {
    let startup = json!({"httpGet": {"port": "http"}, "periodSeconds": 5, "failureThreshold": 10, "initialDelaySeconds": 10});
    let container = json!({
        "livenessProbe": {"tcpSocket": {"port": 80}, "initialDelaySeconds": 3},
        "readinessProbe": http(), "startupProbe": startup,
    });
    let (probes, diagnostics) = plan_of(container, &ProbeCaps::default());
    assert_eq!(probes.liveness.unwrap().initial_delay, 63);
    assert_eq!(probes.readiness.unwrap().initial_delay, 0, "it may fail until the container has started");
    assert_eq!(probes.startup, None);
    let warning = &diagnostics.warnings()[0];
    assert_eq!(warning.field, "spec.containers[web].startupProbe");
    assert_eq!(warning.message, "liveness probe starts 60 s later; a slow start looks like a hang");
    assert!(!diagnostics.is_refused());
}

#[test]
fn a_startup_probe_that_no_cloud_could_run_is_emulated_too() {
    let container = json!({"livenessProbe": http(), "startupProbe": {"grpc": {"port": 1}}});
    let (probes, diagnostics) = plan_of(container, &ProbeCaps::default());
    assert_eq!(probes.liveness.unwrap().initial_delay, 30);
    assert!(!diagnostics.is_refused() && diagnostics.warnings().len() == 1);
}

#[test]
fn a_startup_probe_alone_is_ignored_with_a_warning() {
    let (probes, diagnostics) = plan_of(json!({"startupProbe": http()}), &ProbeCaps::default());
    assert_eq!(probes, ContainerProbes::default());
    assert!(diagnostics.warnings()[0].message.starts_with("ignored: "));
}

#[test]
fn a_cloud_with_startup_probes_gets_them() {
    let caps = ProbeCaps { startup: true, ..ProbeCaps::default() };
    let (probes, diagnostics) = plan_of(json!({"livenessProbe": http(), "startupProbe": http()}), &caps);
    assert!(probes.startup.is_some() && probes.liveness.unwrap().initial_delay == 0);
    assert_eq!(diagnostics, Diagnostics::default());
}

#[test]
fn a_delay_over_the_limit_of_the_cloud_is_cut_with_a_warning_or_refused() {
    let caps = ProbeCaps { max_initial_delay: Some(20), ..ProbeCaps::default() };
    let (probes, diagnostics) = plan_of(json!({"livenessProbe": http(), "startupProbe": http()}), &caps);
    assert_eq!(probes.liveness.unwrap().initial_delay, 20);
    assert!(diagnostics.warnings()[0].message.contains("20 s"));
    let late = json!({"livenessProbe": {"tcpSocket": {"port": 80}, "initialDelaySeconds": 21}});
    let (_, diagnostics) = plan_of(late, &caps);
    assert_eq!(diagnostics.errors()[0].field, "spec.containers[web].livenessProbe.initialDelaySeconds");
}

#[test]
fn what_the_probes_of_the_cloud_cannot_do_is_refused() {
    for (probe, field) in [
        (json!({"grpc": {"port": 80}}), "livenessProbe.grpc"),
        (
            json!({"httpGet": {"port": 80, "httpHeaders": [{"name": "a", "value": "b"}]}}),
            "livenessProbe.httpGet.httpHeaders",
        ),
        (json!({"httpGet": {"port": 80, "host": "other"}}), "livenessProbe.httpGet.host"),
        (json!({"tcpSocket": {"port": 80, "host": "other"}}), "livenessProbe.tcpSocket.host"),
        (json!({"httpGet": {"port": "unknown"}}), "livenessProbe.httpGet.port"),
        (json!({"tcpSocket": {"port": 0}}), "livenessProbe.tcpSocket.port"),
        (json!({}), "livenessProbe"),
    ] {
        let (_, diagnostics) = plan_of(json!({"livenessProbe": probe}), &ProbeCaps::default());
        let fields: Vec<_> = diagnostics.errors().iter().map(|error| error.field.as_str()).collect();
        assert_eq!(fields, [format!("{PATH}.{field}")]);
    }
}

#[test]
fn what_the_probes_of_the_cloud_can_do_is_planned() {
    let caps = ProbeCaps { grpc: true, http_headers: true, host: true, ..ProbeCaps::default() };
    let headers = json!([{"name": "a", "value": "b"}]);
    for (probe, expected) in [
        (json!({"grpc": {"port": 80}}), ProbeAction::Grpc { port: 80, service: String::new() }),
        (json!({"exec": {"command": ["true"]}}), ProbeAction::Exec(vec!["true".into()])),
        (
            json!({"httpGet": {"port": 80, "host": "h", "httpHeaders": headers, "path": "/x", "scheme": "HTTPS"}}),
            ProbeAction::HttpGet {
                path: "/x".into(),
                port: 80,
                scheme: "HTTPS".into(),
                host: Some("h".into()),
                headers: vec![HTTPHeader { name: "a".into(), value: "b".into() }],
            },
        ),
    ] {
        let (probes, diagnostics) = plan_of(json!({"livenessProbe": probe}), &caps);
        assert_eq!(probes.liveness.unwrap().action, expected);
        assert_eq!(diagnostics, Diagnostics::default());
    }
}

#[test]
fn a_startup_time_that_is_too_long_for_a_number_does_not_wrap() {
    let probe = Probe {
        period_seconds: Some(i32::MAX),
        failure_threshold: Some(i32::MAX),
        initial_delay_seconds: Some(i32::MAX),
        ..Probe::default()
    };
    assert_eq!(startup_seconds(&probe), i32::MAX);
}
