mod scripted;

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
    path::Path,
    sync::atomic::AtomicBool,
    time::Duration,
};

use serde_json::{Value, json};
use vk_provider::{
    error::Kind,
    resolve::{Claim, Reference, ReferenceKind},
};

use super::*;
use scripted::{Scripted, set};

const UID: &str = "0b6c1b7a-5a7e-4c58-8d8f-1c3a3b0d9a10";

/// A machine with one pod. Whatever is mounted goes with it, also when a test fails.
struct Ground {
    directory: tempfile::TempDir,
    place: Place,
    resolver: Arc<Scripted>,
    volumes: Volumes,
}

impl Ground {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let place = Place::new(directory.path().join("root"));
        let volumes = Volumes::new(&place, UID, Clock::system());
        Self { directory, place, resolver: Arc::default(), volumes }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn bundle(&self, pod: Pod) -> PodBundle {
        PodBundle { pod: Arc::new(pod), resolver: self.resolver.clone() }
    }

    async fn ready(&self, pod: &Pod) -> Result<(), Vec<Failure>> {
        let bundle = self.bundle(pod.clone());
        let ready = self.volumes.ready(&bundle);
        tokio::time::timeout(Duration::from_secs(20), ready).await.expect("an answer")
    }

    async fn mounts(&self, pod: &Pod) -> Result<Vec<PathBuf>, Trouble> {
        let container = &pod.spec.as_ref().expect("a spec").containers[0];
        let mounts = self.volumes.mounts(container, &[], &With::default()).await?;
        Ok(mounts.into_iter().map(|mount| mount.host_path.into()).collect())
    }

    /// The process ends and another begins.
    fn restart(&mut self) {
        self.volumes = Volumes::new(&self.place, UID, Clock::system());
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        if let Ok(root) = self.directory.path().canonicalize() {
            let _ = system::unmount_below(&root);
        }
    }
}

fn pod(volumes: &Value, mounts: &Value) -> Pod {
    let spec = json!({ "volumes": volumes, "containers": [{ "name": "app", "volumeMounts": mounts }] });
    serde_json::from_value(json!({ "metadata": { "name": "web", "uid": UID }, "spec": spec })).expect("a pod")
}

/// A pod that mounts one volume.
fn with(mut volume: Value) -> Pod {
    volume["name"] = json!("data");
    pod(&json!([volume]), &json!([{ "name": "data", "mountPath": "/data" }]))
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).expect("text")
}

/// Waits until a file says this.
async fn shows(path: &Path, wanted: &str) {
    for _ in 0..2000 {
        if fs::read_to_string(path).is_ok_and(|found| found == wanted) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{} does not show {wanted:?}", path.display());
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("metadata").mode() & 0o7777
}

#[tokio::test]
async fn an_empty_directory_is_open_to_the_pod_and_outlives_us() {
    let mut ground = Ground::new();
    let pod = with(json!({ "emptyDir": { "sizeLimit": "1Mi" } }));
    ground.ready(&pod).await.expect("ready");
    let path = ground.place.volume(UID, EMPTY_DIR, "data");
    assert_eq!(ground.volumes.facts(), BTreeMap::from([("data".to_owned(), path.clone())]));
    assert_eq!(ground.mounts(&pod).await.expect("mounts"), [path.clone()]);
    assert_eq!(mode(&path), 0o777);
    // What the container does to it stays, also when we come back.
    fs::write(path.join("file"), "kept").expect("a file");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).expect("a mode");
    ground.ready(&pod).await.expect("still ready");
    ground.restart();
    assert_eq!(ground.volumes.facts(), BTreeMap::new());
    ground.ready(&pod).await.expect("ready again");
    assert_eq!((mode(&path), read(path.join("file"))), (0o700, "kept".to_owned()));
    ground.volumes.tear_down().await.expect("removed");
    assert!(!ground.place.pod(UID).exists());
}

