//! `virtual-kubelet explain-pod`.

use std::{
    io::Write as _,
    process::{Command, Stdio},
};

use serde_json::Value;

use crate::{Outcome, vk};

/// A mock that treats fields of pods in different ways.
const MOCK: &str = "fields:\n  hostNetwork: {policy: refused, result: pods have their own network; remove it}\n  \
                    dnsPolicy: {policy: ignored, result: always Default}\n  \
                    nodeSelector: {policy: elsewhere, result: handled by the scheduler}\n";

const WEB: &str = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web, namespace: shop}\nspec:\n  selector: {matchLabels: {app: web}}\n  \
                   template:\n    metadata: {labels: {app: web}}\n    spec:\n      dnsPolicy: ClusterFirst\n      nodeSelector: {a: b}\n      \
                   containers: [{name: web, image: web:1, resources: {requests: {cpu: 1}}}]\n";

const HOST: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: host}\nspec:\n  hostNetwork: true\n  containers: [{name: a, image: b}]\n";

/// Explains `m.yaml` on the mock of `mock.yaml`.
fn explain(manifest: &str, mock: &str, arguments: &[&str]) -> Outcome {
    let fixed = ["explain-pod", "--provider", "mock", "--provider-config", "mock.yaml", "-f", "m.yaml"];
    let run = vk(&[&fixed[..], arguments].concat());
    run.write("mock.yaml", mock);
    run.write("m.yaml", manifest);
    run.run()
}

#[test]
fn a_deployment_that_runs_is_explained_without_a_cluster() {
    let text = explain(WEB, MOCK, &[]).ok();
    assert_eq!(
        text,
        "Deployment shop/web: pods on mock\n\
         \n\
         \x20 runs      yes, with 1 warning\n\
         \n\
         \x20 FIELD              POLICY     RESULT\n\
         \x20 spec.dnsPolicy     ignored    always Default\n\
         \x20 spec.nodeSelector  elsewhere  handled by the scheduler\n"
    );
    let all = explain(WEB, MOCK, &["--all"]).ok();
    assert!(all.contains("  spec.containers    native\n"), "{all}");
}

#[test]
fn a_pod_that_does_not_run_ends_with_1_and_names_the_fields() {
    let seen = explain(&format!("{WEB}---\n{HOST}"), MOCK, &[]);
    assert_eq!(seen.code, 1, "{seen:#?}");
    assert!(
        seen.stdout.contains("\n\nPod default/host on mock\n\n  runs      no: spec.hostNetwork\n"),
        "{seen:#?}"
    );
    assert!(seen.stdout.contains("refused  pods have their own network"), "{seen:#?}");
    assert_eq!(seen.stderr, "error: 1 of 2 workloads does not run\n");
}

#[test]
fn a_provider_that_changes_nothing_says_so() {
    for provider in ["mock", "cri", "local"] {
        let run = vk(&["explain-pod", "--provider", provider, "-f", "m.yaml"]);
        run.write("m.yaml", HOST);
        let text = run.run().ok();
        assert!(
            text.contains(&format!("  runs      yes: {provider} passes pods through unchanged\n")),
            "{text}"
        );
    }
}

#[test]
fn the_output_can_be_json() {
    let seen = explain(&format!("{WEB}---\n{HOST}"), MOCK, &["-o", "json"]);
    assert_eq!(seen.code, 1, "{seen:#?}");
    let all: Value = serde_json::from_str(&seen.stdout).unwrap();
    assert_eq!((&all[0]["kind"], &all[0]["runs"]), (&"Deployment".into(), &true.into()), "{all}");
    assert_eq!((&all[1]["name"], &all[1]["runs"]), (&"host".into(), &false.into()), "{all}");
    let fields = all[1]["fields"].as_array().unwrap();
    assert!(
        fields.iter().any(|row| row["field"] == "spec.hostNetwork" && row["policy"] == "refused"),
        "{all}"
    );
    assert!(fields.iter().any(|row| row["policy"] == "native"), "native fields too: {all}");
}

#[test]
fn unreadable_files_and_wrong_manifests_end_with_2_and_say_where() {
    for (manifest, words) in [
        ("kind: Pod\nmetadata: {name: p", &["m.yaml: ", "line 2"][..]),
        (
            "kind: Job\nmetadata: {name: j}\nspec: {template: {spec: {containers: [{name: c, comand: [x]}]}}}",
            &["m.yaml: Job default/j: spec.template.spec.containers[0].comand: is not a field"],
        ),
        ("kind: Service\nmetadata: {name: s}", &["m.yaml: no pods", "Service s"]),
        ("", &["m.yaml: no pods", "nothing"]),
    ] {
        explain(manifest, MOCK, &[]).refused(2, &[words]);
    }
    let missing = vk(&["explain-pod", "--provider", "mock", "-f", "nosuch.yaml"]).run();
    missing.refused(2, &[&["nosuch.yaml", "cannot read it", "No such file"]]);
    vk(&["explain-pod", "--provider", "mock"]).run().refused(2, &[&["--filename"]]);
    explain(WEB, "fields: {hostNetwork: {policy: maybe}}", &[])
        .refused(2, &[&["mock.yaml", "fields.hostNetwork", "maybe"]]);
}

#[test]
fn the_namespace_is_chosen_as_by_kubectl() {
    let kubeconfig = "{apiVersion: v1, kind: Config, current-context: c, clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}], \
                      users: [{name: u, user: {token: t}}], contexts: [{name: c, context: {cluster: c, user: u, namespace: team}}]}";
    let of = |arguments: &[&str]| {
        let run = vk(&[&["explain-pod", "--provider", "mock", "-f", "m.yaml"], arguments].concat());
        run.write("m.yaml", &format!("{HOST}---\n{WEB}"));
        run.write("config", kubeconfig);
        run.run().ok()
    };
    assert!(of(&[]).starts_with("Pod default/host"));
    let of_context = of(&["--kubeconfig", "config"]);
    assert!(
        of_context.starts_with("Pod team/host") && of_context.contains("Deployment shop/web"),
        "{of_context}"
    );
    assert!(of(&["--kubeconfig", "config", "-n", "own"]).starts_with("Pod own/host"));
    assert!(of(&["--namespace", "own"]).starts_with("Pod own/host"));
}

#[test]
fn manifests_are_read_from_standard_input() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_virtual-kubelet"))
        .args(["explain-pod", "--provider", "mock", "-f", "-"])
        .env_clear()
        .env("HOME", folder.path())
        .current_dir(folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(HOST.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8(output.stdout).unwrap().starts_with("Pod default/host on mock\n"));
}
