//! Image manifests and indexes.

use std::collections::BTreeMap;

use oci_spec::image::ImageConfiguration;
use serde::Deserialize;

use super::{
    Digest, Error, ImageLimits, Kind, Result,
    platform::{HostPlatform, Platform},
};

/// Media types to request from registries.
pub(crate) const ACCEPTED_MEDIA_TYPES: [&str; 4] = [
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
];

/// A reference to content.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    #[serde(default)]
    pub(crate) media_type: String,
    pub(crate) digest: Digest,
    pub(crate) size: u64,
    #[serde(default)]
    pub(crate) platform: Option<Platform>,
    #[serde(default)]
    pub(crate) annotations: Option<BTreeMap<String, String>>,
}

/// A manifest or an index.
#[derive(Clone, Debug)]
pub(crate) enum ManifestDocument {
    /// A single image.
    Image(Manifest),
    /// One entry per platform.
    Index(Vec<Descriptor>),
}

/// The manifest of an image.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Manifest {
    pub(crate) config: Descriptor,
    pub(crate) layers: Vec<Descriptor>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawManifest {
    schema_version: u32,
    #[serde(default)]
    media_type: String,
    #[serde(default)]
    config: Option<Descriptor>,
    #[serde(default)]
    layers: Option<Vec<Descriptor>>,
    #[serde(default)]
    manifests: Option<Vec<Descriptor>>,
}

/// The config and the layers of an image to be stored.
#[derive(Clone, Debug)]
pub(crate) struct ImageContent {
    pub(crate) id: Digest,
    pub(crate) config: Vec<u8>,
    pub(crate) layers: Vec<LayerIds>,
}

/// A layer of a [`ImageContent`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayerIds {
    /// The digest of its content (diff id).
    pub(crate) diff: Digest,
    /// The chain id: identifies it together with all layers below.
    pub(crate) chain: Digest,
}

// === impl ManifestDocument ===

impl ManifestDocument {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self> {
        let raw: RawManifest = serde_json::from_slice(bytes)
            .map_err(|why| Error::corrupt(format!("parse the manifest: {why}")))?;
        if raw.schema_version != 2 {
            let version = raw.schema_version;
            return Err(Error::corrupt(format!(
                "manifest schema version {version} is not supported, only 2"
            )));
        }
        match (raw.config, raw.layers, raw.manifests) {
            // A document with both could be a different image for another client.
            (Some(config), layers, None) => {
                let layers = layers.unwrap_or_default();
                layers.iter().try_for_each(check_layer_type)?;
                Ok(Self::Image(Manifest { config, layers }))
            }
            (None, None, Some(manifests)) => Ok(Self::Index(manifests)),
            _ => Err(Error::corrupt(format!(
                "a manifest of type {:?} is neither an image nor an index",
                raw.media_type
            ))),
        }
    }
}

/// Rejects layers that are not filesystem layers: registries also hold charts and signatures.
fn check_layer_type(layer: &Descriptor) -> Result<()> {
    let kind = layer.media_type.as_str();
    let archive = kind.is_empty() || kind.contains(".tar");
    if archive && !kind.ends_with("+encrypted") {
        return Ok(());
    }
    Err(Error::corrupt(format!("a layer has type {kind:?}: this is not a container image")))
}

/// The best entry for this platform. Entries without a platform come last.
pub(crate) fn select_manifest<'a>(choice: &'a [Descriptor], host: &HostPlatform) -> Option<&'a Descriptor> {
    choice
        .iter()
        .filter_map(|entry| {
            let rank = match &entry.platform {
                None => usize::MAX,
                Some(platform) => host.rank(platform)?,
            };
            Some((rank, entry))
        })
        // The first of the best ones.
        .min_by_key(|(rank, _)| *rank)
        .map(|(_, entry)| entry)
}

/// The image is not for this platform; the text is containerd's.
pub(crate) fn no_matching_platform(digest: &Digest) -> Error {
    Error::new(
        Kind::NotFound,
        format!("get image config descriptor: no match for platform in manifest {digest}: not found"),
    )
}

// === impl ImageContent ===

