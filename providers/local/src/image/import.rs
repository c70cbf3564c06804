//! Imports images from archives: an OCI image layout or the output of `docker save`, as tar, compressed or not.

mod archive;

use std::{collections::BTreeMap, io::Read, sync::Arc};

use serde::Deserialize;

use self::archive::{ArchiveFile, ArchiveFiles};
use super::{
    Digest, Error, ImageName, Kind, Result, Store, StoredImage,
    manifest::{Descriptor, ImageContent, Manifest, ManifestDocument, no_matching_platform, select_manifest},
    platform::HostPlatform,
    store::{ImageNames, ImageOrigin, Ingest},
    unpack::ExpectedLayer,
};

/// Annotations with the image name in an OCI layout: the full name, and the form that some tools write.
const NAME_ANNOTATIONS: [&str; 2] = ["io.containerd.image.name", "org.opencontainers.image.ref.name"];
/// Maximum nesting of indexes.
const MAX_INDEXES: usize = 4;

/// An image in an archive.
struct ArchiveImage {
    names: Vec<String>,
    config: Vec<u8>,
    layers: Vec<(ArchiveFile, ExpectedLayer)>,
    manifest: Option<Vec<u8>>,
}

/// An entry of `manifest.json` as `docker save` writes it.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerManifestEntry {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    #[serde(default)]
    layers: Option<Vec<String>>,
}

impl Store {
    /// Imports the images of an archive that are for this platform. They get the names in the archive, or the given
    /// ones; then the archive must contain a single image. If the import fails, nothing is kept. Blocks.
    pub fn import<R: Read>(self: &Arc<Self>, archive: R, names: &[String]) -> Result<Vec<StoredImage>> {
        let names: Vec<String> = names
            .iter()
            .map(|name| {
                let name = ImageName::parse(name)?;
                match name.digest() {
                    None => Ok(name.stored_name()),
                    Some(_) => {
                        Err(Error::invalid(format!("cannot name an image {name}: a digest is not a name")))
                    }
                }
            })
            .collect::<Result<_>>()?;
        let ingest = Ingest::new(self)?;
        let result = self.import_into(&ingest, archive, &names);
        drop(ingest);
        if result.is_err() {
            self.collect_garbage()?;
        }
        result.map_err(|error| error.within("failed to import images"))
    }

    fn import_into<R: Read>(
        &self,
        ingest: &Ingest,
        archive: R,
        names: &[String],
    ) -> Result<Vec<StoredImage>> {
        let limits = &self.settings.limits;
        let archive_files = ArchiveFiles::read(archive, &ingest.temp_dir().directory("archive")?, limits)?;
        let mut found = if archive_files.has("index.json") {
            oci_images(&archive_files)?
        } else if archive_files.has("manifest.json") {
            docker_images(&archive_files)?
        } else {
            return Err(Error::invalid(
                "not an image archive: it has neither index.json (OCI image layout) nor manifest.json (docker save)",
            ));
        };
        if !names.is_empty() {
            let [only] = &mut found[..] else {
                let count = found.len();
                return Err(Error::invalid(format!(
                    "the archive contains {count} images, but names were given for one: import it without a name"
                )));
            };
            only.names = names.to_vec();
        }
        if let Some(index) = found.iter().position(|image| image.names.is_empty()) {
            return Err(Error::invalid(format!("image {index} of the archive has no name: specify one")));
        }
        found.into_iter().map(|image| self.import_one(ingest, image)).collect()
    }

    fn import_one(&self, ingest: &Ingest, image: ArchiveImage) -> Result<StoredImage> {
        let id = Digest::of(&image.config);
        let (content, platform) = ImageContent::new(image.config, image.layers.len(), &self.settings.limits)?;
        if HostPlatform::detect().rank(&platform).is_none() {
            let (host, name) = (HostPlatform::detect().name(), image.names.join(", "));
            let (os, architecture) = (platform.os, platform.architecture);
            return Err(Error::new(
                Kind::NotFound,
                format!(
                    "{name} is for {os}/{architecture}, but this host is {host}: no match for platform in manifest {id}: not found"
                ),
            ));
        }
        let mut size = content.config.len() as u64;
        for (number, (layer, expected)) in image.layers.iter().enumerate() {
            size += layer.size;
            if ingest.claim_layer(&content.layers[number].chain)? {
                continue;
            }
            let expected = ExpectedLayer { diff: Some(content.layers[number].diff), ..*expected };
            let unpacked = ingest.unpack(number, layer.open()?, &expected)?;
            ingest.commit_layer(&content, number, &unpacked)?;
        }
        let names = ImageNames { tags: image.names, digests: Vec::new() };
        let stored = ingest.commit(&content, image.manifest.as_deref(), size, &names, ImageOrigin::Import)?;
        tracing::info!(image = %names.tags.join(", "), id = stored.id, bytes = size, "imported an image");
        Ok(stored)
    }
}

