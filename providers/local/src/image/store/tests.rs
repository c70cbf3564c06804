use std::os::unix::fs::PermissionsExt as _;

use super::*;
use crate::image::{
    ImageLimits,
    testing::{ImageParts, TarBuilder, descriptor, gzip, layout, saved},
};

/// A store that does not need root.
fn store(directory: &Path) -> Arc<Store> {
    Store::open(directory, Settings { layer_format: Some(LayerFormat::Plain), ..Settings::default() })
        .unwrap()
}

fn base() -> TarBuilder {
    TarBuilder::new()
        .directory("bin", 0o755)
        .file("bin/run", "1")
        .file("bin/old", "")
        .directory("etc", 0o700)
        .file("etc/a", "1")
}

/// An image of the base and this layer.
fn image(upper: &TarBuilder) -> ImageParts {
    ImageParts::of(&[(base().bytes(), base().gzip()), (upper.bytes(), upper.gzip())])
}

/// The number of entries in a directory of the store.
fn count(store: &Store, place: &str) -> usize {
    fs::read_dir(store.directory().join(place)).unwrap().count()
}

#[test]
fn an_imported_image_is_found_by_all_its_names_and_ids() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(&directory.path().join("images"));
    let parts = image(&TarBuilder::new().file("x", "x"));
    for written in ["demo", "demo:latest", "docker.io/library/demo:latest"] {
        let imported = store.import(&*layout(&[(written, &parts)]), &[]).unwrap();
        assert_eq!(imported.len(), 1);
        for asked in [
            "demo",
            "demo:latest",
            "docker.io/library/demo:latest",
            &parts.id(),
            &parts.id()[7..],
            &parts.id()[7..20],
        ] {
            let found = store.image(asked).unwrap().unwrap_or_else(|| panic!("{asked} of {written}"));
            assert_eq!(found, imported[0]);
        }
        for other in [
            "demo:2",
            "other",
            "team/demo",
            "sha256:0000000000000000000000000000000000000000000000000000000000000000",
        ] {
            assert_eq!(store.image(other).unwrap(), None, "{other}");
        }
        assert_eq!(store.remove("demo").unwrap().image, Some(parts.id()));
    }
    assert_eq!(store.list().unwrap(), []);
}

#[test]
fn a_stored_image_has_what_the_engine_needs() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());
    let parts = image(&TarBuilder::new().file("x", "x"));
    let stored = &store.import(&*saved("demo:1", &parts), &[]).unwrap()[0];
    assert_eq!(stored.id, parts.id());
    assert_eq!(stored.tags, ["docker.io/library/demo:1"]);
    assert_eq!(stored.layers.len(), 2);
    assert_eq!(fs::read(stored.layers[0].join("bin/run")).unwrap(), b"1");
    assert_eq!(fs::read(stored.layers[1].join("x")).unwrap(), b"x");
    assert_eq!(stored.created.unwrap().to_string(), "2026-01-02T03:04:05Z");
    assert_eq!(stored.config.config().as_ref().unwrap().entrypoint().as_ref().unwrap()[..], ["/bin/run"]);
    let engine = stored.to_engine();
    assert_eq!((engine.uid, engine.username.as_str()), (Some(1000), ""));
    assert_eq!(fs::metadata(store.directory()).unwrap().permissions().mode() & 0o777, 0o700);
    let usage = store.usage().unwrap();
    assert!(usage.bytes > 3 && usage.inodes > 6, "{usage:?}");
}

#[test]
fn archives_may_be_compressed_and_images_may_be_renamed() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());
    let parts = image(&TarBuilder::new().file("x", "x"));
    store.import(&*gzip(&layout(&[("", &parts)])), &["a".to_owned(), "b:2".to_owned()]).unwrap();
    let found = store.image("b:2").unwrap().unwrap();
    assert_eq!(found.tags, ["docker.io/library/a:latest", "docker.io/library/b:2"]);
    let zstd = zstd::encode_all(&*saved("c", &parts), 0).unwrap();
    store.import(&*zstd, &[]).unwrap();
    assert_eq!(store.list().unwrap().len(), 1);
    assert_eq!(count(&store, "plain"), 2);
}

