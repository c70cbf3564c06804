//! What an image consists of, as registries and archives say it.

use std::collections::BTreeMap;

use oci_spec::image::ImageConfiguration;
use serde::Deserialize;

use super::{
    Digest, Error, Kind, Limits, Result,
    platform::{Machine, Platform},
};

/// What is asked for at registries.
pub(crate) const ACCEPTED: [&str; 4] = [
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
];

/// Content that is somewhere else.
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

/// An image, or a choice of images.
#[derive(Clone, Debug)]
pub(crate) enum Document {
    /// One.
    Image(Manifest),
    /// One per kind of machine.
    Index(Vec<Descriptor>),
}

/// One image.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Manifest {
    pub(crate) config: Descriptor,
    pub(crate) layers: Vec<Descriptor>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Raw {
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

/// What an image is made of: its configuration, and its layers as they lie on each other.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) id: Digest,
    pub(crate) config: Vec<u8>,
    pub(crate) layers: Vec<Layer>,
}

/// A layer of a [`Plan`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layer {
    /// The sum of its content.
    pub(crate) diff: Digest,
    /// The sum that stands for it and all below it.
    pub(crate) chain: Digest,
}

// === impl Document ===

impl Document {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self> {
        let raw: Raw = serde_json::from_slice(bytes)
            .map_err(|why| Error::corrupt(format!("the manifest cannot be read: {why}")))?;
        if raw.schema_version != 2 {
            let version = raw.schema_version;
            return Err(Error::corrupt(format!("a manifest of schema {version}, and only 2 is supported")));
        }
        match (raw.config, raw.layers, raw.manifests) {
            // Both at once would be one image for us and another one for somebody else.
            (Some(config), layers, None) => {
                let layers = layers.unwrap_or_default();
                layers.iter().try_for_each(readable)?;
                Ok(Self::Image(Manifest { config, layers }))
            }
            (None, None, Some(manifests)) => Ok(Self::Index(manifests)),
            _ => Err(Error::corrupt(format!(
                "a manifest of type {:?} that is neither an image nor an index",
                raw.media_type
            ))),
        }
    }
}

/// Whether a layer can be one of a file system: manifests have other things too, from charts to signatures.
fn readable(layer: &Descriptor) -> Result<()> {
    let kind = layer.media_type.as_str();
    let archive = kind.is_empty() || kind.contains(".tar");
    if archive && !kind.ends_with("+encrypted") {
        return Ok(());
    }
    Err(Error::corrupt(format!("a layer of type {kind:?}: this is no image that can be run")))
}

/// The best of a choice for this machine: one that says nothing about machines may be for all.
pub(crate) fn choose<'a>(choice: &'a [Descriptor], machine: &Machine) -> Option<&'a Descriptor> {
    choice
        .iter()
        .filter_map(|entry| {
            let rank = match &entry.platform {
                None => usize::MAX,
                Some(platform) => machine.rank(platform)?,
            };
            Some((rank, entry))
        })
        // The first one of the best.
        .min_by_key(|(rank, _)| *rank)
        .map(|(_, entry)| entry)
}

/// That an image is not for this machine, as containerd says it.
pub(crate) fn no_match(digest: &Digest) -> Error {
    Error::new(
        Kind::NotFound,
        format!("get image config descriptor: no match for platform in manifest {digest}: not found"),
    )
}

// === impl Plan ===

impl Plan {
    /// Reads the configuration of an image with so many layers, and for which machines it is.
    pub(crate) fn new(config: Vec<u8>, layers: usize, limits: &Limits) -> Result<(Self, Platform)> {
        let read = parse_config(&config)?;
        let platform: Platform = serde_json::from_slice(&config)
            .map_err(|why| Error::corrupt(format!("the configuration cannot be read: {why}")))?;
        let diffs = read
            .rootfs()
            .diff_ids()
            .iter()
            .map(|diff| diff.parse())
            .collect::<Result<Vec<Digest>>>()
            .map_err(|error| error.within("the configuration's diff ids"))?;
        if diffs.len() != layers {
            return Err(Error::corrupt(format!(
                "the image has {layers} layers, and {} by its configuration",
                diffs.len()
            )));
        }
        if layers > limits.layers {
            return Err(Error::corrupt(format!(
                "the image has {layers} layers; the most that can be mounted is {}",
                limits.layers
            )));
        }
        let mut below = None;
        let layers = diffs
            .into_iter()
            .map(|diff| {
                let chain = Digest::chain(below, diff);
                below = Some(chain);
                Layer { diff, chain }
            })
            .collect();
        Ok((Self { id: Digest::of(&config), config, layers }, platform))
    }
}

pub(crate) fn parse_config(bytes: &[u8]) -> Result<ImageConfiguration> {
    serde_json::from_slice(bytes)
        .map_err(|why| Error::corrupt(format!("the configuration cannot be read: {why}")))
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
    fn the_entry_for_this_machine_is_chosen_and_an_attestation_never() {
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
        let Document::Index(choice) = Document::parse(index.to_string().as_bytes()).unwrap() else {
            panic!()
        };
        let machine = Machine::here();
        assert_eq!(choose(&choice, &machine).unwrap().digest, Digest::of(b"here"));
        assert!(choose(&choice[..2], &machine).is_none());
        assert_eq!(choose(&choice[3..], &machine).unwrap().digest, Digest::of(b"any"));
    }

    #[test]
    fn a_document_that_is_two_things_or_none_is_refused() {
        for wrong in [
            json!({"schemaVersion": 2}),
            json!({"schemaVersion": 1, "name": "old"}),
            json!({"schemaVersion": 2, "config": descriptor("c", None), "layers": [], "manifests": []}),
            json!({"schemaVersion": 2, "config": {"digest": "sha256:../../etc", "size": 1}, "layers": []}),
            json!({"schemaVersion": 2, "config": descriptor("c", None), "layers": [
                {"digest": Digest::of(b"chart"), "size": 1, "mediaType": "application/vnd.cncf.helm.chart.content.v1+gzip"}]}),
            json!([]),
        ] {
            let error = Document::parse(wrong.to_string().as_bytes()).unwrap_err();
            assert_eq!(error.kind(), Kind::Corrupt, "{wrong}");
        }
    }

    #[test]
    fn layers_and_diff_ids_must_be_as_many() {
        let config = json!({"architecture": "amd64", "os": "linux",
            "rootfs": {"type": "layers", "diff_ids": [Digest::of(b"a"), Digest::of(b"b")]}});
        let config = config.to_string().into_bytes();
        let (plan, platform) = Plan::new(config.clone(), 2, &Limits::default()).unwrap();
        assert_eq!(platform.architecture, "amd64");
        assert_eq!(plan.id, Digest::of(&config));
        assert_eq!(plan.layers[1].chain, Digest::chain(Some(Digest::of(b"a")), Digest::of(b"b")));
        let error = Plan::new(config.clone(), 1, &Limits::default()).unwrap_err();
        assert_eq!(error.message(), "the image has 1 layers, and 2 by its configuration");
        let few = Limits { layers: 1, ..Limits::default() };
        assert!(
            Plan::new(config, 2, &few).unwrap_err().message().contains("the most that can be mounted is 1")
        );
    }
}
