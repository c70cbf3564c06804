mod fake_resolver;
mod sub_path;

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::Path,
    sync::atomic::AtomicBool,
    time::Duration,
};

use futures::FutureExt as _;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use vk_provider::{
    error::Kind,
    resolve::{Claim, Reference, ReferenceKind},
};

use super::{setup::EMPTY_DIR, *};
use fake_resolver::{FakeResolver, set};

const UID: &str = "0b6c1b7a-5a7e-4c58-8d8f-1c3a3b0d9a10";

/// A host with one pod. Mounts are removed when it is dropped, also if a test fails.
struct Fixture {
    directory: tempfile::TempDir,
    dirs: PodDirs,
    resolver: Arc<FakeResolver>,
    volumes: PodVolumes,
}

impl Fixture {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let dirs = PodDirs::new(directory.path().join("root"));
        let volumes = PodVolumes::new(&dirs, UID, Clock::system());
        Self { directory, dirs, resolver: Arc::default(), volumes }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn bundle(&self, pod: Pod) -> PodBundle {
        PodBundle { pod: Arc::new(pod), resolver: self.resolver.clone() }
    }

    async fn ready(&self, pod: &Pod) -> Result<(), Vec<VolumeFailure>> {
        let bundle = self.bundle(pod.clone());
        let ready = self.volumes.ready(&bundle);
        tokio::time::timeout(Duration::from_secs(20), ready).await.expect("an answer")
    }

    async fn mounts(&self, pod: &Pod) -> Result<Vec<PathBuf>, FailureReason> {
        let container = &pod.spec.as_ref().expect("a spec").containers[0];
        let mounts = self.volumes.mounts(container, &[], &MountOptions::default()).await?;
        Ok(mounts.into_iter().map(|mount| mount.host_path.into()).collect())
    }

