//! The certificate with which kube-scheduler calls the extender, and the CAs that the extender accepts.

use std::{fmt, pin::pin};

use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose,
};
use tokio::sync::watch;
use vk_kube::{Client, Objects, WatchEvent};

use super::{
    SECRET,
    authority::{Authority, SigningAuthority, set_validity},
    ca_bundle::{self, CaBundleError},
    contents::Contents,
    maintainer::selector,
};

/// The common name in the certificate of kube-scheduler.
pub const SCHEDULER: &str = "virtual-kubelet-placement-scheduler";

/// A client certificate and its key, in PEM.
#[derive(Clone)]
pub struct ClientCertificate {
    /// The certificate.
    pub certificate: String,
    /// Its key. Whoever has it can call the extender.
    pub key: String,
}

/// Why there is no client certificate.
#[derive(Debug, thiserror::Error)]
pub enum ClientCertificateError {
    /// The Secret cannot be read, or has no CA.
    #[error(transparent)]
    Ca(#[from] CaBundleError),
    /// No CA in the Secret can issue certificates now.
    #[error(
        "no CA in the Secret {namespace}/{SECRET} can issue a certificate (its key is missing or does not match, or the clock of this host is \
         wrong): the process that leads placement repairs it; or name the files of your own CA and certificate"
    )]
    NoSigner {
        /// The namespace of placement.
        namespace: String,
    },
    /// The certificate cannot be generated.
    #[error("cannot generate a certificate: {0}")]
    Generate(#[from] rcgen::Error),
}

/// Issues a certificate with which kube-scheduler may call the extender. It reads it once, so it is valid as long as the CA: during a rotation the
/// next one, which servers trust already.
pub async fn client_certificate(
    client: &Client,
    namespace: &str,
    now: Timestamp,
) -> Result<ClientCertificate, ClientCertificateError> {
    let contents = ca_bundle::read(client, namespace).await?;
    let no_signer = || ClientCertificateError::NoSigner { namespace: namespace.to_owned() };
    Ok(ClientCertificate::issue(&signer(&contents, now).ok_or_else(no_signer)?)?)
}

/// Watches the Secret and sends the CAs, in PEM, in every process: of these are the clients that the extender accepts. `None` until there are
/// some. If the Secret is deleted or damaged, the last ones stay.
///
/// Runs forever. Cancel-safe.
pub async fn follow_cas(client: Client, namespace: String, cas: watch::Sender<Option<String>>) {
    let secrets = Objects::<Secret>::namespaced(client, &namespace);
    let mut events = pin!(secrets.watch(&selector(SECRET)));
    while let Some(event) = events.next().await {
        // What is wrong otherwise is logged where the leaf is followed.
        let WatchEvent::Applied(secret) = event else { continue };
        let Some(bundle) = ca_bundle::of_contents(&Contents::of(&secret)) else { continue };
        cas.send_if_modified(|current| current.replace(bundle.clone()).is_none_or(|before| before != bundle));
    }
}

/// The CA that is valid longest of those that can issue certificates.
fn signer(contents: &Contents, now: Timestamp) -> Option<SigningAuthority> {
    let bundle = Authority::parse_bundle(&contents.bundle);
    let find =
        |key: &str| SigningAuthority::find(&bundle, key).filter(|signer| signer.authority.is_valid(now));
    find(&contents.next_ca_key).or_else(|| find(&contents.ca_key))
}

// === impl ClientCertificate ===

impl ClientCertificate {
    fn issue(signer: &SigningAuthority) -> Result<Self, rcgen::Error> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, SCHEDULER);
        let Authority { not_before, not_after, .. } = signer.authority;
        set_validity(&mut params, not_before, not_after);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        // Only that: it must not be accepted as the certificate of a server.
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?;
        let certificate = params.signed_by(&key, &signer.issuer)?;
        Ok(Self { certificate: certificate.pem(), key: key.serialize_pem() })
    }
}

impl fmt::Debug for ClientCertificate {
    /// Omits the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientCertificate").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject as _};
    use vk_server::{auth::UserInfo, tls::client_ca::ClientCa};

