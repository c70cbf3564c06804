//! Projected volumes.

use jiff::Timestamp;
use secrecy::SecretString;
use vk_provider::resolve::Token;

use super::*;
use crate::resolve::fetched_objects::TrustBundleKey;

fn token(text: &str) -> Token {
    Token { token: SecretString::from(text), expires: Timestamp::MAX }
}

fn with_tokens() -> FetchedObjects {
    let mut objects = objects();
    let key = |audience: Option<&str>, expiration_seconds| TokenKey {
        audience: audience.map(str::to_owned),
        expiration_seconds,
    };
    objects.tokens.insert(key(None, Some(3607)), token("for-the-api"));
    objects.tokens.insert(key(Some("vault"), Some(600)), token("for-the-vault"));
    objects
}

/// What admission adds to almost every pod.
fn automatic() -> Value {
    json!({"projected": {"defaultMode": 0o644, "sources": [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
        {"configMap": {"name": "settings", "items": [{"key": "one", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
    ]}})
}

#[test]
fn the_automatic_volume_has_token_ca_and_namespace() {
    let (set, warnings) =
        super::super::volume(&pod(automatic()), "v", &node(), &with_tokens()).expect("files");
    let wanted =
        [file("ca.crt", "1", 0o644), file("namespace", "shop", 0o644), file("token", "for-the-api", 0o644)];
    assert_eq!(without_origins(set), wanted);
    assert_eq!(warnings, []);
}

#[test]
fn a_token_file_belongs_to_the_pods_common_user() {
    let owned = |change: &dyn Fn(&mut Value)| {
        let mut pod = serde_json::to_value(pod(automatic())).expect("a pod");
        change(&mut pod["spec"]);
        let pod = serde_json::from_value(pod).expect("a pod");
        let (set, _) = super::super::volume(&pod, "v", &node(), &with_tokens()).expect("files");
        assert_eq!((set.files["ca.crt"].mode, set.files["ca.crt"].owner), (0o644, None));
        (set.files["token"].mode, set.files["token"].owner)
    };
    assert_eq!(owned(&|_| ()), (0o644, None));
    let pod_user = json!({"runAsUser": 1000});
    assert_eq!(owned(&|spec| spec["securityContext"] = pod_user.clone()), (0o600, Some(1000)));
    assert_eq!(
        owned(&|spec| spec["containers"][0]["securityContext"] = pod_user.clone()),
        (0o600, Some(1000))
    );
    // Different or unset users: the file has no owner.
    let other = json!([{"name": "init", "securityContext": {"runAsUser": 1001}}]);
    assert_eq!(
        owned(&|spec| {
            spec["securityContext"] = pod_user.clone();
            spec["initContainers"] = other.clone();
        }),
        (0o644, None)
    );
    assert_eq!(
        owned(&|spec| {
            spec["containers"][0]["securityContext"] = pod_user.clone();
            spec["ephemeralContainers"] = json!([{"name": "debug"}]);
        }),
        (0o644, None)
    );
    assert_eq!(owned(&|spec| spec["securityContext"] = json!({"fsGroup": 2000})), (0o600, None));
    assert_eq!(
        owned(&|spec| spec["securityContext"] = json!({"fsGroup": 2000, "runAsUser": 0})),
        (0o600, Some(0))
    );
}

#[test]
fn the_later_of_two_files_with_one_path_wins() {
    let volume = json!({"projected": {"sources": [
        {"configMap": {"name": "settings", "items": [{"key": "one", "path": "sub/same", "mode": 0o600}]}},
        {"secret": {"name": "login", "items": [{"key": "user", "path": "sub//same"}]}},
        {"configMap": {"name": "settings"}},
        {"secret": {"name": "login"}},
    ]}});
    let wanted = [
        file("both", b"\0\0", 0o644),
        file("bytes", b"\xff\xfe", 0o644),
        file("one", "secret", 0o644),
        file("sub/same", "root", 0o644),
        file("two", "2", 0o644),
        file("user", "root", 0o644),
    ];
    assert_eq!(files(volume), wanted);
}

#[test]
fn a_file_that_conflicts_with_a_directory_is_rejected() {
    let volume = json!({"projected": {"sources": [
        {"configMap": {"name": "settings", "items": [{"key": "one", "path": "a"}]}},
        {"secret": {"name": "login", "items": [{"key": "user", "path": "a/b"}]}},
    ]}});
    let message = "invalid path: a cannot be both a file and the directory of a/b";
    fails(volume, &Kind::Invalid, message);
}

#[test]
fn all_missing_sources_are_reported_at_once() {
    let volume = json!({"projected": {"sources": [
        {"secret": {"name": "gone"}},
        {"configMap": {"name": "gone"}},
        {"secret": {"name": "gone"}},
        {"configMap": {"name": "settings", "items": [{"key": "none", "path": "p"}]}},
    ]}});
    let message = "[secret \"gone\" not found, configmap \"gone\" not found, configmap references non-existent config \
                   key: none]";
    fails(volume, &Kind::Unresolved(secret_reference("gone")), message);
    let one = json!({"projected": {"sources": [{"secret": {"name": "gone"}}, {"configMap": {"name": "settings"}}]}});
    fails(one, &Kind::Unresolved(secret_reference("gone")), "secret \"gone\" not found");
    let optional = json!({"projected": {"sources": [
        {"secret": {"name": "gone", "optional": true}},
        {"configMap": {"name": "settings", "items": [{"key": "one", "path": "one"}]}},
    ]}});
    let (set, warnings) = made(optional).expect("files");
    assert_eq!(set.files.len(), 1);
    assert_eq!(warnings, [ResolveWarning::MissingOptional(secret_reference("gone"))]);
}

#[test]
fn every_source_lists_its_required_objects() {
    let volume = json!({"projected": {"sources": [
        {"secret": {"name": "login", "optional": true}},
        {"secret": {"name": "login"}},
        {"configMap": {"name": "settings", "optional": true}},
        {"serviceAccountToken": {"path": "a", "expirationSeconds": 600, "audience": "vault"}},
        {"serviceAccountToken": {"path": "b", "expirationSeconds": 600, "audience": "vault"}},
        {"serviceAccountToken": {"path": "c", "audience": ""}},
        {"clusterTrustBundle": {"path": "d", "name": "roots"}},
        {"clusterTrustBundle": {"path": "e", "signerName": "s", "labelSelector": {"matchLabels": {"a": "b"}}, "optional": true}},
        {"clusterTrustBundle": {"path": "f", "signerName": "s", "optional": true}},
    ]}});
    let wanted = RequiredObjects {
        config_maps: BTreeMap::from([("settings".to_owned(), Requirement { optional: true })]),
        secrets: BTreeMap::from([("login".to_owned(), Requirement { optional: false })]),
        tokens: [
            TokenKey { audience: Some("vault".to_owned()), expiration_seconds: Some(600) },
            TokenKey { audience: None, expiration_seconds: None },
        ]
        .into(),
        trust_bundles: BTreeMap::from([
            (TrustBundleKey::Name("roots".to_owned()), Requirement { optional: false }),
            (
                TrustBundleKey::Signer { signer: "s".to_owned(), selector: Some("a=b".to_owned()) },
                Requirement { optional: true },
            ),
        ]),
        ..RequiredObjects::default()
    };
    assert_eq!(required_objects(&pod(volume), "v").expect("needs"), wanted);
}

#[test]
fn tokens_differ_by_audience_and_lifetime() {
    let volume = json!({"projected": {"sources": [
        {"serviceAccountToken": {"path": "api", "expirationSeconds": 3607}},
        {"serviceAccountToken": {"path": "vault", "expirationSeconds": 600, "audience": "vault"}},
    ]}});
    let (set, _) = super::super::volume(&pod(volume), "v", &node(), &with_tokens()).expect("files");
    assert_eq!(set.files["api"].content, "for-the-api");
    assert_eq!(set.files["vault"].content, "for-the-vault");
}

#[test]
fn a_token_path_outside_the_volume_is_rejected() {
    let volume = json!({"projected": {"sources": [
        {"serviceAccountToken": {"path": "../token", "expirationSeconds": 3607}},
    ]}});
    let error = super::super::volume(&pod(volume), "v", &node(), &with_tokens()).expect_err("outside");
    assert_eq!(error.message(), "invalid path: must not contain '..': ../token");
}

#[test]
fn pod_certificates_are_unsupported() {
    let volume = json!({"projected": {"sources": [
        {"podCertificate": {"signerName": "s", "keyType": "ED25519", "keyPath": "k"}},
    ]}});
    assert_eq!(
        required_objects(&pod(volume.clone()), "v").expect_err("unsupported").kind(),
        &Kind::Unsupported
    );
    assert_eq!(made(volume).expect_err("unsupported").kind(), &Kind::Unsupported);
}
