//! Pulls images from registries.

mod clients;
mod fault;
mod feed;

use std::sync::Arc;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use oci_client::Client;
use tokio::{
    sync::{OwnedMutexGuard, mpsc},
    time::{Duration, Instant, sleep},
};
use vk_provider::resolve::PullCredentials;

pub(crate) use self::clients::Clients;
use self::{
    clients::Login,
    fault::Step,
    feed::{Feed, Part},
};
use super::{
    Digest, Error, Kind, Name, Pulled, Result, Store,
    manifest::{ACCEPTED, Descriptor, Document, Manifest, Plan, choose, no_match},
    platform::Machine,
    store::{Intake, Names},
    unpack::{Expected, Unpacked},
};

/// How often a layer is requested.
const ATTEMPTS: u32 = 3;
/// Maximum nesting of indexes.
const MOST_INDEXES: usize = 4;
/// Number of layers of an image that are downloaded concurrently.
const AT_ONCE: usize = 3;
/// Number of chunks of a layer that wait to be unpacked.
const AHEAD: usize = 16;

/// The result of resolving a name.
struct Resolved {
    login: Login,
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
    ) -> Result<Pulled> {
        let name = Name::parse(image)?;
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
        name: &Name,
        credentials: Option<&PullCredentials>,
    ) -> Result<(Pulled, u64)> {
        let unpacking = |error: Error| error.within(&format!("failed to pull and unpack image \"{name}\""));
        let resolved = Box::pin(self.resolve(name, credentials)).await?;
        let config = self.config(name, &resolved).await.map_err(unpacking)?;
        let limits = &self.settings.limits;
        let (plan, platform) =
            Plan::new(config, resolved.manifest.layers.len(), limits).map_err(unpacking)?;
        if Machine::here().rank(&platform).is_none() {
            return Err(no_match(&resolved.digest));
        }
        let store = Arc::clone(self);
        let intake = Arc::new(blocking(move || Intake::new(&store)).await.map_err(unpacking)?);
        let result = Box::pin(self.take_in(name, &resolved, &intake, plan)).await.map_err(unpacking);
        // Layers of a failed pull are removed, unless the network failed: a retry can use them.
        let keep = result.as_ref().err().is_none_or(|error| error.kind() == Kind::Unavailable);
        let store = Arc::clone(self);
        blocking(move || {
            drop(intake);
            if keep { Ok(0) } else { store.collect() }
        })
        .await?;
        let (id, bytes) = result?;
        Ok((Pulled { id: id.to_string(), reference: name.with_digest(&resolved.digest) }, bytes))
    }

    /// Finds the manifest for this platform.
    async fn resolve(&self, name: &Name, credentials: Option<&PullCredentials>) -> Result<Resolved> {
        let image = name.reference();
        let mut login = self.clients.login(image, credentials)?;
        let mut answer = login.client.pull_manifest_raw(image, &login.auth, &ACCEPTED).await;
        if answer.as_ref().is_err_and(fault::is_denied) && login.used {
            // A token may have expired.
            self.clients.forget(&login);
            login = self.clients.login(image, credentials)?;
            answer = login.client.pull_manifest_raw(image, &login.auth, &ACCEPTED).await;
        }
        let step = Step::resolve(name, credentials.is_some());
        let (bytes, _) = answer.map_err(|error| {
            self.clients.forget(&login);
            step.fault(&error)
        })?;
        let mut raw = bytes.to_vec();
        let digest = Digest::of(&raw);
        if let Some(said) = name.digest().filter(|said| *said != digest) {
            return Err(
                step.failed(Error::corrupt(format!("the manifest has digest {digest} instead of {said}")))
            );
        }
        let machine = Machine::here();
        for _ in 0..MOST_INDEXES {
            match Document::parse(&raw).map_err(|error| step.failed(error))? {
                Document::Image(manifest) => return Ok(Resolved { login, digest, raw, manifest }),
                Document::Index(choice) => {
                    let chosen = choose(&choice, &machine).ok_or_else(|| {
                        tracing::debug!(image = %name, machine = machine.name(), "no manifest for this platform");
                        no_match(&digest)
                    })?;
                    let reference = image.clone_with_digest(chosen.digest.to_string());
                    let answer = login.client.pull_manifest_raw(&reference, &login.auth, &ACCEPTED).await;
                    raw = answer.map_err(|error| step.fault(&error))?.0.to_vec();
                    if Digest::of(&raw) != chosen.digest {
                        let said = chosen.digest;
                        return Err(step.failed(Error::corrupt(format!(
                            "the manifest {said} does not match its digest"
                        ))));
                    }
                }
            }
        }
        Err(step.failed(Error::corrupt(format!("more than {MOST_INDEXES} nested indexes"))))
    }

    /// Downloads the image config.
    async fn config(&self, name: &Name, resolved: &Resolved) -> Result<Vec<u8>> {
        let descriptor = &resolved.manifest.config;
        let most = self.settings.limits.document_bytes;
        if descriptor.size > most {
            let size = descriptor.size;
            return Err(Error::corrupt(format!("the image config has {size} bytes; the maximum is {most}")));
        }
        let step = Step::copy();
        let mut stream =
            blob(&resolved.login.client, name, descriptor).await.map_err(|error| step.fault(&error))?;
        let mut config = Vec::new();
        while let Some(part) = stream.stream.try_next().await.map_err(|error| step.broken(&error))? {
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
    async fn take_in(
        self: &Arc<Self>,
        name: &Name,
        resolved: &Resolved,
        intake: &Arc<Intake>,
        plan: Plan,
    ) -> Result<(Digest, u64)> {
        let plan = Arc::new(plan);
        let mut claims = self.missing(&plan, intake).await?;
        let numbers: Vec<usize> = claims.iter().map(|(number, _)| *number).collect();
        let mut bytes = 0;
        {
            let layers = stream::iter(numbers)
                .map(|number| self.layer_of(name, resolved, intake, &plan, number))
                .buffered(AT_ONCE);
            futures::pin_mut!(layers);
            // In order, because each layer builds on those below.
            while let Some((number, unpacked)) = layers.try_next().await? {
                bytes += unpacked.read;
                let (intake, plan) = (Arc::clone(intake), Arc::clone(&plan));
                blocking(move || intake.settle(&plan, number, &unpacked)).await?;
                claims.retain(|(claimed, _)| *claimed != number);
            }
        }
        let size = resolved.manifest.layers.iter().map(|layer| layer.size).sum::<u64>();
        let size = size + resolved.manifest.config.size;
        let digests = vec![name.with_digest(&resolved.digest)];
        let tags = if name.digest().is_some() { Vec::new() } else { vec![name.kept()] };
        let (intake, raw, id) = (Arc::clone(intake), resolved.raw.clone(), plan.id);
        blocking(move || intake.commit(&plan, Some(&raw), size, &Names { tags, digests })).await?;
        Ok((id, bytes))
    }

    /// The missing layers, each with a lock on it. Layers that another pull is downloading are waited for, from the
    /// lowest one up, so that two pulls cannot deadlock.
    async fn missing(
        self: &Arc<Self>,
        plan: &Arc<Plan>,
        intake: &Arc<Intake>,
    ) -> Result<Vec<(usize, OwnedMutexGuard<()>)>> {
        let mut missing = Vec::new();
        for (number, layer) in plan.layers.iter().enumerate() {
            let chain = layer.chain;
            let claim = self.claim(&chain).await;
            let intake = Arc::clone(intake);
            if !blocking(move || intake.present(&chain)).await? {
                missing.push((number, claim));
            }
        }
        Ok(missing)
    }

    /// Downloads and unpacks a layer.
    async fn layer_of(
        &self,
        name: &Name,
        resolved: &Resolved,
        intake: &Arc<Intake>,
        plan: &Arc<Plan>,
        number: usize,
    ) -> Result<(usize, Unpacked)> {
        let descriptor = &resolved.manifest.layers[number];
        let expected = Expected {
            digest: Some(descriptor.digest),
            size: Some(descriptor.size),
            diff: Some(plan.layers[number].diff),
        };
        let _turn = self.unpackers.acquire().await.map_err(|_| Error::new(Kind::Internal, "closed"))?;
        let begin = Instant::now();
        let mut attempt = 1;
        let unpacked = loop {
            match self.attempt(name, resolved, intake, number, expected).await {
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

    async fn attempt(
        &self,
        name: &Name,
        resolved: &Resolved,
        intake: &Arc<Intake>,
        number: usize,
        expected: Expected,
    ) -> Result<Unpacked> {
        let step = Step::copy();
        let descriptor = &resolved.manifest.layers[number];
        let mut source =
            blob(&resolved.login.client, name, descriptor).await.map_err(|error| step.fault(&error))?.stream;
        let (sender, receiver) = mpsc::channel(AHEAD);
        let intake = Arc::clone(intake);
        let unpacking = blocking(move || intake.unpack(number, Feed::new(receiver), &expected));
        let feeding = async move {
            loop {
                let part = match source.next().await {
                    Some(Ok(bytes)) => Part::Bytes(bytes),
                    Some(Err(error)) => Part::Broken(step.broken(&error)),
                    None => Part::End,
                };
                let last = !matches!(part, Part::Bytes(_));
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
    name: &Name,
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