#[test]
fn invalid_archives_are_rejected_with_the_reason_and_nothing_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());
    let parts = image(&TarBuilder::new().file("x", "x"));
    let evil = image(&TarBuilder::new().file("../x", "x"));
    let other =
        ImageParts { layers: vec![TarBuilder::new().gzip(), TarBuilder::new().gzip()], ..parts.clone() };
    let foreign = ImageParts::for_architecture("s390x", &[(base().bytes(), base().gzip())]);
    let whole = layout(&[("demo", &parts)]);
    let nested = serde_json::json!({"schemaVersion": 2, "manifests": [descriptor("x", b"{}")]}).to_string();
    for (what, archive, names, text) in [
        ("text", b"hello".repeat(200), vec![], "invalid tar header"),
        ("nothing", vec![], vec![], "neither index.json"),
        (
            "an archive of other things",
            TarBuilder::new().file("a", "b").bytes(),
            vec![],
            "neither index.json",
        ),
        ("truncated", whole[..whole.len() / 2].to_vec(), vec![], "truncated"),
        ("no name", layout(&[("", &parts)]), vec![], "has no name: specify one"),
        ("an invalid name", layout(&[("A B", &parts)]), vec![], "failed to parse image reference"),
        (
            "a digest as a name",
            whole.clone(),
            vec![format!("x@{}", parts.digest())],
            "a digest is not a name",
        ),
        (
            "one name for two",
            layout(&[("a", &parts), ("b", &evil)]),
            vec!["c".to_owned()],
            "contains 2 images",
        ),
        ("a layer that escapes", layout(&[("demo", &evil)]), vec![], "'..' in its path"),
        ("missing layers", layout(&[("demo", &other)]), vec![], "the archive lacks blobs/sha256/"),
        ("wrong layers", saved("demo", &other), vec![], "the diff id of the layer's content is"),
        ("another platform", layout(&[("demo", &foreign)]), vec![], "no match for platform in manifest"),
        ("a name upwards", TarBuilder::new().file("../index.json", "{}").bytes(), vec![], "'..' in a name"),
        (
            "a link that escapes",
            TarBuilder::new().symlink("manifest.json", "../../etc/passwd").bytes(),
            vec![],
            "a link that leaves the archive",
        ),
        (
            "a missing manifest",
            TarBuilder::new().file("index.json", nested).bytes(),
            vec!["x".to_owned()],
            "the archive lacks blobs/sha256/",
        ),
        (
            "a device",
            TarBuilder::new().entry(b'3', b"index.json", b"", b"", |_| {}).bytes(),
            vec![],
            "is not a file",
        ),
    ] {
        let error = store.import(&*archive, &names).expect_err(what);
        assert!(error.message().contains(text), "{what}: {error}");
        for place in ["plain", "tmp", "blobs/sha256"] {
            assert_eq!(count(&store, place), 0, "{what}: {place}");
        }
    }
    assert_eq!(store.list().unwrap(), []);
}

#[test]
fn an_archive_with_an_excessive_compression_ratio_is_rejected() {
    let directory = tempfile::tempdir().unwrap();
    let limits = ImageLimits { ratio: 100, ratio_from: 1 << 16, ..ImageLimits::default() };
    let settings = Settings { layer_format: Some(LayerFormat::Plain), limits, ..Settings::default() };
    let store = Store::open(directory.path(), settings).unwrap();
    let bomb = gzip(&TarBuilder::new().file("zeros", vec![0; 8 << 20]).bytes());
    let error = store.import(&*bomb, &[]).unwrap_err();
    assert!(error.message().contains("the ratio exceeds the maximum"), "{error}");
    assert_eq!(count(&store, "tmp"), 0);
}

#[test]
fn a_reused_name_refers_to_the_new_image_and_the_old_one_is_kept_by_id() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());
    let (old, new) = (image(&TarBuilder::new().file("x", "1")), image(&TarBuilder::new().file("x", "2")));
    store.import(&*layout(&[("demo", &old)]), &[]).unwrap();
    store.import(&*layout(&[("demo", &new)]), &[]).unwrap();
    assert_eq!(store.image("demo").unwrap().unwrap().id, new.id());
    assert_eq!(store.image(&old.id()).unwrap().unwrap().tags, [""; 0]);
    // Both share the directory of the base layer.
    assert_eq!(count(&store, "plain"), 3);
    let removed = store.remove(&old.id()).unwrap();
    assert_eq!(removed, RemovedImage { tags: vec![], image: Some(old.id()), freed: 1 });
    assert_eq!(count(&store, "plain"), 2);
    assert_eq!(fs::read(store.image("demo").unwrap().unwrap().layers[1].join("x")).unwrap(), b"2");
}