#[tokio::test]
async fn an_empty_directory_belongs_to_the_pods_group() {
    let ground = Ground::new();
    let own = fs::metadata(ground.directory.path()).expect("metadata");
    let group = if own.uid() == 0 { 2222 } else { own.gid() };
    let mut pod = with(json!({ "emptyDir": {} }));
    let security = serde_json::from_value(json!({ "fsGroup": group })).expect("a context");
    pod.spec.as_mut().expect("a spec").security_context = Some(security);
    ground.ready(&pod).await.expect("ready");
    let path = ground.place.volume(UID, EMPTY_DIR, "data");
    assert_eq!((fs::metadata(&path).expect("metadata").gid(), mode(&path)), (group, 0o2777));
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn an_empty_directory_in_memory_has_a_size_and_is_made_again_after_the_machine_was() {
    let mut ground = Ground::new();
    let pod = with(json!({ "emptyDir": { "medium": "Memory", "sizeLimit": "1Mi" } }));
    ground.ready(&pod).await.expect("ready");
    let path = ground.place.volume(UID, EMPTY_DIR, "data").canonicalize().expect("a path");
    assert_eq!(mode(&path), 0o1777);
    let stat = rustix::fs::statvfs(&path).expect("a file system");
    assert_eq!(stat.f_blocks * stat.f_frsize, 1 << 20);
    fs::write(path.join("file"), "kept").expect("a file");
    ground.restart();
    ground.ready(&pod).await.expect("ready again");
    assert_eq!(read(path.join("file")), "kept");
    system::unmount(&path).expect("root may unmount");
    ground.restart();
    ground.ready(&pod).await.expect("made again");
    assert!(system::at(&path).expect("a table").is_some_and(|mounted| mounted.file_system == "tmpfs"));
    ground.volumes.tear_down().await.expect("removed");
    assert!(!ground.place.pod(UID).exists());
}

#[tokio::test]
async fn files_follow_their_source_as_one_and_keep_what_they_had() {
    for kind in [json!({ "configMap": { "name": "m" } }), json!({ "secret": { "secretName": "s" } })] {
        let mut ground = Ground::new();
        let pod = with(kind);
        let script = ground.resolver.volume("data");
        script.send(Ok(set(&[("a", "1"), ("sub/b", "1")]))).expect("heard");
        ground.ready(&pod).await.expect("ready");
        let path = ground.mounts(&pod).await.expect("mounts").remove(0);
        assert_eq!((read(path.join("a")), read(path.join("sub/b"))), ("1".to_owned(), "1".to_owned()));
        script.send(Ok(set(&[("a", "2"), ("c", "2")]))).expect("heard");
        shows(&path.join("c"), "2").await;
        assert_eq!(read(path.join("a")), "2");
        assert!(!path.join("sub").exists());
        // What is deleted meanwhile is mounted all the same.
        script.send(Err(Error::unavailable("gone"))).expect("heard");
        script.send(Ok(set(&[("a", "3")]))).expect("heard");
        shows(&path.join("a"), "3").await;
        ground.ready(&pod).await.expect("still ready");
        // Another process goes on in the same place.
        ground.restart();
        let script = ground.resolver.volume("data");
        script.send(Ok(set(&[("a", "4")]))).expect("heard");
        ground.ready(&pod).await.expect("ready again");
        assert_eq!(ground.mounts(&pod).await.expect("mounts"), [path.clone()]);
        assert_eq!(read(path.join("a")), "4");
        ground.volumes.tear_down().await.expect("removed");
        assert!(script.is_closed(), "somebody still listens");
        assert!(!path.exists());
    }
}

#[tokio::test]
async fn what_is_missing_is_told_and_waited_for() {
    let ground = Ground::new();
    let pod = with(json!({ "secret": { "secretName": "s" } }));
    let script = ground.resolver.volume("data");
    let reference = Reference::new(ReferenceKind::Secret, "default", "s").of_volume("data");
    let missing = Error::new(Kind::Unresolved(reference.clone()), "secret \"s\" not found");
    script.send(Err(missing)).expect("heard");
    let failures = ground.ready(&pod).await.expect_err("not there");
    assert_eq!(failures.len(), 1);
    assert_eq!(
        failures[0].message(),
        "MountVolume.SetUp failed for volume \"data\" : secret \"s\" not found"
    );
    assert_eq!(failures[0].error.kind(), &Kind::Unresolved(reference));
    assert!(failures[0].told, "the resolver tells this");
    // Asking again changes nothing, and a container cannot have it.
    assert_eq!(ground.ready(&pod).await.expect_err("not there").len(), 1);
    let trouble = ground.mounts(&pod).await.expect_err("nothing to mount");
    assert_eq!(trouble.reason, "CreateContainerConfigError");
    assert_eq!(trouble.message, "cannot find volume \"data\" to mount into container \"app\"");
    let changed = ground.volumes.changed();
    tokio::pin!(changed);
    assert!(futures::poll!(changed.as_mut()).is_pending(), "nothing has changed");
    script.send(Ok(set(&[("a", "1")]))).expect("heard");
    tokio::time::timeout(Duration::from_secs(20), changed).await.expect("a change");
    ground.ready(&pod).await.expect("ready");
    let path = ground.mounts(&pod).await.expect("mounts").remove(0);
    assert_eq!(read(path.join("a")), "1");
}

#[tokio::test]
async fn a_source_that_gives_up_is_asked_anew_and_not_in_circles() {
    let ground = Ground::new();
    let pod = with(json!({ "configMap": { "name": "m" } }));
    let script = ground.resolver.volume("data");
    script.send(Err(Error::invalid("no"))).expect("heard");
    drop(script);
    ground.ready(&pod).await.expect_err("refused");
    // Until its end has come through, it is as it was; then a new stream is opened, which is over at once.
    let ended = AtomicBool::new(false);
    for _ in 0..2000 {
        let failures = ground.ready(&pod).await.expect_err("refused");
        if failures[0].error.message() == "the pod's references are not resolved any more" {
            ended.store(true, Ordering::Relaxed);
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(ended.load(Ordering::Relaxed), "never asked anew");
    let changed = ground.volumes.changed();
    tokio::pin!(changed);
    assert!(futures::poll!(changed.as_mut()).is_pending(), "a failure that was told is no change");
    let script = ground.resolver.volume("data");
    script.send(Ok(set(&[("a", "1")]))).expect("heard");
    for _ in 0..2000 {
        if ground.ready(&pod).await.is_ok() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("never ready");
}

#[tokio::test]
async fn all_failures_are_told_at_once_and_what_is_not_mounted_is_not_made() {
    let ground = Ground::new();
    let pod = pod(
        &json!([
            { "name": "good", "emptyDir": {} },
            { "name": "far", "nfs": { "server": "s", "path": "/" } },
            { "name": "host", "hostPath": { "path": "/nowhere/at/all", "type": "Directory" } },
            { "name": "claim", "persistentVolumeClaim": { "claimName": "none" } },
            { "name": "odd", "emptyDir": { "medium": "Cloud" } },
            { "name": "unused", "csi": { "driver": "d" } },
        ]),
        &json!(
            ["good", "far", "host", "claim", "odd"]
                .map(|name| json!({ "name": name, "mountPath": format!("/{name}") }))
        ),
    );
    let failures = ground.ready(&pod).await.expect_err("not all");
    let told: Vec<(&str, &str, bool)> =
        failures.iter().map(|it| (it.volume.as_str(), it.error.message(), it.told)).collect();
    assert_eq!(told.len(), 4, "{told:?}");
    assert!(told[0].0 == "far" && told[0].1.starts_with("volume \"far\" is of kind nfs"), "{told:?}");
    assert_eq!(told[1], ("host", "hostPath type check failed: /nowhere/at/all is not a directory", false));
    assert_eq!(told[2], ("claim", "claim \"none\": it is not there", false));
    assert_eq!(told[3], ("odd", "unknown storage medium \"Cloud\"", false));
    assert_eq!(ground.volumes.facts().len(), 1);
}

fn claim(source: Value) -> Claim {
    let mut spec = source;
    spec["accessModes"] = json!(["ReadWriteOnce"]);
    let volume = serde_json::from_value(json!({ "metadata": { "name": "pv-1" }, "spec": spec }));
    Claim { claim: Arc::default(), volume: Arc::new(volume.expect("a volume")) }
}

#[tokio::test]
async fn claims_lead_to_paths_of_the_machine_which_outlive_the_pod() {
    let ground = Ground::new();
    let disk = ground.path("disk");
    fs::create_dir(&disk).expect("a directory");
    fs::write(disk.join("file"), "kept").expect("a file");
    for (source, volume, name) in [
        (
            json!({ "hostPath": { "path": disk } }),
            json!({ "persistentVolumeClaim": { "claimName": "pvc" } }),
            "pvc",
        ),
        (json!({ "local": { "path": disk } }), json!({ "ephemeral": {} }), "web-data"),
    ] {
        ground.resolver.claims.lock().insert(name.to_owned(), claim(source));
        let pod = with(volume);
        ground.ready(&pod).await.expect("ready");
        assert_eq!(ground.mounts(&pod).await.expect("mounts"), [disk.clone()]);
        ground.volumes.tear_down().await.expect("removed");
        assert_eq!(read(disk.join("file")), "kept");
    }
    for (source, wanted) in [
        (json!({ "nfs": { "server": "s", "path": "/" } }), "persistent volume \"pv-1\" is of kind nfs"),
        (
            json!({ "local": { "path": "/dev/sda" }, "volumeMode": "Block" }),
            "volume data has volumeMode Block, but is specified in volumeMounts",
        ),
    ] {
        ground.resolver.claims.lock().insert("pvc".to_owned(), claim(source));
        let pod = with(json!({ "persistentVolumeClaim": { "claimName": "pvc" } }));
        let failures = ground.ready(&pod).await.expect_err(wanted);
        assert!(failures[0].error.message().starts_with(wanted), "{failures:?}");
    }
}

#[tokio::test]
async fn a_place_for_a_volume_within_a_volume_is_made() {
    let ground = Ground::new();
    let pod = pod(
        &json!([{ "name": "map", "configMap": { "name": "m" } }, { "name": "inner", "emptyDir": {} }]),
        &json!([
            { "name": "map", "mountPath": "/etc/app" },
            { "name": "inner", "mountPath": "/etc/app/cache/today" },
        ]),
    );
    let script = ground.resolver.volume("map");
    script.send(Ok(set(&[("a", "1")]))).expect("heard");
    ground.ready(&pod).await.expect("ready");
    let path = ground.mounts(&pod).await.expect("mounts").remove(0);
    assert!(path.join("cache/today").is_dir());
    assert_eq!(read(path.join("a")), "1");
}

/// A pod that mounts a part of its volume.
fn with_part(volume: Value, part: &str) -> Pod {
    let mut pod = with(volume);
    let container = &mut pod.spec.as_mut().expect("a spec").containers[0];
    container.volume_mounts.as_mut().expect("mounts")[0].sub_path = Some(part.to_owned());
    pod
}

#[tokio::test]
async fn a_part_that_leads_out_of_the_volume_is_refused_in_the_kubelets_words() {
    let ground = Ground::new();
    let outside = ground.path("outside");
    fs::create_dir(&outside).expect("a directory");
    let empty = json!({ "emptyDir": {} });
    ground.ready(&with(empty.clone())).await.expect("ready");
    let volume = ground.place.volume(UID, EMPTY_DIR, "data");
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
        let trouble = ground.mounts(&with_part(empty.clone(), part)).await.expect_err(part);
        assert_eq!(trouble.reason, "CreateContainerConfigError");
        assert_eq!(
            trouble.message,
            format!("failed to {doing} for volumeMount \"data\" of container \"app\"")
        );
    }
    assert_eq!(fs::read_dir(&outside).expect("a directory").count(), 0);
    assert!(fs::read_dir(ground.place.pod(UID).join("volume-subpaths")).is_err(), "something was mounted");
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_part_of_a_volume_is_mounted_as_it_was_found() {
    let mut ground = Ground::new();
    let empty = json!({ "emptyDir": {} });
    ground.ready(&with(empty.clone())).await.expect("ready");
    let volume = ground.place.volume(UID, EMPTY_DIR, "data");
    fs::set_permissions(&volume, fs::Permissions::from_mode(0o2775)).expect("a mode");
    let pod = with_part(empty.clone(), "a/b");
    let part = ground.mounts(&pod).await.expect("mounts").remove(0);
    assert!(part.ends_with(format!("{UID}/volume-subpaths/data/app/0")), "{part:?}");
    // What is missing is made with the volume's mode.
    assert_eq!((mode(&volume.join("a")), mode(&volume.join("a/b"))), (0o2775, 0o2775));
    fs::write(part.join("file"), "x").expect("a file");
    assert_eq!(read(volume.join("a/b/file")), "x");
    // The next start finds it mounted, also after a restart of ours.
    let mounted = || {
        let all = system::mounts().expect("a table");
        all.into_iter().filter(|mounted| mounted.point == part).count()
    };
    ground.restart();
    ground.ready(&pod).await.expect("ready");
    assert_eq!(ground.mounts(&pod).await.expect("mounts"), [part.clone()]);
    assert_eq!(mounted(), 1);
    // A container that puts a link in the way changes nothing about what is mounted.
    fs::rename(volume.join("a"), volume.join("moved")).expect("renamed");
    symlink("/etc", volume.join("a")).expect("a link");
    assert_eq!(read(part.join("file")), "x");
    let trouble = ground.mounts(&pod).await.expect_err("a link");
    assert_eq!(
        trouble.message,
        "failed to create subPath directory for volumeMount \"data\" of container \"app\""
    );
    // Another part, of another kind, takes its place.
    fs::write(volume.join("single"), "file").expect("a file");
    assert_eq!(ground.mounts(&with_part(empty, "single")).await.expect("mounts"), [part.clone()]);
    assert_eq!((read(&part), mounted()), ("file".to_owned(), 1));
    ground.volumes.tear_down().await.expect("removed");
    assert!(!ground.place.pod(UID).exists());
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_part_keeps_the_file_that_it_was_mounted_from_and_the_next_start_sees_the_new_one() {
    let ground = Ground::new();
    let pod = with_part(json!({ "configMap": { "name": "m" } }), "key");
    let script = ground.resolver.volume("data");
    script.send(Ok(set(&[("key", "old")]))).expect("heard");
    ground.ready(&pod).await.expect("ready");
    let part = ground.mounts(&pod).await.expect("mounts").remove(0);
    let volume = ground.place.volume(UID, "kubernetes.io~configmap", "data");
    script.send(Ok(set(&[("key", "new")]))).expect("heard");
    shows(&volume.join("key"), "new").await;
    assert_eq!(read(&part), "old");
    assert_eq!(ground.mounts(&pod).await.expect("mounts"), [part.clone()]);
    assert_eq!(read(&part), "new");
    ground.volumes.tear_down().await.expect("removed");
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_pod_goes_and_the_host_path_of_which_it_mounted_a_part_stays() {
    let ground = Ground::new();
    let disk = ground.path("disk");
    fs::create_dir_all(disk.join("part")).expect("directories");
    fs::write(disk.join("part/file"), "kept").expect("a file");
    symlink(&disk, ground.path("link")).expect("a link");
    let pod = with_part(json!({ "hostPath": { "path": ground.path("link") } }), "part");
    ground.ready(&pod).await.expect("ready");
    let part = ground.mounts(&pod).await.expect("mounts").remove(0);
    assert_eq!(read(part.join("file")), "kept");
    // As an orphan, by a process that knows nothing of it.
    assert_eq!(ground.place.pods().expect("pods"), [UID]);
    Place::new(ground.path("root")).tear_down(UID).await.expect("removed");
    assert!(!ground.place.pod(UID).exists());
    assert_eq!(read(disk.join("part/file")), "kept");
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn while_a_container_swaps_a_part_for_a_link_nothing_outside_is_ever_mounted() {
    let ground = Ground::new();
    let outside = ground.path("outside");
    fs::create_dir(&outside).expect("a directory");
    fs::write(outside.join("secret"), "stolen").expect("a file");
    let pod = with_part(json!({ "emptyDir": {} }), "part");
    ground.ready(&pod).await.expect("ready");
    let volume = ground.place.volume(UID, EMPTY_DIR, "data");
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
        match ground.mounts(&pod).await {
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
    ground.volumes.tear_down().await.expect("removed");
}