    use super::{
        super::{
            CA_LIFETIME, LEAF_LIFETIME, ServedNames, after, before, days,
            leaf::Leaf,
            renewal::{Renewal, Target},
        },
        *,
    };

    fn start() -> Timestamp {
        "2026-11-19T06:00:00Z".parse().unwrap()
    }

    /// What the leader makes of these contents.
    fn renewed(current: Option<&Contents>, now: Timestamp) -> Contents {
        let names = ServedNames::of_service("infra");
        let target = Target { names: &names, now, bundle_is_published: true };
        Renewal::of(current, target).unwrap().unwrap().contents
    }

    fn issued(contents: &Contents, now: Timestamp) -> ClientCertificate {
        ClientCertificate::issue(&signer(contents, now).unwrap()).unwrap()
    }

    fn chain(pem: &str) -> Vec<CertificateDer<'static>> {
        CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<_, _>>().unwrap()
    }

    /// Whether an extender that trusts the CAs of the Secret accepts a client at this time.
    fn accepts(contents: &Contents, client: &str, now: Timestamp) -> Result<(), String> {
        let client_ca = ClientCa::default();
        client_ca.replace(ca_bundle::of_contents(contents).unwrap().as_bytes()).unwrap();
        client_ca.verify(&chain(client), now)
    }

    #[test]
    fn the_certificate_is_accepted_as_long_as_the_ca_is_valid() {
        let contents = renewed(None, start());
        let client = issued(&contents, start());
        let user = UserInfo::from_certificate(&chain(&client.certificate)[0]).unwrap();
        assert_eq!(user.name, SCHEDULER);
        let end = after(start(), CA_LIFETIME);
        for now in [start(), before(end, days(1))] {
            assert_eq!(accepts(&contents, &client.certificate, now), Ok(()), "{now}");
        }
        accepts(&contents, &client.certificate, after(end, days(1))).unwrap_err();
        accepts(&renewed(None, start()), &client.certificate, start()).unwrap_err();
        assert_ne!(issued(&contents, start()).key, client.key);
    }

    #[test]
    fn a_certificate_printed_during_a_rotation_is_accepted_after_it() {
        let first = renewed(None, start());
        let now = after(start(), CA_LIFETIME * 2 / 3);
        let (old, both) = (issued(&first, now), renewed(Some(&first), now));
        let client = issued(&both, now);
        for certificate in [&old, &client] {
            assert_eq!(accepts(&both, &certificate.certificate, now), Ok(()), "both CAs are trusted");
        }
        let end = after(now, CA_LIFETIME - LEAF_LIFETIME);
        let rotated = renewed(Some(&both), end);
        assert_eq!(accepts(&rotated, &client.certificate, end), Ok(()));
        accepts(&rotated, &old.certificate, end).unwrap_err();
    }

    #[test]
    fn clients_and_servers_cannot_take_each_others_place() {
        let contents = renewed(None, start());
        accepts(&contents, &contents.leaf, start()).unwrap_err();
        let client = issued(&contents, start());
        let name = ServerName::try_from("localhost").unwrap();
        let bundle = Authority::parse_bundle(&contents.bundle);
        Leaf::parse(&contents.leaf, &contents.leaf_key).unwrap().verify(&bundle, &name, start()).unwrap();
        let leaf = Leaf::parse(&client.certificate, &client.key).unwrap();
        leaf.verify(&bundle, &name, start()).unwrap_err();
    }

    #[test]
    fn a_ca_without_its_key_issues_nothing_and_debug_output_has_no_key() {
        let mut contents = renewed(None, start());
        let text = format!("{:?}", issued(&contents, start()));
        assert!(text.contains("BEGIN CERTIFICATE") && !text.contains("PRIVATE"), "{text}");
        assert!(signer(&contents, after(start(), CA_LIFETIME)).is_none(), "it has expired");
        contents.ca_key = renewed(None, start()).ca_key;
        assert!(signer(&contents, start()).is_none());
    }
}
