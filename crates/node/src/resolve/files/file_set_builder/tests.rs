use proptest::prelude::*;

use super::*;

#[test]
fn paths_are_normalised_or_rejected_with_the_kubelets_message() {
    let (long, longest) = ("x".repeat(256), "x/".repeat(2049));
    let table = [
        ("a", Ok("a")),
        ("a/b", Ok("a/b")),
        ("./a//b/./c/", Ok("a/b/c")),
        ("a..b", Ok("a..b")),
        (".hidden", Ok(".hidden")),
        ("a/..b", Ok("a/..b")),
        ("...", Err("invalid path: must not start with '..': ...")),
        ("", Err("invalid path: must not be empty: \"\"")),
        ("/", Err("invalid path: must be relative path: /")),
        ("/etc/passwd", Err("invalid path: must be relative path: /etc/passwd")),
        ("..", Err("invalid path: must not contain '..': ..")),
        ("../a", Err("invalid path: must not contain '..': ../a")),
        ("a/../../b", Err("invalid path: must not contain '..': a/../../b")),
        ("a/..", Err("invalid path: must not contain '..': a/..")),
        ("..data", Err("invalid path: must not start with '..': ..data")),
        ("..data/a", Err("invalid path: must not start with '..': ..data/a")),
        ("./..data", Err("invalid path: must not start with '..': ./..data")),
        (".", Err("invalid path: must name a file: .")),
        ("./.", Err("invalid path: must name a file: ./.")),
        ("a\0b", Err("invalid path: must not contain a NUL byte")),
        (&long, Err("invalid path: filenames must be less than or equal to 255 characters")),
        (&longest, Err("invalid path: must be less than or equal to 4096 characters")),
    ];
    for (path, wanted) in table {
        assert_eq!(normalise(path).as_deref().map_err(String::as_str), wanted, "{path:?}");
    }
}

#[test]
fn a_path_cannot_be_a_file_and_a_directory() {
    let files = |paths: &[&str]| {
        let mut files = FileSetBuilder::default();
        for path in paths {
            files.add(path, file("", 0o644, Origin::Literal)).expect("a path");
        }
        files.finish()
    };
    assert_eq!(files(&["a/b", "a-b", "a.b", "a/c/d"]).expect("a set").files.len(), 4);
    for paths in [&["a", "a/b"][..], &["a/b/c", "a/b"], &["a", "a-b", "a/b/c"]] {
        let error = files(paths).expect_err("a conflict");
        assert!(error.message().contains("cannot be both a file and the directory of"), "{error}");
    }
}

#[test]
fn only_permission_bits_are_kept() {
    let mut files = FileSetBuilder::default();
    files.add("a", file("", 0o7755, Origin::Literal)).expect("a path");
    files.add("b", file("", -1, Origin::Literal)).expect("a path");
    let files = files.finish().expect("a set").files;
    assert_eq!((files["a"].mode, files["b"].mode), (0o755, 0o777));
}

proptest! {
    #[test]
    fn no_normalised_path_leads_out_of_the_volume(path in "[./a\\x00\\\\ä-]{0,12}") {
        if let Ok(clean) = normalise(&path) {
            prop_assert!(!clean.is_empty() && !clean.starts_with('/') && !clean.ends_with('/'));
            prop_assert!(!clean.starts_with("..") && !clean.contains('\0'));
            for name in clean.split('/') {
                prop_assert!(!name.is_empty() && name != "." && name != "..", "{clean:?}");
            }
            prop_assert_eq!(super::normalise(&clean), Ok(clean.clone()), "cleaning twice changes nothing");
        }
    }
}