#[test]
fn an_image_is_removed_with_its_last_name() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());
    let parts = image(&TarBuilder::new().file("x", "1"));
    store.import(&*layout(&[("a", &parts)]), &["a".to_owned(), "b".to_owned()]).unwrap();
    let removed = store.remove("a:latest").unwrap();
    assert_eq!((removed.tags, removed.image), (vec!["docker.io/library/a:latest".to_owned()], None));
    assert_eq!(store.image("a").unwrap(), None);
    assert!(store.image("b").unwrap().is_some());
    assert_eq!(store.remove("b").unwrap().image, Some(parts.id()));
    assert_eq!(store.remove("b").unwrap(), RemovedImage::default());
    for place in ["plain", "tmp", "blobs/sha256"] {
        assert_eq!(count(&store, place), 0, "{place}");
    }
    assert_eq!(store.usage().unwrap(), DiskUsage::default());
}

#[test]
fn an_image_in_use_by_a_container_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(&directory.path().join("images"));
    let parts = image(&TarBuilder::new().file("x", "1"));
    store.import(&*layout(&[("demo", &parts)]), &[]).unwrap();
    let container = directory.path().join("container");
    fs::create_dir(&container).unwrap();
    store.hold(&parts.id(), &container).unwrap();
    store.hold(&parts.id(), &container).unwrap();
    for asked in ["demo", &parts.id()] {
        let error = store.remove(asked).unwrap_err();
        assert_eq!(error.kind(), Kind::Held);
        assert!(error.message().contains("is in use by"), "{error}");
    }
    assert!(store.image("demo").unwrap().is_some());
    fs::remove_dir(&container).unwrap();
    assert_eq!(store.remove("demo").unwrap().image, Some(parts.id()));
    assert_eq!(count(&store, "holds"), 0);
    assert_eq!(store.hold(&parts.id(), &container).unwrap_err().kind(), Kind::NotFound);
}

#[test]
fn the_remains_of_a_dead_process_are_removed_and_never_used() {
    let directory = tempfile::tempdir().unwrap();
    let first = store(directory.path());
    let parts = image(&TarBuilder::new().file("x", "1"));
    let chain = Digest::of(&base().bytes());
    // As a killed process leaves them: in the middle of a layer, and between a layer and the index.
    let left = directory.path().join("tmp/0123456789abcdef");
    fs::create_dir_all(left.join("0/fs/bin")).unwrap();
    fs::write(left.join("0/fs/bin/run"), "half").unwrap();
    let unowned = directory.path().join("plain").join(Digest::of(b"unowned").hex());
    fs::create_dir_all(unowned.join("fs")).unwrap();
    fs::write(directory.path().join("new"), "half an ind").unwrap();
    // A live process that has claimed a layer.
    let ingest = Ingest::new(&first).unwrap();
    assert!(!ingest.claim_layer(&chain).unwrap());
    let claimed = directory.path().join("plain").join(chain.hex());
    fs::create_dir_all(claimed.join("fs")).unwrap();

    let second = store(directory.path());
    assert!(!left.exists() && !unowned.exists());
    assert!(claimed.exists() && ingest.temp_dir().path().exists());
    assert_eq!(second.list().unwrap(), []);
    drop(ingest);
    second.collect_garbage().unwrap();
    assert!(!claimed.exists());
    assert_eq!(count(&second, "tmp"), 0);
    second.import(&*layout(&[("demo", &parts)]), &[]).unwrap();
    let found = first.image("demo").unwrap().unwrap();
    assert_eq!(fs::read(found.layers[0].join("bin/run")).unwrap(), b"1");
}

#[test]
fn an_incomplete_image_counts_as_missing_and_can_be_imported_again() {
    let directory = tempfile::tempdir().unwrap();
    let parts = image(&TarBuilder::new().file("x", "1"));
    let archive = layout(&[("demo", &parts)]);
    let layer = store(directory.path()).import(&*archive, &[]).unwrap()[0].layers[1].clone();
    fs::remove_dir_all(layer.parent().unwrap()).unwrap();
    let store = store(directory.path());
    assert_eq!(store.image("demo").unwrap(), None);
    store.import(&*archive, &[]).unwrap();
    assert!(store.image("demo").unwrap().unwrap().layers[1].join("x").is_file());
}

