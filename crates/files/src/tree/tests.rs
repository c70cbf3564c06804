use std::{
    ffi::OsStr,
    fs::{create_dir, create_dir_all, metadata, read_to_string, set_permissions, symlink_metadata, write},
    os::unix::{
        ffi::OsStrExt as _,
        fs::{MetadataExt as _, PermissionsExt as _, symlink},
    },
};

use super::*;

fn place() -> tempfile::TempDir {
    let place = tempfile::tempdir().expect("a directory");
    create_dir(place.path().join("precious")).expect("a directory");
    write(place.path().join("precious/file"), "kept").expect("a file");
    place
}

fn is_kept(place: &tempfile::TempDir) {
    assert_eq!(read_to_string(place.path().join("precious/file")).expect("text"), "kept");
}

#[test]
fn a_tree_is_removed_and_links_are_not_followed() {
    let place = place();
    let tree = place.path().join("tree");
    create_dir_all(tree.join("a/b/c")).expect("directories");
    write(tree.join("a/b/file"), "x").expect("a file");
    write(tree.join(OsStr::from_bytes(b"no \xff text")), "x").expect("a file");
    create_dir(tree.join(OsStr::from_bytes(b"\xfe"))).expect("a directory");
    symlink(place.path().join("precious"), tree.join("a/link")).expect("a link");
    symlink("../../precious", tree.join("a/b/up")).expect("a link");
    symlink(place.path().join("precious/file"), tree.join("file")).expect("a link");
    remove(&tree).expect("removed");
    assert!(symlink_metadata(&tree).is_err());
    is_kept(&place);
    remove(&tree).expect("already removed");
    remove(place.path().join("none/tree")).expect("never existed");
}

#[test]
fn a_link_instead_of_the_tree_is_removed_and_not_followed() {
    let place = place();
    symlink(place.path().join("precious"), place.path().join("tree")).expect("a link");
    remove(place.path().join("tree")).expect("removed");
    assert!(symlink_metadata(place.path().join("tree")).is_err());
    is_kept(&place);
}

#[test]
fn many_names_and_many_levels_are_removed() {
    let place = place();
    let tree = place.path().join("tree");
    create_dir(&tree).expect("a directory");
    for number in 0..3 * BATCH {
        write(tree.join(format!("file-{number}")), "").expect("a file");
    }
    // Deeper than any path can name: created step by step.
    let mut directory = fs::open(&tree, OFlags::DIRECTORY, Mode::empty()).expect("a directory");
    let name = "d".repeat(200);
    for _ in 0..300 {
        fs::mkdirat(&directory, name.as_str(), Mode::from_raw_mode(0o755)).expect("a directory");
        directory =
            fs::openat(&directory, name.as_str(), OFlags::DIRECTORY, Mode::empty()).expect("a directory");
        fs::symlinkat("/", &directory, ".removed-0").expect("a link");
    }
    // Names left over from an earlier removal.
    create_dir_all(tree.join(".removed-0/inside")).expect("a directory");
    write(tree.join(".removed-1"), "").expect("a file");
    remove(&tree).expect("removed");
    assert!(!tree.exists());
    is_kept(&place);
}

#[test]
fn a_path_without_a_name_is_rejected() {
    for path in ["/", "..", "", "a/.."] {
        let error = remove(path).expect_err(path);
        assert!(matches!(error, Error::InvalidPath { .. }), "{path}: {error:?}");
    }
}

#[test]
#[ignore = "needs root: make test"]
fn mounts_in_a_tree_are_neither_entered_nor_removed() {
    let place = place();
    let tree = place.path().join("tree");
    for (inside, source) in [("a/mounted", "precious"), ("a/file", "precious/file"), ("", "precious")] {
        let target = tree.join(inside);
        if source.ends_with("file") {
            create_dir_all(tree.join("a")).expect("directories");
            write(&target, "").expect("a file");
        } else {
            create_dir_all(&target).expect("directories");
        }
        // The same file system, so that the device number is no indication.
        rustix::mount::mount_bind(place.path().join(source), &target).expect("root may mount");
        let refused = remove(&tree);
        rustix::mount::unmount(&target, rustix::mount::UnmountFlags::empty()).expect("root may unmount");
        assert!(matches!(refused, Err(Error::Mounted { .. })), "{inside}: {refused:?}");
        is_kept(&place);
        remove(&tree).expect("removed");
        assert!(!tree.exists());
    }
}

/// Changing to another group needs a privilege; changing to one's own does not.
#[test]
fn the_group_of_a_tree_is_changed_but_not_of_link_targets() {
    let place = place();
    let own = metadata(place.path()).expect("metadata");
    let group = if own.uid() == 0 { 5678 } else { own.gid() };
    for (writable, file, directory) in [(true, 0o660, 0o2770), (false, 0o440, 0o2550)] {
        let tree = place.path().join(format!("tree-{writable}"));
        create_dir_all(tree.join("sub")).expect("directories");
        write(tree.join("sub/file"), "").expect("a file");
        symlink(place.path().join("precious/file"), tree.join("sub/link")).expect("a link");
        for (path, mode) in [("sub/file", 0o000), ("sub", 0o700), ("", 0o700)] {
            set_permissions(tree.join(path), std::fs::Permissions::from_mode(mode)).expect("a mode");
        }
        let before = metadata(place.path().join("precious/file")).expect("metadata");
        assert!(!has_fs_group(&tree, group, writable));
        assert_eq!(set_fs_group(&tree, group, writable).expect("changed"), 0);
        assert!(has_fs_group(&tree, group, writable));
        let facts = |path: &str| {
            let metadata = symlink_metadata(tree.join(path)).expect("metadata");
            (metadata.gid(), metadata.mode() & 0o7777)
        };
        assert_eq!(facts("sub/file"), (group, file));
        assert_eq!(facts("sub"), (group, directory | 0o700));
        assert_eq!(facts(""), (group, directory | 0o700));
        assert_eq!(facts("sub/link").0, group);
        let after = metadata(place.path().join("precious/file")).expect("metadata");
        assert_eq!((before.gid(), before.mode()), (after.gid(), after.mode()));
    }
    symlink(place.path().join("precious"), place.path().join("link")).expect("a link");
    set_fs_group(place.path().join("link"), group, true).expect_err("a link is not a tree");
}