    /// The process ends and another begins.
    fn restart(&mut self) {
        self.volumes = PodVolumes::new(&self.dirs, UID, Clock::system());
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        if let Ok(root) = self.directory.path().canonicalize() {
            let _ = mount_table::unmount_below(&root);
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
    let mut fixture = Fixture::new();
    let pod = with(json!({ "emptyDir": { "sizeLimit": "1Mi" } }));
    fixture.ready(&pod).await.expect("ready");
    let path = fixture.dirs.volume(UID, EMPTY_DIR, "data");
    assert_eq!(fixture.volumes.facts(), BTreeMap::from([("data".to_owned(), path.clone())]));
    assert_eq!(fixture.mounts(&pod).await.expect("mounts"), std::slice::from_ref(&path));
    assert_eq!(mode(&path), 0o777);
    // What the container does to it stays, also when we come back.
    fs::write(path.join("file"), "kept").expect("a file");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).expect("a mode");
    fixture.ready(&pod).await.expect("still ready");
    fixture.restart();
    assert_eq!(fixture.volumes.facts(), BTreeMap::new());
    fixture.ready(&pod).await.expect("ready again");
    assert_eq!((mode(&path), read(path.join("file"))), (0o700, "kept".to_owned()));
    fixture.volumes.tear_down().await.expect("removed");
    assert!(!fixture.dirs.pod(UID).exists());
}

#[tokio::test]
async fn an_empty_directory_belongs_to_the_pods_group() {
    let fixture = Fixture::new();
    let own = fs::metadata(fixture.directory.path()).expect("metadata");
    let group = if own.uid() == 0 { 2222 } else { own.gid() };
    let mut pod = with(json!({ "emptyDir": {} }));
    let security = serde_json::from_value(json!({ "fsGroup": group })).expect("a context");
    pod.spec.as_mut().expect("a spec").security_context = Some(security);
    fixture.ready(&pod).await.expect("ready");
    let path = fixture.dirs.volume(UID, EMPTY_DIR, "data");
    assert_eq!((fs::metadata(&path).expect("metadata").gid(), mode(&path)), (group, 0o2777));
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn an_empty_directory_in_memory_has_a_size_and_is_made_again_after_the_machine_was() {
    let mut fixture = Fixture::new();
    let pod = with(json!({ "emptyDir": { "medium": "Memory", "sizeLimit": "1Mi" } }));
    fixture.ready(&pod).await.expect("ready");
    let path = fixture.dirs.volume(UID, EMPTY_DIR, "data").canonicalize().expect("a path");
    assert_eq!(mode(&path), 0o1777);
    let stat = rustix::fs::statvfs(&path).expect("a file system");
    assert_eq!(stat.f_blocks * stat.f_frsize, 1 << 20);
    fs::write(path.join("file"), "kept").expect("a file");
    fixture.restart();
    fixture.ready(&pod).await.expect("ready again");
    assert_eq!(read(path.join("file")), "kept");
    mount_table::unmount(&path).expect("root may unmount");
    fixture.restart();
    fixture.ready(&pod).await.expect("made again");
    assert!(mount_table::at(&path).expect("a table").is_some_and(|mounted| mounted.file_system == "tmpfs"));
    fixture.volumes.tear_down().await.expect("removed");
    assert!(!fixture.dirs.pod(UID).exists());
}

#[tokio::test]
async fn files_follow_their_source_as_one_and_keep_what_they_had() {
    for kind in [json!({ "configMap": { "name": "m" } }), json!({ "secret": { "secretName": "s" } })] {
        let mut fixture = Fixture::new();
        let pod = with(kind);
        let script = fixture.resolver.volume("data");
        script.send(Ok(set(&[("a", "1"), ("sub/b", "1")]))).expect("heard");
        fixture.ready(&pod).await.expect("ready");
        let path = fixture.mounts(&pod).await.expect("mounts").remove(0);
        assert_eq!((read(path.join("a")), read(path.join("sub/b"))), ("1".to_owned(), "1".to_owned()));
        script.send(Ok(set(&[("a", "2"), ("c", "2")]))).expect("heard");
        shows(&path.join("c"), "2").await;
        assert_eq!(read(path.join("a")), "2");
        assert!(!path.join("sub").exists());
        // What is deleted meanwhile is mounted all the same.
        script.send(Err(Error::unavailable("gone"))).expect("heard");
        script.send(Ok(set(&[("a", "3")]))).expect("heard");
        shows(&path.join("a"), "3").await;
        fixture.ready(&pod).await.expect("still ready");
        // The next process continues in the same directory.
        fixture.restart();
        let script = fixture.resolver.volume("data");
        script.send(Ok(set(&[("a", "4")]))).expect("heard");
        fixture.ready(&pod).await.expect("ready again");
        assert_eq!(fixture.mounts(&pod).await.expect("mounts"), std::slice::from_ref(&path));
        assert_eq!(read(path.join("a")), "4");
        fixture.volumes.tear_down().await.expect("removed");
        assert!(script.is_closed(), "somebody still listens");
        assert!(!path.exists());
    }
}

#[tokio::test]
async fn what_is_missing_is_told_and_waited_for() {
    let fixture = Fixture::new();
    let pod = with(json!({ "secret": { "secretName": "s" } }));
    let mut changes = fixture.volumes.changes();
    let script = fixture.resolver.volume("data");
    let reference = Reference::new(ReferenceKind::Secret, "default", "s").of_volume("data");
    let missing = Error::new(Kind::Unresolved(reference.clone()), "secret \"s\" not found");
    script.send(Err(missing)).expect("heard");
    let failures = fixture.ready(&pod).await.expect_err("not there");
    assert_eq!(failures.len(), 1);
    assert_eq!(
        failures[0].message(),
        "MountVolume.SetUp failed for volume \"data\" : secret \"s\" not found"
    );
    assert_eq!(failures[0].error.kind(), &Kind::Unresolved(reference));
    assert!(failures[0].reported, "the resolver tells this");
    // Asking again changes nothing, and a container cannot have it.
    assert_eq!(fixture.ready(&pod).await.expect_err("not there").len(), 1);
    let failure = fixture.mounts(&pod).await.expect_err("nothing to mount");
    assert_eq!(failure.reason, "CreateContainerConfigError");
    assert_eq!(failure.message, "cannot find volume \"data\" to mount into container \"app\"");
    {
        let changed = fixture.volumes.changed(&mut changes);
        tokio::pin!(changed);
        assert!(futures::poll!(changed.as_mut()).is_pending(), "nothing has changed");
        script.send(Ok(set(&[("a", "1")]))).expect("heard");
        tokio::time::timeout(Duration::from_secs(20), changed).await.expect("a change");
    }
    // Who does nothing about it is not called again.
    let again = fixture.volumes.changed(&mut changes);
    assert!(futures::poll!(std::pin::pin!(again)).is_pending(), "called twice for one change");
    fixture.ready(&pod).await.expect("ready");
    let path = fixture.mounts(&pod).await.expect("mounts").remove(0);
    assert_eq!(read(path.join("a")), "1");
}

#[tokio::test]
async fn a_source_that_gives_up_is_asked_anew_and_not_in_circles() {
    let fixture = Fixture::new();
    let pod = with(json!({ "configMap": { "name": "m" } }));
    let mut changes = fixture.volumes.changes();
    let script = fixture.resolver.volume("data");
    script.send(Err(Error::invalid("no"))).expect("heard");
    drop(script);
    fixture.ready(&pod).await.expect_err("refused");
    // Until its end has come through, it is as it was; then a new stream is opened, which is over at once.
    let ended = AtomicBool::new(false);
    for _ in 0..2000 {
        let failures = fixture.ready(&pod).await.expect_err("refused");
        if failures[0].error.message() == "the pod's references are no longer resolved" {
            ended.store(true, Ordering::Relaxed);
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(ended.load(Ordering::Relaxed), "never asked anew");
    let changed = fixture.volumes.changed(&mut changes);
    tokio::pin!(changed);
    assert!(futures::poll!(changed.as_mut()).is_pending(), "a failure that was reported is no change");
    let script = fixture.resolver.volume("data");
    script.send(Ok(set(&[("a", "1")]))).expect("heard");
    for _ in 0..2000 {
        if fixture.ready(&pod).await.is_ok() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("never ready");
}

#[tokio::test]
async fn a_source_that_panics_is_a_failure_and_nobody_waits_for_it() {
    let mut fixture = Fixture::new();
    let pod = with(json!({ "configMap": { "name": "m" } }));
    fixture.resolver = Arc::new(FakeResolver::panicking());
    let failures = fixture.ready(&pod).await.expect_err("nothing came");
    assert_eq!(failures[0].error.message(), "the pod's references are no longer resolved");
}

#[tokio::test]
async fn the_end_of_a_pod_takes_its_volumes_and_leaves_what_its_containers_said() {
    let fixture = Fixture::new();
    let pod = with(json!({ "emptyDir": {} }));
    fixture.ready(&pod).await.expect("ready");
    let said = fixture.dirs.create_message_file(UID, "app").expect("a file");
    fs::write(&said, "bye").expect("written");
    let hosts = fixture.dirs.write_hosts(UID, "127.0.0.1 localhost").expect("a file");
    fixture.volumes.tear_down().await.expect("removed");
    assert_eq!((read(&said), hosts.exists()), ("bye".to_owned(), true));
    let mut left: Vec<_> = fs::read_dir(fixture.dirs.pod(UID))
        .expect("a directory")
        .map(|it| it.expect("a name").file_name())
        .collect();
    left.sort();
    assert_eq!(left, ["containers", "etc-hosts"]);
    fixture.dirs.tear_down(UID).await.expect("removed");
    assert!(!fixture.dirs.pod(UID).exists());
}

#[tokio::test]
async fn who_stops_waiting_and_asks_again_gets_all_the_same() {
    let fixture = Fixture::new();
    let pod = pod(
        &json!([{ "name": "map", "configMap": { "name": "m" } }, { "name": "secret", "secret": { "secretName": "s" } },
            { "name": "empty", "emptyDir": {} }]),
        &json!(
            ["map", "secret", "empty"].map(|name| json!({ "name": name, "mountPath": format!("/{name}") }))
        ),
    );
    let bundle = fixture.bundle(pod.clone());
    for round in 0..50 {
        // Cancelled at another point each time.
        let ready = fixture.volumes.ready(&bundle);
        let _ = tokio::time::timeout(Duration::from_micros(round * 20), ready).await;
    }
    let scripts = ["map", "secret"].map(|name| fixture.resolver.volume(name));
    for script in &scripts {
        let _ = script.send(Ok(set(&[("a", "1")])));
    }
    // Streams that were opened too early have ended and are opened again.
    for _ in 0..2000 {
        if fixture.ready(&pod).await.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let paths = fixture.mounts(&pod).await.expect("mounts");
    assert_eq!((read(paths[0].join("a")), read(paths[1].join("a"))), ("1".to_owned(), "1".to_owned()));
    let root = fixture.directory.path().canonicalize().expect("a path");
    let table = mount_table::mounts().expect("a table");
    assert!(table.iter().filter(|mounted| mounted.point.starts_with(&root)).count() <= 1, "mounted twice");
    fixture.volumes.tear_down().await.expect("removed");
    assert!(!fixture.dirs.pod(UID).exists());
}

#[tokio::test]
async fn a_setup_that_nobody_waits_for_does_nothing_after_the_tear_down() {
    let fixture = Fixture::new();
    let bundle = fixture.bundle(with(json!({ "emptyDir": {} })));
    for round in 0..200 {
        for _ in 0..20 {
            // It is started and then cancelled.
            let _ = fixture.volumes.ready(&bundle).now_or_never();
        }
        fixture.volumes.tear_down().await.expect("removed");
        assert!(!fixture.dirs.pod(UID).exists(), "round {round}");
    }
}

#[tokio::test]
async fn files_that_cannot_be_written_are_told_and_the_next_ones_count() {
    let fixture = Fixture::new();
    let pod = with(json!({ "projected": {} }));
    let script = fixture.resolver.volume("data");
    let mut changes = fixture.volumes.changes();
    // A file where a directory must be.
    script.send(Ok(set(&[("b", ""), ("b/c", "")]))).expect("heard");
    let failures = fixture.ready(&pod).await.expect_err("impossible");
    assert_eq!(failures.len(), 1);
    assert!(failures[0].error.message().starts_with("write the files: create directory "), "{failures:?}");
    assert!(!failures[0].reported, "only we know this");
    let changed = fixture.volumes.changed(&mut changes);
    script.send(Ok(set(&[("b", "1")]))).expect("heard");
    tokio::time::timeout(Duration::from_secs(20), changed).await.expect("a change");
    fixture.ready(&pod).await.expect("ready");
    assert_eq!(read(fixture.mounts(&pod).await.expect("mounts")[0].join("b")), "1");
}

#[tokio::test]
async fn all_failures_are_told_at_once_and_what_is_not_mounted_is_not_made() {
    let fixture = Fixture::new();
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
    let failures = fixture.ready(&pod).await.expect_err("not all");
    let reported: Vec<(&str, &str, bool)> =
        failures.iter().map(|it| (it.volume.as_str(), it.error.message(), it.reported)).collect();
    assert_eq!(reported.len(), 4, "{reported:?}");
    assert!(
        reported[0].0 == "far" && reported[0].1.starts_with("volume \"far\" is of kind nfs"),
        "{reported:?}"
    );
    assert_eq!(
        reported[1],
        ("host", "hostPath type check failed: /nowhere/at/all is not a directory", false)
    );
    assert_eq!(reported[2], ("claim", "claim \"none\": it is not there", false));
    assert_eq!(reported[3], ("odd", "unknown storage medium \"Cloud\"", false));
    assert_eq!(fixture.volumes.facts().len(), 1);
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
    let fixture = Fixture::new();
    let disk = fixture.path("disk");
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
        fixture.resolver.claims.lock().insert(name.to_owned(), claim(source));
        let pod = with(volume);
        fixture.ready(&pod).await.expect("ready");
        assert_eq!(fixture.mounts(&pod).await.expect("mounts"), std::slice::from_ref(&disk));
        fixture.volumes.tear_down().await.expect("removed");
        assert_eq!(read(disk.join("file")), "kept");
    }
    for (source, wanted) in [
        (json!({ "nfs": { "server": "s", "path": "/" } }), "persistent volume \"pv-1\" is of kind nfs"),
        (
            json!({ "local": { "path": "/dev/sda" }, "volumeMode": "Block" }),
            "volume data has volumeMode Block, but is specified in volumeMounts",
        ),
    ] {
        fixture.resolver.claims.lock().insert("pvc".to_owned(), claim(source));
        let pod = with(json!({ "persistentVolumeClaim": { "claimName": "pvc" } }));
        let failures = fixture.ready(&pod).await.expect_err(wanted);
        assert!(failures[0].error.message().starts_with(wanted), "{failures:?}");
    }
    // A claim that has the name by chance may hold anything.
    let stranger = Claim { claim: Arc::default(), ..claim(json!({ "local": { "path": disk } })) };
    fixture.resolver.claims.lock().insert("web-data".to_owned(), stranger);
    let failures = fixture.ready(&with(json!({ "ephemeral": {} }))).await.expect_err("not its own");
    assert_eq!(failures[0].error.message(), "PVC / was not created for pod /web (pod is not owner)");
}

#[tokio::test]
async fn a_place_for_a_volume_within_a_volume_is_made() {
    let fixture = Fixture::new();
    let pod = pod(
        &json!([{ "name": "map", "configMap": { "name": "m" } }, { "name": "inner", "emptyDir": {} }]),
        &json!([
            { "name": "map", "mountPath": "/etc/app" },
            { "name": "inner", "mountPath": "/etc/app/cache/today" },
        ]),
    );
    let script = fixture.resolver.volume("map");
    script.send(Ok(set(&[("a", "1")]))).expect("heard");
    fixture.ready(&pod).await.expect("ready");
    let path = fixture.mounts(&pod).await.expect("mounts").remove(0);
    assert!(path.join("cache/today").is_dir());
    assert_eq!(read(path.join("a")), "1");
}
