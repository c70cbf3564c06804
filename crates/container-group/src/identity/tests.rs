use proptest::prelude::*;
use serde_json::json;
use vk_provider::PodRef;

use super::*;

const UID: &str = "6f0c1f2a-52f5-4b0e-9d5e-3f1b7f0a9c11";
const LIMITS: TagLimits = TagLimits { count: 20, key: 64, value: 128 };

fn owner(namespace: &str, name: &str) -> Owner {
    Owner {
        cluster: "shop".into(),
        node: "eci-hangzhou".into(),
        pod: PodRef::new(namespace, name, UID),
        attempt: 3,
        spec_hash: Some("abc-def".to_owned()),
    }
}

fn read(tags: &[(String, String)]) -> Option<Owner> {
    read_tags(tags.iter().map(|(key, value)| (key.as_str(), value.as_str())))
}

#[test]
fn pods_of_one_name_have_groups_of_different_names() {
    let other = "6f0c1f2a-52f5-4b0e-9d5e-3f1b7f0a9c12";
    assert_ne!(name(UID, 1), name(other, 1));
    assert_ne!(token(UID, 1), token(other, 1));
}

#[test]
fn another_attempt_has_another_name_and_another_token() {
    assert_eq!(name(UID, 2), format!("{}-2", name(UID, 1)));
    assert_ne!(token(UID, 1), token(UID, 2));
    assert_eq!(token(UID, 1), token(UID, 1));
    assert!(token(UID, 1).len() <= 64 && token(UID, 1).is_ascii());
}

#[test]
fn a_uid_that_is_not_a_uuid_has_a_valid_name_that_says_no_uid() {
    for uid in ["0123", "6F0C1F2A-52F5-4B0E-9D5E-3F1B7F0A9C11", "ü".repeat(40).as_str(), ""] {
        let name = name(uid, 1);
        assert!(name.starts_with(HASHED_PREFIX) && name.len() < 63, "{name}");
        assert_eq!(parse_name(&name), None);
    }
}

#[test]
fn names_of_others_are_not_ours() {
    let ours = name(UID, 1);
    let others = ["vk-", "web", "default-web", "vk-n4gb6ksst", &format!("{ours}x"), &ours[1..]];
    for other in others {
        assert_eq!(parse_name(other), None, "{other}");
    }
    for suffix in ["-1", "-0", "-02", "-", "-x", "-2-3", "-+2"] {
        assert_eq!(parse_name(&format!("{ours}{suffix}")), None, "{suffix}");
    }
    // The last letter has bits that stand for nothing: one way to write a UID, not four.
    let changed = format!("{}f", &ours[..ours.len() - 1]);
    assert_eq!(parse_name(&changed), None);
}

#[test]
fn the_user_tags_follow_ours_and_cannot_replace_them() {
    let team = || ("team".to_owned(), "payments".to_owned());
    let identity = Identity::new(vec![team()], LIMITS).unwrap();
    let tags = identity.tags(&owner("shop", "web"));
    assert_eq!(tags.last(), Some(&team()));
    assert_eq!(read(&tags), Some(owner("shop", "web")));
    let error = Identity::new(vec![("vk-uid".to_owned(), "x".to_owned())], LIMITS).unwrap_err();
    assert!(error.message().contains("reserved"), "{error}");
}

#[test]
fn too_many_or_too_long_user_tags_are_refused_before_any_group_exists() {
    let many = |count| (0..count).map(|at| (format!("t{at}"), String::new())).collect::<Vec<_>>();
    assert!(Identity::new(many(10), LIMITS).is_ok());
    let error = Identity::new(many(11), LIMITS).unwrap_err();
    assert!(error.message().contains("allows 20"), "{error}");
    let long = vec![("team".to_owned(), "x".repeat(129))];
    assert!(Identity::new(long, LIMITS).unwrap_err().message().contains("at most 128"));
}

#[test]
fn tags_without_our_layout_are_not_ours() {
    let identity = Identity::new(Vec::new(), LIMITS).unwrap();
    let tags = identity.tags(&owner("shop", "web"));
    for at in 0..tags.len() {
        let mut fewer = tags.clone();
        let (key, _) = fewer.remove(at);
        assert_eq!(read(&fewer).is_none(), key != "vk-spec", "without {key}");
    }
    let newer = tags.into_iter().map(|(key, value)| {
        let value = if key == "vk-layout" { "2".to_owned() } else { value };
        (key, value)
    });
    assert_eq!(read(&newer.collect::<Vec<_>>()), None);
}

#[test]
fn groups_of_the_go_provider_for_eci_are_read_from_its_tags() {
    let tags = [
        ("ClusterName", "default"),
        ("NodeName", "virtual-kubelet"),
        ("NameSpace", "shop"),
        ("PodName", "web"),
        ("UID", UID),
        ("CreationTimestamp", "2020-01-13 10-00-00 +0000 UTC"),
    ];
    let owner = read_eci_tags(tags).unwrap();
    assert_eq!((&*owner.node, &owner.pod), ("virtual-kubelet", &PodRef::new("shop", "web", UID)));
    assert_eq!(read_eci_tags(tags.into_iter().filter(|(key, _)| *key != "UID")), None);
    assert_eq!(read_tags(tags), None, "they are not mistaken for ours");
}

#[test]
fn a_spec_hash_says_what_has_changed_and_ignores_labels() {
    let pod = |image: &str, cpu: &str, label: &str| -> k8s_openapi::api::core::v1::Pod {
        let container = json!({"name": "web", "image": image, "resources": {"requests": {"cpu": cpu}}});
        let value = json!({"metadata": {"labels": {"app": label}}, "spec": {"containers": [container]}});
        serde_json::from_value(value).unwrap()
    };
    let before = SpecHash::of(&pod("web:1", "1", "a"));
    let changes = |pod| before.changes(&SpecHash::of(&pod));
    assert!(changes(pod("web:1", "1", "b")).is_empty());
    assert_eq!(changes(pod("web:2", "1", "a")), SpecChange { images: true, ..SpecChange::default() });
    assert_eq!(changes(pod("web:1", "2", "a")).fields(), ["spec.containers[*].resources"]);
    assert_eq!(SpecHash::parse(&before.to_string()), Some(before.clone()));
    assert_eq!(SpecHash::parse("abc"), None);
}

proptest! {
    #[test]
    fn every_uuid_and_attempt_is_read_back_from_the_name(bytes: [u8; 16], attempt in 1_u32..1000) {
        let uid = uuid_text(&bytes);
        let name = name(&uid, attempt);
        prop_assert!(name.len() <= 63 && name.bytes().all(|one| one.is_ascii_lowercase() || one.is_ascii_digit() || one == b'-'));
        prop_assert_eq!(parse_name(&name), Some((uid, attempt)));
    }

    #[test]
    fn every_owner_is_read_back_from_tags_however_short_the_values_may_be(
        namespace in "[a-z][a-z0-9-]{0,62}", name in "[a-z][a-z0-9.-]{0,252}", value in 64_usize..256,
    ) {
        let limits = TagLimits { count: 50, key: 64, value };
        let tags = Identity::new(Vec::new(), limits).unwrap().tags(&owner(&namespace, &name));
        prop_assert!(tags.iter().all(|(_, text)| text.chars().count() <= value));
        prop_assert!(tags.len() <= tags::most_tags(&limits));
        prop_assert_eq!(read(&tags), Some(owner(&namespace, &name)));
    }
}
