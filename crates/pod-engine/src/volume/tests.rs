mod parts;
mod scripted;

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::Path,
    sync::atomic::AtomicBool,
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use vk_provider::{
    error::Kind,
    resolve::{Claim, Reference, ReferenceKind},
};

use super::{making::EMPTY_DIR, *};
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
    assert_eq!(ground.mounts(&pod).await.expect("mounts"), std::slice::from_ref(&path));
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
        assert_eq!(ground.mounts(&pod).await.expect("mounts"), std::slice::from_ref(&path));
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
    let mut changes = ground.volumes.changes();
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
    {
        let changed = ground.volumes.changed(&mut changes);
        tokio::pin!(changed);
        assert!(futures::poll!(changed.as_mut()).is_pending(), "nothing has changed");
        script.send(Ok(set(&[("a", "1")]))).expect("heard");
        tokio::time::timeout(Duration::from_secs(20), changed).await.expect("a change");
    }
    // Who does nothing about it is not called again.
    let again = ground.volumes.changed(&mut changes);
    assert!(futures::poll!(std::pin::pin!(again)).is_pending(), "called twice for one change");
    ground.ready(&pod).await.expect("ready");
    let path = ground.mounts(&pod).await.expect("mounts").remove(0);
    assert_eq!(read(path.join("a")), "1");
}

#[tokio::test]
async fn a_source_that_gives_up_is_asked_anew_and_not_in_circles() {
    let ground = Ground::new();
    let pod = with(json!({ "configMap": { "name": "m" } }));
    let mut changes = ground.volumes.changes();
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
    let changed = ground.volumes.changed(&mut changes);
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
async fn a_source_that_panics_is_a_failure_and_nobody_waits_for_it() {
    let mut ground = Ground::new();
    let pod = with(json!({ "configMap": { "name": "m" } }));
    ground.resolver = Arc::new(Scripted::panicking());
    let failures = ground.ready(&pod).await.expect_err("nothing came");
    assert_eq!(failures[0].error.message(), "the pod's references are not resolved any more");
}

#[tokio::test]
async fn the_end_of_a_pod_takes_its_volumes_and_leaves_what_its_containers_said() {
    let ground = Ground::new();
    let pod = with(json!({ "emptyDir": {} }));
    ground.ready(&pod).await.expect("ready");
    let said = ground.place.message_file(UID, "app").expect("a file");
    fs::write(&said, "bye").expect("written");
    let hosts = ground.place.write_hosts(UID, "127.0.0.1 localhost").expect("a file");
    ground.volumes.tear_down().await.expect("removed");
    assert_eq!((read(&said), hosts.exists()), ("bye".to_owned(), true));
    let mut left: Vec<_> = fs::read_dir(ground.place.pod(UID))
        .expect("a directory")
        .map(|it| it.expect("a name").file_name())
        .collect();
    left.sort();
    assert_eq!(left, ["containers", "etc-hosts"]);
    ground.place.tear_down(UID).await.expect("removed");
    assert!(!ground.place.pod(UID).exists());
}

#[tokio::test]
async fn who_stops_waiting_and_asks_again_gets_all_the_same() {
    let ground = Ground::new();
    let pod = pod(
        &json!([{ "name": "map", "configMap": { "name": "m" } }, { "name": "secret", "secret": { "secretName": "s" } },
            { "name": "empty", "emptyDir": {} }]),
        &json!(
            ["map", "secret", "empty"].map(|name| json!({ "name": name, "mountPath": format!("/{name}") }))
        ),
    );
    let bundle = ground.bundle(pod.clone());
    for round in 0..50 {
        // As far as it comes in a moment, which is another each time.
        let ready = ground.volumes.ready(&bundle);
        let _ = tokio::time::timeout(Duration::from_micros(round * 20), ready).await;
    }
    let scripts = ["map", "secret"].map(|name| ground.resolver.volume(name));
    for script in &scripts {
        let _ = script.send(Ok(set(&[("a", "1")])));
    }
    // Streams that were opened before there was anything to say are over: they are opened anew.
    for _ in 0..2000 {
        if ground.ready(&pod).await.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let paths = ground.mounts(&pod).await.expect("mounts");
    assert_eq!((read(paths[0].join("a")), read(paths[1].join("a"))), ("1".to_owned(), "1".to_owned()));
    let root = ground.directory.path().canonicalize().expect("a path");
    let table = system::mounts().expect("a table");
    assert!(table.iter().filter(|mounted| mounted.point.starts_with(&root)).count() <= 1, "mounted twice");
    ground.volumes.tear_down().await.expect("removed");
    assert!(!ground.place.pod(UID).exists());
}

#[tokio::test]
async fn files_that_cannot_be_written_are_told_and_the_next_ones_count() {
    let ground = Ground::new();
    let pod = with(json!({ "projected": {} }));
    let script = ground.resolver.volume("data");
    let mut changes = ground.volumes.changes();
    // A file where a directory must be.
    script.send(Ok(set(&[("b", ""), ("b/c", "")]))).expect("heard");
    let failures = ground.ready(&pod).await.expect_err("impossible");
    assert_eq!(failures.len(), 1);
    assert!(failures[0].error.message().starts_with("write the files: create directory "), "{failures:?}");
    assert!(!failures[0].told, "only we know this");
    let changed = ground.volumes.changed(&mut changes);
    script.send(Ok(set(&[("b", "1")]))).expect("heard");
    tokio::time::timeout(Duration::from_secs(20), changed).await.expect("a change");
    ground.ready(&pod).await.expect("ready");
    assert_eq!(read(ground.mounts(&pod).await.expect("mounts")[0].join("b")), "1");
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
    let owner = json!({ "apiVersion": "v1", "kind": "Pod", "name": "web", "uid": UID, "controller": true });
    let metadata = json!({ "name": "web-data", "namespace": "shop", "ownerReferences": [owner] });
    let claim = serde_json::from_value(json!({ "metadata": metadata })).expect("a claim");
    Claim { claim: Arc::new(claim), volume: Arc::new(volume.expect("a volume")) }
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
        assert_eq!(ground.mounts(&pod).await.expect("mounts"), std::slice::from_ref(&disk));
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
    // A claim that has the name by chance may hold anything.
    let stranger = Claim { claim: Arc::default(), ..claim(json!({ "local": { "path": disk } })) };
    ground.resolver.claims.lock().insert("web-data".to_owned(), stranger);
    let failures = ground.ready(&with(json!({ "ephemeral": {} }))).await.expect_err("not its own");
    assert_eq!(failures[0].error.message(), "PVC / was not created for pod /web (pod is not owner)");
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
