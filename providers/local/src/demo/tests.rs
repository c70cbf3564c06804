use std::io::Read;

use super::*;

/// An ELF program with program headers of these types.
fn program(kinds: &[u32]) -> Vec<u8> {
    let mut bytes = vec![0_u8; 64];
    bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
    bytes[0x20] = 64;
    bytes[0x36] = 56;
    bytes[0x38] = u8::try_from(kinds.len()).unwrap();
    for kind in kinds {
        let mut header = vec![0_u8; 56];
        header[..4].copy_from_slice(&kind.to_le_bytes());
        bytes.extend(header);
    }
    bytes
}

#[test]
fn only_a_program_that_needs_no_loader_is_static() {
    assert!(is_static(&program(&[1, 2])));
    assert!(!is_static(&program(&[1, 3, 2])));
    assert!(!is_static(b"#!/bin/sh\n"));
    let mut cut = program(&[1, 3]);
    cut.truncate(100);
    assert!(!is_static(&cut), "a truncated program is not static");
    let own = fs::read("/proc/self/exe").unwrap();
    assert!(!is_static(&own), "tests are linked with the C library");
}

#[test]
fn without_a_static_busybox_the_package_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let (good, bad) = (folder.path().join("good"), folder.path().join("bad"));
    let none = find_static([bad.as_path()].into_iter()).unwrap_err().to_string();
    assert!(none.contains("no busybox found") && none.contains(PACKAGE), "{none}");
    fs::write(&bad, program(&[3])).unwrap();
    let linked = find_static([bad.as_path()].into_iter()).unwrap_err().to_string();
    assert!(linked.contains("shared libraries") && linked.contains(PACKAGE), "{linked}");
    fs::write(&good, program(&[1])).unwrap();
    assert_eq!(find_static([bad.as_path(), good.as_path()].into_iter()).unwrap(), good);
}

#[test]
fn the_archive_is_a_complete_image_and_reproducible() {
    let folder = tempfile::tempdir().unwrap();
    let (text, busybox) = (folder.path().join("text"), folder.path().join("busybox"));
    fs::write(&text, "#!/bin/sh\nprintf 'sh\\nls\\nbusybox\\n'\n").unwrap();
    // Installed by another process: if a concurrent test forks while we have the file open for writing, executing it
    // fails with ETXTBSY.
    let installed =
        std::process::Command::new("install").args(["-m", "755"]).args([&text, &busybox]).status();
    assert!(installed.unwrap().success());
    let bytes = archive(&busybox).unwrap();
    assert_eq!(bytes, archive(&busybox).unwrap());

    let read = |bytes: &[u8]| -> Vec<(String, Vec<u8>)> {
        let mut archive = tar::Archive::new(bytes);
        let entries = archive.entries().unwrap().map(|entry| {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().display().to_string();
            let mut contents = Vec::new();
            entry.read_to_end(&mut contents).unwrap();
            (name, contents)
        });
        entries.collect()
    };
    let parts = read(&bytes);
    let part = |name: &str| {
        let found = parts.iter().find(|(known, _)| known == name);
        &found.unwrap_or_else(|| panic!("no {name}")).1
    };
    let blob = |digest: &Value| {
        let digest = digest.as_str().unwrap();
        let contents = part(&format!("blobs/{}", digest.replace(':', "/")));
        assert_eq!(digest_text(contents), digest);
        contents
    };
    let index: Value = serde_json::from_slice(part("index.json")).unwrap();
    let manifest: Value = serde_json::from_slice(blob(&index["manifests"][0]["digest"])).unwrap();
    let config: Value = serde_json::from_slice(blob(&manifest["config"]["digest"])).unwrap();
    let layer = blob(&manifest["layers"][0]["digest"]);
    assert_eq!(
        config["rootfs"]["diff_ids"][0], manifest["layers"][0]["digest"],
        "the layer is not compressed"
    );
    let names: Vec<String> = read(layer).into_iter().map(|(name, _)| name).collect();
    assert_eq!(
        names,
        ["bin/", "etc/", "root/", "tmp/", "bin/busybox", "bin/sh", "bin/ls", "etc/passwd", "etc/group"]
    );
}
