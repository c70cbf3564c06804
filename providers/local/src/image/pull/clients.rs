//! Registry clients: one per registry and credentials, because a client caches tokens. With a shared client, a pod
//! without credentials could pull with a token from another pod's credentials.

use std::{collections::VecDeque, fmt, net::IpAddr, time::Duration};

use oci_client::{
    Client, Reference,
    client::{ClientConfig, ClientProtocol},
    secrets::RegistryAuth,
};
use parking_lot::Mutex;
use secrecy::ExposeSecret as _;
use vk_provider::resolve::PullCredentials;

use crate::image::{Digest, Error, Kind, Result, digest::Hasher};

/// Maximum number of clients to keep.
const MAX_CLIENTS: usize = 32;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout for a registry that sends nothing.
const READ_TIMEOUT: Duration = Duration::from_mins(1);

/// The most recently used clients.
pub(crate) struct RegistryClients {
    plain_http: Vec<String>,
    recent: Mutex<VecDeque<(ClientKey, Client)>>,
}

/// The key of a client. Only a digest of the credentials is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ClientKey {
    registry: String,
    credentials: Option<Digest>,
}

/// A client with the credentials to use.
pub(super) struct RegistryLogin {
    pub(super) client: Client,
    pub(super) auth: RegistryAuth,
    /// Whether the client may have cached tokens.
    pub(super) used: bool,
    key: ClientKey,
}

// === impl RegistryClients ===

impl RegistryClients {
    pub(crate) fn new(plain_http: Vec<String>) -> Self {
        Self { plain_http, recent: Mutex::default() }
    }

    pub(super) fn login(
        &self,
        image: &Reference,
        credentials: Option<&PullCredentials>,
    ) -> Result<RegistryLogin> {
        let registry = image.resolve_registry().to_owned();
        let auth = registry_auth(credentials)?;
        let key = ClientKey { registry, credentials: credentials.map(credentials_digest) };
        let mut recent = self.recent.lock();
        if let Some(place) = recent.iter().position(|(recent, _)| *recent == key) {
            // Move it to the end of the LRU list.
            if let Some(entry) = recent.remove(place) {
                recent.push_back(entry.clone());
                return Ok(RegistryLogin { client: entry.1, auth, used: true, key });
            }
        }
        let client = self.client(&key.registry)?;
        if recent.len() >= MAX_CLIENTS {
            recent.pop_front();
        }
        recent.push_back((key.clone(), client.clone()));
        Ok(RegistryLogin { client, auth, used: false, key })
    }

    /// Removes a client whose tokens were refused.
    pub(super) fn forget(&self, login: &RegistryLogin) {
        self.recent.lock().retain(|(recent, _)| *recent != login.key);
    }

    fn client(&self, registry: &str) -> Result<Client> {
        let plain = is_loopback(registry) || self.plain_http.iter().any(|recent| recent == registry);
        let config = ClientConfig {
            protocol: if plain { ClientProtocol::Http } else { ClientProtocol::Https },
            connect_timeout: Some(CONNECT_TIMEOUT),
            read_timeout: Some(READ_TIMEOUT),
            user_agent: concat!("virtual-kubelet/", env!("CARGO_PKG_VERSION")),
            ..ClientConfig::default()
        };
        Client::try_from(config).map_err(|why| {
            Error::new(Kind::Internal, format!("create a client for registry {registry}: {why}"))
        })
    }
}

impl fmt::Debug for RegistryClients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegistryClients").field("plain_http", &self.plain_http).finish_non_exhaustive()
    }
}

/// Whether a registry is on the loopback address, where plain HTTP is safe; as in containerd.
fn is_loopback(registry: &str) -> bool {
    let host = registry.rsplit_once(':').map_or(registry, |(host, _)| host);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn registry_auth(credentials: Option<&PullCredentials>) -> Result<RegistryAuth> {
    match credentials {
        None => Ok(RegistryAuth::Anonymous),
        Some(PullCredentials::Basic { username, password }) => {
            Ok(RegistryAuth::Basic(username.clone(), password.expose_secret().to_owned()))
        }
        Some(PullCredentials::RegistryToken(token)) => {
            Ok(RegistryAuth::Bearer(token.expose_secret().to_owned()))
        }
        Some(PullCredentials::IdentityToken(_)) => Err(Error::new(
            Kind::Denied,
            "the provider `local` does not support identity tokens: put a user name and a password into the pull secret",
        )),
    }
}

fn credentials_digest(credentials: &PullCredentials) -> Digest {
    // The lengths separate the parts unambiguously.
    let parts = match credentials {
        PullCredentials::Basic { username, password } => ["basic", username, password.expose_secret()],
        PullCredentials::IdentityToken(token) => ["identity", "", token.expose_secret()],
        PullCredentials::RegistryToken(token) => ["registry", "", token.expose_secret()],
    };
    let mut hasher = Hasher::new();
    for part in parts {
        hasher.update(&part.len().to_le_bytes());
        hasher.update(part.as_bytes());
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn basic(password: &str) -> PullCredentials {
        PullCredentials::Basic { username: "puller".into(), password: password.into() }
    }

    #[test]
    fn each_set_of_credentials_has_a_client_of_its_own() {
        let clients = RegistryClients::new(Vec::new());
        let image = Reference::try_from("127.0.0.1:5000/x:1").unwrap();
        let other = Reference::try_from("127.0.0.1:5001/x:1").unwrap();
        assert!(!clients.login(&image, None).unwrap().used);
        assert!(!clients.login(&image, Some(&basic("a"))).unwrap().used);
        assert!(!clients.login(&image, Some(&basic("b"))).unwrap().used);
        assert!(!clients.login(&other, Some(&basic("a"))).unwrap().used);
        assert!(clients.login(&image, Some(&basic("a"))).unwrap().used);
        assert!(clients.login(&image, None).unwrap().used);
        clients.forget(&clients.login(&image, Some(&basic("a"))).unwrap());
        assert!(!clients.login(&image, Some(&basic("a"))).unwrap().used);
    }

    #[test]
    fn the_number_of_clients_is_limited() {
        let clients = RegistryClients::new(Vec::new());
        let image = Reference::try_from("127.0.0.1:5000/x:1").unwrap();
        for number in 0..MAX_CLIENTS + 3 {
            clients.login(&image, Some(&basic(&number.to_string()))).unwrap();
        }
        assert_eq!(clients.recent.lock().len(), MAX_CLIENTS);
        assert!(!clients.login(&image, Some(&basic("0"))).unwrap().used);
    }

    #[test]
    fn only_loopback_registries_use_plain_http() {
        for near in ["localhost", "localhost:5000", "127.0.0.1:80", "127.9.9.9"] {
            assert!(is_loopback(near), "{near}");
        }
        for far in ["localhost.test:5000", "10.0.0.1:5000", "registry.test", "index.docker.io"] {
            assert!(!is_loopback(far), "{far}");
        }
    }

    #[test]
    fn an_identity_token_is_rejected_with_a_remedy() {
        let error = registry_auth(Some(&PullCredentials::IdentityToken("t".into()))).unwrap_err();
        assert_eq!(error.kind(), Kind::Denied);
        assert!(error.message().contains("user name and a password"));
    }
}
