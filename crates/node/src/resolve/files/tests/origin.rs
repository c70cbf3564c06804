//! Where files come from, and until when they are valid.

use jiff::{SignedDuration, Timestamp};
use vk_provider::resolve::Token;

use super::*;
use crate::resolve::fetched_objects::TrustBundleKey;

fn token(text: &str, expires: Timestamp) -> Token {
    Token { token: text.to_owned().into(), expires }
}

fn origins(volume: Value, objects: &FetchedObjects) -> Vec<(String, Origin)> {
    let (set, _) = super::super::volume(&pod(volume), "v", &node(), objects).expect("files");
    set.files.into_iter().map(|(path, file)| (path, file.origin)).collect()
}

fn pairs(wanted: &[(&str, Origin)]) -> Vec<(String, Origin)> {
    wanted.iter().map(|(path, origin)| ((*path).to_owned(), *origin)).collect()
}

#[test]
fn the_files_of_a_volume_have_the_origin_of_its_source() {
    let objects = objects();
    let map = json!({"configMap": {"name": "settings", "items": [{"key": "one", "path": "a"}]}});
    assert_eq!(origins(map, &objects), pairs(&[("a", Origin::ConfigMap)]));
    let secret = json!({"secret": {"secretName": "login"}});
    assert_eq!(origins(secret, &objects), pairs(&[("one", Origin::Secret), ("user", Origin::Secret)]));
    let downward = json!({"downwardAPI": {"items": [
        {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
        {"path": "cpu", "resourceFieldRef": {"containerName": "main", "resource": "requests.cpu"}},
    ]}});
    assert_eq!(origins(downward, &objects), pairs(&[("cpu", Origin::Field), ("labels", Origin::Field)]));
}

#[test]
fn each_file_of_a_projected_volume_has_its_own_origin() {
    let mut objects = objects();
    let key = TokenKey { audience: None, expiration_seconds: Some(3607) };
    objects.tokens.insert(key, token("t", Timestamp::MAX));
    let certificate = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    objects.trust_bundles.insert(TrustBundleKey::Name("roots".to_owned()), vec![certificate.to_owned()]);
    let volume = json!({"projected": {"sources": [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
        {"configMap": {"name": "settings", "items": [{"key": "one", "path": "map"}, {"key": "two", "path": "both"}]}},
        {"secret": {"name": "login", "items": [{"key": "user", "path": "secret"}, {"key": "one", "path": "both"}]}},
        {"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
        {"clusterTrustBundle": {"path": "roots", "name": "roots"}},
    ]}});
    let wanted = [
        ("both", Origin::Secret),
        ("map", Origin::ConfigMap),
        ("name", Origin::Field),
        ("roots", Origin::ConfigMap),
        ("secret", Origin::Secret),
        ("token", Origin::Secret),
    ];
    assert_eq!(origins(volume, &objects), pairs(&wanted));
}

#[test]
fn a_set_expires_with_its_first_token() {
    let mut objects = objects();
    let hour = Timestamp::UNIX_EPOCH + SignedDuration::from_hours(1);
    for (audience, seconds, expires) in
        [("api", 3600, hour), ("vault", 7200, hour + SignedDuration::from_hours(1))]
    {
        let key = TokenKey { audience: Some(audience.to_owned()), expiration_seconds: Some(seconds) };
        objects.tokens.insert(key, token("t", expires));
    }
    let source = |audience: &str, seconds: i64| json!({"serviceAccountToken": {"path": audience, "audience": audience, "expirationSeconds": seconds}});
    let volume = json!({"projected": {"sources": [source("vault", 7200), source("api", 3600)]}});
    let expiry = |volume: Value, objects: &FetchedObjects| {
        super::super::volume(&pod(volume), "v", &node(), objects).expect("files").0.expires
    };
    assert_eq!(expiry(volume, &objects), Some(hour));
    let map = json!({"configMap": {"name": "settings"}});
    assert_eq!(expiry(map, &super::objects()), None);
}
