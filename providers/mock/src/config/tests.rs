use std::time::Duration;

use vk_provider::error::Kind;

use super::*;

fn read(text: &str, node: &str) -> Result<Settings> {
    Settings::read(&Config::File { path: "mock.yaml".into(), text: text.into() }, node)
}

fn shown(settings: &Settings, name: &str) -> String {
    settings.capacity[name].to_string()
}

#[test]
fn the_configuration_of_the_go_mock_is_parsed() {
    let text = r#"{"vk-1": {"cpu": "2", "memory": "32Gi", "pods": "128", "providerID": "mock://one",
        "others": {"nvidia.com/gpu": "4"}}}"#;
    let settings = read(text, "vk-1").unwrap();
    assert_eq!(shown(&settings, "cpu"), "2");
    assert_eq!(shown(&settings, "memory"), "32Gi");
    assert_eq!(shown(&settings, "nvidia.com/gpu"), "4");
    assert_eq!(settings.provider_id.as_deref(), Some("mock://one"));
}

#[test]
fn a_node_without_a_section_gets_the_default_section_or_the_defaults() {
    let text = "vk-1: {cpu: 2}\n";
    assert_eq!(shown(&read(text, "other").unwrap(), "cpu"), "20");
    assert_eq!(shown(&read(text, "other").unwrap(), "memory"), "100Gi");
    let text = "vk-1: {cpu: 2}\ndefault: {cpu: 3, pods: 1000}\n";
    assert_eq!(shown(&read(text, "other").unwrap(), "cpu"), "3");
    assert_eq!(shown(&read(text, "other").unwrap(), "pods"), "1k");
    assert_eq!(shown(&read(text, "vk-1").unwrap(), "pods"), "20");
    assert_eq!(shown(&Settings::read(&Config::Default, "any").unwrap(), "pods"), "20");
    read("{}", "any").unwrap();
}

#[test]
fn one_section_serves_all_nodes() {
    let text = "
cpu: 4
podCIDR: 10.9.0.0/24
backend: /run/mock.sock
life: {startDelay: 1.5s, runFor: 2m, exitCode: 3, stopDelay: 200ms, cpu: 1.5, memory: 64Mi}
faults:
  create: {error: Unavailable, message: away, times: 2}
  ping: {hang: true, after: 3}
  status: {delay: 5s, every: 2}
  delete: {error: Internal, afterSuccess: true}
fit: {lowerNodes: 4, refused: full, lasting: true}
";
    let settings = read(text, "any").unwrap();
    assert_eq!(settings.life.start_delay, Duration::from_millis(1500));
    assert_eq!(settings.life.run_for, Some(Duration::from_mins(2)));
    assert_eq!(settings.life.exit_code, 3);
    assert_eq!(settings.life.cpu, Some(Quantity::milli(1500)));
    assert_eq!(settings.life.memory, Some(Quantity::bytes(64 << 20)));
    assert_eq!(settings.pod_cidr.to_string(), "10.9.0.0/24");
    assert_eq!(settings.backend, Some("/run/mock.sock".into()));
    assert_eq!(settings.faults[&Call::Create], Fault::error(Kind::Unavailable, "away").times(2));
    assert_eq!(settings.faults[&Call::Ping], Fault::hang().after(3));
    assert!(settings.faults[&Call::Delete].after_success);
    assert_eq!((settings.fit.lower_nodes.get(), settings.fit.lasting), (4, true));
    assert_eq!(settings.fit.refused.as_deref(), Some("full"));
}

#[test]
fn an_error_is_invalid_and_names_its_position() {
    for (text, parts) in [
        ("vk-1: {cpu: two}", &["vk-1", "cpu", "\"two\"", "not a quantity"][..]),
        ("vk-2: {memory: -1Gi}", &["vk-2", "memory", "-1Gi"]),
        ("vk-1: {others: {gpu: 1x}}", &["vk-1", "others.gpu", "1x"]),
        ("vk-1: {memmory: 1Gi}", &["vk-1", "memmory", "did you mean `memory`?"]),
        ("cpuu: 1", &["cpuu", "did you mean `cpu`?"]),
        ("life: {startDelay: soon}", &["life.startDelay", "soon", "1.5s"]),
        ("life: {cpu: much}", &["life.cpu", "much", "250m"]),
        ("life: {memory: [1]}", &["life.memory", "[1]", "not a quantity"]),
        ("life: {startDelai: 1s}", &["startDelai", "did you mean `startDelay`?"]),
        ("faults: {creat: {hang: true}}", &["creat", "did you mean `create`?"]),
        ("faults: {create: {error: Unavailble}}", &["create", "Unavailble", "Unavailable"]),
        ("faults: {create: {times: 3}}", &["faults.create", "does nothing"]),
        ("fit: {lowerNodes: 0}", &["fit.lowerNodes", "0"]),
        ("fit: {lowerNode: 2}", &["lowerNode", "did you mean `lowerNodes`?"]),
        ("fit: {lasting: true}", &["fit", "does nothing"]),
        ("fit: {refused: a, unknown: b}", &["fit", "write one of them"]),
        ("fields: {hostNetwork: {policy: refusd}}", &["fields.hostNetwork", "refusd"]),
        ("groups: [{id: g, begin: soon}]", &["groups[0].begin", "soon", "2026-01-01T00:00:00Z"]),
        ("groups: [{id: g, stat: Running}]", &["stat", "did you mean `state`?"]),
        ("podCIDR: 10.0.0.0", &["podCIDR", "10.0.0.0"]),
        ("vk-1: {cpu: [1]}", &["vk-1", "cpu"]),
    ] {
        let error = read(text, "vk-1").unwrap_err();
        assert_eq!(*error.kind(), Kind::Invalid, "{text}");
        for part in parts.iter().chain(&["mock.yaml"]) {
            assert!(error.message().contains(part), "{text}: {error} lacks {part}");
        }
    }
}
