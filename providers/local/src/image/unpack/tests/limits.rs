//! Layers that try to use up the disk or the memory of the host.

use super::*;

#[test]
fn decompression_bombs_are_stopped_early() {
    let zeros = TarBuilder::new().file("zeros", vec![0; 8 << 20]);
    let few = TarBuilder::new().file("a", "").file("b", "").file("c", "");
    let ratio = ImageLimits { ratio: 100, ratio_from: 1 << 16, ..ImageLimits::default() };
    let bytes = ImageLimits { layer_bytes: 1 << 18, ..ImageLimits::default() };
    let entries = ImageLimits { layer_entries: 2, ..ImageLimits::default() };
    let zstd = zstd::encode_all(&*zeros.bytes(), 19).unwrap();
    for (layer, limits, text) in [
        (zeros.gzip(), &ratio, "the ratio exceeds the maximum"),
        (zstd, &ratio, "the ratio exceeds the maximum"),
        (zeros.gzip(), &bytes, "larger than the maximum of 262144 bytes"),
        (few.gzip(), &entries, "more than the maximum of 2 entries"),
    ] {
        let test_layer = TestLayer::new();
        let error =
            test_layer.unpack_as(&layer, LayerFormat::Plain, &ExpectedLayer::default(), limits).unwrap_err();
        assert_eq!(error.kind(), Kind::Corrupt);
        assert!(error.message().contains(text), "{error}");
        let written = fs::metadata(test_layer.layer().join("zeros")).map_or(0, |file| file.len());
        assert!(written < 2 << 20, "{written} bytes were written");
    }
}

/// The ratio counts from the first mebibyte.
#[test]
fn a_small_layer_must_not_decompress_excessively_either() {
    let zeros = TarBuilder::new().file("zeros", vec![0; 8 << 20]);
    let zstd = zstd::encode_all(&*zeros.bytes(), 19).unwrap();
    for layer in [zeros.gzip(), zstd] {
        let test_layer = TestLayer::new();
        let error = test_layer.unpack(&layer).unwrap_err();
        assert!(error.message().contains("the ratio exceeds the maximum of 200:1"), "{error}");
        let written = fs::metadata(test_layer.layer().join("zeros")).map_or(0, |file| file.len());
        assert!(written < 2 << 20, "{written} bytes were written");
    }
    let small = TarBuilder::new().file("zeros", vec![0; 1 << 19]);
    TestLayer::new().unpack(&small.gzip()).unwrap();
}

/// Directories with an entry, and those that only the paths of others name.
#[test]
fn the_memory_for_the_paths_of_directories_is_limited() {
    let limits = ImageLimits { directory_bytes: 100_000, ..ImageLimits::default() };
    let long = "d".repeat(90);
    let entries = (0..1000).fold(TarBuilder::new(), |tar, n| tar.directory(&format!("{n:04}{long}"), 0o755));
    let implied =
        (0..1000).fold(TarBuilder::new(), |tar, n| tar.file(&format!("{n:04}{}/f", &long[2..]), ""));
    for layer in [entries, implied] {
        let test_layer = TestLayer::new();
        let error = test_layer
            .unpack_as(&layer.bytes(), LayerFormat::Plain, &ExpectedLayer::default(), &limits)
            .unwrap_err();
        assert_eq!(error.kind(), Kind::Corrupt);
        assert!(error.message().contains("need more than the maximum of 100000 bytes of memory"), "{error}");
        let made = fs::read_dir(test_layer.layer()).unwrap().count();
        assert!((500..800).contains(&made), "{made} directories");
        test_layer.unpack(&layer.bytes()).unwrap();
    }
    // The same directory again and again costs nothing.
    let same = (0..2000).fold(TarBuilder::new(), |tar, _| tar.directory(&long, 0o755));
    let expected = ExpectedLayer::default();
    TestLayer::new().unpack_as(&same.bytes(), LayerFormat::Plain, &expected, &limits).unwrap();
}

/// An entry may have any number of extension headers, but not any size of them.
#[test]
fn the_extension_headers_of_an_entry_are_limited_together() {
    let value = vec![b'x'; 400_000];
    let with = |count: usize| {
        let tar = TarBuilder::new();
        let tar = (0..count).fold(tar, |tar, _| tar.pax_header(&[("SCHILY.xattr.trusted.x", &value)]));
        tar.file("f", "").bytes()
    };
    TestLayer::new().unpack(&with(2)).unwrap();
    let error = TestLayer::new().unpack(&with(3)).unwrap_err();
    assert_eq!(error.kind(), Kind::Corrupt);
    assert!(error.message().contains("the maximum for an entry is 1048576"), "{error}");
}

/// The window of a zstd frame is memory, too.
#[test]
fn a_zstd_layer_that_needs_much_memory_is_rejected() {
    // A frame header with a window of 2^27 bytes, and an empty last block.
    let frame = [0x28, 0xb5, 0x2f, 0xfd, 0x00, (27 - 10) << 3, 0x01, 0x00, 0x00];
    let error = TestLayer::new().unpack(&frame).unwrap_err();
    assert!(error.message().contains("memory"), "{error}");
}
