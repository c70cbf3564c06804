use super::*;
use crate::config::{Layer, Os};

fn resolve_yaml(text: &str) -> Result<EffectiveConfig, Vec<Problem>> {
    resolve_with(text, &|_| Vec::new())
}

fn resolve_with(
    text: &str,
    variables: &dyn Fn(&str) -> Vec<(ConfigAlias, String)>,
) -> Result<EffectiveConfig, Vec<Problem>> {
    let (file, problems) = Layer::from_yaml(text, "vk.yaml");
    assert_eq!(problems, [], "the test's own file is wrong");
    let read = |path: &Path| match path.to_str() {
        Some("mock.yaml") => Ok("cpu: 4".to_owned()),
        Some("cluster.yaml") => Ok("kubeconfig: other\npercent: 50\n".to_owned()),
        _ => Err(io::Error::from(io::ErrorKind::NotFound)),
    };
    let host = ValidationContext {
        providers: &["cluster", "cri", "mock"],
        provider_variables: variables,
        state_dir: "/state".into(),
        read: &read,
    };
    LayerStack { file, ..LayerStack::default() }.resolve(&host)
}

/// The problems of a configuration with a provider, as `key: message`.
fn problems(text: &str) -> Vec<String> {
    let found = resolve_yaml(&format!("provider: mock\n{text}")).expect_err("it was accepted");
    found.iter().map(ToString::to_string).collect()
}

fn good(text: &str) -> EffectiveConfig {
    resolve_yaml(&format!("provider: mock\n{text}")).unwrap()
}

/// Exactly one problem, at this key and with these words.
#[track_caller]
fn assert_problem(text: &str, key: &str, words: &[&str]) {
    let found = problems(text);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert!(found[0].starts_with(&format!("{key}: ")), "{found:?}");
    for word in words {
        assert!(found[0].contains(word), "{word} in {found:?}");
    }
}

#[test]
fn the_defaults_are_those_of_the_go_original_and_the_kubelet() {
    let config = good("");
    let [node] = config.nodes.as_slice() else { panic!("{:?}", config.nodes) };
    assert_eq!((node.name.as_str(), node.port, node.os), ("virtual-kubelet", 10_250, Os::Linux));
    assert_eq!(node.cluster_domain, "cluster.local");
    let taint = &node.taints[0];
    assert_eq!((taint.key.as_str(), taint.value.as_deref()), ("virtual-kubelet.io/provider", Some("mock")));
    assert_eq!(taint.effect, "NoSchedule");
    let loopback = Listen { address: Some(IpAddr::from([127, 0, 0, 1])), port: 10_255 };
    assert_eq!(config.metrics_addr, Some(loopback));
    assert_eq!(config.timing.lease.duration, Duration::from_secs(40));
    assert_eq!(config.timing.status_interval, Duration::from_mins(5));
    assert_eq!(config.streaming.idle_timeout, Duration::from_hours(4));
    assert_eq!(config.startup_timeout, Some(Duration::from_secs(30)));
    assert_eq!(config.shutdown.node, OnShutdown::Leave);
    assert_eq!(config.state_dir, Path::new("/state"));
    assert_eq!(config.auth.token_ttl, Duration::from_mins(2));
}

#[test]
fn a_dump_can_be_read_back() {
    let config = good(
        "port: 20000\nlabels: {a: b}\nproviderConfig: {x: 1}\nmetricsAddr: 'off'\nstartupTimeout: 1m\n\
         tls: {certFile: c, keyFile: k, clientCAFile: ca}\n\
         nodes:\n- {count: 3, namePattern: 'vk-{}'}\n- {name: other, provider: cri, providerConfig: mock.yaml, \
         taints: [{key: x, value: '', effect: NoExecute}], disableTaint: true, address: 127.0.0.1, internalIP: 10.0.0.1, \
         hostname: vk.example.com}\n",
    );
    let text = serde_saphyr::to_string(&config.to_settings()).unwrap();
    assert_eq!(resolve_yaml(&text).unwrap(), config, "{text}");
}

