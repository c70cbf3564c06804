use proptest::prelude::*;

use super::*;

/// Answers of `URLsMatchStr` of Kubernetes 1.36.4.
#[test]
fn locations_match_like_in_a_kubelet() {
    let table = [
        ("*.example.com", "prefix.example.com", true),
        ("prefix.*.com", "prefix.example.com", true),
        ("prefix.example.*", "prefix.example.com", true),
        ("*.*.*", "prefix.example.com", true),
        ("pre*.ex*le.c*m", "prefix.example.com", true),
        ("p*f*x.example.com", "prefix.example.com", true),
        ("*p*.example.com", "prefix.example.com", true),
        ("p*x*y.example.com", "prefix.example.com", false),
        ("*.example.com", "example.com", false),
        ("*.com", "prefix.example.com", false),
        ("*", "prefix.example.com", false),
        ("example.com", "example.com/any/path", true),
        ("example.com/any", "example.com/any/path", true),
        ("example.com/any/path", "example.com/any/path", true),
        ("example.com/an", "example.com/any/path", true),
        ("example.com/*", "example.com/any/path", false),
        ("example.com/other", "example.com/any/path", false),
        ("example.com/", "example.com/any/path", true),
        ("example.com/", "example.com", false),
        ("example.com:5000", "example.com:5000/any", true),
        ("example.com:5000", "example.com/any", false),
        ("example.com", "example.com:5000/any", false),
        ("*.com:*", "example.com:5000", false),
        ("*.com:5000", "example.com:5000", true),
        ("[fd00::1]:5000", "[fd00::1]:5000/any", true),
        ("[fd00::1]", "[fd00::1]/any", false),
        ("localhost:5000", "localhost:5000/any", true),
        ("EXAMPLE.com", "example.com/any", false),
        ("example.com/a%20b", "example.com/a b/c", true),
        ("exa mple.com", "exa mple.com", false),
        ("example.com:port", "example.com:port", false),
    ];
    for (entry, target, wanted) in table {
        let found = Location::parse(entry).zip(Location::parse(target));
        assert_eq!(
            found.is_some_and(|(entry, target)| entry.matches(&target)),
            wanted,
            "{entry} for {target}"
        );
    }
}

#[test]
fn entries_are_kept_by_host_and_path() {
    let table = [
        ("https://index.docker.io/v1/", Some("index.docker.io")),
        ("http://example.com/v2/", Some("example.com")),
        ("https://example.com/v2/team", Some("example.com/team")),
        ("example.com/v2", Some("example.com/v2")),
        ("example.com/", Some("example.com")),
        ("example.com/team/", Some("example.com/team/")),
        ("example.com:5000", Some("example.com:5000")),
        ("user@example.com/team?x=y#z", Some("example.com/team")),
        // Go reads a host with an empty port; what comes out of it fits no image.
        ("ftp://example.com", Some("ftp://example.com")),
        ("exa\nmple.com", None),
        ("example.com/%zz", None),
        ("a:b:c", None),
        ("[fd00::1", None),
    ];
    for (entry, wanted) in table {
        assert_eq!(key(entry).as_deref(), wanted, "{entry}");
    }
}

#[test]
fn images_have_full_names() {
    let table = [
        ("nginx", Ok("docker.io/library/nginx")),
        ("nginx:1.27", Ok("docker.io/library/nginx")),
        ("team/app@sha256:0123", Ok("docker.io/team/app")),
        ("docker.io/nginx", Ok("docker.io/library/nginx")),
        ("index.docker.io/team/app", Ok("docker.io/team/app")),
        ("localhost/app", Ok("localhost/app")),
        ("localhost:5000/app:v1", Ok("localhost:5000/app")),
        ("example.com/a/b/c:v1@sha256:0123", Ok("example.com/a/b/c")),
        ("Host/app", Ok("Host/app")),
        ("", Err("invalid reference format")),
        ("App", Err("invalid reference format: repository name must be lowercase")),
        ("example.com/a//b", Err("invalid reference format")),
        ("example.com/../b", Err("invalid reference format")),
        ("a b", Err("invalid reference format")),
    ];
    for (image, wanted) in table {
        let found = repository(image).map_err(|error| error.to_string());
        let wanted =
            wanted.map(str::to_owned).map_err(|why| format!("couldn't parse image name {image:?}: {why}"));
        assert_eq!(found, wanted, "{image}");
    }
}

proptest! {
    #[test]
    fn a_location_matches_itself_and_its_subpaths(host in "[a-z]{1,4}(\\.[a-z]{1,4}){0,3}(:[0-9]{1,4})?", path in "(/[a-z]{1,4}){0,3}") {
        let place = format!("{host}{path}");
        let own = Location::parse(&place).expect("a place");
        prop_assert!(own.matches(&own));
        let below = format!("{place}/below");
        prop_assert!(own.matches(&Location::parse(&below).expect("a place")));
        prop_assert_eq!(key(&format!("https://{place}")), Some(place));
    }
}