#[test]
fn an_unreadable_index_is_reported_with_a_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let settings = || Settings { layer_format: Some(LayerFormat::Plain), ..Settings::default() };
    for (json, text) in [("{", "remove the file"), (r#"{"version":9,"images":{}}"#, "use the newer program")]
    {
        fs::write(directory.path().join("index.json"), json).unwrap();
        let error = Store::open(directory.path(), settings()).unwrap_err();
        assert!(error.message().contains("index.json") && error.message().contains(text), "{error}");
    }
}

#[test]
fn several_processes_can_share_a_store() {
    let directory = tempfile::tempdir().unwrap();
    let images: Vec<ImageParts> =
        (0..4).map(|n| image(&TarBuilder::new().file("x", n.to_string()))).collect();
    std::thread::scope(|scope| {
        for number in 0..8 {
            let (directory, images) = (&directory, &images);
            scope.spawn(move || {
                // Like another process: only the directory is shared.
                let store = store(directory.path());
                for round in 0..6 {
                    let parts = &images[(number + round) % 4];
                    let name = format!("demo{number}");
                    store.import(&*layout(&[(&name, parts)]), &[]).unwrap();
                    let found = store.image(&name).unwrap().unwrap();
                    assert_eq!(found.id, parts.id());
                    assert_eq!(fs::read(found.layers[0].join("bin/run")).unwrap(), b"1");
                    assert!(found.layers[1].join("x").is_file());
                    store.remove(&name).unwrap();
                }
            });
        }
    });
    let store = store(directory.path());
    assert_eq!(store.list().unwrap(), []);
    for place in ["plain", "tmp", "blobs/sha256"] {
        assert_eq!(count(&store, place), 0, "{place}");
    }
}

#[test]
fn the_entry_of_an_index_for_this_platform_is_imported() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());
    let ours = image(&TarBuilder::new().file("x", "ours"));
    let foreign = ImageParts::for_architecture("s390x", &[(base().bytes(), base().gzip())]);
    let kind = "application/vnd.oci.image.manifest.v1+json";
    let (mut near, mut far) = (descriptor(kind, &ours.manifest), descriptor(kind, &foreign.manifest));
    near["platform"] =
        serde_json::json!({"os": "linux", "architecture": crate::image::testing::host_architecture()});
    far["platform"] = serde_json::json!({"os": "linux", "architecture": "s390x"});
    let inner = serde_json::json!({"schemaVersion": 2, "manifests": [far, near]}).to_string();
    let mut entry = descriptor("application/vnd.oci.image.index.v1+json", inner.as_bytes());
    entry["annotations"] = serde_json::json!({"io.containerd.image.name": "registry.test/demo:3",
        "org.opencontainers.image.ref.name": "3"});
    let outer = serde_json::json!({"schemaVersion": 2, "manifests": [entry]}).to_string();
    let mut builder = TarBuilder::new().file("index.json", &outer);
    for (digest, blob) in ours.blobs().into_iter().chain([(Digest::of(inner.as_bytes()), inner.into_bytes())])
    {
        builder = builder.file(&format!("blobs/sha256/{}", digest.hex()), blob);
    }
    // Content for other platforms may be missing.
    store.import(&*builder.bytes(), &[]).unwrap();
    assert_eq!(store.image("registry.test/demo:3").unwrap().unwrap().id, ours.id());
}

#[test]
fn a_flat_tree_shows_the_merged_layers() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());
    flat_shows_the_merge(&store);
}

#[test]
#[ignore = "needs root: make test"]
fn a_flat_tree_of_overlayfs_layers_is_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let settings = Settings::default();
    let store = Store::open(directory.path(), settings).unwrap();
    assert_eq!(store.layer_format(), LayerFormat::Overlay);
    flat_shows_the_merge(&store);
}

