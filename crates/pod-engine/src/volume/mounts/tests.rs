use serde_json::{Value, json};

use super::*;

fn placed(path: Option<&str>, read_only: bool) -> VolumeLocation {
    VolumeLocation { path: path.map(PathBuf::from), read_only, managed: true }
}

fn mount_of(mount: &Value, env: &[(&str, &str)], with: &MountOptions<'_>) -> Result<PendingMount, String> {
    let volumes = BTreeMap::from([
        ("data".to_owned(), placed(Some("/vol/data"), false)),
        ("map".to_owned(), placed(Some("/vol/map"), true)),
        ("img".to_owned(), placed(None, true)),
    ]);
    let mut mount = mount.clone();
    if mount["name"].is_null() {
        mount["name"] = json!("data");
    }
    if mount["mountPath"].is_null() {
        mount["mountPath"] = json!("/data");
    }
    let container = serde_json::from_value(json!({ "name": "app", "volumeMounts": [mount] }));
    let env: Vec<_> = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let dirs = PodDirs::new("/state");
    let mounts = pending_mounts(&dirs, "uid", &volumes, &container.expect("a container"), &env, with)?;
    Ok(mounts.into_iter().next().expect("a mount"))
}

#[test]
fn mounts_say_what_the_spec_says() {
    let plain = mount_of(&json!({}), &[], &MountOptions::default()).expect("a mount");
    assert_eq!((plain.mount.container_path.as_str(), plain.mount.host_path.as_str()), ("/data", "/vol/data"));
    assert!(!plain.mount.read_only && plain.sub_path.is_none());
    let relative = mount_of(&json!({ "mountPath": "x/y" }), &[], &MountOptions::default()).expect("a mount");
    assert_eq!(relative.mount.container_path, "/x/y");
    let mount = |mount: Value| mount_of(&mount, &[], &MountOptions::default()).expect("a mount").mount;
    assert!(mount(json!({ "readOnly": true })).read_only);
    // Nobody writes a ConfigMap.
    assert!(mount(json!({ "name": "map" })).read_only);
    for (mode, wanted) in [
        ("None", Propagation::Private),
        ("HostToContainer", Propagation::HostToContainer),
        ("Bidirectional", Propagation::Bidirectional),
    ] {
        assert_eq!(mount(json!({ "mountPropagation": mode })).propagation, wanted);
    }
}

#[test]
fn image_volumes_get_what_the_runtime_has_pulled() {
    let images = BTreeMap::from([("img".to_owned(), "sha256:1".to_owned())]);
    let with = MountOptions { images: Some(&images), ..MountOptions::default() };
    let made = mount_of(&json!({ "name": "img", "subPath": "bin" }), &[], &with).expect("a mount").mount;
    assert_eq!((made.image.as_deref(), made.image_sub_path.as_str()), (Some("sha256:1"), "bin"));
    assert!(made.read_only && made.host_path.is_empty());
    let error = mount_of(&json!({ "name": "img" }), &[], &MountOptions::default()).expect_err("no image");
    assert_eq!(error, "the image of volume \"img\" was not pulled for container \"app\"");
}

#[test]
fn sub_paths_are_expanded_and_checked() {
    let env = [("A", "one"), ("B", "two"), ("EMPTY", ""), ("UP", "../x"), ("A", "last")];
    let sub_path =
        |mount: Value| mount_of(&mount, &env, &MountOptions::default()).map(|pending| pending.sub_path);
    for (mount, wanted) in [
        (json!({ "subPath": "a/b" }), "a/b"),
        (json!({ "subPath": "$(A)" }), "$(A)"),
        (json!({ "subPathExpr": "$(A)/$(B)" }), "last/two"),
        (json!({ "subPathExpr": "x$$(A)$(B" }), "x$(A)$(B"),
        (json!({ "subPathExpr": "plain$" }), "plain$"),
        (json!({ "subPathExpr": "a$b" }), "a$b"),
    ] {
        let (found, dirs) = sub_path(mount.clone()).expect("a sub path").expect("a sub path");
        assert_eq!(found, wanted, "{mount}");
        assert_eq!(dirs, PathBuf::from("/state/pods/uid/volume-subpaths/data/app/0"));
    }
    assert_eq!(sub_path(json!({ "subPath": "" })).expect("fine"), None);
    for (mount, wanted) in [
        (json!({ "subPath": "/a" }), "error SubPath `/a` must not be an absolute path"),
        (json!({ "subPath": "a/../b" }), "unable to provision SubPath `a/../b`: must not contain '..'"),
        (json!({ "subPathExpr": "$(UP)" }), "unable to provision SubPath `../x`: must not contain '..'"),
        (json!({ "subPathExpr": "$(NONE)/$(EMPTY)/$(A)" }), "missing value for EMPTY, NONE"),
        (json!({ "name": "nope" }), "cannot find volume \"nope\" to mount into container \"app\""),
        (json!({ "mountPropagation": "Sideways" }), "invalid MountPropagation mode: \"Sideways\""),
    ] {
        assert_eq!(sub_path(mount.clone()).expect_err("refused"), wanted, "{mount}");
    }
}

#[test]
fn recursive_read_only_is_what_the_runtime_can_do() {
    let supported = MountOptions { recursive_read_only: true, ..MountOptions::default() };
    let mode = |mount: Value, with: &MountOptions<'_>| {
        mount_of(&mount, &[], with).map(|wanted| wanted.mount.recursive_read_only)
    };
    let wish = |mode: &str| json!({ "readOnly": true, "recursiveReadOnly": mode });
    for (wish, can, cannot) in [
        (json!({}), Ok(false), Ok(false)),
        (wish("Disabled"), Ok(false), Ok(false)),
        (wish("IfPossible"), Ok(true), Ok(false)),
        (wish("Enabled"), Ok(true), Err("it is not supported by the runtime")),
        (wish("Perhaps"), Err("unknown recursive read-only mode"), Err("unknown recursive read-only mode")),
        (json!({ "recursiveReadOnly": "Enabled" }), Err("it is not read-only"), Err("it is not read-only")),
        (
            json!({ "readOnly": true, "recursiveReadOnly": "Enabled", "mountPropagation": "HostToContainer" }),
            Err("it is not compatible with propagation \"HostToContainer\""),
            Err("it is not compatible with propagation \"HostToContainer\""),
        ),
    ] {
        for (with, wanted) in [(&supported, can), (&MountOptions::default(), cannot)] {
            match (mode(wish.clone(), with), wanted) {
                (Ok(found), Ok(wanted)) => assert_eq!(found, wanted, "{wish}"),
                (Err(found), Err(wanted)) => {
                    assert!(found.starts_with("failed to resolve recursive read-only mode: "), "{found}");
                    assert!(found.contains(wanted), "{found}");
                }
                (found, wanted) => panic!("{wish}: {found:?}, not {wanted:?}"),
            }
        }
    }
}
