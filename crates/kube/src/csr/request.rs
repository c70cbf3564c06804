//! One signing request: creates it and waits until it is approved or denied.

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
    CertificateSpec, CertificateStore, Error, NodeCertificate,
    certificate::{ORGANIZATION, SubjectNames},
};
use crate::{Client, Kind, Objects, Selector, WatchEvent};

/// How long a request may be undecided before the log says what to do. The controller manager decides within a second.
const FIRST_REMINDER: Duration = Duration::from_secs(5);
/// How often the log repeats it.
const REMINDER_PERIOD: Duration = Duration::from_mins(15);
/// How often an undecided request is read in addition to the watch, which might have missed an event.
const REREAD_PERIOD: Duration = Duration::from_mins(1);
/// The first read of a request that is not watched; the interval grows to `REREAD_PERIOD`.
const FIRST_REREAD: Duration = Duration::from_secs(1);
/// Bytes of the public key in the request's name.
const FINGERPRINT_BYTES: usize = 10;

/// Limits concurrent watches. Each takes a connection, and a process with a thousand nodes may wait for the approval of a thousand
/// certificates: the others are only read periodically.
static WATCHES: Semaphore = Semaphore::const_new(10);

/// A request that exists in the API server.
struct PendingRequest {
    objects: Objects<CertificateSigningRequest>,
    name: String,
    uid: String,
    node: String,
    signer: &'static str,
}

/// Requests a certificate, waits until the request is decided however long that takes, and stores what was issued. `on_created`
/// gets the name of the request once it exists.
///
/// Cancel-safe: a later call finds the pending request by its key.
pub async fn obtain(
    client: &Client,
    spec: &CertificateSpec,
    store: &CertificateStore,
    clock: &Clock,
    mut on_created: impl FnMut(&str) + Send,
) -> Result<NodeCertificate, Error> {
    let mut key = stored_key(store)?;
    let request = loop {
        match PendingRequest::create_or_find(client, spec, &key).await {
            // A request with this key exists for other names.
            Err(Error::NameTaken { .. }) => key = new_key(store)?,
            sent => break sent?,
        }
    };
    on_created(&request.name);
    let issued = request.wait_for_decision().await;
    if matches!(&issued, Err(Error::Denied { .. } | Error::Failed { .. } | Error::Deleted { .. })) {
        // The next attempt creates another request.
        store.remove_key()?;
    }
    let certificate = check_issued(&request.name, &issued?, &key, spec, clock);
    if certificate.is_err() {
        store.remove_key()?;
    }
    let certificate = certificate?;
    store.save(&certificate)?;
    info!(request = request.name, until = %certificate.not_after(), "a {} certificate was issued", spec.signer.purpose());
    Ok(certificate)
}

fn stored_key(store: &CertificateStore) -> Result<KeyPair, Error> {
    match store.key()?.map(|pem| KeyPair::from_pem(&pem)) {
        Some(Ok(key)) => Ok(key),
        // Damaged or missing.
        _ => new_key(store),
    }
}

fn new_key(store: &CertificateStore) -> Result<KeyPair, Error> {
    let key =
        KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).map_err(|error| generate_error(&error))?;
    store.save_key(&key.serialize_pem())?;
    Ok(key)
}

fn generate_error(error: &rcgen::Error) -> Error {
    Error::Generate { reason: error.to_string() }
}

/// Checks the issued certificate and adds the key.
fn check_issued(
    name: &str,
    issued: &str,
    key: &KeyPair,
    spec: &CertificateSpec,
    clock: &Clock,
) -> Result<NodeCertificate, Error> {
    let unusable = |reason: String| Error::Unusable { name: name.to_owned(), reason };
    let separator = if issued.ends_with('\n') { "" } else { "\n" };
    let certificate = NodeCertificate::from_pem(&format!("{issued}{separator}{}", key.serialize_pem()))
        .map_err(|error| unusable(error.to_string()))?;
    if let Some(mismatch) = certificate.mismatch(spec) {
        return Err(unusable(mismatch));
    }
    let now = clock.now();
    if certificate.is_expired(now) {
        let (from, until) = (certificate.not_before(), certificate.not_after());
        return Err(unusable(format!(
            "it is valid from {from} to {until}, and the clock of this host shows {now}: set the clock"
        )));
    }
    if now < certificate.not_before() {
        // Others check it by their own clocks, so it may still work.
        warn!(from = %certificate.not_before(), clock = %now, "the certificate is not valid yet by the clock of this host: set the clock");
    }
    Ok(certificate)
}

// === impl PendingRequest ===

impl PendingRequest {
    /// Creates the request, or finds the existing one for this key.
    async fn create_or_find(client: &Client, spec: &CertificateSpec, key: &KeyPair) -> Result<Self, Error> {
        // Signing requests do not depend on the node's lease.
        let objects: Objects<CertificateSigningRequest> = Objects::all(client.unfenced());
        let name = name(spec, key);
        let object = object(&name, spec, key)?;
        let api = |operation| move |error| Error::Api { operation, error };
        // The semaphore is never closed. A thousand nodes may create requests at once.
        let permit = client.write_limiter().acquire_owned().await;
        let created = objects.create(&object).await;
        drop(permit);
        let existing = match created {
            Ok(created) => created,
            Err(error) if error.kind == Kind::AlreadyExists => {
                let existing = objects.get(&name).await.map_err(api("read"))?;
                if !matches_spec(&existing, spec, key) {
                    return Err(Error::NameTaken { name });
                }
                info!(request = name, "waiting for the existing request");
                existing
            }
            Err(error) => return Err(api("create")(error)),
        };
        let uid = existing.metadata.uid.unwrap_or_default();
        Ok(Self { objects, name, uid, node: spec.node.clone(), signer: spec.signer.name() })
    }

