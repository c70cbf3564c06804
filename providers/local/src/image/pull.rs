//! Pulls images from registries.

mod clients;
mod error;
mod reader;

use std::sync::Arc;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use oci_client::Client;
use tokio::{
    sync::{OwnedMutexGuard, mpsc},
    time::{Duration, Instant, sleep},
};
use vk_pod_engine::image::credentials_hash;
use vk_provider::resolve::PullCredentials;

pub(crate) use self::clients::RegistryClients;
use self::{
    clients::RegistryLogin,
    error::PullOperation,
    reader::{Chunk, DownloadReader},
};
use super::{
    Digest, Error, ImageName, Kind, PulledImage, Result, Store,
    manifest::{
        ACCEPTED_MEDIA_TYPES, Descriptor, ImageContent, Manifest, ManifestDocument, no_matching_platform,
        select_manifest,
    },
    platform::HostPlatform,
    store::{ImageNames, ImageOrigin, Ingest},
    unpack::{ExpectedLayer, UnpackedLayer},
};

/// How often a layer is requested.
const ATTEMPTS: u32 = 3;
/// Maximum nesting of indexes.
const MAX_INDEXES: usize = 4;
/// Number of layers of an image that are downloaded concurrently.
const CONCURRENT_LAYERS: usize = 3;
/// Number of chunks of a layer that wait to be unpacked.
const BUFFERED_CHUNKS: usize = 16;

