//! Reads the credentials of a kubeconfig, and writes the kubeconfig of a bootstrapped node.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use k8s_openapi::ByteString;
use kube::config::{AuthInfo, Cluster};
use serde_json::json;

use crate::{
    ConfigError,
    client::read,
    csr::{CertificateStore, NodeCertificate},
};

/// How the current context of a kubeconfig authenticates.
#[derive(Clone, Debug, PartialEq)]
pub enum ClientCredential {
    /// The file does not exist.
    Missing,
    /// With a usable certificate.
    Certificate {
        /// The certificate and its key.
        pair: Box<NodeCertificate>,
        /// The file that holds the certificate, unless it is inline.
        file: Option<PathBuf>,
    },
    /// With a certificate that cannot be read or does not match its key.
    Damaged {
        /// What is wrong with it.
        reason: String,
    },
    /// With a token, a password or a program, or not at all.
    Other,
}

/// Reads how the current context of a kubeconfig authenticates.
pub fn client_credential(path: &Path) -> Result<ClientCredential, ConfigError> {
    match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(ClientCredential::Missing),
        _ => {}
    }
    let (_, user) = current_context(path)?;
    let certificate =
        inline_or_file(user.client_certificate_data.as_deref(), user.client_certificate.as_deref());
    let Some(certificate) = certificate else { return Ok(ClientCredential::Other) };
    let data = user.client_key_data.as_ref().map(secrecy::ExposeSecret::expose_secret);
    let Some(key) = inline_or_file(data, user.client_key.as_deref()) else {
        return Ok(ClientCredential::Damaged { reason: "there is no key for the certificate".to_owned() });
    };
    let pair = certificate.and_then(|certificate| {
        // One file may hold both.
        let pem = if certificate.contains("PRIVATE KEY") {
            certificate
        } else {
            format!("{certificate}\n{}", key?)
        };
        NodeCertificate::from_pem(&pem).map_err(|error| error.to_string())
    });
    Ok(match pair {
        Ok(pair) => ClientCredential::Certificate {
            pair: Box::new(pair),
            file: user
                .client_certificate
                .filter(|_| user.client_certificate_data.is_none())
                .map(PathBuf::from),
        },
        Err(reason) => ClientCredential::Damaged { reason },
    })
}

/// Writes a kubeconfig for the server of the kubeconfig `like`, which authenticates with a certificate file.
pub fn write(path: &Path, like: &Path, certificate: &Path) -> Result<(), ConfigError> {
    // Relative paths in `like` are relative to its own directory.
    let like = std::path::absolute(like)
        .map_err(|reason| ConfigError::Unreadable { path: like.to_owned(), reason })?;
    let (cluster, _) = current_context(&like)?;
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "node",
        "clusters": [{"name": "cluster", "cluster": cluster}],
        "users": [{"name": "node", "user": {"client-certificate": certificate, "client-key": certificate}}],
        "contexts": [{"name": "node", "context": {"cluster": "cluster", "user": "node"}}],
    });
    let unwritable = |reason: String| ConfigError::Unwritable { path: path.to_owned(), reason };
    CertificateStore::new(path)
        .write_text(&format!("{config:#}\n"))
        .map_err(|error| unwritable(error.to_string()))
}

/// The cluster and the user of the current context, with resolved paths.
fn current_context(path: &Path) -> Result<(Cluster, AuthInfo), ConfigError> {
    let config = read(path)?;
    let malformed = |reason: String| ConfigError::Malformed { path: path.to_owned(), reason };
    let name =
        config.current_context.clone().ok_or_else(|| malformed("there is no current-context".to_owned()))?;
    let context = config
        .contexts
        .iter()
        .find(|context| context.name == name)
        .and_then(|context| context.context.clone())
        .ok_or_else(|| malformed(format!("there is no context {name:?}")))?;
    let cluster = config
        .clusters
        .into_iter()
        .find(|cluster| cluster.name == context.cluster)
        .and_then(|cluster| cluster.cluster)
        .ok_or_else(|| malformed(format!("there is no cluster {:?}", context.cluster)))?;
    let user = context.user.unwrap_or_default();
    let user = config.auth_infos.into_iter().find(|info| info.name == user).and_then(|info| info.auth_info);
    Ok((cluster, user.unwrap_or_default()))
}

