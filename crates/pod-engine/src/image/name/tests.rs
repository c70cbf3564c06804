use super::*;

const SHA: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

#[test]
fn a_name_without_tag_and_digest_means_the_latest() {
    for (image, expected) in [
        ("root", "root:latest"),
        ("root:tag", "root:tag"),
        ("root:latest", "root:latest"),
        ("user/repo", "user/repo:latest"),
        ("url:5000/repo", "url:5000/repo:latest"),
        ("url:5000/repo:tag", "url:5000/repo:tag"),
        ("localhost/a/b__c/d.e-f--g", "localhost/a/b__c/d.e-f--g:latest"),
        ("[2001:db8::1]:5000/a", "[2001:db8::1]:5000/a:latest"),
        ("Registry.Example.com/a", "Registry.Example.com/a:latest"),
        ("under_score.example/a", "under_score.example/a:latest"),
    ] {
        assert_eq!(normalize(image).as_deref(), Ok(expected), "{image}");
    }
    for image in ["root", "root:latest", "url:5000/repo:tag"] {
        let image = format!("{image}@{SHA}");
        assert_eq!(normalize(&image), Ok(image));
    }
}

#[test]
fn the_bare_name_is_what_was_written_before_tag_and_digest() {
    let whole = format!("url:5000/repo:tag@{SHA}");
    let expected = ImageName { bare: "url:5000/repo", tag: Some("tag"), digest: Some(SHA) };
    assert_eq!(parse(&whole), Ok(expected));
    assert_eq!(parse("root"), Ok(ImageName { bare: "root", tag: None, digest: None }));
    assert_eq!(parse("url:5000/repo").unwrap().bare, "url:5000/repo");
}

#[test]
fn names_that_are_none_are_refused_with_a_kubelets_words() {
    let hex = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    let long = "a".repeat(256);
    let lowercase = "invalid reference format: repository name (library/ROOT) must be lowercase";
    for (image, why) in [
        ("", "invalid reference format"),
        ("ROOT", lowercase),
        ("ROOT:Tag", lowercase),
        ("user/Repo", "invalid reference format: repository name (user/Repo) must be lowercase"),
        ("http://root", "invalid reference format"),
        ("a b", "invalid reference format"),
        ("a/", "invalid reference format"),
        ("-a", "invalid reference format"),
        ("a..b", "invalid reference format"),
        ("a___b", "invalid reference format"),
        ("a:", "invalid reference format"),
        ("a:-t", "invalid reference format"),
        ("a@b", "invalid reference format"),
        ("a:tag:more", "invalid reference format"),
        ("url:port/a", "invalid reference format"),
        ("a@md5:d41d8cd98f00b204e9800998ecf8427e", "unsupported digest algorithm"),
        ("a@sha256:d41d8cd98f00b204e9800998ecf8427e", "invalid checksum digest length"),
        (hex, &format!("invalid repository name ({hex}), cannot specify 64-byte hexadecimal strings")),
        (&format!("url:5000/{long}"), "repository name must not be more than 255 characters"),
    ] {
        let expected = format!("couldn't parse image name {image:?}: {why}");
        assert_eq!(normalize(image), Err(expected));
    }
    let upper = format!("a@sha256:{}", hex.to_uppercase());
    assert!(normalize(&upper).unwrap_err().ends_with("invalid checksum digest format"));
    assert!(normalize(&format!("a:{}", "t".repeat(128))).is_ok());
    assert!(normalize(&format!("a:{}", "t".repeat(129))).is_err());
}

#[test]
fn an_unwritten_policy_follows_the_tag() {
    use super::super::Policy;
    for (policy, image, expected) in [
        (Some("Never"), "a", Policy::Never),
        (Some("Always"), "a:1", Policy::Always),
        (Some("IfNotPresent"), "a", Policy::IfNotPresent),
        (None, "a", Policy::Always),
        (None, "a:latest", Policy::Always),
        (None, "a:1", Policy::IfNotPresent),
        (Some(""), "a:1", Policy::IfNotPresent),
    ] {
        assert_eq!(Policy::of(policy, image), expected, "{policy:?} {image}");
    }
}

/// Names and the errors of the reference parser of registries.
#[test]
fn names_are_taken_and_refused_as_by_the_reference_parser() {
    let rows = include_str!("reference.jsonl").lines();
    let rows: Vec<(String, String)> = rows.map(|row| serde_json::from_str(row).unwrap()).collect();
    assert!(rows.len() > 100);
    for (image, wrong) in rows {
        assert_eq!(parse(&image).err().unwrap_or_default(), wrong, "{image:?}");
    }
}
