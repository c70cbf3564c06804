//! Builds kubeconfig files and clients.

use k8s_openapi::ByteString;
use kube::config::AuthInfo;
use serde_json::{Value, json};

use crate::certs::Certificate;
use crate::error::{Error, Result};

/// The name of cluster, user and context; kubectl shows it as the current context.
const NAME: &str = "virtual-kubelet";

/// A kubeconfig with embedded certificates, as JSON, which is also YAML.
pub(crate) fn kubeconfig(url: &str, ca_pem: &str, identity: &Certificate) -> String {
    with_user(url, ca_pem, &user(identity))
}

/// A kubeconfig for any kind of user.
pub(crate) fn with_user(url: &str, ca_pem: &str, user: &Value) -> String {
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": NAME,
        "clusters": [{
            "name": NAME,
            "cluster": { "server": url, "certificate-authority-data": base64(ca_pem) },
        }],
        "users": [{ "name": NAME, "user": user }],
        "contexts": [{ "name": NAME, "context": { "cluster": NAME, "user": NAME } }],
    });
    format!("{config:#}\n")
}

/// A client with a client certificate. It is not built from a kubeconfig, because that would use a proxy from the environment.
pub(crate) fn client(url: &str, ca_pem: &str, identity: &Certificate) -> Result<kube::Client> {
    client_as(url, ca_pem, &user(identity))
}

/// A client for any kind of user.
pub(crate) fn client_as(url: &str, ca_pem: &str, user: &Value) -> Result<kube::Client> {
    // An error means that the process has already installed a provider.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let failed = |error: kube::Error| Error::api(format!("make a client for {url}"))(error);
    let url = url.parse::<http::Uri>().map_err(|error| failed(kube::Error::HttpError(error.into())))?;
    let mut config = kube::Config::new(url);
    config.root_cert = Some(vec![der(ca_pem)?]);
    config.auth_info = serde_json::from_value::<AuthInfo>(user.clone())
        .map_err(|error| failed(kube::Error::SerdeError(error)))?;
    kube::Client::try_from(config).map_err(failed)
}

fn user(identity: &Certificate) -> Value {
    json!({
        "client-certificate-data": base64(&identity.cert_pem),
        "client-key-data": base64(&identity.key_pem),
    })
}

/// `ByteString` serializes as base64.
fn base64(text: &str) -> Value {
    json!(ByteString(text.as_bytes().to_vec()))
}

fn der(pem: &str) -> Result<Vec<u8>> {
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;
    CertificateDer::from_pem_slice(pem.as_bytes())
        .map(|der| der.to_vec())
        .map_err(|_| Error::Certificate(rcgen::Error::CouldNotParseCertificate))
}
