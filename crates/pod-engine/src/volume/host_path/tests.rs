use std::os::unix::{
    fs::{MetadataExt as _, symlink},
    net::UnixListener,
};

use super::*;

fn source(path: &Path, kind: &str) -> HostPathVolumeSource {
    HostPathVolumeSource {
        path: path.to_str().expect("text").to_owned(),
        type_: Some(kind.to_owned()).filter(|kind| !kind.is_empty()),
    }
}

#[test]
fn a_host_path_must_be_what_it_is_said_to_be() {
    let dirs = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dirs.path().join(name);
    fs::create_dir(path("directory")).expect("a directory");
    fs::write(path("file"), "").expect("a file");
    let _socket = UnixListener::bind(path("socket")).expect("a socket");
    symlink("directory", path("link")).expect("a link");
    symlink("nowhere", path("broken")).expect("a link");
    let kinds = [
        ("Directory", "directory"),
        ("File", "file"),
        ("Socket", "socket file"),
        ("CharDevice", "character device"),
        ("BlockDevice", "block device"),
    ];
    let things = [
        (path("directory"), "Directory"),
        (path("link"), "Directory"),
        (path("file"), "File"),
        (path("socket"), "Socket"),
        (PathBuf::from("/dev/null"), "CharDevice"),
        (path("broken"), ""),
        (path("missing"), ""),
    ];
    for (thing, is) in &things {
        assert_eq!(check(&source(thing, "")).expect("no check"), *thing);
        for (kind, words) in kinds {
            let checked = check(&source(thing, kind));
            if kind == *is {
                assert_eq!(checked.expect("it is"), *thing);
            } else {
                let wanted = format!("hostPath type check failed: {} is not a {words}", thing.display());
                assert_eq!(checked.expect_err("it is not").message(), wanted);
            }
        }
    }
    let error = check(&source(&path("file"), "DirectoryOrCreate")).expect_err("a file");
    assert!(error.message().ends_with("file is not a directory"), "{error}");
    let error = check(&source(&path("directory"), "FileOrCreate")).expect_err("a directory");
    assert!(error.message().ends_with("directory is not a file"), "{error}");
    let error = check(&source(&path("file"), "Pipe")).expect_err("no type");
    assert_eq!(error.message(), "Pipe is an invalid volume type");
    let error = check(&source(&path("a/../b"), "")).expect_err("steps back");
    assert!(error.message().ends_with("/a/../b`: must not contain '..'"), "{error}");
}

#[test]
fn a_host_path_is_made_where_that_is_wanted() {
    let dirs = tempfile::tempdir().expect("a directory");
    let mode = |path: &Path| fs::metadata(path).expect("metadata").mode() & 0o7777;
    let directory = dirs.path().join("a/b");
    check(&source(&directory, "DirectoryOrCreate")).expect("made");
    // The umask may take more away.
    assert_eq!(mode(&directory) | 0o022, 0o777);
    let file = dirs.path().join("a/file");
    check(&source(&file, "FileOrCreate")).expect("made");
    assert_eq!(mode(&file) | 0o022, 0o666);
    fs::write(&file, "kept").expect("written");
    check(&source(&file, "FileOrCreate")).expect("there");
    assert_eq!(fs::read_to_string(&file).expect("text"), "kept");
    let orphan = dirs.path().join("none/file");
    let error = check(&source(&orphan, "FileOrCreate")).expect_err("no directory");
    assert_eq!(error.message(), format!("open {}: no such file or directory", orphan.display()));
}

#[test]
fn a_local_volume_is_a_directory_that_is_given_to_the_group_once() {
    let dirs = tempfile::tempdir().expect("a directory");
    let own = fs::metadata(dirs.path()).expect("metadata");
    let group = if own.uid() == 0 { 4321 } else { own.gid() };
    let disk = dirs.path().join("disk");
    fs::create_dir_all(disk.join("sub")).expect("directories");
    let local = LocalVolume {
        source: LocalVolumeSource { path: disk.to_str().expect("text").to_owned(), fs_type: None },
        name: "pv-1".to_owned(),
        marker: dirs.path().join("mark/ready"),
        read_only: false,
        group: Some(group),
        only_on_mismatch: false,
    };
    let facts = |path: &str| {
        let metadata = fs::metadata(disk.join(path)).expect("metadata");
        (metadata.gid(), metadata.mode() & 0o2070)
    };
    assert_eq!(local.prepare().expect("there"), disk);
    assert_eq!((facts(""), facts("sub")), ((group, 0o2070), (group, 0o2070)));
    // What containers do to it later is theirs.
    fs::create_dir(disk.join("later")).expect("a directory");
    fs::set_permissions(disk.join("later"), std::os::unix::fs::PermissionsExt::from_mode(0o700))
        .expect("a mode");
    local.prepare().expect("there");
    assert_eq!(facts("later").1 & 0o070, 0);
    // Another pod with the other policy sees that the top is right, and leaves the rest.
    let marker = dirs.path().join("other/ready");
    LocalVolume { marker: marker.clone(), only_on_mismatch: true, ..local.clone() }.prepare().expect("there");
    assert_eq!(facts("later").1 & 0o070, 0);
    fs::remove_file(marker).expect("removed");
    LocalVolume { marker: dirs.path().join("third/ready"), ..local.clone() }.prepare().expect("there");
    assert_eq!(facts("later").1, 0o2070);

    let at = |path: &str| LocalVolume {
        source: LocalVolumeSource { path: path.to_owned(), fs_type: None },
        ..local.clone()
    };
    let words = |path: &str| at(path).prepare().expect_err(path).message().to_owned();
    assert_eq!(words(""), "LocalVolume volume \"pv-1\" path is empty");
    assert_eq!(words("/a/../b"), "invalid path: /a/../b must not contain '..'");
    assert_eq!(words("/nowhere/at/all"), "path \"/nowhere/at/all\" does not exist");
    assert!(words("/dev/null").contains("is not a directory"));
}
