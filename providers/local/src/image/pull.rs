//! Pulls images from registries.
//!
//! A registry is chosen by the pod, so a slow one must not delay the pulls of others. A layer is first downloaded into a
//! file, which takes as long as its registry likes, and only then unpacked, which takes one of a few places. Pulls wait
//! for each other's downloads only if they get the same layer from the same registry with the same credentials.

mod error;
mod progress;
mod reader;
mod registry;

use std::{fs::File, path::Path, sync::Arc};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use tokio::{
    io::{AsyncWriteExt as _, BufWriter},
    sync::OwnedMutexGuard,
    time::{Duration, Instant, sleep},
};
use tokio_util::sync::CancellationToken;
use vk_pod_engine::image::credentials_hash;
use vk_provider::resolve::PullCredentials;

pub(crate) use self::registry::Registries;
use self::{
    error::PullOperation,
    progress::Progress,
    reader::CancellableReader,
    registry::{Registry, RegistryKey},
};
use super::{
    Digest, Error, ImageName, Kind, PulledImage, Result, Store,
    digest::Hasher,
    manifest::{Descriptor, ImageContent, Manifest, ManifestDocument, no_matching_platform, select_manifest},
    platform::HostPlatform,
    store::{ImageNames, ImageOrigin, Ingest},
    unpack::{CHUNK, ExpectedLayer, UnpackedLayer},
};

/// How often a layer is requested.
const ATTEMPTS: u32 = 3;
/// Maximum nesting of indexes.
const MAX_INDEXES: usize = 4;
/// Number of layers of an image that are downloaded concurrently.
const CONCURRENT_LAYERS: usize = 3;

/// A layer as one registry has it for one set of credentials.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LayerSource {
    registry: RegistryKey,
    blob: Digest,
    chain: Digest,
}

/// The result of resolving a name.
struct Resolved<'a> {
    registry: Registry<'a>,
    /// The digest that the registry has for the name: of a manifest or an index.
    digest: Digest,
    /// The raw manifest for this platform.
    raw: Vec<u8>,
    manifest: Manifest,
    progress: Progress,
}