/// The images of an OCI image layout.
fn oci_images(archive_files: &ArchiveFiles) -> Result<Vec<ArchiveImage>> {
    let index = archive_files.document("index.json")?;
    let digest = Digest::of(&index);
    let ManifestDocument::Index(entries) =
        ManifestDocument::parse(&index).map_err(|error| error.within("index.json"))?
    else {
        return Err(Error::corrupt("index.json is not an index"));
    };
    // Entries with the same name, or without one, are one image for several platforms.
    let mut groups: BTreeMap<Option<String>, Vec<Descriptor>> = BTreeMap::new();
    for entry in entries {
        let annotations = entry.annotations.as_ref();
        let name = NAME_ANNOTATIONS.iter().find_map(|key| annotations?.get(*key));
        let name = name.map(|name| ImageName::parse(name).map(|name| name.stored_name())).transpose()?;
        groups.entry(name).or_default().push(entry);
    }
    if groups.is_empty() {
        return Err(Error::invalid("the archive contains no image"));
    }
    if groups.len() > 1 && groups.get(&None).is_some_and(|group| group.iter().all(is_attestation)) {
        groups.remove(&None);
    }
    let mut found: BTreeMap<Digest, ArchiveImage> = BTreeMap::new();
    for (name, group) in groups {
        let (digest, raw, manifest) = select_image(archive_files, &group, &digest)?;
        // The same image with several names.
        if let Some(known) = found.get_mut(&digest) {
            known.names.extend(name);
            continue;
        }
        let config = archive_files.blob_document(&manifest.config.digest)?;
        let layers = manifest.layers.iter().map(|layer| {
            let expected = ExpectedLayer { digest: Some(layer.digest), size: Some(layer.size), diff: None };
            Ok((archive_files.blob(&layer.digest)?.clone(), expected))
        });
        let layers = layers.collect::<Result<_>>()?;
        let names = name.into_iter().collect();
        found.insert(digest, ArchiveImage { names, config, layers, manifest: Some(raw) });
    }
    Ok(found.into_values().collect())
}

/// Whether an entry is an attestation, not an image.
fn is_attestation(entry: &Descriptor) -> bool {
    entry.platform.as_ref().is_some_and(|platform| platform.os == "unknown")
}

/// The best entry of a group for this platform.
fn select_image(
    archive_files: &ArchiveFiles,
    group: &[Descriptor],
    index: &Digest,
) -> Result<(Digest, Vec<u8>, Manifest)> {
    let host = HostPlatform::detect();
    let mut group = group.to_vec();
    let mut index = *index;
    for _ in 0..MAX_INDEXES {
        let digest = select_manifest(&group, &host).ok_or_else(|| no_matching_platform(&index))?.digest;
        let raw = archive_files.blob_document(&digest)?;
        match ManifestDocument::parse(&raw)? {
            ManifestDocument::Image(manifest) => return Ok((digest, raw, manifest)),
            ManifestDocument::Index(entries) => (group, index) = (entries, digest),
        }
    }
    Err(Error::corrupt(format!("more than {MAX_INDEXES} nested indexes")))
}

/// The images of a `docker save` archive.
fn docker_images(archive_files: &ArchiveFiles) -> Result<Vec<ArchiveImage>> {
    let manifest = archive_files.document("manifest.json")?;
    let images: Vec<DockerManifestEntry> = serde_json::from_slice(&manifest)
        .map_err(|why| Error::corrupt(format!("parse manifest.json: {why}")))?;
    if images.is_empty() {
        return Err(Error::invalid("the archive contains no image"));
    }
    images
        .into_iter()
        .map(|image| {
            let names = image.repo_tags.unwrap_or_default();
            let names = names.iter().map(|name| ImageName::parse(name).map(|name| name.stored_name()));
            let layers = image.layers.unwrap_or_default();
            let layers =
                layers.iter().map(|layer| Ok((archive_files.file(layer)?.clone(), ExpectedLayer::default())));
            Ok(ArchiveImage {
                names: names.collect::<Result<_>>()?,
                config: archive_files.document(&image.config)?,
                layers: layers.collect::<Result<_>>()?,
                manifest: None,
            })
        })
        .collect()
}
