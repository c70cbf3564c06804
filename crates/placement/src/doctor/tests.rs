use serde_json::json;
use vk_kube::ServerVersion;
use vk_provider::finding::FindingLevel;

use super::*;
use crate::{
    names::{EXTENDER_CALLED, LEADER_SETTINGS},
    policy::VERSION,
};

fn now() -> Timestamp {
    "2026-01-01T12:00:00Z".parse().unwrap()
}

fn version(minor: u32) -> ServerVersion {
    ServerVersion { major: 1, minor }
}

/// The level, subject and text of findings.
fn shown(findings: &[Finding]) -> Vec<String> {
    findings.iter().map(|finding| format!("{} {}: {}", finding.level, finding.what, finding.found)).collect()
}

/// Each finding contains its text, and every problem says what to do.
#[track_caller]
fn assert_found(findings: &[Finding], expected: &[&str]) {
    let texts = shown(findings);
    assert_eq!(texts.len(), expected.len(), "{texts:#?}");
    for (text, words) in texts.iter().zip(expected) {
        assert!(text.contains(words), "{text}, not {words}");
    }
    assert!(findings.iter().all(|it| it.remedy.is_empty() == (it.level == FindingLevel::Ok)), "{findings:?}");
}

fn object() -> Value {
    json!({"metadata": {"labels": {"app.kubernetes.io/version": VERSION}}})
}

fn complete() -> SetupObjects {
    SetupObjects {
        policy: Some(object()),
        bindings: [Some(object()), Some(object())],
        webhook: None,
        settings: Some(json!({})),
    }
}

#[test]
fn a_policy_that_is_missing_incomplete_or_of_another_version_is_found() {
    let found = |setup: &SetupObjects, minor| setup.findings(version(minor), "infra");
    assert_found(&found(&complete(), 36), &["ok policy: version"]);
    let old = json!({"metadata": {"labels": {"app.kubernetes.io/version": "0.0.1"}}});
    let old = SetupObjects { policy: Some(old), ..complete() };
    assert_found(&found(&old, 36), &["warning policy: it is of version 0.0.1"]);
    let unbound = SetupObjects { bindings: [Some(object()), None], ..complete() };
    assert_found(&found(&unbound, 36), &["error policy: one of the bindings"]);
    let without_settings = SetupObjects { settings: None, ..complete() };
    let refused =
        "error policy: ConfigMap infra/virtual-kubelet-placement is missing: pods that opt in are refused";
    assert_found(&found(&without_settings, 36), &[refused]);
    let nothing = SetupObjects::default();
    assert_found(&found(&nothing, 36), &["warning policy: there is no policy"]);
    assert_found(
        &found(&nothing, 32),
        &[
            "API server: the API server is of version 1.32; placement is tested with 1.33 and later",
            "there is no webhook configuration",
        ],
    );
}

#[test]
fn a_webhook_without_a_ca_and_one_beside_a_policy_are_found() {
    let webhook = |bundle: &str| {
        let mut webhook = object();
        webhook["webhooks"] =
            json!([{"clientConfig": {"caBundle": "Q0E="}}, {"clientConfig": {"caBundle": bundle}}]);
        webhook
    };
    let found = |setup: &SetupObjects| setup.findings(version(33), "infra");
    let with = |bundle: &str| SetupObjects { webhook: Some(webhook(bundle)), ..SetupObjects::default() };
    assert_found(&found(&with("Q0E=")), &["ok webhook"]);
    assert_found(&found(&with("")), &["warning webhook: the webhook configuration has no CA"]);
    let both = SetupObjects { webhook: Some(webhook("Q0E=")), ..complete() };
    assert_found(
        &found(&both),
        &["ok policy", "warning webhook: pods are converted by a policy and by a webhook"],
    );
}

fn lease(renewed: &str, annotations: &Value) -> Value {
    let spec = json!({"holderIdentity": "vk-0", "renewTime": renewed, "leaseDurationSeconds": 15});
    json!({"metadata": {"annotations": annotations}, "spec": spec})
}

fn process(gate: &str, renewed: &str, settings: &Value) -> Vec<Finding> {
    let objects = ProcessObjects {
        settings: Some(json!({"data": {"gate": gate}})),
        lease: Some(lease(renewed, &json!({LEADER_SETTINGS: settings.to_string()}))),
        serving_lease: None,
    };
    objects.findings(now(), "infra")
}

#[test]
fn a_gate_that_nobody_removes_is_found() {
    let (recently, before) = ("2026-01-01T11:59:50.000000Z", "2026-01-01T11:59:00.000000Z");
    let (on, off) = (json!({"gates": "trial"}), json!({"gates": "off"}));
    assert_found(&process("true", recently, &on), &["ok process: vk-0 leads"]);
    assert_found(&process("true", before, &on), &["error process: no process leads"]);
    assert_found(
        &process("true", recently, &off),
        &["error process: pods that opt in get a scheduling gate, and vk-0"],
    );
    assert_found(&process("false", recently, &on), &["warning process: vk-0 places gated pods"]);
    assert_found(&process("false", before, &on), &["ok process: no process leads"]);
    assert_found(&ProcessObjects::default().findings(now(), "infra"), &["ok process: no process leads"]);
}

#[test]
fn an_extender_that_nobody_calls_or_serves_is_found() {
    let (recently, before) = ("2026-01-01T11:59:50.000000Z", "2026-01-01T11:59:00.000000Z");
    let found = |renewed, settings: Value, called: Option<&str>| {
        let annotations = json!({LEADER_SETTINGS: settings.to_string(), EXTENDER_CALLED: called});
        let serving_lease = Some(lease(renewed, &annotations));
        ProcessObjects { serving_lease, ..ProcessObjects::default() }.findings(now(), "infra")
    };
    let served = || json!({"extender": {}});
    let is = |called, expected: &str| {
        assert_found(&found(recently, served(), called), &["ok process", expected]);
    };
    is(None, "warning extender: no scheduler has called it yet");
    is(Some("2026-01-01T08:00:00Z"), "warning extender: no scheduler has called it since");
    is(Some("2026-01-01T11:00:00Z"), "ok extender");
    for (renewed, settings) in [(before, served()), (recently, json!({"webhook": {}}))] {
        let gone = found(renewed, settings, Some("2026-01-01T11:00:00Z"));
        assert_found(&gone, &["ok process", "warning extender: a scheduler has called it since"]);
    }
    assert_found(&found(recently, json!({"webhook": {}}), None), &["ok process"]);
}
