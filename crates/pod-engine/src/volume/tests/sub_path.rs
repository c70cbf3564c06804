//! Sub paths of volumes.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::{
    super::{mount_table, pod_dirs::PodDirs, setup::EMPTY_DIR},
    Fixture, UID,
    fake_resolver::set,
    mode, read, shows, with,
};

/// A pod that mounts a part of its volume.
fn with_part(volume: Value, part: &str) -> Pod {
    let mut pod = with(volume);
    let container = &mut pod.spec.as_mut().expect("a spec").containers[0];
    container.volume_mounts.as_mut().expect("mounts")[0].sub_path = Some(part.to_owned());
    pod
}

#[tokio::test]
async fn a_part_that_leads_out_of_the_volume_is_refused_in_the_kubelets_words() {
    let fixture = Fixture::new();
    let outside = fixture.path("outside");
    fs::create_dir(&outside).expect("a directory");
    let empty = json!({ "emptyDir": {} });
    fixture.ready(&with(empty.clone())).await.expect("ready");
    let volume = fixture.dirs.volume(UID, EMPTY_DIR, "data");
    symlink(&outside, volume.join("absolute")).expect("a link");
    symlink("../../../../../../outside", volume.join("relative")).expect("a link");
    symlink("/nowhere/at/all", volume.join("broken")).expect("a link");
    fs::write(volume.join("file"), "").expect("a file");
    for (part, doing) in [
        ("absolute", "prepare subPath"),
        ("relative", "prepare subPath"),
        ("broken", "create subPath directory"),
        ("absolute/new", "create subPath directory"),
        ("file/new", "create subPath directory"),
    ] {
        let failure = fixture.mounts(&with_part(empty.clone(), part)).await.expect_err(part);
        assert_eq!(failure.reason, "CreateContainerConfigError");
        assert_eq!(
            failure.message,
            format!("failed to {doing} for volumeMount \"data\" of container \"app\"")
        );
    }
    assert_eq!(fs::read_dir(&outside).expect("a directory").count(), 0);
    assert!(fs::read_dir(fixture.dirs.pod(UID).join("volume-subpaths")).is_err(), "something was mounted");
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_part_of_a_volume_is_mounted_as_it_was_found() {
    let mut fixture = Fixture::new();
    let empty = json!({ "emptyDir": {} });
    fixture.ready(&with(empty.clone())).await.expect("ready");
    let volume = fixture.dirs.volume(UID, EMPTY_DIR, "data");
    fs::set_permissions(&volume, fs::Permissions::from_mode(0o2775)).expect("a mode");
    let pod = with_part(empty.clone(), "a/b");
    let part = fixture.mounts(&pod).await.expect("mounts").remove(0);
    assert!(part.ends_with(format!("{UID}/volume-subpaths/data/app/0")), "{part:?}");
    // Missing directories are created with the volume's mode.
    assert_eq!((mode(&volume.join("a")), mode(&volume.join("a/b"))), (0o2775, 0o2775));
    fs::write(part.join("file"), "x").expect("a file");
    assert_eq!(read(volume.join("a/b/file")), "x");
    // The next start finds it mounted, also after a restart of ours.
    let mounted = || {
        let all = mount_table::mounts().expect("a table");
        all.into_iter().filter(|mounted| mounted.point == part).count()
    };
    fixture.restart();
    fixture.ready(&pod).await.expect("ready");
    assert_eq!(fixture.mounts(&pod).await.expect("mounts"), std::slice::from_ref(&part));
    assert_eq!(mounted(), 1);
    // A symbolic link that a container creates later does not affect the mount.
    fs::rename(volume.join("a"), volume.join("moved")).expect("renamed");
    symlink("/etc", volume.join("a")).expect("a link");
    assert_eq!(read(part.join("file")), "x");
    let failure = fixture.mounts(&pod).await.expect_err("a link");
    assert_eq!(
        failure.message,
        "failed to create subPath directory for volumeMount \"data\" of container \"app\""
    );
    // Another sub path of another type replaces it.
    fs::write(volume.join("single"), "file").expect("a file");
    assert_eq!(
        fixture.mounts(&with_part(empty, "single")).await.expect("mounts"),
        std::slice::from_ref(&part)
    );
    assert_eq!((read(&part), mounted()), ("file".to_owned(), 1));
    fixture.volumes.tear_down().await.expect("removed");
    assert!(!fixture.dirs.pod(UID).exists());
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_part_keeps_the_file_that_it_was_mounted_from_and_the_next_start_sees_the_new_one() {
    let fixture = Fixture::new();
    let pod = with_part(json!({ "configMap": { "name": "m" } }), "key");
    let script = fixture.resolver.volume("data");
    script.send(Ok(set(&[("key", "old")]))).expect("heard");
    fixture.ready(&pod).await.expect("ready");
    let part = fixture.mounts(&pod).await.expect("mounts").remove(0);
    let volume = fixture.dirs.volume(UID, "kubernetes.io~configmap", "data");
    script.send(Ok(set(&[("key", "new")]))).expect("heard");
    shows(&volume.join("key"), "new").await;
    assert_eq!(read(&part), "old");
    assert_eq!(fixture.mounts(&pod).await.expect("mounts"), std::slice::from_ref(&part));
    assert_eq!(read(&part), "new");
    fixture.volumes.tear_down().await.expect("removed");
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_pod_goes_and_the_host_path_of_which_it_mounted_a_part_stays() {
    let fixture = Fixture::new();
    let disk = fixture.path("disk");
    fs::create_dir_all(disk.join("part")).expect("directories");
    fs::write(disk.join("part/file"), "kept").expect("a file");
    symlink(&disk, fixture.path("link")).expect("a link");
    let pod = with_part(json!({ "hostPath": { "path": fixture.path("link") } }), "part");
    fixture.ready(&pod).await.expect("ready");
    let part = fixture.mounts(&pod).await.expect("mounts").remove(0);
    assert_eq!(read(part.join("file")), "kept");
    // As an orphan, by a process that knows nothing of it.
    assert_eq!(fixture.dirs.pods().expect("pods"), [UID]);
    PodDirs::new(fixture.path("root")).tear_down(UID).await.expect("removed");
    assert!(!fixture.dirs.pod(UID).exists());
    assert_eq!(read(disk.join("part/file")), "kept");
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn while_a_container_swaps_a_part_for_a_link_nothing_outside_is_ever_mounted() {
    let fixture = Fixture::new();
    let outside = fixture.path("outside");
    fs::create_dir(&outside).expect("a directory");
    fs::write(outside.join("secret"), "stolen").expect("a file");
    let pod = with_part(json!({ "emptyDir": {} }), "part");
    fixture.ready(&pod).await.expect("ready");
    let volume = fixture.dirs.volume(UID, EMPTY_DIR, "data");
    let over = Arc::new(AtomicBool::new(false));
    let stop = Arc::clone(&over);
    let attacker = std::thread::spawn(move || {
        let (part, other) = (volume.join("part"), volume.join("other"));
        fs::create_dir_all(&part).expect("a directory");
        symlink(outside, &other).expect("a link");
        let flags = rustix::fs::RenameFlags::EXCHANGE;
        while !stop.load(Ordering::Relaxed) {
            let _ = rustix::fs::renameat_with(rustix::fs::CWD, &part, rustix::fs::CWD, &other, flags);
        }
    });
    let (mut mounted, mut refused) = (0, 0);
    for _ in 0..300 {
        match fixture.mounts(&pod).await {
            Ok(parts) => {
                mounted += 1;
                assert!(!parts[0].join("secret").exists(), "a container has reached what is outside");
            }
            Err(_) => refused += 1,
        }
    }
    over.store(true, Ordering::Relaxed);
    attacker.join().expect("an end");
    assert!(mounted > 0, "refused {refused} times and never mounted");
    fixture.volumes.tear_down().await.expect("removed");
}
