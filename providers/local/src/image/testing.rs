//! Builds layers and archives for tests, including malformed ones.

use std::{collections::BTreeMap, io::Write as _};

use serde_json::{Value, json};
use tar::Header;

use super::Digest;

/// Builds a tar archive without any of the checks of a library.
#[derive(Clone, Default)]
pub(crate) struct TarBuilder {
    bytes: Vec<u8>,
}

/// The parts of an image.
#[derive(Clone)]
pub(crate) struct ImageParts {
    pub(crate) config: Vec<u8>,
    pub(crate) manifest: Vec<u8>,
    /// As stored in a registry.
    pub(crate) layers: Vec<Vec<u8>>,
}

impl TarBuilder {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn entry(
        mut self,
        flag: u8,
        path: &[u8],
        link: &[u8],
        content: &[u8],
        change: impl FnOnce(&mut Header),
    ) -> Self {
        let mut header = Header::new_gnu();
        header.as_old_mut().name[..path.len()].copy_from_slice(path);
        header.as_old_mut().linkname[..link.len()].copy_from_slice(link);
        header.as_old_mut().linkflag = [flag];
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1_000_000_000);
        header.set_size(content.len() as u64);
        change(&mut header);
        header.set_cksum();
        self.bytes.extend_from_slice(header.as_bytes());
        self.bytes.extend_from_slice(content);
        let length = self.bytes.len().next_multiple_of(512);
        self.bytes.resize(length, 0);
        self
    }

    pub(crate) fn file(self, path: &str, content: impl AsRef<[u8]>) -> Self {
        self.entry(b'0', path.as_bytes(), b"", content.as_ref(), |_| {})
    }

    pub(crate) fn directory(self, path: &str, mode: u32) -> Self {
        self.entry(b'5', path.as_bytes(), b"", b"", |header| header.set_mode(mode))
    }

    pub(crate) fn symlink(self, path: &str, target: &str) -> Self {
        self.entry(b'2', path.as_bytes(), target.as_bytes(), b"", |_| {})
    }

    pub(crate) fn hard_link(self, path: &str, target: &str) -> Self {
        self.entry(b'1', path.as_bytes(), target.as_bytes(), b"", |_| {})
    }

    /// Adds a PAX extension header for the next entry.
    pub(crate) fn pax_header(self, records: &[(&str, &[u8])]) -> Self {
        let mut content = Vec::new();
        for (key, value) in records {
            let rest = key.len() + value.len() + 3;
            let mut length = rest + 1;
            while length != rest + length.to_string().len() {
                length += 1;
            }
            content.extend_from_slice(format!("{length} {key}=").as_bytes());
            content.extend_from_slice(value);
            content.push(b'\n');
        }
        self.entry(b'x', b"PaxHeaders/x", b"", &content, |_| {})
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        bytes.extend_from_slice(&[0; 1024]);
        bytes
    }

    pub(crate) fn gzip(&self) -> Vec<u8> {
        gzip(&self.bytes())
    }
}

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// This host's architecture, as images name it.
pub(crate) fn host_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

impl ImageParts {
    /// An image of layers, each with its content and its compressed form.
    pub(crate) fn of(layers: &[(Vec<u8>, Vec<u8>)]) -> Self {
        Self::for_architecture(host_architecture(), layers)
    }

    pub(crate) fn for_architecture(architecture: &str, layers: &[(Vec<u8>, Vec<u8>)]) -> Self {
        let diffs: Vec<_> = layers.iter().map(|(content, _)| Digest::of(content)).collect();
        let config = json!({"architecture": architecture, "os": "linux", "created": "2026-01-02T03:04:05Z",
            "config": {"Entrypoint": ["/bin/run"], "User": "1000:1000"},
            "rootfs": {"type": "layers", "diff_ids": diffs}});
        Self::with_config(&config, layers)
    }

    pub(crate) fn with_config(config: &Value, layers: &[(Vec<u8>, Vec<u8>)]) -> Self {
        let config = config.to_string().into_bytes();
        let layers: Vec<_> = layers.iter().map(|(_, kept)| kept.clone()).collect();
        let descriptors: Vec<_> =
            layers.iter().map(|layer| descriptor("application/vnd.oci.image.layer.v1.tar", layer)).collect();
        let manifest = json!({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": descriptor("application/vnd.oci.image.config.v1+json", &config), "layers": descriptors});
        Self { config, manifest: manifest.to_string().into_bytes(), layers }
    }

    pub(crate) fn id(&self) -> String {
        Digest::of(&self.config).to_string()
    }

    pub(crate) fn digest(&self) -> Digest {
        Digest::of(&self.manifest)
    }

    /// All blobs by digest.
    pub(crate) fn blobs(&self) -> BTreeMap<Digest, Vec<u8>> {
        [&self.config, &self.manifest]
            .into_iter()
            .chain(&self.layers)
            .map(|blob| (Digest::of(blob), blob.clone()))
            .collect()
    }
}

pub(crate) fn descriptor(kind: &str, content: &[u8]) -> Value {
    json!({"mediaType": kind, "digest": Digest::of(content), "size": content.len()})
}

/// An OCI image layout with named images.
pub(crate) fn layout(images: &[(&str, &ImageParts)]) -> Vec<u8> {
    let mut builder = TarBuilder::new().file("oci-layout", r#"{"imageLayoutVersion":"1.0.0"}"#);
    let mut entries = Vec::new();
    let mut blobs = BTreeMap::new();
    for (name, parts) in images {
        let mut entry = descriptor("application/vnd.oci.image.manifest.v1+json", &parts.manifest);
        if !name.is_empty() {
            entry["annotations"] = json!({"org.opencontainers.image.ref.name": name});
        }
        entries.push(entry);
        blobs.extend(parts.blobs());
    }
    for (digest, blob) in &blobs {
        builder = builder.file(&format!("blobs/sha256/{}", digest.hex()), blob);
    }
    builder.file("index.json", json!({"schemaVersion": 2, "manifests": entries}).to_string()).bytes()
}

/// An archive as `docker save` writes it.
pub(crate) fn saved(name: &str, parts: &ImageParts) -> Vec<u8> {
    let mut builder = TarBuilder::new();
    let mut layers = Vec::new();
    for (number, layer) in parts.layers.iter().enumerate() {
        builder = builder.file(&format!("{number}/layer.tar"), layer);
        // The layer is written once, and linked from the place where it is expected.
        builder = builder.symlink(&format!("l{number}/layer.tar"), &format!("../{number}/layer.tar"));
        layers.push(format!("l{number}/layer.tar"));
    }
    let manifest = json!([{"Config": "config.json", "RepoTags": [name], "Layers": layers}]);
    builder.file("config.json", &parts.config).file("manifest.json", manifest.to_string()).bytes()
}