/// Three layers with whiteouts, opaque directories and replaced files.
fn layered(store: &Arc<Store>) -> StoredImage {
    let upper = TarBuilder::new()
        .file("bin/.wh.old", "")
        .file("bin/new", "2")
        .file("etc/.wh..wh..opq", "")
        .file("etc/b", "2")
        .symlink("sh", "bin/run");
    let top = TarBuilder::new().file("bin/run", "3").directory("sh", 0o555).file("sh/inner", "3");
    let layers = [base(), upper, top].map(|layer| (layer.bytes(), layer.gzip()));
    store.import(&*layout(&[("demo", &ImageParts::of(&layers))]), &[]).unwrap().remove(0)
}

/// Checks the merged view of [`layered`].
fn assert_merged(root: &Path) {
    let list = |path: &str| {
        let mut names: Vec<_> = fs::read_dir(root.join(path))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    assert_eq!(list(""), ["bin", "etc", "sh"]);
    assert_eq!(list("bin"), ["new", "run"]);
    assert_eq!(list("etc"), ["b"]);
    assert_eq!(list("sh"), ["inner"]);
    assert_eq!(fs::read(root.join("bin/run")).unwrap(), b"3");
    // The layers above have no entry for it: it keeps the mode of the base layer.
    assert_eq!(fs::metadata(root.join("etc")).unwrap().permissions().mode() & 0o777, 0o700);
}

fn flat_shows_the_merge(store: &Arc<Store>) {
    let stored = layered(store);
    let flat = store.flat_image(&stored).unwrap();
    assert_eq!(store.flat_image(&stored).unwrap(), flat);
    assert_merged(&flat);
    store.remove("demo").unwrap();
    assert!(!flat.exists());
}

#[test]
#[ignore = "needs root: make test"]
fn an_overlay_mount_shows_the_merged_layers() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(&directory.path().join("images"), Settings::default()).unwrap();
    let stored = layered(&store);
    let root = tempfile::tempdir().unwrap();
    let layers: Vec<_> = stored.layers.iter().rev().map(|layer| layer.display().to_string()).collect();
    let options = format!("lowerdir={}", layers.join(":"));
    let mounted = Mounted::new("overlay", root, &options);
    assert_merged(mounted.path());
}

/// A filesystem that is unmounted on drop.
struct Mounted(tempfile::TempDir);

impl Mounted {
    fn new(kind: &str, directory: tempfile::TempDir, options: &str) -> Self {
        let options = std::ffi::CString::new(options).unwrap();
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount(kind, directory.path(), kind, flags, options.as_c_str()).unwrap();
        Self(directory)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.0.path(), rustix::mount::UnmountFlags::DETACH);
    }
}

#[test]
#[ignore = "needs root: make test"]
fn a_full_disk_is_reported_and_nothing_is_kept() {
    let disk = Mounted::new("tmpfs", tempfile::tempdir().unwrap(), "size=8m,mode=0700");
    // The disk is full before the layer decompresses excessively.
    let limits = ImageLimits { ratio: 2000, ..ImageLimits::default() };
    let store = Store::open(disk.path(), Settings { limits, ..Settings::default() }).unwrap();
    let small = image(&TarBuilder::new().file("x", "x"));
    let large = TarBuilder::new().file("large", vec![7; 16 << 20]);
    let large = image(&large);
    let free = || rustix::fs::statvfs(disk.path()).unwrap().f_bfree;
    let before = free();
    let error = store.import(&*layout(&[("large", &large)]), &[]).unwrap_err();
    assert_eq!(error.kind(), Kind::Exhausted, "{error}");
    assert!(
        error.message().contains("failed to extract layer")
            && error.message().contains("large: write: no space left on device"),
        "{error}"
    );
    assert_eq!(count(&store, "layers") + count(&store, "tmp") + count(&store, "blobs/sha256"), 0);
    assert_eq!(free(), before);
    // The archive itself does not fit on the disk.
    let noise: Vec<u8> = (0..400_000u64)
        .flat_map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes())
        .cycle()
        .take(12 << 20)
        .collect();
    let noise = TarBuilder::new().file("noise", noise);
    let noise = ImageParts::of(&[(noise.bytes(), noise.bytes())]);
    let error = store.import(&*layout(&[("noise", &noise)]), &[]).unwrap_err();
    assert_eq!(error.kind(), Kind::Exhausted, "{error}");
    assert_eq!(free(), before);
    store.import(&*layout(&[("small", &small)]), &[]).unwrap();
    assert!(store.image("small").unwrap().is_some());
}
