use std::collections::BTreeMap;

use serde_json::{Value, json};
use vk_provider::error::Kind;

use super::*;

fn projection(projection: Value) -> ClusterTrustBundleProjection {
    serde_json::from_value(projection).expect("a projection")
}

fn bundles(key: TrustBundleKey, texts: &[String]) -> FetchedObjects {
    FetchedObjects { trust_bundles: BTreeMap::from([(key, texts.to_vec())]), ..FetchedObjects::default() }
}

#[test]
fn certificates_are_deduplicated_and_sorted() {
    let (one, two) = (pem(&[1; 100]), pem(&[2; 3]));
    let texts = [
        format!("comment\r\n{two}\n{one}").replace('\n', "\r\n"),
        format!(
            "{one}-----BEGIN X-----\nProc-Type: 4\n\nAgID\n-----END X-----\n-----BEGIN Y-----\n!\n-----END Y-----\n"
        ),
        "-----BEGIN CERTIFICATE-----\nAQID".to_owned(),
    ];
    let projection = projection(json!({"name": "roots", "path": "ca.pem"}));
    let mut warnings = Vec::new();
    let found =
        anchors(&projection, &bundles(TrustBundleKey::Name("roots".to_owned()), &texts), &mut warnings);
    // `AgID` is 2, 2, 3: a third certificate.
    let wanted = format!("{one}{two}{}", pem(&[2, 2, 3]));
    assert_eq!(String::from_utf8(found.expect("certificates")).expect("text"), wanted);
    assert!(one.lines().all(|line| line.len() <= 64), "{one}");
    assert_eq!(warnings, []);
}

#[test]
fn a_missing_bundle_is_unresolved_or_an_empty_file_if_optional() {
    let reference = |name: &str| Reference::new(ReferenceKind::ClusterTrustBundle, "", name);
    let signer = TrustBundleKey::Signer { signer: "example.com/s".to_owned(), selector: Some(String::new()) };
    let table = [
        (
            json!({"name": "roots", "path": "p"}),
            TrustBundleKey::Name("roots".to_owned()),
            reference("roots"),
            "while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io \"roots\" not found",
        ),
        (
            json!({"signerName": "example.com/s", "labelSelector": {}, "path": "p"}),
            signer,
            reference("example.com/s"),
            "combination of signerName and labelSelector matched zero ClusterTrustBundles",
        ),
    ];
    for (spec, key, reference, message) in table {
        let mut projection = projection(spec);
        let objects = bundles(key, &[]);
        let error = anchors(&projection, &objects, &mut Vec::new()).expect_err("nothing");
        assert_eq!((error.kind(), error.message()), (&Kind::Unresolved(reference.clone()), message));
        projection.optional = Some(true);
        let mut warnings = Vec::new();
        assert_eq!(anchors(&projection, &objects, &mut warnings).expect("an empty file"), b"");
        assert_eq!(warnings, [ResolveWarning::MissingOptional(reference)]);
    }
}

#[test]
fn a_missing_selector_matches_nothing_and_is_not_fetched() {
    let projection = projection(json!({"signerName": "example.com/s", "path": "p", "optional": true}));
    assert_eq!(
        anchors(&projection, &FetchedObjects::default(), &mut Vec::new()).expect("an empty file"),
        b""
    );
}

#[test]
fn selectors_use_the_api_servers_syntax() {
    let table = [
        (json!({}), Ok("")),
        (json!({"matchLabels": {"b": "2", "a": "1"}}), Ok("a=1,b=2")),
        (
            json!({"matchLabels": {"m": ""}, "matchExpressions": [
                {"key": "z", "operator": "In", "values": ["y", "x"]},
                {"key": "n", "operator": "NotIn", "values": ["x"]},
                {"key": "e", "operator": "Exists"},
                {"key": "d", "operator": "DoesNotExist"},
            ]}),
            Ok("!d,e,m=,n notin (x),z in (x,y)"),
        ),
        (
            json!({"matchExpressions": [{"key": "a", "operator": "Near"}]}),
            Err("while parsing label selector: \"Near\" is not a valid label selector operator"),
        ),
    ];
    for (spec, wanted) in table {
        let found = selector(&serde_json::from_value(spec).expect("a selector"));
        assert_eq!(found.as_deref().map_err(Error::message), wanted);
    }
    let error = key(&projection(json!({"path": "p"}))).expect_err("no name");
    assert_eq!(error.message(), "ClusterTrustBundle projection requires either name or signerName to be set");
}