#[test]
fn a_node_inherits_unset_values() {
    let config = good(
        "os: windows\nlabels: {a: '1', b: '1'}\ntaint: {key: k, effect: NoExecute}\nproviderConfig: mock.yaml\n\
         internalIP: 10.0.0.1\nhostname: vk.example.com\nnodes:\n- {name: a, labels: {b: '2'}, taint: {value: v}}\n\
         - {name: b, provider: cri, os: Linux, hostname: b.example.com}\n",
    );
    let [a, b] = config.nodes.as_slice() else { panic!() };
    assert_eq!((a.os, b.os), (Os::Windows, Os::Linux));
    assert_eq!((a.labels["a"].as_str(), a.labels["b"].as_str(), b.labels["b"].as_str()), ("1", "2", "1"));
    assert_eq!((a.taints[0].key.as_str(), a.taints[0].value.as_deref()), ("k", Some("v")));
    assert_eq!((b.taints[0].value.as_deref(), b.taints[0].effect.as_str()), (Some("cri"), "NoExecute"));
    assert_eq!(a.internal_ip, Some(IpAddr::from([10, 0, 0, 1])));
    let hostnames = [a, b].map(|node| node.hostname.as_deref().unwrap());
    assert_eq!(hostnames, ["vk.example.com", "b.example.com"]);
    assert_eq!(a.provider_config.path(), Some(Path::new("mock.yaml")));
    // It was written for another provider.
    assert_eq!(b.provider_config, vk_provider::Config::Default);
}

#[test]
fn automatic_ports_skip_taken_ones() {
    let config = good("nodes:\n- {count: 6}\n- {name: fixed, port: 10251}\n- {name: last}\n");
    let ports: Vec<(&str, u16)> = config.nodes.iter().map(|node| (node.name.as_str(), node.port)).collect();
    // 10255 serves the metrics.
    let expected = [
        ("virtual-kubelet-0", 10250),
        ("virtual-kubelet-1", 10252),
        ("virtual-kubelet-2", 10253),
        ("virtual-kubelet-3", 10254),
        ("virtual-kubelet-4", 10256),
        ("virtual-kubelet-5", 10257),
        ("fixed", 10251),
        ("last", 10258),
    ];
    assert_eq!(ports, expected);
    let config = good("nodes:\n- {name: a, address: 10.0.0.1}\n- {name: b, address: 10.0.0.2}\n");
    assert_eq!(config.nodes.iter().map(|node| node.port).collect::<Vec<_>>(), [10250, 10250]);
    let config = good("nodes:\n- {count: 2, startIndex: 7, namePattern: 'n{}.x', portBase: 30000}\n");
    let named: Vec<(&str, u16)> = config.nodes.iter().map(|node| (node.name.as_str(), node.port)).collect();
    assert_eq!(named, [("n7.x", 30000), ("n8.x", 30001)]);
}

#[test]
fn ports_that_collide_name_both() {
    assert_problem(
        "nodes: [{name: a, port: 80}, {name: b, port: 80}]",
        "nodes[1].port",
        &["80", "`a`", "`b`"],
    );
    let text = "nodes: [{name: a, port: 80, address: 10.0.0.1}, {name: b, port: 80, address: 0.0.0.0}]";
    assert_problem(text, "nodes[1].port", &["`a`", "`b`"]);
    assert_problem("port: 10255", "port", &["metricsAddr", "virtual-kubelet"]);
    assert_problem("nodes: [{count: 2, portBase: 65535}]", "nodes[0].portBase", &["65535"]);
    assert_problem("port: 65535\nnodes: [{count: 2}]", "port", &["65535", "virtual-kubelet-1"]);
}

#[test]
fn names_that_collide_name_the_other_entry() {
    assert_problem("nodes: [{name: a}, {name: a}]", "nodes[1].name", &["`a`", "nodes[0]"]);
    assert_problem("nodes: [{}, {}]", "nodes[1].name", &["`virtual-kubelet`"]);
}