/// The inline data, or else the content of the file.
fn inline_or_file(data: Option<&str>, file: Option<&str>) -> Option<Result<String, String>> {
    if let Some(data) = data {
        let decoded = serde_json::from_value::<ByteString>(json!(data)).map_err(|error| error.to_string());
        return Some(
            decoded.and_then(|ByteString(bytes)| String::from_utf8(bytes).map_err(|error| error.to_string())),
        );
    }
    let file = file?;
    Some(fs::read_to_string(file).map_err(|error| format!("cannot read {file}: {error}")))
}

#[cfg(test)]
mod tests {
    use rcgen::KeyPair;

    use super::*;

    fn pair() -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::default().self_signed(&key).unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    fn config(folder: &Path, user: &serde_json::Value) -> PathBuf {
        let path = folder.join("config");
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "x",
            "clusters": [
                {"name": "other", "cluster": {"server": "https://other"}},
                {"name": "c", "cluster": {"server": "https://here", "certificate-authority": "ca.crt", "tls-server-name": "s"}},
            ],
            "users": [{"name": "u", "user": user}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        });
        fs::write(&path, config.to_string()).unwrap();
        path
    }

    #[test]
    fn the_credential_of_the_current_context_is_recognised() {
        let folder = tempfile::tempdir().unwrap();
        let (certificate, key) = pair();
        let (_, foreign) = pair();
        let pem = format!("{certificate}{key}");
        for (name, text) in [("crt", &certificate), ("key", &key), ("pem", &pem), ("foreign", &foreign)] {
            fs::write(folder.path().join(name), text).unwrap();
        }
        let data = |text: &str| json!(ByteString(text.as_bytes().to_vec()));
        let credential =
            |user: serde_json::Value| match client_credential(&config(folder.path(), &user)).unwrap() {
                ClientCredential::Certificate { file, .. } => format!("certificate {file:?}"),
                ClientCredential::Damaged { reason } => format!("damaged: {reason}"),
                other => format!("{other:?}"),
            };
        let file = |name: &str| format!("certificate {:?}", Some(folder.path().join(name)));
        assert_eq!(credential(json!({"client-certificate": "pem", "client-key": "pem"})), file("pem"));
        assert_eq!(credential(json!({"client-certificate": "crt", "client-key": "key"})), file("crt"));
        let both = json!({"client-certificate-data": data(&certificate), "client-key-data": data(&key)});
        assert_eq!(credential(both), "certificate None");
        assert_eq!(credential(json!({"token": "t"})), "Other");
        assert_eq!(credential(json!({})), "Other");
        for damaged in [
            json!({"client-certificate": "crt", "client-key": "foreign"}),
            json!({"client-certificate": "crt", "client-key": "nowhere"}),
            json!({"client-certificate": "nowhere", "client-key": "nowhere"}),
            json!({"client-certificate": "crt"}),
            json!({"client-certificate-data": "!", "client-key-data": "!"}),
        ] {
            assert!(credential(damaged.clone()).starts_with("damaged: "), "{damaged}");
        }
        assert_eq!(client_credential(&folder.path().join("missing")).unwrap(), ClientCredential::Missing);
        fs::write(folder.path().join("broken"), "clusters: [").unwrap();
        assert!(client_credential(&folder.path().join("broken")).unwrap_err().to_string().contains("broken"));
    }

    #[test]
    fn a_written_kubeconfig_has_the_server_of_the_template_and_a_certificate_file() {
        let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let like = config(folder.path(), &json!({"token": "hush"}));
        let (certificate, key) = pair();
        let pem = elsewhere.path().join("node.pem");
        fs::write(&pem, format!("{certificate}{key}")).unwrap();
        let path = elsewhere.path().join("deep/er/kubeconfig");
        write(&path, &like, &pem).unwrap();
        assert!(
            matches!(client_credential(&path).unwrap(), ClientCredential::Certificate { file: Some(file), .. } if file == pem)
        );
        let (cluster, _) = current_context(&path).unwrap();
        assert_eq!(cluster.server.as_deref(), Some("https://here"));
        assert_eq!(cluster.tls_server_name.as_deref(), Some("s"));
        // The path was relative to the template.
        assert_eq!(cluster.certificate_authority.as_deref(), folder.path().join("ca.crt").to_str());
        assert!(!fs::read_to_string(&path).unwrap().contains("hush"));
        let unwritable = write(Path::new("/proc/no/where"), &like, &pem).unwrap_err().to_string();
        assert!(unwritable.contains("/proc/no/where"), "{unwritable}");
    }
}
