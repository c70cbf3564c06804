//! One request: made, and waited for until somebody has decided.

use std::{net::IpAddr, pin::pin, time::Duration};

use futures::StreamExt as _;
use k8s_openapi::{
    ByteString,
    api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use rand::{SeedableRng as _, rngs::StdRng};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PublicKeyData as _, SanType};
use rustls::pki_types::{CertificateSigningRequestDer, pem::PemObject as _};
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep_until},
};
use tracing::{info, warn};
use vk_supervisor::{Backoff, Clock};

use super::{
    CertificateSpec, Error, Pair, Store,
    pair::{Names, ORGANIZATION},
};
use crate::{Client, Kind, Objects, Selector, WatchEvent};

/// How long a request may be undecided before people are told what to do: the controller manager decides within a second.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often they are told again.
const REMINDER: Duration = Duration::from_mins(15);
/// How often an undecided request is read beside the watch, which might have missed something.
const LOOK: Duration = Duration::from_mins(1);
/// The first one where it is not watched; later ones come as seldom as beside a watch.
const FIRST_LOOK: Duration = Duration::from_secs(1);
/// Enough of a key to tell it from all others.
const FINGERPRINT: usize = 10;

/// A watch is a connection, and a process with a thousand nodes may wait for somebody to approve a thousand certificates: some
/// are watched, and the others are read now and then.
static WATCHES: Semaphore = Semaphore::const_new(10);

/// A request that the API server has.
struct Request {
    objects: Objects<CertificateSigningRequest>,
    name: String,
    uid: String,
    node: String,
    signer: &'static str,
}

/// Asks for a certificate, waits for as long as it takes until somebody has decided, and stores what was issued. `tell` gets
/// the name of the request as soon as it is there.
///
/// This can be dropped at any time and begun again: the request that is under way is found by its key.
pub async fn obtain(
    client: &Client,
    wanted: &CertificateSpec,
    store: &Store,
    clock: &Clock,
    mut tell: impl FnMut(&str) + Send,
) -> Result<Pair, Error> {
    let mut key = stored_key(store)?;
    let request = loop {
        match Request::send(client, wanted, &key).await {
            // Made with this key for other names.
            Err(Error::Taken { .. }) => key = fresh_key(store)?,
            sent => break sent?,
        }
    };
    tell(&request.name);
    let issued = request.decided().await;
    if matches!(&issued, Err(Error::Denied { .. } | Error::Failed { .. } | Error::Gone { .. })) {
        // The next attempt is another request.
        store.forget_key()?;
    }
    let pair = fitting(&request.name, &issued?, &key, wanted, clock);
    if pair.is_err() {
        store.forget_key()?;
    }
    let pair = pair?;
    store.save(&pair)?;
    info!(request = request.name, until = %pair.not_after(), "a {} certificate was issued", wanted.signer.word());
    Ok(pair)
}

fn stored_key(store: &Store) -> Result<KeyPair, Error> {
    match store.key()?.map(|pem| KeyPair::from_pem(&pem)) {
        Some(Ok(key)) => Ok(key),
        // Damaged, or none.
        _ => fresh_key(store),
    }
}

fn fresh_key(store: &Store) -> Result<KeyPair, Error> {
    let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).map_err(|error| unmade(&error))?;
    store.save_key(&key.serialize_pem())?;
    Ok(key)
}

fn unmade(error: &rcgen::Error) -> Error {
    Error::Unmade { reason: error.to_string() }
}