impl ImageContent {
    /// Parses the config of an image with this number of layers; also returns its platform.
    pub(crate) fn new(config: Vec<u8>, layers: usize, limits: &ImageLimits) -> Result<(Self, Platform)> {
        let read = parse_config(&config)?;
        let platform: Platform = serde_json::from_slice(&config)
            .map_err(|why| Error::corrupt(format!("parse the image config: {why}")))?;
        let diffs = read
            .rootfs()
            .diff_ids()
            .iter()
            .map(|diff| diff.parse())
            .collect::<Result<Vec<Digest>>>()
            .map_err(|error| error.within("the diff ids of the image config"))?;
        if diffs.len() != layers {
            return Err(Error::corrupt(format!(
                "the manifest has {layers} layers, but the image config has {}",
                diffs.len()
            )));
        }
        if layers > limits.layers {
            return Err(Error::corrupt(format!(
                "the image has {layers} layers; the maximum that can be mounted is {}",
                limits.layers
            )));
        }
        let mut below = None;
        let layers = diffs
            .into_iter()
            .map(|diff| {
                let chain = Digest::chain(below, diff);
                below = Some(chain);
                LayerIds { diff, chain }
            })
            .collect();
        Ok((Self { id: Digest::of(&config), config, layers }, platform))
    }
}

pub(crate) fn parse_config(bytes: &[u8]) -> Result<ImageConfiguration> {
    serde_json::from_slice(bytes).map_err(|why| Error::corrupt(format!("parse the image config: {why}")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn descriptor(content: &str, platform: Option<(&str, &str)>) -> serde_json::Value {
        let platform = platform.map(|(os, architecture)| json!({"os": os, "architecture": architecture}));
        json!({"digest": Digest::of(content.as_bytes()), "size": content.len(), "platform": platform})
    }

    #[test]
    fn the_entry_for_this_platform_is_chosen_and_never_an_attestation() {
        let here = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        let index = json!({"schemaVersion": 2, "manifests": [
            descriptor("proof", Some(("unknown", "unknown"))),
            descriptor("s390", Some(("linux", "s390x"))),
            descriptor("here", Some(("linux", here))),
            descriptor("any", None),
        ]});
        let ManifestDocument::Index(choice) = ManifestDocument::parse(index.to_string().as_bytes()).unwrap()
        else {
            panic!()
        };
        let host = HostPlatform::detect();
        assert_eq!(select_manifest(&choice, &host).unwrap().digest, Digest::of(b"here"));
        assert!(select_manifest(&choice[..2], &host).is_none());
        assert_eq!(select_manifest(&choice[3..], &host).unwrap().digest, Digest::of(b"any"));
    }

    #[test]
    fn a_document_that_is_ambiguous_or_malformed_is_rejected() {
        for wrong in [
            json!({"schemaVersion": 2}),
            json!({"schemaVersion": 1, "name": "old"}),
            json!({"schemaVersion": 2, "config": descriptor("c", None), "layers": [], "manifests": []}),
            json!({"schemaVersion": 2, "config": {"digest": "sha256:../../etc", "size": 1}, "layers": []}),
            json!({"schemaVersion": 2, "config": descriptor("c", None), "layers": [
                {"digest": Digest::of(b"chart"), "size": 1, "mediaType": "application/vnd.cncf.helm.chart.content.v1+gzip"}]}),
            json!([]),
        ] {
            let error = ManifestDocument::parse(wrong.to_string().as_bytes()).unwrap_err();
            assert_eq!(error.kind(), Kind::Corrupt, "{wrong}");
        }
    }

    #[test]
    fn the_number_of_layers_and_diff_ids_must_match() {
        let config = json!({"architecture": "amd64", "os": "linux",
            "rootfs": {"type": "layers", "diff_ids": [Digest::of(b"a"), Digest::of(b"b")]}});
        let config = config.to_string().into_bytes();
        let (content, platform) = ImageContent::new(config.clone(), 2, &ImageLimits::default()).unwrap();
        assert_eq!(platform.architecture, "amd64");
        assert_eq!(content.id, Digest::of(&config));
        assert_eq!(content.layers[1].chain, Digest::chain(Some(Digest::of(b"a")), Digest::of(b"b")));
        let error = ImageContent::new(config.clone(), 1, &ImageLimits::default()).unwrap_err();
        assert_eq!(error.message(), "the manifest has 1 layers, but the image config has 2");
        let few = ImageLimits { layers: 1, ..ImageLimits::default() };
        assert!(
            ImageContent::new(config, 2, &few)
                .unwrap_err()
                .message()
                .contains("the maximum that can be mounted is 1")
        );
    }
}
