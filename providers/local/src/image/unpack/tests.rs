mod limits;

use std::{
    fs,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _},
    path::PathBuf,
};

use proptest::prelude::*;

use super::*;
use crate::image::{
    Kind,
    testing::{TarBuilder, gzip},
};

/// A directory with a layer's root, and beside it files that no layer may touch.
struct TestLayer {
    directory: tempfile::TempDir,
}

impl TestLayer {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("layer")).unwrap();
        fs::create_dir(directory.path().join("outside")).unwrap();
        fs::write(directory.path().join("outside/secret"), "untouched").unwrap();
        Self { directory }
    }

    fn layer(&self) -> PathBuf {
        self.directory.path().join("layer")
    }

    fn outside(&self) -> PathBuf {
        self.directory.path().join("outside")
    }

    fn unpack(&self, layer: &[u8]) -> Result<UnpackedLayer> {
        self.unpack_as(layer, LayerFormat::Plain, &ExpectedLayer::default(), &ImageLimits::default())
    }

    fn unpack_as(
        &self,
        bytes: &[u8],
        layer_format: LayerFormat,
        expected: &ExpectedLayer,
        limits: &ImageLimits,
    ) -> Result<UnpackedLayer> {
        unpack_layer(bytes, &self.layer(), layer_format, expected, limits)
    }

    /// Whether nothing beside the layer has changed.
    fn is_sound(&self) -> bool {
        let mut beside: Vec<_> =
            fs::read_dir(self.directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        beside.sort();
        let outside: Vec<_> = fs::read_dir(self.outside()).unwrap().collect();
        let secret = self.outside().join("secret");
        beside == ["layer", "outside"]
            && outside.len() == 1
            && fs::read(&secret).unwrap() == b"untouched"
            && fs::metadata(&secret).unwrap().nlink() == 1
    }
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn a_layer_is_unpacked_with_all_metadata() {
    let test_layer = TestLayer::new();
    let layer = TarBuilder::new()
        .directory("bin/", 0o755)
        .entry(b'0', b"bin/run", b"", b"#!/bin/sh\n", |header| header.set_mode(0o755))
        .symlink("bin/sh", "/bin/busybox")
        .hard_link("bin/again", "bin/run")
        .entry(b'6', b"pipe", b"", b"", |header| header.set_mode(0o620))
        .pax_header(&[("path", "a/long/way/".repeat(20).as_bytes()), ("mtime", b"1.5")])
        .directory("short", 0o750)
        .pax_header(&[("mtime", b"12345.25"), ("SCHILY.xattr.user.colour", b"green")])
        .file("./etc/./hosts", "127.0.0.1 localhost\n");
    let unpacked = test_layer.unpack(&layer.gzip()).unwrap();
    let root = test_layer.layer();
    assert_eq!(fs::read(root.join("bin/run")).unwrap(), b"#!/bin/sh\n");
    assert_eq!(mode(&root.join("bin/run")), 0o755);
    assert_eq!(fs::metadata(root.join("bin/run")).unwrap().mtime(), 1_000_000_000);
    assert_eq!(fs::metadata(root.join("bin")).unwrap().mtime(), 1_000_000_000);
    assert_eq!(fs::read_link(root.join("bin/sh")).unwrap(), Path::new("/bin/busybox"));
    assert_eq!(fs::metadata(root.join("bin/again")).unwrap().nlink(), 2);
    assert!(fs::symlink_metadata(root.join("pipe")).unwrap().file_type().is_fifo());
    assert_eq!(mode(&root.join("pipe")), 0o620);
    let long = root.join("a/long/way/".repeat(20));
    assert_eq!((mode(&long), fs::metadata(&long).unwrap().mtime_nsec()), (0o750, 500_000_000));
    let hosts = root.join("etc/hosts");
    assert_eq!(fs::metadata(&hosts).unwrap().mtime(), 12345);
    assert_eq!(xattr::get(&hosts, "user.colour").unwrap().as_deref(), Some(&b"green"[..]));
    assert_eq!(unpacked.diff, Digest::of(&layer.bytes()));
    assert_eq!(unpacked.digest, Digest::of(&layer.gzip()));
    assert_eq!(unpacked.usage.bytes, 10 + 20);
    assert!(unpacked.implied.contains(&b"etc".to_vec()) && !unpacked.implied.contains(&b"bin".to_vec()));
}

#[test]
fn gzip_zstd_and_uncompressed_layers_have_the_same_content() {
    let layer = TarBuilder::new().file("a", "content").bytes();
    let zstd = zstd::encode_all(&*layer, 0).unwrap();
    for kept in [layer.clone(), gzip(&layer), zstd] {
        let test_layer = TestLayer::new();
        assert_eq!(test_layer.unpack(&kept).unwrap().diff, Digest::of(&layer));
        assert_eq!(fs::read(test_layer.layer().join("a")).unwrap(), b"content");
    }
}

#[test]
fn later_entries_replace_earlier_ones() {
    let test_layer = TestLayer::new();
    let layer = TarBuilder::new()
        .directory("a", 0o755)
        .file("a/inner", "1")
        .symlink("b", "a")
        .file("a", "a file now")
        .directory("b", 0o700)
        .file("b/inner", "2")
        .directory("b", 0o711);
    test_layer.unpack(&layer.bytes()).unwrap();
    assert_eq!(fs::read(test_layer.layer().join("a")).unwrap(), b"a file now");
    assert!(fs::symlink_metadata(test_layer.layer().join("b")).unwrap().is_dir());
    assert_eq!(fs::read(test_layer.layer().join("b/inner")).unwrap(), b"2");
    assert_eq!(mode(&test_layer.layer().join("b")), 0o711);
}

/// Builds an archive that tries to escape; the closure names paths outside.
type Attack = fn(&TestLayer, &dyn Fn(&TestLayer, &str) -> String) -> TarBuilder;

#[test]
fn paths_that_leave_the_layer_are_rejected() {
    let outside = |test_layer: &TestLayer, rest: &str| format!("{}{rest}", test_layer.outside().display());
    let attacks: [(&str, Attack, &str); 12] = [
        ("a name with ..", |_, _| TarBuilder::new().file("../outside/secret", "x"), "'..'"),
        ("a name with .. inside", |_, _| TarBuilder::new().file("a/../../outside/new", "x"), "'..'"),
        ("a directory above", |_, _| TarBuilder::new().directory("..", 0o777), "'..'"),
        (
            "a link upwards as a directory",
            |_, _| TarBuilder::new().symlink("a", "../outside").file("a/secret", "x"),
            "leaves the layer",
        ),
        (
            "a link through a link",
            |_, _| TarBuilder::new().symlink("a", "b/..").symlink("b", "..").file("a/outside/secret", "x"),
            "leaves the layer",
        ),
        ("a hard link upwards", |_, _| TarBuilder::new().hard_link("a", "../outside/secret"), "'..'"),
        (
            "a hard link to an absolute name",
            |test_layer, outside| TarBuilder::new().hard_link("a", &outside(test_layer, "/secret")),
            "not in the layer",
        ),
        (
            "a hard link through a link",
            |test_layer, outside| {
                TarBuilder::new().symlink("a", &outside(test_layer, "")).hard_link("b", "a/secret")
            },
            "not in the layer",
        ),
        (
            "a whiteout of the directory above",
            |_, _| TarBuilder::new().file("a/.wh...", ""),
            "a whiteout without a name",
        ),
        (
            "a file as a directory",
            |_, _| TarBuilder::new().file("a", "x").file("a/b", "x"),
            "a in its path is not a directory",
        ),
        (
            "links in a circle",
            |_, _| TarBuilder::new().symlink("a", "b").symlink("b", "a").file("a/c", ""),
            "too many links",
        ),
        ("the root as a link", |_, _| TarBuilder::new().symlink("./", "../outside"), "must be a directory"),
    ];
    for (what, attack, text) in attacks {
        let test_layer = TestLayer::new();
        let error = test_layer.unpack(&attack(&test_layer, &outside).gzip()).expect_err(what);
        assert_eq!(error.kind(), Kind::Corrupt, "{what}: {error}");
        assert!(error.message().contains(text), "{what}: {error}");
        assert!(test_layer.is_sound(), "{what}");
    }
}

#[test]
fn absolute_names_and_links_are_relative_to_the_layers_root() {
    let test_layer = TestLayer::new();
    let outside = test_layer.outside();
    let outside = outside.to_str().unwrap();
    let layer = TarBuilder::new()
        .symlink("way", outside)
        .file("way/secret", "inside")
        .file(&format!("{outside}/other"), "inside too");
    test_layer.unpack(&layer.bytes()).unwrap();
    let inside = test_layer.layer().join(outside.trim_start_matches('/'));
    assert_eq!(fs::read(inside.join("secret")).unwrap(), b"inside");
    assert_eq!(fs::read(inside.join("other")).unwrap(), b"inside too");
    assert!(test_layer.is_sound());
}

#[test]
fn a_link_is_replaced_and_never_written_through() {
    let test_layer = TestLayer::new();
    let secret = test_layer.outside().join("secret");
    let secret = secret.to_str().unwrap();
    let layer =
        TarBuilder::new().symlink("a", secret).file("a", "mine").symlink("b", secret).directory("b", 0o777);
    test_layer.unpack(&layer.bytes()).unwrap();
    assert_eq!(fs::read(test_layer.layer().join("a")).unwrap(), b"mine");
    assert!(test_layer.is_sound());
}

#[test]
fn device_nodes_and_unknown_entry_types_are_rejected() {
    for (flag, text) in [
        (b'3', "a device node"),
        (b'4', "a device node"),
        (b'S', "sparse files are not supported"),
        (b'Z', "unknown entry type 'Z'"),
    ] {
        let test_layer = TestLayer::new();
        let layer = TarBuilder::new().entry(flag, b"dev/sda", b"", b"", |header| {
            header.set_device_major(8).unwrap();
            header.set_device_minor(0).unwrap();
        });
        let error = test_layer.unpack(&layer.bytes()).unwrap_err();
        assert!(error.message().starts_with("dev/sda: ") && error.message().contains(text), "{error}");
        assert!(!test_layer.layer().join("dev/sda").exists());
    }
}

#[test]
fn headers_beyond_the_limits_are_rejected() {
    let deep = "d/".repeat(300);
    for (layer, text) in [
        (
            TarBuilder::new().pax_header(&[("path", "x".repeat(5000).as_bytes())]).file("x", ""),
            "a path of 5000 bytes",
        ),
        (
            TarBuilder::new().pax_header(&[("path", "x".repeat(300).as_bytes())]).file("x", ""),
            "a name of 300 bytes",
        ),
        (
            TarBuilder::new().pax_header(&[("path", deep.as_bytes())]).directory("x", 0o755),
            "more than 256 nested directories",
        ),
        (TarBuilder::new().pax_header(&[("path", b"a\0b")]).file("x", ""), "a zero byte"),
        (TarBuilder::new().pax_header(&[("uid", b"4294967295")]).file("x", ""), "invalid owner 4294967295"),
        (
            TarBuilder::new().entry(b'x', b"p", b"", b"", |header| header.set_size(1 << 40)),
            "an extension header has 1099511627776 bytes",
        ),
        (
            TarBuilder::new().entry(b'L', b"p", b"", b"", |header| header.set_size(1 << 40)),
            "an extension header has",
        ),
        (TarBuilder::new().entry(b'x', b"p", b"", b"9999 path=x\n", |_| {}), "record"),
        (TarBuilder::new().entry(b'0', b"big", b"", b"", |header| header.set_size(1 << 40)), "truncated"),
    ] {
        let test_layer = TestLayer::new();
        let error = test_layer.unpack(&layer.bytes()).unwrap_err();
        assert_eq!(error.kind(), Kind::Corrupt, "{error}");
        assert!(error.message().contains(text), "{error}");
    }
}

#[test]
fn content_that_does_not_match_its_digest_or_size_is_rejected() {
    let layer = TarBuilder::new().file("a", "content");
    let (content, kept) = (layer.bytes(), layer.gzip());
    let right = ExpectedLayer {
        digest: Some(Digest::of(&kept)),
        size: Some(kept.len() as u64),
        diff: Some(Digest::of(&content)),
    };
    let other = Some(Digest::of(b"other"));
    let try_it = |bytes: &[u8], expected: &ExpectedLayer| {
        TestLayer::new().unpack_as(bytes, LayerFormat::Plain, expected, &ImageLimits::default())
    };
    try_it(&kept, &right).unwrap();
    for (what, bytes, expected, text) in [
        ("digest", kept.clone(), ExpectedLayer { digest: other, ..right }, "the digest of the layer is"),
        (
            "diff id",
            kept.clone(),
            ExpectedLayer { diff: other, ..right },
            "the diff id of the layer's content is",
        ),
        ("larger", [&kept[..], b"more"].concat(), right, ""),
        (
            "smaller",
            kept.clone(),
            ExpectedLayer { size: Some(1 << 20), digest: None, diff: None },
            "but 1048576 in the manifest",
        ),
        ("truncated", kept[..kept.len() / 2].to_vec(), right, ""),
        ("truncated, uncompressed", content[..700].to_vec(), ExpectedLayer::default(), "truncated"),
        ("no archive", b"<html>not found</html>".repeat(100), ExpectedLayer::default(), "invalid tar header"),
        (
            "a flipped bit",
            {
                let mut kept = kept.clone();
                kept[20] ^= 1;
                kept
            },
            right,
            "",
        ),
    ] {
        let error = try_it(&bytes, &expected).expect_err(what);
        assert_eq!(error.kind(), Kind::Corrupt, "{what}: {error}");
        assert!(error.message().contains(text), "{what}: {error}");
    }
}

#[test]
fn plain_layers_belong_to_us_and_have_whiteout_files() {
    let test_layer = TestLayer::new();
    let layer = TarBuilder::new()
        .entry(b'5', b"shut", b"", b"", |header| {
            header.set_mode(0o000);
            header.set_uid(4000);
        })
        .file("shut/inner", "")
        .entry(b'0', b"su", b"", b"", |header| header.set_mode(0o4755))
        .file(".wh.gone", "")
        .file("dir/.wh..wh..opq", "")
        .file(".wh..wh.plnk", "");
    test_layer.unpack(&layer.bytes()).unwrap();
    assert_eq!(mode(&test_layer.layer().join("shut")), 0o700);
    assert_eq!(mode(&test_layer.layer().join("su")), 0o755);
    let me = fs::metadata(test_layer.directory.path()).unwrap().uid();
    assert_eq!(fs::metadata(test_layer.layer().join("shut")).unwrap().uid(), me);
    assert!(
        test_layer.layer().join(".wh.gone").is_file()
            && test_layer.layer().join("dir/.wh..wh..opq").is_file()
    );
    assert!(!test_layer.layer().join(".wh..wh.plnk").exists());
}

#[test]
#[ignore = "needs root: make test"]
fn overlay_layers_have_owners_attributes_and_overlayfs_whiteouts() {
    let test_layer = TestLayer::new();
    let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let layer = TarBuilder::new()
        .entry(b'0', b"su", b"", b"x", |header| {
            header.set_mode(0o6755);
            header.set_uid(1234);
            header.set_gid(5678);
        })
        .pax_header(&[
            ("SCHILY.xattr.security.capability", &capability),
            ("SCHILY.xattr.trusted.overlay.redirect", b"/etc"),
            ("SCHILY.xattr.trusted.overlay.opaque", b"y"),
        ])
        .file("ping", "x")
        .entry(b'2', b"link", b"su", b"", |header| header.set_uid(77))
        .file("dir/.wh.gone", "")
        .file("dir/.wh..wh..opq", "")
        // Hidden below and created here: a directory that shows nothing from below.
        .file(".wh.new", "")
        .file("new/file", "")
        .file("there/file", "")
        .file(".wh.there", "")
        .file(".wh.file", "")
        .file("file", "here");
    test_layer
        .unpack_as(&layer.gzip(), LayerFormat::Overlay, &ExpectedLayer::default(), &ImageLimits::default())
        .unwrap();
    let at = |name: &str| test_layer.layer().join(name);
    let su = fs::metadata(at("su")).unwrap();
    assert_eq!((su.uid(), su.gid(), mode(&at("su"))), (1234, 5678, 0o6755));
    assert_eq!(fs::symlink_metadata(at("link")).unwrap().uid(), 77);
    assert_eq!(xattr::get(at("ping"), "security.capability").unwrap().as_deref(), Some(&capability[..]));
    for name in ["trusted.overlay.redirect", "trusted.overlay.opaque"] {
        assert_eq!(xattr::get(at("ping"), name).unwrap(), None);
    }
    let gone = fs::symlink_metadata(at("dir/gone")).unwrap();
    assert!(gone.file_type().is_char_device() && gone.rdev() == 0);
    for opaque in ["dir", "new", "there"] {
        assert_eq!(xattr::get(at(opaque), OPAQUE).unwrap().as_deref(), Some(&b"y"[..]), "{opaque}");
    }
    assert!(at("new/file").is_file() && at("there/file").is_file());
    assert_eq!(fs::read(at("file")).unwrap(), b"here");
}

#[test]
fn directories_without_an_entry_get_their_attributes_from_below() {
    let (below, above) = (TestLayer::new(), TestLayer::new());
    let lower = TarBuilder::new().directory("tmp", 0o1777).directory("tmp/x", 0o711).directory("etc", 0o700);
    below.unpack(&lower.bytes()).unwrap();
    let upper = TarBuilder::new()
        .file("tmp/x/file", "")
        .directory("etc", 0o750)
        .file("etc/file", "")
        .file("new/file", "");
    let unpacked = above.unpack(&upper.bytes()).unwrap();
    let implied = unpacked.implied.into_iter().rev().map(Ok);
    inherit_attributes(&above.layer(), implied, &[below.layer()], LayerFormat::Plain).unwrap();
    let modes = ["tmp", "tmp/x", "etc", "new"].map(|name| mode(&above.layer().join(name)));
    assert_eq!(modes, [0o1777, 0o711, 0o750, 0o755]);
    assert_eq!(fs::metadata(above.layer().join("tmp")).unwrap().mtime(), 1_000_000_000);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// For any names and links in any order, nothing beside the layer changes.
    #[test]
    fn no_archive_reaches_files_outside(entries in prop::collection::vec((0..5u8, "[ab./]{1,9}", "[ab./]{1,9}|/OUT|\\.\\./outside"), 1..14)) {
        let test_layer = TestLayer::new();
        let outside = test_layer.outside().display().to_string();
        let mut builder = TarBuilder::new();
        for (kind, path, link) in entries {
            let link = link.replace("/OUT", &outside);
            builder = match kind {
                0 => builder.file(&path, "x"),
                1 => builder.directory(&path, 0o755),
                2 => builder.symlink(&path, &link),
                3 => builder.hard_link(&path, &link),
                _ => builder.file(&format!("{path}/.wh.{link}").chars().take(90).collect::<String>(), ""),
            };
        }
        let _ = test_layer.unpack(&builder.bytes());
        prop_assert!(test_layer.is_sound());
    }

    /// Corrupted bytes never cause a panic or a write outside.
    #[test]
    fn corrupted_archives_do_no_harm(at in 0..3000usize, value: u8, more in prop::collection::vec((0..3000usize, any::<u8>()), 0..8)) {
        let mut bytes = TarBuilder::new()
            .pax_header(&[("path", b"a/b/c"), ("SCHILY.xattr.user.x", b"1")])
            .file("x", "content").symlink("l", "a").hard_link("h", "a/b/c").directory("d", 0o755).bytes();
        for (at, value) in more.into_iter().chain([(at, value)]) {
            let length = bytes.len();
            bytes[at % length] = value;
        }
        let test_layer = TestLayer::new();
        let _ = test_layer.unpack(&bytes);
        prop_assert!(test_layer.is_sound());
    }
}
