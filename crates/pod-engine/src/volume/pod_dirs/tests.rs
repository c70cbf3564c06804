use std::os::unix::fs::{MetadataExt as _, symlink};

use super::*;

fn dirs() -> (tempfile::TempDir, PodDirs) {
    let directory = tempfile::tempdir().expect("a directory");
    let dirs = PodDirs::new(directory.path().join("root"));
    (directory, dirs)
}

#[test]
fn the_hosts_file_stays_the_same_file() {
    let (_directory, dirs) = dirs();
    let path = dirs.write_hosts("uid", "127.0.0.1\tlocalhost\n").expect("written");
    assert_eq!(path, dirs.pod("uid").join("etc-hosts"));
    let before = fs::metadata(&path).expect("metadata");
    assert_eq!(before.mode() & 0o7777, 0o644);
    for content in ["short\n", "something that is longer\n", "something that is longer\n"] {
        dirs.write_hosts("uid", content).expect("written");
        assert_eq!(fs::read_to_string(&path).expect("text"), content);
        assert_eq!(fs::metadata(&path).expect("metadata").ino(), before.ino());
    }
    let pod = fs::metadata(dirs.pod("uid")).expect("metadata");
    assert_eq!(pod.mode() & 0o027, 0, "others look into the directory of a pod");
}

#[test]
fn a_link_in_the_place_of_the_hosts_file_is_not_written_through() {
    let (directory, dirs) = dirs();
    let precious = directory.path().join("precious");
    fs::write(&precious, "kept").expect("a file");
    dirs.write_hosts("uid", "x").expect("written");
    fs::remove_file(dirs.pod("uid").join("etc-hosts")).expect("removed");
    symlink(&precious, dirs.pod("uid").join("etc-hosts")).expect("a link");
    dirs.write_hosts("uid", "y").expect_err("a link");
    assert_eq!(fs::read_to_string(precious).expect("text"), "kept");
}

#[test]
fn every_start_has_a_message_file_of_its_own_that_everybody_may_write() {
    let (_directory, dirs) = dirs();
    let (one, other) = (dirs.create_message_file("uid", "app"), dirs.create_message_file("uid", "app"));
    let (one, other) = (one.expect("a file"), other.expect("a file"));
    assert_ne!(one, other);
    for path in [one, other] {
        assert_eq!(path.parent(), Some(dirs.pod("uid").join("containers/app").as_path()));
        let metadata = fs::metadata(&path).expect("metadata");
        assert_eq!((metadata.mode() & 0o7777, metadata.len()), (0o666, 0));
    }
}

#[tokio::test]
async fn what_cannot_be_a_name_leads_nowhere() {
    let (directory, dirs) = dirs();
    fs::write(directory.path().join("precious"), "").expect("a file");
    for uid in ["", ".", "..", "../precious", "a/b", "/etc"] {
        dirs.write_hosts(uid, "").expect_err(uid);
        dirs.create_message_file(uid, "app").expect_err(uid);
        dirs.create_message_file("uid", uid).expect_err(uid);
        dirs.tear_down(uid).await.expect_err(uid);
    }
    assert!(directory.path().join("precious").exists());
}

#[tokio::test]
async fn a_pods_directory_goes_and_what_its_links_lead_to_stays() {
    let (directory, dirs) = dirs();
    assert_eq!(dirs.pods().expect("nothing"), Vec::<String>::new());
    dirs.tear_down("uid").await.expect("nothing there");
    let precious = directory.path().join("precious");
    fs::create_dir(&precious).expect("a directory");
    fs::write(precious.join("file"), "kept").expect("a file");
    for uid in ["uid", "other"] {
        dirs.write_hosts(uid, "x").expect("written");
        dirs.create_message_file(uid, "app").expect("a file");
    }
    let volume = dirs.volume("uid", "kubernetes.io~empty-dir", "data");
    fs::create_dir_all(&volume).expect("directories");
    symlink(&precious, volume.join("link")).expect("a link");
    assert_eq!(dirs.pods().expect("pods"), ["other", "uid"]);
    dirs.tear_down("uid").await.expect("removed");
    dirs.tear_down("uid").await.expect("gone already");
    assert_eq!(dirs.pods().expect("pods"), ["other"]);
    // A symbolic link in place of a pod directory is removed without its target.
    symlink(&precious, dirs.pod("uid")).expect("a link");
    assert_eq!(dirs.pods().expect("pods"), ["other"]);
    dirs.tear_down("uid").await.expect("removed");
    assert!(fs::symlink_metadata(dirs.pod("uid")).is_err());
    assert_eq!(fs::read_to_string(precious.join("file")).expect("text"), "kept");
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn what_is_mounted_in_a_pods_directory_is_unmounted_and_not_removed() {
    let (directory, dirs) = dirs();
    let precious = directory.path().join("precious");
    fs::create_dir_all(precious.join("inner")).expect("directories");
    fs::write(precious.join("file"), "kept").expect("a file");
    let volume = dirs.volume("uid", "kubernetes.io~host", "a b");
    let busy = dirs.volume("uid", "kubernetes.io~empty-dir", "memory");
    fs::create_dir_all(&volume).expect("directories");
    fs::create_dir_all(&busy).expect("directories");
    rustix::mount::mount_bind(&precious, &volume).expect("root may mount");
    // Nested and stacked mounts, and a busy one.
    let real = volume.canonicalize().expect("a path");
    mount_table::mount_memory(&real.join("inner"), Some(1 << 20)).expect("root may mount");
    rustix::mount::mount_bind(&precious, &volume).expect("root may mount");
    mount_table::mount_memory(&busy.canonicalize().expect("a path"), Some(1 << 20)).expect("root may mount");
    fs::write(busy.join("file"), "x").expect("a file");
    let open = fs::File::open(busy.join("file")).expect("a file");
    dirs.tear_down("uid").await.expect("removed");
    drop(open);
    assert!(!dirs.pod("uid").exists());
    assert_eq!(fs::read_to_string(precious.join("file")).expect("text"), "kept");
    assert!(precious.join("inner").is_dir());
    let root = directory.path().canonicalize().expect("a path");
    assert!(!mount_table::mounts().expect("a table").iter().any(|mounted| mounted.point.starts_with(&root)));
}
