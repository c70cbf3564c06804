//! What the Secret should contain, for every state that it may be in.

mod clock;
mod damage;
mod rotation;

use jiff::Timestamp;
use rustls::pki_types::ServerName;

use super::{
    authority::Authority,
    contents::Contents,
    renewal::{Change, Renewal, Target},
    *,
};

const HOST: &str = "placement.example.com";

fn start() -> Timestamp {
    "2026-11-19T06:00:00Z".parse().unwrap()
}

fn names() -> ServedNames {
    let mut names = ServedNames::default();
    for name in [HOST, "10.0.0.1"] {
        names.add(name).unwrap();
    }
    names
}

fn renewal(current: Option<&Contents>, now: Timestamp) -> Option<Renewal> {
    renewal_for(current, &names(), now)
}

fn renewal_for(current: Option<&Contents>, names: &ServedNames, now: Timestamp) -> Option<Renewal> {
    let target = Target { names, now, bundle_is_published: true };
    let renewal = Renewal::of(current, target).unwrap();
    if let Some(renewal) = &renewal {
        let again = Renewal::of(Some(&renewal.contents), target).unwrap();
        assert!(again.is_none(), "{:?} after {:?}", again, renewal.changes);
    }
    renewal
}

/// The content and what was changed.
fn renewed(current: Option<&Contents>, now: Timestamp) -> (Contents, Vec<Change>) {
    let renewal = renewal(current, now).unwrap_or_else(|| panic!("nothing to do at {now}"));
    (renewal.contents, renewal.changes)
}

fn created() -> Contents {
    renewed(None, start()).0
}

/// Whether a client that trusts these CAs accepts a leaf.
fn accepts(bundle: &str, leaf: &Contents, now: Timestamp) -> Result<(), String> {
    let name = ServerName::try_from(HOST).unwrap();
    leaf::Leaf::parse(&leaf.leaf, &leaf.leaf_key)?.verify(&Authority::parse_bundle(bundle), &name, now)
}

fn authorities(contents: &Contents) -> usize {
    Authority::parse_bundle(&contents.bundle).len()
}

#[test]
fn a_missing_secret_gets_a_ca_of_ten_years_and_a_leaf_of_ninety_days() {
    let (contents, changes) = renewed(None, start());
    assert_eq!(changes, [Change::Created]);
    let bundle = Authority::parse_bundle(&contents.bundle);
    assert_eq!(bundle.len(), 1);
    assert_eq!(bundle[0].not_after, after(start(), CA_LIFETIME));
    assert_eq!(contents.bundle, Authority::bundle_pem(&bundle), "{}", contents.bundle);
    let leaf = leaf::Leaf::parse(&contents.leaf, &contents.leaf_key).unwrap();
    assert_eq!(leaf.not_after, after(start(), days(90)));
    assert_eq!(leaf.problem(&bundle, &names(), start()), None);
    let refused = leaf.verify(&bundle, &ServerName::try_from("other.example.com").unwrap(), start());
    assert!(refused.is_err());

    let secret = contents.secret("infra");
    assert_eq!(secret.type_.as_deref(), Some("kubernetes.io/tls"));
    let keys: Vec<_> = secret.data.as_ref().unwrap().keys().map(String::as_str).collect();
    assert_eq!(keys, ["ca.crt", "ca.key", "tls.crt", "tls.key"]);
    assert_eq!(Contents::of(&secret), contents);
}

#[test]
fn a_leaf_is_renewed_by_the_same_ca_after_two_thirds_of_its_lifetime() {
    let contents = created();
    assert!(renewal(Some(&contents), after(start(), days(59))).is_none());
    let now = after(start(), days(60));
    let (later, changes) = renewed(Some(&contents), now);
    assert_eq!(changes, [Change::LeafRenewed]);
    assert_eq!((&later.bundle, &later.ca_key), (&contents.bundle, &contents.ca_key));
    assert_ne!(later.leaf_key, contents.leaf_key);
    assert_eq!(accepts(&contents.bundle, &later, after(now, days(89))), Ok(()));
}

#[test]
fn a_leaf_is_replaced_at_once_if_other_names_are_served() {
    let contents = created();
    let mut more = names();
    more.add("other.example.com").unwrap();
    let fewer = ServedNames { addresses: [].into(), ..names() };
    for names in [more, fewer] {
        let renewal = renewal_for(Some(&contents), &names, start()).unwrap();
        let [Change::LeafReplaced(problem)] = &renewal.changes[..] else { panic!("{:?}", renewal.changes) };
        assert_eq!(problem, "it is for placement.example.com, 10.0.0.1");
        assert_eq!(renewal.contents.bundle, contents.bundle);
    }
}

#[test]
fn a_patch_changes_our_keys_of_this_version_only() {
    let mut contents = created();
    let metadata = k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
        uid: Some("1".to_owned()),
        resource_version: Some("7".to_owned()),
        ..Default::default()
    };
    contents.next_ca_key.clear();
    let patch = contents.patch(&metadata);
    assert_eq!(patch["metadata"], serde_json::json!({"uid": "1", "resourceVersion": "7"}));
    let data = patch["data"].as_object().unwrap();
    assert_eq!(data.len(), 5);
    assert!(data["next-ca.key"].is_null() && data["tls.key"].is_string(), "{data:?}");
}

#[test]
fn debug_output_has_no_key() {
    let contents = created();
    let leaf = leaf::Leaf::parse(&contents.leaf, &contents.leaf_key).unwrap();
    let renewal = renewal(None, start()).unwrap();
    for text in
        [format!("{contents:?}"), format!("{renewal:?}"), format!("{leaf:?} {:?}", leaf.certified_key)]
    {
        assert!(!text.contains("PRIVATE"), "{text}");
        let key = contents.leaf_key.lines().nth(1).unwrap();
        assert!(!text.contains(key) && !text.contains("secret"), "{text}");
    }
}