#[test]
fn counts_and_patterns_must_make_sense() {
    for count in [0, -1, 100_000] {
        assert_problem(&format!("nodes: [{{count: {count}}}]"), "nodes[0].count", &["1 to 65535"]);
    }
    assert_problem("nodes: [{count: 2, namePattern: vk}]", "nodes[0].namePattern", &["`{}`"]);
    assert_problem("nodes: [{count: 2, namePattern: 'VK{}'}]", "nodes[0].namePattern", &["DNS-1123"]);
    assert_problem("nodes: [{count: 2, name: a}]", "nodes[0].name", &["count", "namePattern"]);
    assert_problem("nodes: [{count: 2, port: 80}]", "nodes[0].port", &["portBase"]);
    assert_problem("nodes: [{count: 2, startIndex: -1}]", "nodes[0].startIndex", &["negative"]);
    assert_problem("nodes: [{name: a, portBase: 80}]", "nodes[0].portBase", &["count"]);
    assert_problem("nodeName: x\nnodes: [{name: a}]", "nodeName", &["nodes"]);
    assert_eq!(good("nodes: [{count: 1, namePattern: vk}]").nodes[0].name, "vk");
    assert_eq!(good("nodeName: x\nnodes: [{count: 2}]").nodes[1].name, "x-1");
}

#[test]
fn timing_is_checked() {
    assert_problem("pingTimeout: 0s", "pingTimeout", &["more than 0"]);
    assert_problem("pingInterval: '0'", "pingInterval", &["more than 0"]);
    assert_problem("statusInterval: 0s", "statusInterval", &["more than 0"]);
    assert_problem("streamIdleTimeout: 0s", "streamIdleTimeout", &["more than 0"]);
    assert_problem("leaseDuration: 3s", "leaseDuration", &["4s or more"]);
    assert_problem("leaseDuration: 4500ms", "leaseDuration", &["whole seconds"]);
    assert_eq!(good("leaseDuration: 4s").timing.lease.duration, Duration::from_secs(4));
}

#[test]
fn names_labels_and_taints_are_validated() {
    assert_problem("labels: {'a b': x}", "labels.a b", &["not a key"]);
    assert_problem("nodes: [{name: a, labels: {x: 'a b'}}]", "nodes[0].labels.x", &["not a value"]);
    assert_problem("annotations: {'/x': y}", "annotations./x", &["prefix"]);
    assert_problem("taint: {key: '-'}", "taint.key", &["not a key"]);
    assert_problem("taints: [{key: a, value: '!'}]", "taints[0].value", &["not a value"]);
    let twice = "taints: [{key: a, value: '1'}, {key: a, value: '2'}, {key: a, effect: NoExecute}]";
    assert_problem(twice, "taints", &["`a`", "NoSchedule", "duplicate"]);
    assert_problem("clusterDomain: Not_A_Domain", "clusterDomain", &["DNS-1123"]);
    assert_problem("apiServer: 'https://user:secret@host'", "apiServer", &["https://10.0.0.1:6443"]);
    assert!(!problems("apiServer: 'https://user:secret@host'")[0].contains("secret"));
    assert_problem("apiServer: 'example.com'", "apiServer", &["URL"]);
    assert_problem("tls: {certFile: a}", "tls.keyFile", &["tls.certFile"]);
    assert_problem("tls: {keyFile: a}", "tls.certFile", &["tls.keyFile"]);
}

