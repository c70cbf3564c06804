//! Certificate authorities and keys of a control plane.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, date_time_ymd,
};

use crate::error::{Error, Result};

/// The object identifier of an organisation in a distinguished name.
const ORGANIZATION: [u64; 4] = [2, 5, 4, 10];

/// A certificate and its key, both as PEM.
#[derive(Clone)]
pub struct Certificate {
    /// The certificate.
    pub cert_pem: String,
    /// The private key, PKCS#8.
    pub key_pem: String,
}

/// A certificate authority and its files in the data folder.
pub(crate) struct Authority {
    cert_pem: String,
    issuer: Issuer<'static, KeyPair>,
    pub(crate) cert_file: PathBuf,
    pub(crate) key_file: PathBuf,
}

/// The files of a certificate and its key.
#[derive(Debug, Clone)]
pub(crate) struct Files {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
}

/// All authorities and keys. They survive a restart with the same data folder, so that certificates, kubeconfigs and tokens that were
/// issued before stay valid.
pub(crate) struct Pki {
    folder: PathBuf,
    /// Signs certificates of clients, servers and kubelets. The controller-manager signs with it too, so kubelet serving certificates
    /// that it issues are trusted.
    pub(crate) cluster: Authority,
    /// Separate from `cluster`: otherwise every client could claim to be the aggregator.
    pub(crate) front_proxy: Authority,
    pub(crate) service_account_key: PathBuf,
    pub(crate) service_account_public: PathBuf,
}

// === impl Pki ===

impl Pki {
    pub(crate) fn open(folder: &Path) -> Result<Self> {
        std::fs::create_dir_all(folder).map_err(Error::file("make", folder))?;
        let service_account_key = folder.join("service-account.key");
        let service_account_public = folder.join("service-account.pub");
        let key = load_or_generate_key(&service_account_key)?;
        if !service_account_public.exists() {
            write(&service_account_public, &key.public_key_pem())?;
        }
        Ok(Self {
            cluster: Authority::open(folder, "ca", "virtual-kubelet development cluster")?,
            front_proxy: Authority::open(folder, "front-proxy-ca", "virtual-kubelet front proxy")?,
            folder: folder.to_owned(),
            service_account_key,
            service_account_public,
        })
    }

    /// Writes a certificate and its key to files for a component.
    pub(crate) fn store(&self, name: &str, certificate: &Certificate) -> Result<Files> {
        let files = Files {
            cert: self.folder.join(format!("{name}.crt")),
            key: self.folder.join(format!("{name}.key")),
        };
        write(&files.cert, &certificate.cert_pem)?;
        write(&files.key, &certificate.key_pem)?;
        Ok(files)
    }
}

// === impl Authority ===

impl Authority {
    fn open(folder: &Path, file: &str, name: &str) -> Result<Self> {
        let cert_file = folder.join(format!("{file}.crt"));
        let key_file = folder.join(format!("{file}.key"));
        let key = load_or_generate_key(&key_file)?;
        let mut params = params(name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages =
            vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
        // The same key gives the same name and key identifier, so a certificate issued again would also verify; the file is kept because
        // clients may compare bytes.
        let cert_pem = if let Ok(pem) = std::fs::read_to_string(&cert_file) {
            pem
        } else {
            let pem = params.self_signed(&key).map_err(Error::Certificate)?.pem();
            write(&cert_file, &pem)?;
            pem
        };
        Ok(Self { cert_pem, issuer: Issuer::new(params, key), cert_file, key_file })
    }

    pub(crate) fn cert_pem(&self) -> &str {
        &self.cert_pem
    }

    /// Issues a client certificate. Kubernetes reads the user from the common name and the groups from the organisations.
    pub(crate) fn client(&self, user: &str, groups: &[&str]) -> Result<Certificate> {
        let mut params = params(user);
        // rcgen keeps one value per attribute type; the custom spelling of the type allows a second one.
        let types = [DnType::OrganizationName, DnType::CustomDnType(ORGANIZATION.to_vec())];
        if groups.len() > types.len() {
            return Err(Error::TooManyGroups(groups.len()));
        }
        for (organization, group) in types.into_iter().zip(groups) {
            params.distinguished_name.push(organization, *group);
        }
        self.issue(params, ExtendedKeyUsagePurpose::ClientAuth)
    }

    /// Issues a client certificate that has expired.
    pub(crate) fn expired_client(&self, user: &str) -> Result<Certificate> {
        let mut params = params(user);
        params.not_after = date_time_ymd(2021, 1, 1);
        self.issue(params, ExtendedKeyUsagePurpose::ClientAuth)
    }

    /// Issues a serving certificate for host names and IP addresses.
    pub(crate) fn serving(&self, common_name: &str, names: &[String]) -> Result<Certificate> {
        let mut with_names = CertificateParams::new(names).map_err(Error::Certificate)?;
        let mut params = params(common_name);
        params.subject_alt_names = std::mem::take(&mut with_names.subject_alt_names);
        self.issue(params, ExtendedKeyUsagePurpose::ServerAuth)
    }

    fn issue(&self, mut params: CertificateParams, usage: ExtendedKeyUsagePurpose) -> Result<Certificate> {
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().map_err(Error::Certificate)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(Error::Certificate)?;
        Ok(Certificate { cert_pem: certificate.pem(), key_pem: key.serialize_pem() })
    }
}

// Keeps the key out of logs.
impl std::fmt::Debug for Certificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Certificate").field("cert_pem", &self.cert_pem).finish_non_exhaustive()
    }
}

/// Certificate parameters with a validity that covers any test.
fn params(common_name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(2099, 1, 1);
    params
}

fn load_or_generate_key(path: &Path) -> Result<KeyPair> {
    if let Ok(pem) = std::fs::read_to_string(path) {
        return KeyPair::from_pem(&pem).map_err(Error::Certificate);
    }
    let key = KeyPair::generate().map_err(Error::Certificate)?;
    write(path, &key.serialize_pem())?;
    Ok(key)
}

/// Writes a file that only its owner may read.
pub(crate) fn write(path: &Path, text: &str) -> Result<()> {
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .map_err(Error::file("write", path))?;
    file.write_all(text.as_bytes()).map_err(Error::file("write", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authorities_and_keys_survive_a_second_opening() {
        let folder = tempfile::tempdir().unwrap();
        let first = Pki::open(folder.path()).unwrap();
        let key = std::fs::read_to_string(&first.service_account_key).unwrap();
        let second = Pki::open(folder.path()).unwrap();
        assert_eq!(first.cluster.cert_pem(), second.cluster.cert_pem());
        assert_ne!(first.cluster.cert_pem(), first.front_proxy.cert_pem());
        assert_eq!(key, std::fs::read_to_string(&second.service_account_key).unwrap());
    }

    #[test]
    fn a_third_group_is_refused_rather_than_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let pki = Pki::open(folder.path()).unwrap();
        assert!(pki.cluster.client("user", &["a", "b"]).is_ok());
        assert!(matches!(pki.cluster.client("user", &["a", "b", "c"]), Err(Error::TooManyGroups(3))));
    }
}
