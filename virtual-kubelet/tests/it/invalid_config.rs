//! Invalid configurations: exit code 2 and one line that names the key and says what to write.

use crate::vk;

/// Checks one invalid value in a file, for `run` and `config check`.
#[track_caller]
fn file(text: &str, words: &[&str]) {
    let text = format!("provider: mock\n{text}\n");
    vk(&["config", "check"]).file(&text).run().refused(2, &[words]);
    vk(&["run"]).file(&text).run().refused(2, &[words]);
}

/// Checks one invalid flag.
#[track_caller]
fn flags(arguments: &[&str], words: &[&str]) {
    let all: Vec<&str> = ["--provider", "mock"].iter().chain(arguments).copied().collect();
    vk(&all).run().refused(2, &[words]);
}

#[test]
fn names_of_nodes() {
    file("nodeName: UpperCluster", &["nodeName:", "`UpperCluster`", "lowercase", "vk.yaml"]);
    file(&format!("nodes: [{{name: {}}}]", "a".repeat(254)), &["nodes[0].name:", "254", "253"]);
    flags(&["--nodename", "under_score"], &["nodeName:", "`under_score`", "--nodename"]);
    file("nodes: [{name: a}, {name: a}]", &["nodes[1].name:", "`a`", "nodes[0]"]);
}

#[test]
fn providers() {
    flags(
        &["--provider", "mokc"],
        &["provider:", "`mokc`", "did you mean `mock`?", "known: cluster, cri, eci, local, mock"],
    );
    file(
        "nodes: [{name: a, provider: zzz}]",
        &["nodes[0].provider:", "`zzz`", "known: cluster, cri, eci, local, mock"],
    );
    vk(&["run"]).run().refused(2, &[&["provider:", "--provider", "known: cluster, cri, eci, local, mock"]]);
    file("providerConfig: nosuch.yaml", &["providerConfig:", "nosuch.yaml", "No such file"]);
    file("providerConfig: .", &["providerConfig:", "cannot read", "directory"]);
    file("providerConfig: 7", &["providerConfig:", "path", "section"]);
}

#[test]
fn keys() {
    file("nodeNmae: a", &["nodeNmae:", "unknown key", "did you mean `nodeName`?"]);
    file("nodes: [{name: a, tiant: {}}]", &["nodes[0].tiant:", "did you mean `taint`?"]);
    file("shutdown: {tiemout: 1s}", &["shutdown.tiemout:", "did you mean `timeout`?"]);
}

#[test]
fn taints() {
    file("taint: {effect: Never}", &["taint.effect:", "`Never`", "NoSchedule, PreferNoSchedule, NoExecute"]);
    file("taint: {key: 'a b'}", &["taint.key:", "`a b`"]);
    let run = vk(&["--provider", "mock"]).env("VKUBELET_TAINT_EFFECT", "noschedule").run();
    run.refused(2, &[&["taint.effect:", "`noschedule`", "VKUBELET_TAINT_EFFECT"]]);
}

#[test]
fn ports() {
    file("port: 65536", &["port:", "65536", "1 to 65535"]);
    file("port: 0", &["port:", "1 to 65535"]);
    flags(&["--port", "-1"], &["port:", "-1", "1 to 65535", "--port"]);
    flags(&["--port", "http"], &["port:", "`http`", "not a number"]);
    vk(&["--provider", "mock"])
        .env("KUBELET_PORT", "70000")
        .run()
        .refused(2, &[&["port:", "70000", "KUBELET_PORT"]]);
    file("nodes: [{name: a, port: 80}, {name: b, port: 80}]", &["nodes[1].port:", "80", "`a`", "`b`"]);
    file("metricsAddr: ':10250'", &["port:", "10250", "metricsAddr"]);
    file("metricsAddr: nowhere", &["metricsAddr:", "`nowhere`", ":10255"]);
    file("address: localhost", &["address:", "IP address"]);
    flags(&["--hostname", "under_score"], &["hostname:", "`under_score`", "lowercase"]);
}

#[test]
fn operating_systems() {
    flags(&["--os", "plan9"], &["os:", "`plan9`", "linux, windows"]);
    vk(&["config", "check", "--provider=mock", "--os=Linux"]).run().ok();
    vk(&["config", "check", "--provider=mock", "--os=Windows"]).run().ok();
}

