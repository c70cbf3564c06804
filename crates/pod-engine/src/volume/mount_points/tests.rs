use serde_json::json;

use super::*;

fn points(mounts: &[(&str, &str)]) -> Result<Vec<String>> {
    let mounts: Vec<_> =
        mounts.iter().map(|(name, path)| json!({ "name": name, "mountPath": path })).collect();
    let pod = serde_json::from_value(json!({
        "spec": { "containers": [{ "name": "c", "volumeMounts": mounts }] },
    }));
    mount_points(&pod.expect("a pod"), "own").map(|points| points.into_iter().collect())
}

#[test]
fn the_outermost_places_inside_of_a_volume_are_found() {
    type Row = (&'static [(&'static str, &'static str)], &'static [&'static str]);
    let table: [Row; 7] = [
        (&[("own", "/dir")], &[]),
        (&[("own", "/dir"), ("a", "/dir/nested")], &["nested"]),
        (&[("own", "/dir"), ("a", "/dir/nested/deep"), ("b", "/dir2"), ("c", "/dir")], &["nested/deep"]),
        (
            &[("own", "/dir"), ("a", "/dir/nested"), ("b", "/dir/nested-vol"), ("c", "/dir/nested/double")],
            &["nested", "nested-vol"],
        ),
        (&[("own", "/dir/"), ("a", "/dir//x/./y/../z")], &["x/z"]),
        (&[("a", "/dir"), ("own", "/dir/inside")], &[]),
        (&[("own", "relative"), ("a", "relative/x")], &["x"]),
    ];
    for (mounts, wanted) in table {
        assert_eq!(points(mounts).expect("points"), wanted, "{mounts:?}");
    }
    let error = points(&[("own", "../x"), ("a", "../x/y")]).expect_err("leads out");
    assert_eq!(error.message(), "invalid container mount point ../x");
}

#[test]
fn paths_are_cleaned_as_in_go() {
    for (path, wanted) in [
        ("/", "/"),
        ("", "."),
        ("a/..", "."),
        ("/..", "/"),
        ("/../a", "/a"),
        ("a/../../b", "../b"),
        ("//a//b/", "/a/b"),
        ("./a/.", "a"),
    ] {
        assert_eq!(clean(path), wanted, "{path}");
    }
}