#[test]
fn providers_must_be_known_and_their_files_readable() {
    assert_problem(
        "nodes: [{name: a, provider: mokc}]",
        "nodes[0].provider",
        &["`mokc`", "`mock`?", "cri, mock"],
    );
    assert_problem("providerConfig: nosuch.yaml", "providerConfig", &["nosuch.yaml"]);
    assert_problem("nodes: [{name: a, providerConfig: no.yaml}]", "nodes[0].providerConfig", &["no.yaml"]);
    let missing = resolve_yaml("").unwrap_err();
    assert_eq!(missing.len(), 1, "{missing:?}");
    assert!(missing[0].to_string().contains("known: cluster, cri, mock"), "{missing:?}");
    // Said once, however many nodes inherit it.
    assert_eq!(resolve_yaml("provider: x\nnodes: [{name: a}, {name: b}]").unwrap_err().len(), 1);
}

#[test]
fn bootstrapping_is_for_one_node_with_node_permissions() {
    let text = "bootstrapKubeconfig: b\n";
    assert_eq!(good(text).bootstrap_kubeconfig.as_deref(), Some(Path::new("b")));
    assert_problem(&format!("{text}nodes: [{{count: 2}}]"), "bootstrapKubeconfig", &["one node", "2"]);
    assert_problem(&format!("{text}shutdown: {{node: delete}}"), "shutdown.node", &["`leave`"]);
    assert_problem(&format!("{text}impersonateNodes: on"), "impersonateNodes", &["`auto`"]);
}

#[test]
fn impersonate_nodes_accepts_on_off_and_auto() {
    for (text, expected) in [
        ("", ImpersonateNodes::Auto),
        ("impersonateNodes: auto", ImpersonateNodes::Auto),
        ("impersonateNodes: on", ImpersonateNodes::On),
        ("impersonateNodes: 'off'", ImpersonateNodes::Off),
    ] {
        assert_eq!(good(text).impersonate_nodes, expected, "{text}");
    }
}

#[test]
fn all_problems_are_reported_at_once() {
    let found = problems(
        "pingTimeout: 0s\nleaseDuration: 1s\nlabels: {'!': x}\nnodes: [{count: 0}, {name: a, provider: x}]",
    );
    assert_eq!(found.len(), 5, "{found:#?}");
}

#[test]
fn the_default_state_directory_depends_on_the_user() {
    let lookup = |pairs: &'static [(&str, &str)]| {
        move |name: &str| pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    };
    let home = lookup(&[("HOME", "/home/u")]);
    assert_eq!(default_state_dir(true, home), Path::new("/var/lib/virtual-kubelet"));
    assert_eq!(default_state_dir(false, home), Path::new("/home/u/.local/state/virtual-kubelet"));
    let xdg = lookup(&[("HOME", "/home/u"), ("XDG_STATE_HOME", "/s")]);
    assert_eq!(default_state_dir(false, xdg), Path::new("/s/virtual-kubelet"));
    assert_eq!(default_state_dir(false, lookup(&[])), Path::new("/var/tmp/virtual-kubelet"));
}

#[test]
fn an_empty_path_is_none() {
    let config = good(
        "kubeconfig: ''\napiServer: ''\nstateDir: ''\nproviderConfig: ''\ntls: {certFile: '', clientCAFile: ''}\n",
    );
    assert_eq!(config, good(""));
}

#[test]
fn no_secret_is_shown_by_debug() {
    let text = "providerConfig: {region: x, password: hush}\n";
    let (layer, _) = Layer::from_yaml(text, "x");
    let config = good(text);
    for shown in [format!("{layer:?}"), format!("{config:?}"), format!("{:?}", config.to_settings())] {
        assert!(!shown.contains("hush"), "{shown}");
    }
}

