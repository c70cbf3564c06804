//! Imports images from archives: an OCI image layout or the output of `docker save`, as tar, compressed or not.

mod spool;

use std::{collections::BTreeMap, io::Read, sync::Arc};

use serde::Deserialize;

use self::spool::{Spool, Spooled};
use super::{
    Digest, Error, Kind, Name, Result, Store, Stored,
    manifest::{Descriptor, Document, Manifest, Plan, choose, no_match},
    platform::Machine,
    store::{Intake, Names},
    unpack::Expected,
};

/// Annotations with the image name in an OCI layout: the full name, and the form that some tools write.
const NAMES: [&str; 2] = ["io.containerd.image.name", "org.opencontainers.image.ref.name"];
/// Maximum nesting of indexes.
const MOST_INDEXES: usize = 4;

/// An image in an archive.
struct Found {
    names: Vec<String>,
    config: Vec<u8>,
    layers: Vec<(Spooled, Expected)>,
    manifest: Option<Vec<u8>>,
}

/// An entry of `manifest.json` as `docker save` writes it.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    #[serde(default)]
    layers: Option<Vec<String>>,
}

impl Store {
    /// Imports the images of an archive that are for this platform. They get the names in the archive, or the given
    /// ones; then the archive must contain a single image. If the import fails, nothing is kept. Blocks.
    pub fn import<R: Read>(self: &Arc<Self>, archive: R, names: &[String]) -> Result<Vec<Stored>> {
        let names: Vec<String> = names
            .iter()
            .map(|name| {
                let name = Name::parse(name)?;
                match name.digest() {
                    None => Ok(name.kept()),
                    Some(_) => {
                        Err(Error::invalid(format!("cannot name an image {name}: a digest is not a name")))
                    }
                }
            })
            .collect::<Result<_>>()?;
        let intake = Intake::new(self)?;
        let result = self.import_into(&intake, archive, &names);
        drop(intake);
        if result.is_err() {
            self.collect()?;
        }
        result.map_err(|error| error.within("failed to import images"))
    }

    fn import_into<R: Read>(&self, intake: &Intake, archive: R, names: &[String]) -> Result<Vec<Stored>> {
        let limits = &self.settings.limits;
        let spool = Spool::read(archive, &intake.scratch().directory("spool")?, limits)?;
        let mut found = if spool.has("index.json") {
            layout(&spool)?
        } else if spool.has("manifest.json") {
            saved(&spool)?
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
        found.into_iter().map(|image| self.import_one(intake, image)).collect()
    }

    fn import_one(&self, intake: &Intake, image: Found) -> Result<Stored> {
        let id = Digest::of(&image.config);
        let (plan, platform) = Plan::new(image.config, image.layers.len(), &self.settings.limits)?;
        if Machine::here().rank(&platform).is_none() {
            let (machine, name) = (Machine::here().name(), image.names.join(", "));
            let (os, architecture) = (platform.os, platform.architecture);
            return Err(Error::new(
                Kind::NotFound,
                format!(
                    "{name} is for {os}/{architecture}, but this host is {machine}: no match for platform in manifest {id}: not found"
                ),
            ));
        }
        let mut size = plan.config.len() as u64;
        for (number, (layer, expected)) in image.layers.iter().enumerate() {
            size += layer.size;
            if intake.present(&plan.layers[number].chain)? {
                continue;
            }
            let expected = Expected { diff: Some(plan.layers[number].diff), ..*expected };
            let unpacked = intake.unpack(number, layer.open()?, &expected)?;
            intake.settle(&plan, number, &unpacked)?;
        }
        let names = Names { tags: image.names, digests: Vec::new() };
        let stored = intake.commit(&plan, image.manifest.as_deref(), size, &names)?;
        tracing::info!(image = %names.tags.join(", "), id = stored.id, bytes = size, "imported an image");
        Ok(stored)
    }
}

/// The images of an OCI image layout.
fn layout(spool: &Spool) -> Result<Vec<Found>> {
    let index = spool.document("index.json")?;
    let digest = Digest::of(&index);
    let Document::Index(entries) = Document::parse(&index).map_err(|error| error.within("index.json"))?
    else {
        return Err(Error::corrupt("index.json is not an index"));
    };
    // Entries with the same name, or without one, are one image for several platforms.
    let mut groups: BTreeMap<Option<String>, Vec<Descriptor>> = BTreeMap::new();
    for entry in entries {
        let annotations = entry.annotations.as_ref();
        let name = NAMES.iter().find_map(|key| annotations?.get(*key));
        let name = name.map(|name| Name::parse(name).map(|name| name.kept())).transpose()?;
        groups.entry(name).or_default().push(entry);
    }
    if groups.is_empty() {
        return Err(Error::invalid("the archive contains no image"));
    }
    if groups.len() > 1 && groups.get(&None).is_some_and(|group| group.iter().all(is_attachment)) {
        groups.remove(&None);
    }
    let mut found: BTreeMap<Digest, Found> = BTreeMap::new();
    for (name, group) in groups {
        let (digest, raw, manifest) = chosen(spool, &group, &digest)?;
        // The same image with several names.
        if let Some(known) = found.get_mut(&digest) {
            known.names.extend(name);
            continue;
        }
        let config = spool.blob_document(&manifest.config.digest)?;
        let layers = manifest.layers.iter().map(|layer| {
            let expected = Expected { digest: Some(layer.digest), size: Some(layer.size), diff: None };
            Ok((spool.blob(&layer.digest)?.clone(), expected))
        });
        let layers = layers.collect::<Result<_>>()?;
        let names = name.into_iter().collect();
        found.insert(digest, Found { names, config, layers, manifest: Some(raw) });
    }
    Ok(found.into_values().collect())
}

/// Whether an entry is an attestation, not an image.
fn is_attachment(entry: &Descriptor) -> bool {
    entry.platform.as_ref().is_some_and(|platform| platform.os == "unknown")
}

/// The best entry of a group for this platform.
fn chosen(spool: &Spool, group: &[Descriptor], index: &Digest) -> Result<(Digest, Vec<u8>, Manifest)> {
    let machine = Machine::here();
    let mut group = group.to_vec();
    let mut index = *index;
    for _ in 0..MOST_INDEXES {
        let digest = choose(&group, &machine).ok_or_else(|| no_match(&index))?.digest;
        let raw = spool.blob_document(&digest)?;
        match Document::parse(&raw)? {
            Document::Image(manifest) => return Ok((digest, raw, manifest)),
            Document::Index(entries) => (group, index) = (entries, digest),
        }
    }
    Err(Error::corrupt(format!("more than {MOST_INDEXES} nested indexes")))
}

/// The images of a `docker save` archive.
fn saved(spool: &Spool) -> Result<Vec<Found>> {
    let manifest = spool.document("manifest.json")?;
    let images: Vec<Saved> = serde_json::from_slice(&manifest)
        .map_err(|why| Error::corrupt(format!("parse manifest.json: {why}")))?;
    if images.is_empty() {
        return Err(Error::invalid("the archive contains no image"));
    }
    images
        .into_iter()
        .map(|image| {
            let names = image.repo_tags.unwrap_or_default();
            let names = names.iter().map(|name| Name::parse(name).map(|name| name.kept()));
            let layers = image.layers.unwrap_or_default();
            let layers = layers.iter().map(|layer| Ok((spool.file(layer)?.clone(), Expected::default())));
            Ok(Found {
                names: names.collect::<Result<_>>()?,
                config: spool.document(&image.config)?,
                layers: layers.collect::<Result<_>>()?,
                manifest: None,
            })
        })
        .collect()
}