/// The certificate with its key, if it is what was asked for.
fn fitting(
    name: &str,
    issued: &str,
    key: &KeyPair,
    wanted: &CertificateSpec,
    clock: &Clock,
) -> Result<Pair, Error> {
    let unfit = |reason: String| Error::Unfit { name: name.to_owned(), reason };
    let separator = if issued.ends_with('\n') { "" } else { "\n" };
    let pair = Pair::from_pem(&format!("{issued}{separator}{}", key.serialize_pem()))
        .map_err(|error| unfit(error.to_string()))?;
    if let Some(lack) = pair.lacks(wanted) {
        return Err(unfit(lack));
    }
    let now = clock.now();
    if pair.expired(now) {
        let (from, until) = (pair.not_before(), pair.not_after());
        return Err(unfit(format!(
            "it is valid from {from} to {until}, and the clock of this machine shows {now}: set the clock"
        )));
    }
    if now < pair.not_before() {
        // Others judge it by their own clocks, so it may be good all the same.
        warn!(from = %pair.not_before(), clock = %now, "the certificate is not valid yet by the clock of this machine: set the clock");
    }
    Ok(pair)
}

// === impl Request ===

impl Request {
    /// Creates the request, or finds the one that is there for this key.
    async fn send(client: &Client, wanted: &CertificateSpec, key: &KeyPair) -> Result<Self, Error> {
        // A request is nobody's lease.
        let objects: Objects<CertificateSigningRequest> = Objects::cluster(client.unfenced());
        let name = name(wanted, key);
        let object = object(&name, wanted, key)?;
        let api = |operation| move |error| Error::Api { operation, error };
        // Never closed; and there may be a thousand of us.
        let turn = client.write_limiter().acquire_owned().await;
        let created = objects.create(&object).await;
        drop(turn);
        let there = match created {
            Ok(created) => created,
            Err(error) if error.kind == Kind::AlreadyExists => {
                let there = objects.get(&name).await.map_err(api("read"))?;
                if !asks_for(&there, wanted, key) {
                    return Err(Error::Taken { name });
                }
                info!(request = name, "the request from before is there still: waiting for that");
                there
            }
            Err(error) => return Err(api("create")(error)),
        };
        let uid = there.metadata.uid.unwrap_or_default();
        Ok(Self { objects, name, uid, node: wanted.node.clone(), signer: wanted.signer.name() })
    }

    /// What was issued, in PEM. Waits for as long as it takes.
    async fn decided(&self) -> Result<String, Error> {
        let selector = Selector { fields: Some(format!("metadata.name={}", self.name)), labels: None };
        let mut changes = pin!(self.objects.watch(&selector));
        let permit = WATCHES.try_acquire();
        let mut watching = permit.is_ok();
        let mut backoff = Backoff::new(FIRST_LOOK, LOOK);
        let mut rng = StdRng::from_rng(&mut rand::rng());
        let mut look = Instant::now() + if watching { LOOK } else { backoff.next(None, &mut rng) };
        let mut remind = Instant::now() + PATIENCE;
        loop {
            let seen = tokio::select! {
                change = changes.next(), if watching => match change {
                    Some(WatchEvent::Applied(object)) => Some(object),
                    Some(WatchEvent::Deleted(object)) if self.is(&object) => return Err(self.gone()),
                    Some(WatchEvent::Error(error)) => {
                        match error.kind {
                            Kind::Unauthorized => return Err(Error::Api { operation: "watch", error }),
                            // Whoever may not watch may be allowed to read.
                            Kind::Forbidden => {
                                watching = false;
                                look = Instant::now();
                            }
                            _ => {}
                        }
                        None
                    }
                    Some(_) => None,
                    None => {
                        watching = false;
                        None
                    }
                },
                () = sleep_until(look) => {
                    look = Instant::now() + if watching { LOOK } else { backoff.next(None, &mut rng) };
                    self.look().await?
                }
                () = sleep_until(remind) => {
                    remind = Instant::now() + REMINDER;
                    warn!(
                        node = self.node, request = self.name, signer = self.signer,
                        "nobody has decided about our certificate: somebody must run `kubectl certificate approve {}`", self.name
                    );
                    None
                }
            };
            if let Some(issued) = seen.map(|object| self.verdict(&object)).transpose()?.flatten() {
                return Ok(issued);
            }
        }
    }

