//! A demo image made of the host's busybox, for users without a registry.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

use aws_lc_rs::digest::{SHA256, digest};
use serde_json::{Value, json};

/// The name of the image. The tag is not `latest`, because that would imply the pull policy `Always`.
pub const NAME: &str = "demo:1";

/// The package that installs a static busybox.
pub const PACKAGE: &str = "busybox-static";

/// The usual paths of busybox.
const USUAL_PATHS: [&str; 4] =
    ["/bin/busybox", "/usr/bin/busybox", "/usr/local/bin/busybox", "/sbin/busybox"];

const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n";
const GROUP: &str = "root:x:0:\nnobody:x:65534:\n";

/// A statically linked busybox, which runs in an otherwise empty image.
pub fn busybox() -> io::Result<PathBuf> {
    find_static(USUAL_PATHS.iter().map(Path::new))
}

fn find_static<'a>(candidates: impl Iterator<Item = &'a Path>) -> io::Result<PathBuf> {
    let mut linked = None;
    for path in candidates {
        match fs::read(path) {
            Ok(program) if is_static(&program) => return Ok(path.to_owned()),
            Ok(_) => linked = Some(path.to_owned()),
            Err(_) => {}
        }
    }
    let why = match linked {
        Some(path) => format!("{} needs shared libraries, which the image would not have", path.display()),
        None => "no busybox found".to_owned(),
    };
    let message =
        format!("{why}: install a statically linked one (Debian and Ubuntu: apt-get install {PACKAGE})");
    Err(io::Error::new(io::ErrorKind::NotFound, message))
}

/// The image as an OCI archive: busybox with links for all of its applets, and the users `root` and `nobody`.
pub fn archive(busybox: &Path) -> io::Result<Vec<u8>> {
    let applets = Command::new(busybox).arg("--list").output()?;
    let applets = String::from_utf8_lossy(&applets.stdout).into_owned();
    let layer = layer(&fs::read(busybox)?, applets.lines().filter(|name| *name != "busybox"))?;
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let config = json!({
        "architecture": architecture,
        "os": "linux",
        "config": { "Env": ["PATH=/bin"], "Cmd": ["sh"], "WorkingDir": "/" },
        "rootfs": { "type": "layers", "diff_ids": [digest_text(&layer)] },
        "history": [{ "created_by": "virtual-kubelet: the machine's busybox" }],
    });
    let config = to_json(&config);
    let described = |kind: &str, bytes: &[u8]| {
        json!({
            "mediaType": format!("application/vnd.oci.image.{kind}"),
            "digest": digest_text(bytes),
            "size": bytes.len(),
        })
    };
    let manifest = to_json(&json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": described("config.v1+json", &config),
        "layers": [described("layer.v1.tar", &layer)],
    }));
    let mut listed = described("manifest.v1+json", &manifest);
    listed["annotations"] = json!({ "org.opencontainers.image.ref.name": NAME });
    let index = to_json(&json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [listed],
    }));

    let mut archive = tar::Builder::new(Vec::new());
    file(&mut archive, "oci-layout", 0o644, &to_json(&json!({ "imageLayoutVersion": "1.0.0" })))?;
    file(&mut archive, "index.json", 0o644, &index)?;
    for blob in [&manifest, &config, &layer] {
        let name = digest_text(blob).replace(':', "/");
        file(&mut archive, &format!("blobs/{name}"), 0o644, blob)?;
    }
    archive.into_inner()
}

fn layer<'a>(busybox: &[u8], applets: impl Iterator<Item = &'a str>) -> io::Result<Vec<u8>> {
    let mut layer = tar::Builder::new(Vec::new());
    for (path, mode) in [("bin/", 0o755), ("etc/", 0o755), ("root/", 0o700), ("tmp/", 0o1777)] {
        entry(&mut layer, tar::EntryType::Directory, path, mode, None, &[])?;
    }
    file(&mut layer, "bin/busybox", 0o755, busybox)?;
    for name in applets {
        entry(&mut layer, tar::EntryType::Symlink, &format!("bin/{name}"), 0o777, Some("busybox"), &[])?;
    }
    file(&mut layer, "etc/passwd", 0o644, PASSWD.as_bytes())?;
    file(&mut layer, "etc/group", 0o644, GROUP.as_bytes())?;
    layer.into_inner()
}

fn file(archive: &mut tar::Builder<Vec<u8>>, path: &str, mode: u32, contents: &[u8]) -> io::Result<()> {
    entry(archive, tar::EntryType::Regular, path, mode, None, contents)
}

/// Appends an entry with fixed metadata: the image must be reproducible, because its digest is its name.
fn entry(
    archive: &mut tar::Builder<Vec<u8>>,
    kind: tar::EntryType,
    path: &str,
    mode: u32,
    target: Option<&str>,
    contents: &[u8],
) -> io::Result<()> {
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(contents.len() as u64);
    match target {
        Some(target) => archive.append_link(&mut header, path, target),
        None => archive.append_data(&mut header, path, contents),
    }
}

fn digest_text(bytes: &[u8]) -> String {
    let digits = digest(&SHA256, bytes);
    let digits: Vec<String> = digits.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{}", digits.concat())
}

fn to_json(value: &Value) -> Vec<u8> {
    value.to_string().into_bytes()
}

/// The type of the program header that names a loader (PT_INTERP).
const PT_INTERP: u32 = 3;

/// Whether this is an ELF program that names no loader. False for anything that cannot be parsed.
fn is_static(program: &[u8]) -> bool {
    program_header_types(program).is_some_and(|kinds| !kinds.contains(&PT_INTERP))
}

/// The types of all program headers.
fn program_header_types(program: &[u8]) -> Option<Vec<u32>> {
    if program.get(..4)? != b"\x7fELF" {
        return None;
    }
    let wide = program.get(4)? == &2;
    let little = program.get(5)? == &1;
    let number = |at: usize, size: usize| -> Option<usize> {
        let bytes = program.get(at..at.checked_add(size)?)?;
        let digits: Vec<u8> = if little { bytes.iter().rev().copied().collect() } else { bytes.to_vec() };
        usize::try_from(digits.iter().fold(0_u64, |sum, digit| (sum << 8) | u64::from(*digit))).ok()
    };
    // Offset of the program header table, size of an entry, and number of entries.
    let (table, size, count) = if wide {
        (number(0x20, 8)?, number(0x36, 2)?, number(0x38, 2)?)
    } else {
        (number(0x1c, 4)?, number(0x2a, 2)?, number(0x2c, 2)?)
    };
    (0..count)
        .map(|index| {
            let at = table.checked_add(index.checked_mul(size)?)?;
            u32::try_from(number(at, 4)?).ok()
        })
        .collect()
}

#[cfg(test)]
mod tests;
