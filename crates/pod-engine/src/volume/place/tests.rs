use std::os::unix::fs::{MetadataExt as _, symlink};

use super::*;

fn place() -> (tempfile::TempDir, Place) {
    let directory = tempfile::tempdir().expect("a directory");
    let place = Place::new(directory.path().join("root"));
    (directory, place)
}

#[test]
fn the_hosts_file_stays_the_same_file() {
    let (_directory, place) = place();
    let path = place.write_hosts("uid", "127.0.0.1\tlocalhost\n").expect("written");
    assert_eq!(path, place.pod("uid").join("etc-hosts"));
    let before = fs::metadata(&path).expect("metadata");
    assert_eq!(before.mode() & 0o7777, 0o644);
    for content in ["short\n", "something that is longer\n", "something that is longer\n"] {
        place.write_hosts("uid", content).expect("written");
        assert_eq!(fs::read_to_string(&path).expect("text"), content);
        assert_eq!(fs::metadata(&path).expect("metadata").ino(), before.ino());
    }
    let pod = fs::metadata(place.pod("uid")).expect("metadata");
    assert_eq!(pod.mode() & 0o027, 0, "others look into the directory of a pod");
}

#[test]
fn a_link_in_the_place_of_the_hosts_file_is_not_written_through() {
    let (directory, place) = place();
    let precious = directory.path().join("precious");
    fs::write(&precious, "kept").expect("a file");
    place.write_hosts("uid", "x").expect("written");
    fs::remove_file(place.pod("uid").join("etc-hosts")).expect("removed");
    symlink(&precious, place.pod("uid").join("etc-hosts")).expect("a link");
    place.write_hosts("uid", "y").expect_err("a link");
    assert_eq!(fs::read_to_string(precious).expect("text"), "kept");
}

#[test]
fn every_start_has_a_message_file_of_its_own_that_everybody_may_write() {
    let (_directory, place) = place();
    let (one, other) = (place.message_file("uid", "app"), place.message_file("uid", "app"));
    let (one, other) = (one.expect("a file"), other.expect("a file"));
    assert_ne!(one, other);
    for path in [one, other] {
        assert_eq!(path.parent(), Some(place.pod("uid").join("containers/app").as_path()));
        let metadata = fs::metadata(&path).expect("metadata");
        assert_eq!((metadata.mode() & 0o7777, metadata.len()), (0o666, 0));
    }
}

#[tokio::test]
async fn what_cannot_be_a_name_leads_nowhere() {
    let (directory, place) = place();
    fs::write(directory.path().join("precious"), "").expect("a file");
    for uid in ["", ".", "..", "../precious", "a/b", "/etc"] {
        place.write_hosts(uid, "").expect_err(uid);
        place.message_file(uid, "app").expect_err(uid);
        place.message_file("uid", uid).expect_err(uid);
        place.tear_down(uid).await.expect_err(uid);
    }
    assert!(directory.path().join("precious").exists());
}

#[tokio::test]
async fn a_pods_directory_goes_and_what_its_links_lead_to_stays() {
    let (directory, place) = place();
    assert_eq!(place.pods().expect("nothing"), Vec::<String>::new());
    place.tear_down("uid").await.expect("nothing there");
    let precious = directory.path().join("precious");
    fs::create_dir(&precious).expect("a directory");
    fs::write(precious.join("file"), "kept").expect("a file");
    for uid in ["uid", "other"] {
        place.write_hosts(uid, "x").expect("written");
        place.message_file(uid, "app").expect("a file");
    }
    let volume = place.volume("uid", "kubernetes.io~empty-dir", "data");
    fs::create_dir_all(&volume).expect("directories");
    symlink(&precious, volume.join("link")).expect("a link");
    assert_eq!(place.pods().expect("pods"), ["other", "uid"]);
    place.tear_down("uid").await.expect("removed");
    place.tear_down("uid").await.expect("gone already");
    assert_eq!(place.pods().expect("pods"), ["other"]);
    // A link in the place of a whole pod is no pod, and goes alone.
    symlink(&precious, place.pod("uid")).expect("a link");
    assert_eq!(place.pods().expect("pods"), ["other"]);
    place.tear_down("uid").await.expect("removed");
    assert!(fs::symlink_metadata(place.pod("uid")).is_err());
    assert_eq!(fs::read_to_string(precious.join("file")).expect("text"), "kept");
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn what_is_mounted_in_a_pods_directory_is_unmounted_and_not_removed() {
    let (directory, place) = place();
    let precious = directory.path().join("precious");
    fs::create_dir_all(precious.join("inner")).expect("directories");
    fs::write(precious.join("file"), "kept").expect("a file");
    let volume = place.volume("uid", "kubernetes.io~host", "a b");
    let busy = place.volume("uid", "kubernetes.io~empty-dir", "memory");
    fs::create_dir_all(&volume).expect("directories");
    fs::create_dir_all(&busy).expect("directories");
    rustix::mount::mount_bind(&precious, &volume).expect("root may mount");
    // Mounts in mounts, on top of each other, and one in which somebody is.
    let real = volume.canonicalize().expect("a path");
    system::mount_memory(&real.join("inner"), Some(1 << 20)).expect("root may mount");
    rustix::mount::mount_bind(&precious, &volume).expect("root may mount");
    system::mount_memory(&busy.canonicalize().expect("a path"), Some(1 << 20)).expect("root may mount");
    fs::write(busy.join("file"), "x").expect("a file");
    let open = fs::File::open(busy.join("file")).expect("a file");
    place.tear_down("uid").await.expect("removed");
    drop(open);
    assert!(!place.pod("uid").exists());
    assert_eq!(fs::read_to_string(precious.join("file")).expect("text"), "kept");
    assert!(precious.join("inner").is_dir());
    let root = directory.path().canonicalize().expect("a path");
    assert!(!system::mounts().expect("a table").iter().any(|mounted| mounted.point.starts_with(&root)));
}