#[test]
fn top_level_lower_cluster_options_apply_to_every_cluster_node() {
    let config = good(
        "clientKubeconfig: lower\nignoreLabels: [a, b]\nexternalIP: 203.0.113.7\nnodes:\n- {name: m}\n- {name: c, provider: cluster}\n\
         - {name: f, provider: k8s, providerConfig: cluster.yaml}\n\
         - {name: i, provider: cluster, providerConfig: {percent: 10, kubeconfig: other}, externalIP: 203.0.113.8}\n",
    );
    let read = |index: usize| {
        let node: &crate::config::Node = &config.nodes[index];
        (node.provider.as_str(), node.provider_config.parse::<serde_json::Value>().unwrap())
    };
    let said = serde_json::json!({"kubeconfig": "lower", "ignoreLabels": ["a", "b"]});
    assert_eq!(read(0), ("mock", None), "it is no lower cluster's");
    assert_eq!(read(1), ("cluster", Some(said.clone())));
    for (index, percent) in [(2, 50), (3, 10)] {
        let mut expected = said.clone();
        expected["percent"] = percent.into();
        assert_eq!(read(index), ("cluster", Some(expected)), "what is given later wins, and the rest stays");
    }
    assert_eq!(config.nodes[2].provider_config.path(), Some(Path::new("cluster.yaml")));
    let told: Vec<Option<IpAddr>> = config.nodes.iter().map(|node| node.external_ip).collect();
    let ip = |text: &str| text.parse().ok();
    assert_eq!(told, [ip("203.0.113.7"), ip("203.0.113.7"), ip("203.0.113.7"), ip("203.0.113.8")]);
    let dumped = serde_json::to_string(&config.to_settings()).unwrap();
    assert_eq!(resolve_yaml(&dumped).unwrap(), config, "what is dumped is read back the same: {dumped}");
}

#[test]
fn lower_cluster_options_for_other_providers_are_rejected() {
    assert_problem("clientKubeconfig: lower", "clientKubeconfig", &["provider `cluster`", "`mock`"]);
    assert_problem("ignoreLabels: [a]", "ignoreLabels", &["provider `cluster`", "`mock`"]);
    good("clientKubeconfig: ''");
}

#[test]
fn variables_of_a_provider_override_its_configuration() {
    let variables = |provider: &str| match provider {
        "cri" => vec![
            (ConfigAlias::text("A_CPU", "capacity.cpu"), "9".to_owned()),
            (ConfigAlias::text("OLD_CPU", "capacity.cpu"), "1".to_owned()),
            (ConfigAlias::list("A_ZONES", "zones"), "a,b".to_owned()),
            (ConfigAlias::ignored("A_OS"), "Linux".to_owned()),
        ],
        _ => Vec::new(),
    };
    let yaml = "provider: cri\nproviderConfig: {capacity: {cpu: '2', memory: 1Gi}}\nnodes: [{name: a}, {name: b, provider: mock}, \
                {name: c, providerConfig: mock.yaml}]";
    let config = resolve_with(yaml, &variables).unwrap();
    let parsed = |index: usize| config.nodes[index].provider_config.parse::<serde_json::Value>().unwrap();
    assert_eq!(
        parsed(0),
        Some(serde_json::json!({"capacity": {"cpu": "9", "memory": "1Gi"}, "zones": ["a", "b"]}))
    );
    let names: Vec<&str> = config.nodes[0].provider_variables.iter().map(|alias| alias.name).collect();
    assert_eq!(names, ["A_CPU", "A_ZONES"], "the first of a key wins; ignored ones do nothing");
    assert_eq!((parsed(1), config.nodes[1].provider_variables.len()), (None, 0), "another provider");
    assert_eq!(
        parsed(2),
        Some(serde_json::json!({"cpu": 4, "capacity": {"cpu": "9"}, "zones": ["a", "b"]})),
        "also over a file"
    );
}

#[test]
fn a_variable_of_a_provider_that_cannot_be_read_is_one_problem_without_its_value() {
    let port = ConfigAlias {
        kind: vk_provider::config::AliasKind::Number,
        ..ConfigAlias::text("A_PORT", "api.port")
    };
    let variables = |_: &str| vec![(port, "hidden".to_owned())];
    let found = resolve_with("provider: cri\nnodes: [{name: a}, {name: b}]", &variables).unwrap_err();
    let found: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert_eq!(found, ["providerConfig.api.port: must be an integer (from environment A_PORT)"]);
}
