//! The verbs beside `run`.

use std::{
    io::Read,
    process::{Command, Stdio},
};

use crate::vk;

#[test]
fn providers_are_listed_in_a_table() {
    let text = vk(&["providers"]).run().ok();
    let mut lines = text.lines();
    let head = lines.next().unwrap();
    assert!(
        head.starts_with("NAME") && head.contains("DESCRIPTION") && head.ends_with("ABILITIES"),
        "{text}"
    );
    let cri = lines.next().unwrap();
    assert!(cri.starts_with("cri ") && cri.ends_with("logs, exec, attach, port-forward, stats"), "{text}");
    let local = lines.next().unwrap();
    assert!(local.starts_with("local ") && local.ends_with("logs, exec, attach, port-forward, stats"), "{text}");
    let mock = lines.next().unwrap();
    assert!(mock.starts_with("mock "), "{text}");
    let one = vk(&["providers", "mock"]).run().ok();
    assert!(one.contains("mock ") && !one.contains("cri "), "{one}");
}

#[test]
fn an_unknown_provider_ends_with_1_as_in_the_go_original() {
    vk(&["providers", "nosuch"]).run().refused(1, &[&["`nosuch`", "known: cri, local, mock"]]);
    vk(&["providers", "mocc"]).run().refused(1, &[&["`mocc`", "did you mean `mock`?"]]);
}

#[test]
fn the_doctor_says_what_is_wrong_and_what_to_do_and_ends_with_1() {
    // Without a provider the doctor looks at a runtime of this machine.
    for provider in [&["--provider", "cri"][..], &[]] {
        let run = vk(&[&["doctor", "--provider-config", "cri.yaml"][..], provider].concat());
        run.write("cri.yaml", "socket: /nonexistent/cri.sock\n");
        let seen = run.run();
        assert_eq!(seen.code, 1, "{seen:#?}");
        let line = seen.stdout.lines().find(|line| line.contains("runtime socket: ")).unwrap();
        assert!(line.starts_with("error ") && line.contains("/nonexistent/cri.sock -> "), "{line}");
        assert!(seen.stdout.lines().any(|line| line.contains("cgroups: ")), "{seen:#?}");
        assert!(seen.stderr.starts_with("error: ") && seen.stderr.lines().count() == 1, "{seen:#?}");
    }
}

#[test]
fn the_doctor_finds_mistakes_in_a_providers_configuration() {
    let run = vk(&["doctor", "--provider", "cri", "--provider-config", "wrong.yaml"]);
    run.write("wrong.yaml", "sokcet: /x\n");
    let seen = run.run();
    assert_eq!(seen.code, 1, "{seen:#?}");
    assert!(seen.stdout.starts_with("error ") && seen.stdout.contains("did you mean `socket`?"), "{seen:#?}");
}

#[test]
fn a_provider_that_has_nothing_to_look_at_is_well() {
    let text = vk(&["doctor", "--provider", "mock"]).run().ok();
    assert!(text.starts_with("ok ") && text.contains("mock"), "{text}");
}

#[test]
fn version_says_what_the_nodes_claim() {
    let text = vk(&["version"]).run().ok();
    assert!(text.starts_with(&format!("virtual-kubelet {}\n", env!("CARGO_PKG_VERSION"))), "{text}");
    assert!(text.contains(&virtual_kubelet::kubelet_version()), "{text}");
    assert!(text.contains("rustc 1."), "{text}");
    let json: serde_json::Value =
        serde_json::from_str(&vk(&["version", "--output", "json"]).run().ok()).unwrap();
    assert_eq!(json["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(json["kubeletVersion"], virtual_kubelet::kubelet_version());
    assert_eq!(json["kubernetesVersion"], virtual_kubelet::KUBERNETES_VERSION);
    assert!(json["gitCommit"].is_string() && json["rustc"].is_string());
    assert!(vk(&["--version"]).run().ok().contains(env!("CARGO_PKG_VERSION")));
}

#[test]
fn completions_are_there_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = vk(&["completions", shell]).run().ok();
        assert!(script.contains("virtual-kubelet") && script.contains("nodename"), "{shell}");
    }
}

#[test]
fn help_is_no_failure_and_names_variables() {
    let text = vk(&["run", "--help"]).run().ok();
    assert!(text.contains("VK_PORT, KUBELET_PORT"), "{text}");
    assert!(!text.contains("--klog.v"), "retired flags are hidden");
    assert!(vk(&["--help"]).run().ok().contains("providers"));
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_virtual-kubelet"))
        .args(["config", "schema"])
        .env_clear()
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(stderr, "");
}