    /// The request as it is, unless the API server cannot be asked at the moment.
    async fn look(&self) -> Result<Option<CertificateSigningRequest>, Error> {
        match self.objects.get(&self.name).await {
            Ok(object) => Ok(Some(object)),
            Err(error) if error.kind == Kind::NotFound => Err(self.gone()),
            Err(error) if matches!(error.kind, Kind::Forbidden | Kind::Unauthorized) => {
                Err(Error::Api { operation: "read", error })
            }
            Err(_) => Ok(None),
        }
    }

    fn verdict(&self, object: &CertificateSigningRequest) -> Result<Option<String>, Error> {
        if !self.is(object) {
            return Err(self.gone());
        }
        let Some(status) = &object.status else { return Ok(None) };
        for condition in status.conditions.iter().flatten() {
            let name = self.name.clone();
            let said = [&condition.reason, &condition.message];
            let reason =
                said.into_iter().flatten().filter(|text| !text.is_empty()).cloned().collect::<Vec<_>>();
            let reason = if reason.is_empty() { "no reason was given".to_owned() } else { reason.join(": ") };
            match condition.type_.as_str() {
                "Denied" => return Err(Error::Denied { name, reason }),
                "Failed" => return Err(Error::Failed { name, reason }),
                _ => {}
            }
        }
        let issued = status.certificate.as_ref().filter(|issued| !issued.0.is_empty());
        issued
            .map(|ByteString(pem)| {
                String::from_utf8(pem.clone())
                    .map_err(|_| Error::Unfit { name: self.name.clone(), reason: "it is not PEM".to_owned() })
            })
            .transpose()
    }

    fn is(&self, object: &CertificateSigningRequest) -> bool {
        object.metadata.uid.as_deref() == Some(&self.uid)
    }

    fn gone(&self) -> Error {
        Error::Gone { name: self.name.clone() }
    }
}

/// A name that people recognise, and that the same key finds again.
fn name(wanted: &CertificateSpec, key: &KeyPair) -> String {
    use std::fmt::Write as _;
    let mut name: String = wanted.node.chars().take(200).collect();
    name.push('-');
    name.push_str(wanted.signer.word());
    name.push('-');
    let raw = key.public_key_raw();
    for byte in &raw[raw.len().saturating_sub(FINGERPRINT)..] {
        // Writing to a string cannot fail.
        let _ = write!(name, "{byte:02x}");
    }
    name
}

fn object(name: &str, wanted: &CertificateSpec, key: &KeyPair) -> Result<CertificateSigningRequest, Error> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, ORGANIZATION);
    params.distinguished_name.push(DnType::CommonName, wanted.user());
    for name in &wanted.names {
        let name = name.as_str().try_into().map_err(|error| unmade(&error))?;
        params.subject_alt_names.push(SanType::DnsName(name));
    }
    params
        .subject_alt_names
        .extend(wanted.addresses.iter().map(|address: &IpAddr| SanType::IpAddress(*address)));
    let request =
        params.serialize_request(key).and_then(|request| request.pem()).map_err(|error| unmade(&error))?;
    let seconds = wanted.lifetime.map(|lifetime| i32::try_from(lifetime.as_secs()).unwrap_or(i32::MAX));
    Ok(CertificateSigningRequest {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        spec: CertificateSigningRequestSpec {
            request: ByteString(request.into_bytes()),
            signer_name: wanted.signer.name().to_owned(),
            usages: Some(wanted.signer.usages().map(str::to_owned).to_vec()),
            expiration_seconds: seconds,
            ..CertificateSigningRequestSpec::default()
        },
        status: None,
    })
}

/// Whether a request that is there is for this key and these names.
fn asks_for(object: &CertificateSigningRequest, wanted: &CertificateSpec, key: &KeyPair) -> bool {
    let Ok(der) = CertificateSigningRequestDer::from_pem_slice(&object.spec.request.0) else { return false };
    let Some((names, public_key)) = Names::of_request(&der) else { return false };
    object.spec.signer_name == wanted.signer.name()
        && public_key == key.subject_public_key_info()
        && names.lack(wanted).is_none()
}
