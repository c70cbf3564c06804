use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use k8s_openapi::ByteString;
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};
use vk_provider::error::Kind;

use super::*;

fn secret(name: &str, kind: &str, key: &str, content: &str) -> Arc<Secret> {
    let mut secret = Secret { type_: Some(kind.to_owned()), ..Secret::default() };
    secret.metadata.namespace = Some("shop".to_owned());
    secret.metadata.name = Some(name.to_owned());
    secret.data = Some(BTreeMap::from([(key.to_owned(), ByteString(content.as_bytes().to_vec()))]));
    Arc::new(secret)
}

fn new_format(auths: Value) -> Arc<Secret> {
    let content = Value::from_iter([("auths", auths)]).to_string();
    secret("new", "kubernetes.io/dockerconfigjson", ".dockerconfigjson", &content)
}

fn old_format(entries: &Value) -> Arc<Secret> {
    secret("old", "kubernetes.io/dockercfg", ".dockercfg", &entries.to_string())
}

fn shown(credentials: &[PullCredentials]) -> Vec<String> {
    let show = |credentials: &PullCredentials| match &credentials.login {
        RegistryLogin::Basic { username, password } => format!("{username}:{}", password.expose_secret()),
        RegistryLogin::IdentityToken(token) => format!("identity {}", token.expose_secret()),
        RegistryLogin::RegistryToken(token) => format!("registry {}", token.expose_secret()),
    };
    credentials.iter().map(show).collect()
}

fn found(image: &str, secrets: &[Arc<Secret>]) -> Vec<String> {
    shown(&credentials(image, secrets).expect("credentials"))
}

fn user(name: &str) -> Value {
    json!({"username": name, "password": "p", "email": "nobody@example.com"})
}

#[test]
fn both_formats_are_read() {
    let new = new_format(json!({"example.com": user("new")}));
    let old = old_format(&json!({"example.com": user("old")}));
    assert_eq!(found("example.com/app:v1", &[old.clone(), new.clone()]), ["old:p", "new:p"]);
    assert_eq!(found("example.com/app:v1", &[new, old]), ["new:p", "old:p"]);
}

#[test]
fn the_longest_location_comes_first() {
    let secret = new_format(json!({
        "example.com": user("host"),
        "example.com/team": user("team"),
        "https://example.com/v2/team/app": user("app"),
        "example.com/other": user("other"),
        "*.com": user("any"),
    }));
    assert_eq!(found("example.com/team/app", &[secret]), ["app:p", "team:p", "host:p", "any:p"]);
}

#[test]
fn credentials_name_their_entry() {
    let secret = new_format(json!({
        "example.com": user("host"),
        "https://example.com/v2/team/": user("team"),
        "https://index.docker.io/v1/": user("hub"),
    }));
    let secrets = [secret];
    let registries = |image: &str| -> Vec<String> {
        let found = credentials(image, &secrets).expect("credentials");
        found.into_iter().map(|credentials| credentials.registry).collect()
    };
    assert_eq!(registries("example.com/team/app"), ["https://example.com/v2/team/", "example.com"]);
    assert_eq!(registries("nginx"), ["https://index.docker.io/v1/"]);
}

#[test]
fn an_image_without_a_host_is_pulled_from_docker() {
    let secret =
        new_format(json!({"https://index.docker.io/v1/": user("hub"), "example.com": user("other")}));
    let secrets = [secret];
    for image in ["nginx", "factory/nginx:1", "docker.io/nginx", "index.docker.io/library/nginx"] {
        assert_eq!(found(image, &secrets), ["hub:p"], "{image}");
    }
    for image in ["other.example.com/nginx", "example.com:5000/nginx"] {
        assert_eq!(found(image, &secrets), Vec::<String>::new(), "{image}");
    }
    // What is written for the image's own place comes before the default.
    let named =
        new_format(json!({"https://index.docker.io/v1/": user("hub"), "docker.io/library": user("factory")}));
    assert_eq!(found("nginx", &[named]), ["factory:p"]);
}

#[test]
fn the_auth_field_takes_precedence_and_padding_is_optional() {
    let entry =
        |auth: &str| new_format(json!({"example.com": {"username": "x", "password": "y", "auth": auth}}));
    let image = "example.com/app";
    assert_eq!(found(image, &[entry(&STANDARD.encode("user:pass:word"))]), ["user:pass:word"]);
    assert_eq!(found(image, &[entry(&STANDARD.encode("user:pa"))]), ["user:pa"]);
    assert_eq!(found(image, &[entry(&STANDARD_NO_PAD.encode("user:pa"))]), ["user:pa"]);
    assert_eq!(found(image, &[entry("dXNl\r\ncjpw\n")]), ["user:p"]);
    assert_eq!(found(image, &[entry("")]), ["x:y"]);
}

#[test]
fn tokens_are_returned_as_tokens() {
    let secret = new_format(json!({
        "example.com/a": {"auth": STANDARD.encode("00:"), "identitytoken": "identity"},
        "example.com/b": {"registrytoken": "registry"},
    }));
    let secrets = [secret];
    assert_eq!(found("example.com/a/app", &secrets), ["identity identity"]);
    assert_eq!(found("example.com/b/app", &secrets), ["registry registry"]);
}

#[test]
fn empty_entries_are_skipped() {
    let secrets = [
        new_format(
            json!({"example.com": {}, "example.com/app": null, "exa mple.com": user("x"), "example.com:port": user("y")}),
        ),
        new_format(json!(null)),
        secret("opaque", "Opaque", ".dockerconfigjson", "not even JSON"),
        secret("empty", "kubernetes.io/dockercfg", ".dockercfg", ""),
        secret("mixed", "kubernetes.io/dockerconfigjson", ".dockercfg", "{}"),
        Arc::new(Secret::default()),
    ];
    assert_eq!(found("example.com/app", &secrets), Vec::<String>::new());
    assert_eq!(found("example.com/app", &[]), Vec::<String>::new());
}

#[test]
fn an_unreadable_secret_is_named_without_its_content() {
    let content = [
        r#"{"auths": {"example.com": "hunter2"}}"#.to_owned(),
        r#"{"auths": ["hunter2"]}"#.to_owned(),
        "hunter2".to_owned(),
        json!({"auths": {"other.com": {"auth": "hunter2!"}}}).to_string(),
        json!({"auths": {"other.com": {"auth": STANDARD.encode("hunter2")}}}).to_string(),
        json!({"auths": {"other.com": {"auth": STANDARD.encode(b"\xff:hunter2")}}}).to_string(),
    ];
    for content in content {
        let secret = secret("new", "kubernetes.io/dockerconfigjson", ".dockerconfigjson", &content);
        let error = credentials("example.com/app", &[secret]).expect_err(&content);
        let reference = Reference::new(ReferenceKind::Secret, "shop", "new");
        assert_eq!(error.kind(), &Kind::Unresolved(reference));
        let report = error.report();
        assert!(report.starts_with("pull secret shop/new cannot be used: "), "{report}");
        assert!(!report.contains("hunter2"), "{report}");
    }
    let error = credentials("Bad//image", &[]).expect_err("no image");
    assert_eq!(error.kind(), &Kind::Invalid);
}