/// The result of resolving a name.
struct Resolved {
    login: RegistryLogin,
    /// The digest that the registry has for the name: of a manifest or an index.
    digest: Digest,
    /// The raw manifest for this platform.
    raw: Vec<u8>,
    manifest: Manifest,
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
    async fn resolve(&self, name: &ImageName, credentials: Option<&PullCredentials>) -> Result<Resolved> {
        let image = name.reference();
        let mut login = self.clients.login(image, credentials)?;
        let mut answer = login.client.pull_manifest_raw(image, &login.auth, &ACCEPTED_MEDIA_TYPES).await;
        if answer.as_ref().is_err_and(error::is_denied) && login.used {
            // A token may have expired.
            self.clients.forget(&login);
            login = self.clients.login(image, credentials)?;
            answer = login.client.pull_manifest_raw(image, &login.auth, &ACCEPTED_MEDIA_TYPES).await;
        }
        let operation = PullOperation::resolve(name, credentials.is_some());
        let (bytes, _) = answer.map_err(|error| {
            self.clients.forget(&login);
            operation.registry_error(&error)
        })?;
        let mut raw = bytes.to_vec();
        let digest = Digest::of(&raw);
        if let Some(expected_digest) = name.digest().filter(|expected_digest| *expected_digest != digest) {
            return Err(operation.wrap(Error::corrupt(format!(
                "the manifest has digest {digest} instead of {expected_digest}"
            ))));
        }
        let host = HostPlatform::detect();
        for _ in 0..MAX_INDEXES {
            match ManifestDocument::parse(&raw).map_err(|error| operation.wrap(error))? {
                ManifestDocument::Image(manifest) => return Ok(Resolved { login, digest, raw, manifest }),
                ManifestDocument::Index(choice) => {
                    let chosen = select_manifest(&choice, &host).ok_or_else(|| {
                        tracing::debug!(image = %name, host = host.name(), "no manifest for this platform");
                        no_matching_platform(&digest)
                    })?;
                    let reference = image.clone_with_digest(chosen.digest.to_string());
                    let answer =
                        login.client.pull_manifest_raw(&reference, &login.auth, &ACCEPTED_MEDIA_TYPES).await;
                    raw = answer.map_err(|error| operation.registry_error(&error))?.0.to_vec();
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
    async fn config(&self, name: &ImageName, resolved: &Resolved) -> Result<Vec<u8>> {
        let descriptor = &resolved.manifest.config;
        let most = self.settings.limits.document_bytes;
        if descriptor.size > most {
            let size = descriptor.size;
            return Err(Error::corrupt(format!("the image config has {size} bytes; the maximum is {most}")));
        }
        let operation = PullOperation::copy();
        let mut stream = blob(&resolved.login.client, name, descriptor)
            .await
            .map_err(|error| operation.registry_error(&error))?;
        let mut config = Vec::new();
        while let Some(part) =
            stream.stream.try_next().await.map_err(|error| operation.download_error(&error))?
        {
            config.extend_from_slice(&part);
            if config.len() as u64 > descriptor.size {
                return Err(Error::corrupt("the image config is larger than the manifest says"));
            }
        }
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
        resolved: &Resolved,
        ingest: &Arc<Ingest>,
        content: ImageContent,
        credentials: Option<&PullCredentials>,
    ) -> Result<(Digest, u64)> {
        let content = Arc::new(content);
        let mut claims = self.missing_layers(&content, ingest).await?;
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
        let size = resolved.manifest.layers.iter().map(|layer| layer.size).sum::<u64>();
        let size = size + resolved.manifest.config.size;
        let digests = vec![name.with_digest(&resolved.digest)];
        let tags = if name.digest().is_some() { Vec::new() } else { vec![name.stored_name()] };
        let (ingest, raw, id) = (Arc::clone(ingest), resolved.raw.clone(), content.id);
        let origin =
            ImageOrigin::Pull { repository: name.repository(), credentials: credentials.map(credentials_hash) };
        blocking(move || ingest.commit(&content, Some(&raw), size, &ImageNames { tags, digests }, origin))
            .await?;
        Ok((id, bytes))
    }

    /// The missing layers, each with a lock on it. Layers that another pull is downloading are waited for, from the
    /// lowest one up, so that two pulls cannot deadlock.
    async fn missing_layers(
        self: &Arc<Self>,
        content: &Arc<ImageContent>,
        ingest: &Arc<Ingest>,
    ) -> Result<Vec<(usize, OwnedMutexGuard<()>)>> {
        let mut missing_layers = Vec::new();
        for (number, layer) in content.layers.iter().enumerate() {
            let chain = layer.chain;
            let claim = self.claim(&chain).await;
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
        resolved: &Resolved,
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
        let _turn = self.unpackers.acquire().await.map_err(|_| Error::new(Kind::Internal, "closed"))?;
        let begin = Instant::now();
        let mut attempt = 1;
        let unpacked = loop {
            match self.try_download(name, resolved, ingest, number, expected).await {
                Err(error) if error.kind() == Kind::Unavailable && attempt < ATTEMPTS => {
                    tracing::debug!(image = %name, layer = %descriptor.digest, %error, attempt, "downloading a layer failed, trying again");
                    sleep(Duration::from_secs(attempt.into())).await;
                    attempt += 1;
                }
                answer => break answer?,
            }
        };
        let milliseconds = u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX);
        let (bytes, content) = (unpacked.read, unpacked.usage.bytes);
        tracing::debug!(image = %name, layer = %descriptor.digest, bytes, content, milliseconds, "unpacked a layer");
        Ok((number, unpacked))
    }

    async fn try_download(
        &self,
        name: &ImageName,
        resolved: &Resolved,
        ingest: &Arc<Ingest>,
        number: usize,
        expected: ExpectedLayer,
    ) -> Result<UnpackedLayer> {
        let operation = PullOperation::copy();
        let descriptor = &resolved.manifest.layers[number];
        let mut source = blob(&resolved.login.client, name, descriptor)
            .await
            .map_err(|error| operation.registry_error(&error))?
            .stream;
        let (sender, receiver) = mpsc::channel(BUFFERED_CHUNKS);
        let ingest = Arc::clone(ingest);
        let unpacking = blocking(move || ingest.unpack(number, DownloadReader::new(receiver), &expected));
        let feeding = async move {
            loop {
                let part = match source.next().await {
                    Some(Ok(bytes)) => Chunk::Bytes(bytes),
                    Some(Err(error)) => Chunk::Failed(operation.download_error(&error)),
                    None => Chunk::End,
                };
                let last = !matches!(part, Chunk::Bytes(_));
                // The unpacker has failed and returns the error.
                if sender.send(part).await.is_err() || last {
                    break;
                }
            }
        };
        futures::join!(unpacking, feeding).0
    }
}

/// Requests a blob. Foreign URLs in the manifest are not used.
async fn blob(
    client: &Client,
    name: &ImageName,
    descriptor: &Descriptor,
) -> Result<oci_client::client::SizedStream, oci_client::errors::OciDistributionError> {
    client.pull_blob_stream(name.reference(), descriptor.digest.to_string().as_str()).await
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