#[test]
fn labels() {
    file("labels: {'a/b/c': x}", &["labels.a/b/c:", "not a key"]);
    file("labels: {a: 'x y'}", &["labels.a:", "`x y`"]);
    file("labels: {a: 1}", &["labels.a:", "in quotes"]);
    flags(&["--labels", "novalue"], &["labels:", "`novalue`", "key=value"]);
    file("annotations: {'a b': x}", &["annotations.a b:", "not a key"]);
}

#[test]
fn durations() {
    file("pingTimeout: 0s", &["pingTimeout:", "more than 0"]);
    flags(&["--ping-timeout", "0"], &["pingTimeout:", "more than 0"]);
    file("leaseDuration: 3s", &["leaseDuration:", "3s", "4s or more"]);
    file("statusInterval: 5", &["statusInterval:", "`5`", "30s"]);
    file("shutdown: {timeout: -1s}", &["shutdown.timeout:", "`-1s`", "duration"]);
    file("shutdown: {node: keep}", &["shutdown.node:", "`keep`", "leave, delete"]);
}

#[test]
fn counts() {
    file("nodes: [{count: 0}]", &["nodes[0].count:", "0", "write 1"]);
    file("nodes: [{count: -2}]", &["nodes[0].count:", "-2", "write 1"]);
    file("nodes: [{count: 2, namePattern: vk}]", &["nodes[0].namePattern:", "`{}`"]);
    file("nodes: [{count: 2, name: vk}]", &["nodes[0].name:", "count", "namePattern"]);
    vk(&["dev", "--nodes", "0"]).run().refused(2, &[&["--nodes", "0"]]);
}

#[test]
fn files_and_addresses() {
    vk(&["run", "--config", "nosuch.yaml"]).run().refused(2, &[&["config:", "nosuch.yaml", "No such file"]]);
    file("a: [", &["config:", "line", "vk.yaml"]);
    vk(&["run"]).file("- a\n").run().refused(2, &[&["config:", "key: value"]]);
    file("apiServer: somewhere", &["apiServer:", "https://"]);
    file("tls: {certFile: a.pem}", &["tls.keyFile:", "tls.certFile"]);
    file("log: {level: loud}", &["log.level:", "`loud`", "debug"]);
    file("log: {format: xml}", &["log.format:", "`xml`", "auto, text, json"]);
}

#[test]
fn command_lines() {
    vk(&["--nodenmae", "a"]).run().refused(2, &[&["--nodenmae", "--nodename", "--help"]]);
    vk(&["nosuch"]).run().refused(2, &[&["nosuch", "--help"]]);
    vk(&["--port"]).run().refused(2, &[&["--port", "value"]]);
    vk(&["completions", "dos"]).run().refused(2, &[&["dos", "bash"]]);
}

#[test]
fn all_are_told_at_once_from_every_layer() {
    let run = vk(&["run", "--ping-timeout", "soon", "--lease-duration", "1s"])
        .env("VK_OS", "plan9")
        .file("providr: mock\nport: 0\nnodes:\n- {name: A}\n- {count: 0}\n- {name: b, labels: {'!': x}}\n");
    run.run().refused(
        2,
        &[
            &["providr:", "`provider`"],
            &["port:", "1 to 65535"],
            &["nodes[0].name:", "`A`"],
            &["nodes[1].count:", "write 1"],
            &["nodes[2].labels.!:"],
            &["os:", "VK_OS"],
            &["pingTimeout:", "--ping-timeout"],
            &["leaseDuration:", "4s or more"],
        ],
    );
}

#[test]
fn leader_election() {
    flags(&["--leader-elect=maybe"], &["leaderElect:", "maybe", "--leader-elect"]);
    flags(
        &["--leader-elect", "--renew-deadline", "15s"],
        &["renewDeadline:", "15s is too long", "14s or less"],
    );
    flags(&["--leader-elect", "--renew-deadline", "5s"], &["renewDeadline:", "5s is too short", "15s"]);
    flags(&["--leader-elect", "--retry-period", "1m"], &["retryPeriod:", "1m is too long", "15s"]);
    file("leaderElect: true\nshutdown: {node: delete}", &["shutdown.node:", "leaderElect", "`leave`"]);
    file("leaderElection: {enabled: true}", &["leaderElection:", "did you mean `leaderElect`?"]);
}