    /// Waits until the request is decided, however long that takes, and returns the certificate in PEM.
    async fn wait_for_decision(&self) -> Result<String, Error> {
        let selector = Selector { fields: Some(format!("metadata.name={}", self.name)), labels: None };
        let mut changes = pin!(self.objects.watch(&selector));
        let permit = WATCHES.try_acquire();
        let mut watching = permit.is_ok();
        let mut backoff = Backoff::new(FIRST_REREAD, REREAD_PERIOD);
        let mut rng = StdRng::from_rng(&mut rand::rng());
        let mut reread = Instant::now() + if watching { REREAD_PERIOD } else { backoff.next(None, &mut rng) };
        let mut remind = Instant::now() + FIRST_REMINDER;
        loop {
            let seen = tokio::select! {
                change = changes.next(), if watching => match change {
                    Some(WatchEvent::Applied(object)) => Some(object),
                    Some(WatchEvent::Deleted(object)) if self.is_same(&object) => return Err(self.deleted_error()),
                    Some(WatchEvent::Error(error)) => {
                        match error.kind {
                            Kind::Unauthorized => return Err(Error::Api { operation: "watch", error }),
                            // Without the right to watch there may still be the right to get.
                            Kind::Forbidden => {
                                watching = false;
                                reread = Instant::now();
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
                () = sleep_until(reread) => {
                    reread = Instant::now() + if watching { REREAD_PERIOD } else { backoff.next(None, &mut rng) };
                    self.reread().await?
                }
                () = sleep_until(remind) => {
                    remind = Instant::now() + REMINDER_PERIOD;
                    warn!(
                        node = self.node, request = self.name, signer = self.signer,
                        "the certificate request is pending: to approve it, run `kubectl certificate approve {}`", self.name
                    );
                    None
                }
            };
            if let Some(issued) = seen.map(|object| self.decision(&object)).transpose()?.flatten() {
                return Ok(issued);
            }
        }
    }

    /// Reads the request. `None` if the API server is unavailable.
    async fn reread(&self) -> Result<Option<CertificateSigningRequest>, Error> {
        match self.objects.get(&self.name).await {
            Ok(object) => Ok(Some(object)),
            Err(error) if error.kind == Kind::NotFound => Err(self.deleted_error()),
            Err(error) if matches!(error.kind, Kind::Forbidden | Kind::Unauthorized) => {
                Err(Error::Api { operation: "read", error })
            }
            Err(_) => Ok(None),
        }
    }

    fn decision(&self, object: &CertificateSigningRequest) -> Result<Option<String>, Error> {
        if !self.is_same(object) {
            return Err(self.deleted_error());
        }
        let Some(status) = &object.status else { return Ok(None) };
        for condition in status.conditions.iter().flatten() {
            let name = self.name.clone();
            let texts = [&condition.reason, &condition.message];
            let reason =
                texts.into_iter().flatten().filter(|text| !text.is_empty()).cloned().collect::<Vec<_>>();
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
                String::from_utf8(pem.clone()).map_err(|_| Error::Unusable {
                    name: self.name.clone(),
                    reason: "it is not PEM".to_owned(),
                })
            })
            .transpose()
    }

    fn is_same(&self, object: &CertificateSigningRequest) -> bool {
        object.metadata.uid.as_deref() == Some(&self.uid)
    }

    fn deleted_error(&self) -> Error {
        Error::Deleted { name: self.name.clone() }
    }
}

/// A name that people recognise and that is the same for the same key.
fn name(spec: &CertificateSpec, key: &KeyPair) -> String {
    use std::fmt::Write as _;
    let mut name: String = spec.node.chars().take(200).collect();
    name.push('-');
    name.push_str(spec.signer.purpose());
    name.push('-');
    let raw = key.public_key_raw();
    for byte in &raw[raw.len().saturating_sub(FINGERPRINT_BYTES)..] {
        // Writing to a string cannot fail.
        let _ = write!(name, "{byte:02x}");
    }
    name
}

fn object(name: &str, spec: &CertificateSpec, key: &KeyPair) -> Result<CertificateSigningRequest, Error> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, ORGANIZATION);
    params.distinguished_name.push(DnType::CommonName, spec.user());
    for name in &spec.names {
        let name = name.as_str().try_into().map_err(|error| generate_error(&error))?;
        params.subject_alt_names.push(SanType::DnsName(name));
    }
    params
        .subject_alt_names
        .extend(spec.addresses.iter().map(|address: &IpAddr| SanType::IpAddress(*address)));
    let request = params
        .serialize_request(key)
        .and_then(|request| request.pem())
        .map_err(|error| generate_error(&error))?;
    let seconds = spec.lifetime.map(|lifetime| i32::try_from(lifetime.as_secs()).unwrap_or(i32::MAX));
    Ok(CertificateSigningRequest {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        spec: CertificateSigningRequestSpec {
            request: ByteString(request.into_bytes()),
            signer_name: spec.signer.name().to_owned(),
            usages: Some(spec.signer.usages().map(str::to_owned).to_vec()),
            expiration_seconds: seconds,
            ..CertificateSigningRequestSpec::default()
        },
        status: None,
    })
}

/// Whether an existing request is for this key and these names.
fn matches_spec(object: &CertificateSigningRequest, spec: &CertificateSpec, key: &KeyPair) -> bool {
    let Ok(der) = CertificateSigningRequestDer::from_pem_slice(&object.spec.request.0) else { return false };
    let Some((names, public_key)) = SubjectNames::of_request(&der) else { return false };
    object.spec.signer_name == spec.signer.name()
        && public_key == key.subject_public_key_info()
        && names.mismatch(spec).is_none()
}
