use std::{collections::BTreeMap, os::unix::fs::symlink};

use serde_json::json;
use vk_provider::error::Kind;

use super::*;

#[test]
fn values_are_parsed_like_in_a_kubelet() {
    let table = [
        ("K='v'", Ok("v")),
        ("  \tK='v'", Ok("v")),
        ("K='v' # why", Ok("v")),
        ("K='v'#why", Ok("v")),
        ("# K='no'\n\n \t \nK='v'\n", Ok("v")),
        ("A='a'\nK='v'\nK='later'\n", Ok("v")),
        ("K='one\ntwo\n'", Ok("one\ntwo\n")),
        ("K='one\r\ntwo'\r\n", Ok("one\ntwo")),
        ("K=' $(A) \\n \"q\" '", Ok(" $(A) \\n \"q\" ")),
        ("K=''", Ok("")),
        ("K= 'v'", Ok("")),
        ("K=\t", Ok("")),
        ("A= junk\nK='v'", Ok("v")),
        ("A='a'", Ok("")),
        ("", Ok("")),
        // The rest after the key is not parsed.
        ("K='v'\nbroken", Ok("v")),
        ("broken", Err("invalid environment variable format at line 1: missing '='")),
        ("\n='v'", Err("invalid environment variable format at line 2: empty variable name")),
        (
            "K ='v'",
            Err("invalid environment variable format at line 1: whitespace before '=' is not allowed"),
        ),
        (
            "K=v",
            Err("invalid environment variable format at line 1: value must be enclosed in single quotes"),
        ),
        ("K=", Err("invalid environment variable format at line 1: value must be enclosed in single quotes")),
        (
            "K=\"v\"",
            Err("invalid environment variable format at line 1: value must be enclosed in single quotes"),
        ),
        (
            "K='v' w",
            Err("invalid environment variable format at line 1: unexpected content after closing quote"),
        ),
        (
            "K='a\nb' w",
            Err("invalid environment variable format at line 2: unexpected content after closing quote"),
        ),
        (
            "A='a'\nK='v\n\n",
            Err("invalid environment variable format starting at line 2: unclosed single quote"),
        ),
    ];
    for (content, wanted) in table {
        let found = find(content.as_bytes(), "K");
        assert_eq!(found.as_deref().map_err(String::as_str), wanted, "{content:?}");
    }
}

#[test]
fn the_maximum_line_length_is_the_kubelets() {
    let line = |length: usize| format!("K='{}'", "x".repeat(length - 4));
    assert_eq!(find(line(MAX_LINE).as_bytes(), "K").expect("a value").len(), MAX_LINE - 4);
    assert_eq!(find(line(MAX_LINE + 1).as_bytes(), "K"), Err("line 1 is longer than 65535 bytes".to_owned()));
}

#[test]
fn a_binary_value_is_rejected() {
    assert!(find(b"K='\xff'", "K").expect_err("no text").ends_with("value is not UTF-8"));
    assert_eq!(find(b"A='\xff'\nK='v'", "K").as_deref(), Ok("v"));
}

fn field(path: &str, key: &str, optional: bool) -> FileKeySelector {
    let (volume_name, path, key) = ("work".to_owned(), path.to_owned(), key.to_owned());
    FileKeySelector { volume_name, path, key, optional: Some(optional) }
}

fn pod() -> Pod {
    let pod = json!({
        "metadata": {"namespace": "shop", "name": "web"},
        "spec": {"containers": [], "volumes": [{"name": "work", "emptyDir": {}}]},
    });
    serde_json::from_value(pod).expect("a pod")
}

#[test]
fn a_key_is_read_from_the_volume_and_may_be_missing_where_it_is_optional() {
    let place = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(place.path().join("sub")).expect("a directory");
    std::fs::write(place.path().join("sub/env"), "K='v'\nEMPTY=''\n").expect("a file");
    let volumes = BTreeMap::from([("work".to_owned(), place.path().to_owned())]);
    let facts = Facts { volumes, ..Facts::default() };
    let mut warnings = Vec::new();
    let found = value(&field("sub/env", "K", false), &pod(), &facts, &mut warnings).expect("a value");
    assert_eq!((found.as_deref(), warnings.len()), (Some("v"), 0));
    let missing = Reference::new(ReferenceKind::File, "shop", "work/sub/env");
    for key in ["NONE", "EMPTY"] {
        let found = value(&field("sub/env", key, true), &pod(), &facts, &mut warnings).expect("an answer");
        assert_eq!(found, None);
        assert_eq!(warnings.pop(), Some(ResolveWarning::MissingOptional(missing.clone().key(key))));
        let error =
            value(&field("sub/env", key, false), &pod(), &facts, &mut warnings).expect_err("no such key");
        assert_eq!(error.kind(), &Kind::Unresolved(missing.clone().key(key)));
        let wanted = format!(
            "environment variable key {key:?} not found in file \"{}\"",
            place.path().join("sub/env").display()
        );
        assert_eq!(error.message(), wanted);
    }
}

#[test]
fn no_file_is_read_outside_of_the_volume() {
    let place = tempfile::tempdir().expect("a directory");
    let volume = place.path().join("volume");
    std::fs::create_dir(&volume).expect("a directory");
    std::fs::write(place.path().join("secret"), "K='stolen'").expect("a file");
    symlink("../secret", volume.join("up")).expect("a link");
    symlink(place.path().join("secret"), volume.join("absolute")).expect("a link");
    symlink("..", volume.join("parent")).expect("a link");
    let volumes = BTreeMap::from([("work".to_owned(), volume)]);
    let facts = Facts { volumes, ..Facts::default() };
    for path in ["up", "absolute", "parent/secret", "../secret", "none", "."] {
        for optional in [false, true] {
            let error = value(&field(path, "K", optional), &pod(), &facts, &mut Vec::new()).expect_err(path);
            assert_eq!(error.message(), "couldn't parse env file", "{path}");
            assert!(matches!(error.kind(), Kind::Unresolved(_)), "{path}: {:?}", error.kind());
            assert!(!error.report().contains("stolen"), "{path}");
        }
    }
}

#[test]
fn a_provider_without_the_volume_is_unsupported() {
    let error = value(&field("env", "K", true), &pod(), &Facts::default(), &mut Vec::new());
    let error = error.expect_err("nothing to read");
    assert_eq!(error.kind(), &Kind::Unsupported);
    assert!(error.message().contains("volume \"work\""), "{error}");
}