impl Store {
    /// Pulls an image, with credentials or anonymously, and stores it under its name. Layers in the store are not
    /// downloaded again, but the registry is always asked for the manifest, so that a caller without access to the
    /// image cannot get it. Dropping the future cancels the pull.
    pub async fn pull(
        self: &Arc<Self>,
        image: &str,
        credentials: Option<&PullCredentials>,
    ) -> Result<PulledImage> {
        let name = ImageName::parse(image)?;
        let begin = Instant::now();
        tracing::info!(image = %name, "pulling an image");
        let result = Box::pin(self.pull_named(&name, credentials)).await;
        let milliseconds = u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX);
        match &result {
            Ok((pulled, bytes)) => {
                tracing::info!(image = %name, id = pulled.id, bytes, milliseconds, "pulled an image");
            }
            Err(error) => tracing::info!(image = %name, %error, milliseconds, "pulling an image failed"),
        }
        result.map(|(pulled, _)| pulled)
    }

    async fn pull_named(
        self: &Arc<Self>,
        name: &ImageName,
        credentials: Option<&PullCredentials>,
    ) -> Result<(PulledImage, u64)> {
        let unpacking = |error: Error| error.within(&format!("failed to pull and unpack image \"{name}\""));
        let resolved = Box::pin(self.resolve(name, credentials)).await?;
        let config = self.config(name, &resolved).await.map_err(unpacking)?;
        let limits = &self.settings.limits;
        let (content, platform) =
            ImageContent::new(config, resolved.manifest.layers.len(), limits).map_err(unpacking)?;
        if HostPlatform::detect().rank(&platform).is_none() {
            return Err(no_matching_platform(&resolved.digest));
        }
        let store = Arc::clone(self);
        let ingest = Arc::new(blocking(move || Ingest::new(&store)).await.map_err(unpacking)?);
        let result = Box::pin(self.store_layers(name, &resolved, &ingest, content, credentials))
            .await
            .map_err(unpacking);
        // Layers of a failed pull are removed, unless the network failed: a retry can use them.
        let keep = result.as_ref().err().is_none_or(|error| error.kind() == Kind::Unavailable);
        let store = Arc::clone(self);
        blocking(move || {
            drop(ingest);
            if keep { Ok(0) } else { store.collect_garbage() }
        })
        .await?;
        let (id, bytes) = result?;
        Ok((PulledImage { id: id.to_string(), reference: name.with_digest(&resolved.digest) }, bytes))
    }

    /// Finds the manifest for this platform.
    async fn resolve<'a>(
        &self,
        name: &ImageName,
        credentials: Option<&'a PullCredentials>,
    ) -> Result<Resolved<'a>> {
        let registry = self.registries.of(name.reference(), credentials)?;
        let (repository, reference) = name.remote();
        let most = self.settings.limits.document_bytes;
        let operation = PullOperation::resolve(name, credentials.is_some());
        let failed = |error| operation.registry_error(error);
        let mut raw = registry.manifest(repository, reference, most).await.map_err(failed)?;
        let digest = Digest::of(&raw);
        if let Some(expected_digest) = name.digest().filter(|expected_digest| *expected_digest != digest) {
            return Err(operation.wrap(Error::corrupt(format!(
                "the manifest has digest {digest} instead of {expected_digest}"
            ))));
        }
        let host = HostPlatform::detect();
        for _ in 0..MAX_INDEXES {
            match ManifestDocument::parse(&raw).map_err(|error| operation.wrap(error))? {
                ManifestDocument::Image(manifest) => {
                    let progress = Progress::new(self.settings.pull_limits.clone());
                    return Ok(Resolved { registry, digest, raw, manifest, progress });
                }
                ManifestDocument::Index(choice) => {
                    let chosen = select_manifest(&choice, &host).ok_or_else(|| {
                        tracing::debug!(image = %name, host = host.name(), "no manifest for this platform");
                        no_matching_platform(&digest)
                    })?;
                    let reference = chosen.digest.to_string();
                    raw = registry.manifest(repository, &reference, most).await.map_err(failed)?;
                    if Digest::of(&raw) != chosen.digest {
                        let expected_digest = chosen.digest;
                        return Err(operation.wrap(Error::corrupt(format!(
                            "the manifest {expected_digest} does not match its digest"
                        ))));
                    }
                }
            }
        }
        Err(operation.wrap(Error::corrupt(format!("more than {MAX_INDEXES} nested indexes"))))
    }

    /// Downloads the image config.
    async fn config(&self, name: &ImageName, resolved: &Resolved<'_>) -> Result<Vec<u8>> {
        let descriptor = &resolved.manifest.config;
        let most = self.settings.limits.document_bytes;
        if descriptor.size > most {
            let size = descriptor.size;
            return Err(Error::corrupt(format!("the image config has {size} bytes; the maximum is {most}")));
        }
        let (repository, _) = name.remote();
        let answer = resolved.registry.document(repository, &descriptor.digest, descriptor.size).await;
        let config = answer.map_err(|error| PullOperation::copy().registry_error(error))?;
        if Digest::of(&config) != descriptor.digest {
            return Err(Error::corrupt(format!(
                "the image config {} does not match its digest",
                descriptor.digest
            )));
        }
        Ok(config)
    }

    /// Downloads the missing layers and records the image. Returns its id and the number of downloaded bytes.
    async fn store_layers(
        self: &Arc<Self>,
        name: &ImageName,
        resolved: &Resolved<'_>,
        ingest: &Arc<Ingest>,
        content: ImageContent,
        credentials: Option<&PullCredentials>,
    ) -> Result<(Digest, u64)> {
        let content = Arc::new(content);
        let mut claims = self.missing_layers(resolved, &content, ingest).await?;
        let numbers: Vec<usize> = claims.iter().map(|(number, _)| *number).collect();
        let mut bytes = 0;
        {
            let layers = stream::iter(numbers)
                .map(|number| self.download_layer(name, resolved, ingest, &content, number))
                .buffered(CONCURRENT_LAYERS);
            futures::pin_mut!(layers);
            // In order, because each layer builds on those below.
            while let Some((number, unpacked)) = layers.try_next().await? {
                bytes += unpacked.read;
                let (ingest, content) = (Arc::clone(ingest), Arc::clone(&content));
                blocking(move || ingest.commit_layer(&content, number, &unpacked)).await?;
                claims.retain(|(claimed, _)| *claimed != number);
            }
        }
        let parts = resolved.manifest.layers.iter().chain([&resolved.manifest.config]);
        // The registry decides what the sizes of layers are that are not downloaded.
        let size = parts.fold(0, |size: u64, part| size.saturating_add(part.size));
        let digests = vec![name.with_digest(&resolved.digest)];
        let tags = if name.digest().is_some() { Vec::new() } else { vec![name.stored_name()] };
        let origin = ImageOrigin::Pull {
            repository: name.repository(),
            credentials: credentials.map(credentials_hash),
        };
        let (ingest, raw, id) = (Arc::clone(ingest), resolved.raw.clone(), content.id);
        blocking(move || ingest.commit(&content, Some(&raw), size, &ImageNames { tags, digests }, origin))
            .await?;
        Ok((id, bytes))
    }

    /// The missing layers, each with a lock on it. Layers that another pull is downloading from the same registry are
    /// waited for, from the lowest one up, so that two pulls cannot deadlock.
    async fn missing_layers(
        self: &Arc<Self>,
        resolved: &Resolved<'_>,
        content: &Arc<ImageContent>,
        ingest: &Arc<Ingest>,
    ) -> Result<Vec<(usize, OwnedMutexGuard<()>)>> {
        let mut missing_layers = Vec::new();
        for (number, layer) in content.layers.iter().enumerate() {
            let chain = layer.chain;
            let blob = resolved.manifest.layers[number].digest;
            let claim =
                self.claim(LayerSource { registry: resolved.registry.key.clone(), blob, chain }).await;
            let ingest = Arc::clone(ingest);
            if !blocking(move || ingest.claim_layer(&chain)).await? {
                missing_layers.push((number, claim));
            }
        }
        Ok(missing_layers)
    }

    /// Downloads and unpacks a layer.
    async fn download_layer(
        &self,
        name: &ImageName,
        resolved: &Resolved<'_>,
        ingest: &Arc<Ingest>,
        content: &Arc<ImageContent>,
        number: usize,
    ) -> Result<(usize, UnpackedLayer)> {
        let descriptor = &resolved.manifest.layers[number];
        let expected = ExpectedLayer {
            digest: Some(descriptor.digest),
            size: Some(descriptor.size),
            diff: Some(content.layers[number].diff),
        };
        if descriptor.size > self.settings.limits.layer_bytes {
            let (size, most) = (descriptor.size, self.settings.limits.layer_bytes);
            return Err(Error::corrupt(format!("a layer has {size} bytes; the maximum is {most}")));
        }
        let begin = Instant::now();
        let file = ingest.download_file(number);
        let mut attempt = 1;
        loop {
            match download(name, resolved, descriptor, &file).await {
                Err(error)
                    if error.kind() == Kind::Unavailable
                        && attempt < ATTEMPTS
                        && !resolved.progress.has_expired() =>
                {
                    tracing::debug!(image = %name, layer = %descriptor.digest, %error, attempt, "downloading a layer failed, trying again");
                    sleep(Duration::from_secs(attempt.into())).await;
                    attempt += 1;
                }
                answer => break answer?,
            }
        }
        let unpacked = self.unpack(ingest, number, expected).await?;
        let milliseconds = u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX);
        let (bytes, content) = (unpacked.read, unpacked.usage.bytes);
        tracing::debug!(image = %name, layer = %descriptor.digest, bytes, content, milliseconds, "unpacked a layer");
        Ok((number, unpacked))
    }

    /// Unpacks a downloaded layer, when there is a place for it.
    async fn unpack(
        &self,
        ingest: &Arc<Ingest>,
        number: usize,
        expected: ExpectedLayer,
    ) -> Result<UnpackedLayer> {
        let place = Arc::clone(&self.unpackers).acquire_owned().await;
        let place = place.map_err(|_| Error::new(Kind::Internal, "closed"))?;
        let cancelled = CancellationToken::new();
        let _guard = cancelled.clone().drop_guard();
        let ingest = Arc::clone(ingest);
        blocking(move || {
            let path = ingest.download_file(number);
            let file = File::open(&path).map_err(Error::system("open", &path))?;
            let unpacked = ingest.unpack(number, CancellableReader::new(file, cancelled), &expected);
            drop(place);
            std::fs::remove_file(&path).map_err(Error::system("remove", &path))?;
            unpacked
        })
        .await
    }
}

