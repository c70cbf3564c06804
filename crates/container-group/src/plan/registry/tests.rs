use std::{collections::BTreeMap, sync::Arc};

use serde_json::json;

use super::*;

fn pod(images: &[&str], credentials: &[(&str, Vec<PullCredentials>)]) -> ResolvedPod {
    let containers: Vec<_> = images.iter().map(|image| json!({"name": "web", "image": image})).collect();
    let pod = serde_json::from_value(json!({"spec": {"containers": containers}})).unwrap();
    let credentials =
        credentials.iter().map(|(image, credentials)| ((*image).to_owned(), credentials.clone()));
    ResolvedPod {
        pod: Arc::new(pod),
        containers: BTreeMap::new(),
        files: BTreeMap::new(),
        claims: BTreeMap::new(),
        credentials: credentials.collect(),
    }
}

fn shown(logins: &RegistryLogins) -> Vec<(&str, &str, &str)> {
    let passwords = logins.passwords.iter();
    passwords.map(|one| (one.server.as_str(), one.username.as_str(), one.password.expose_secret())).collect()
}

fn basic(registry: &str, user: &str) -> PullCredentials {
    PullCredentials::basic(registry, user, format!("password of {user}"))
}

fn none(_: &str) -> bool {
    false
}

#[test]
fn each_registry_is_there_once() {
    let pod = pod(
        &[],
        &[
            ("registry.example:5000/team/a", vec![basic("https://registry.example:5000/team", "ann")]),
            ("registry.example:5000/team/b", vec![basic("registry.example:5000", "ann")]),
            ("nginx", vec![basic("https://index.docker.io/v1/", "bob")]),
        ],
    );
    let mut diagnostics = Diagnostics::default();
    let logins = logins(&pod, none, &mut diagnostics);
    let expected =
        [("docker.io", "bob", "password of bob"), ("registry.example:5000", "ann", "password of ann")];
    assert_eq!(shown(&logins), expected);
    assert!(diagnostics.warnings().is_empty(), "{diagnostics:?}");
}

#[test]
fn an_entry_with_wildcards_is_for_the_server_of_the_image() {
    let pod = pod(&[], &[("a.registry.example/app", vec![basic("*.registry.example", "ann")])]);
    let logins = logins(&pod, none, &mut Diagnostics::default());
    assert_eq!(shown(&logins), [("a.registry.example", "ann", "password of ann")]);
}

#[test]
fn of_two_logins_for_a_server_the_best_match_is_used_with_a_warning() {
    let credentials = vec![basic("registry.example/team", "ann"), basic("registry.example", "bob")];
    let pod = pod(&[], &[("registry.example/team/app", credentials)]);
    let mut diagnostics = Diagnostics::default();
    assert_eq!(logins(&pod, none, &mut diagnostics).passwords[0].username, "ann");
    let warning = &diagnostics.warnings()[0];
    assert_eq!(warning.field, "spec.imagePullSecrets");
    assert!(warning.message.contains("registry.example") && warning.message.contains("ann"), "{warning:?}");
    assert!(!warning.message.contains("password of"), "{warning:?}");
}

#[test]
fn a_token_is_a_warning() {
    let token = PullCredentials {
        registry: "registry.example".into(),
        login: RegistryLogin::IdentityToken("t".into()),
    };
    let mut diagnostics = Diagnostics::default();
    let logins = logins(&pod(&[], &[("registry.example/app", vec![token])]), none, &mut diagnostics);
    assert!(logins.passwords.is_empty() && diagnostics.warnings().len() == 1);
}

#[test]
fn the_registry_of_the_cloud_needs_no_password_and_takes_one() {
    let images = ["registry.cloud/a", "registry.cloud/b", "other.cloud/c", "registry.example/d", "nginx"];
    let is_own = |server: &str| server != "registry.example" && server != "docker.io";
    let pod = pod(&images, &[("other.cloud/c", vec![basic("other.cloud", "ann")])]);
    let logins = logins(&pod, is_own, &mut Diagnostics::default());
    assert_eq!(logins.own, ["registry.cloud"]);
    assert_eq!(logins.passwords[0].server, "other.cloud");
    assert!(!format!("{logins:?}").contains("password of"));
}

#[test]
fn an_image_without_a_server_is_on_docker_hub() {
    for (image, server) in [
        ("nginx", "docker.io"),
        ("library/nginx:1", "docker.io"),
        ("localhost/app", "localhost"),
        ("host:5000/app", "host:5000"),
        ("index.docker.io/library/nginx", "docker.io"),
        ("registry.example/app@sha256:00", "registry.example"),
    ] {
        assert_eq!(image_server(image), server);
    }
}