/// Downloads the compressed form of a layer into a file and verifies its digest.
async fn download(
    name: &ImageName,
    resolved: &Resolved<'_>,
    descriptor: &Descriptor,
    path: &Path,
) -> Result<()> {
    let operation = PullOperation::copy();
    let failed = |error| operation.registry_error(error);
    let written = |error| Error::system("write", path)(error);
    let mut blob = resolved.registry.blob(name.remote().0, &descriptor.digest).await.map_err(failed)?;
    let file = tokio::fs::File::create(path).await.map_err(written)?;
    let mut file = BufWriter::with_capacity(CHUNK, file);
    let (mut hasher, mut size) = (Hasher::new(), 0);
    let progress = resolved.progress.begin();
    while let Some(part) =
        progress.wait(blob.next()).await.map_err(|error| operation.wrap(error))?.map_err(failed)?
    {
        progress.received(part.len());
        size += part.len() as u64;
        if size > descriptor.size {
            let most = descriptor.size;
            return Err(Error::corrupt(format!("the layer is larger than the {most} bytes in the manifest")));
        }
        hasher.update(&part);
        file.write_all(&part).await.map_err(written)?;
    }
    file.flush().await.map_err(written)?;
    let digest = hasher.finish();
    if digest != descriptor.digest {
        let expected = descriptor.digest;
        return Err(Error::corrupt(format!("the digest of the layer is {digest}, but should be {expected}")));
    }
    Ok(())
}

/// Runs blocking work off the async threads.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(answer) => answer,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(error) => Err(Error::new(Kind::Unavailable, format!("cancelled: {error}"))),
        },
    }
}

#[cfg(test)]
mod tests;
