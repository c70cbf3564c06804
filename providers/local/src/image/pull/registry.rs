//! A client of registries. A registry is untrusted: every answer has a size and a time limit.

mod challenge;
mod error;
mod tokens;

use std::{net::IpAddr, sync::OnceLock, time::Duration};

use oci_spec::distribution::Reference;
use reqwest::{
    Response, StatusCode, Url,
    header::{ACCEPT, AUTHORIZATION, HeaderValue},
    redirect::Policy,
};
use secrecy::ExposeSecret as _;
use serde::Deserialize;
use vk_pod_engine::image::credentials_hash;
use vk_provider::resolve::{PullCredentials, RegistryLogin};

use self::{
    challenge::Challenge,
    error::without_query,
    tokens::{Authorization, TokenCache, TokenCaches},
};
pub(super) use self::{error::RegistryError, tokens::RegistryKey};
use crate::image::{Digest, Error, Kind, Result, manifest::ACCEPTED_MEDIA_TYPES};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout for a registry that sends nothing.
const READ_TIMEOUT: Duration = Duration::from_mins(1);
/// How often a request is redirected.
const MAX_REDIRECTS: usize = 10;
/// How the URL of a registry with TLS begins.
const HTTPS: &str = "https://";
/// Maximum size of an answer with a token.
const MAX_TOKEN_BYTES: u64 = 64 * 1024;

/// The registries that images are pulled from.
#[derive(Debug)]
pub(crate) struct Registries {
    plain_http: Vec<String>,
    document_time: Duration,
    /// Created on first use, because it reads the certificates of the host.
    http: OnceLock<reqwest::Client>,
    tokens: TokenCaches,
}

/// A registry, with the credentials of one pull.
pub(super) struct Registry<'a> {
    http: reqwest::Client,
    /// Scheme and host.
    base: String,
    login: Option<&'a RegistryLogin>,
    tokens: TokenCache,
    document_time: Duration,
    pub(super) key: RegistryKey,
}

/// A blob that is being received.
pub(super) struct Blob(Response);

/// The answer of a token server.
#[derive(Deserialize)]
struct TokenAnswer {
    token: Option<String>,
    /// The same by the name that OAuth has for it. Many servers send both.
    access_token: Option<String>,
}

// === impl Registries ===

impl Registries {
    /// Uses plain HTTP for these registries and those on the loopback address. A document must be complete in
    /// `document_time`.
    pub(crate) fn new(plain_http: Vec<String>, document_time: Duration) -> Self {
        Self { plain_http, document_time, http: OnceLock::new(), tokens: TokenCaches::default() }
    }

    /// The registry of an image.
    pub(super) fn of<'a>(
        &self,
        image: &Reference,
        credentials: Option<&'a PullCredentials>,
    ) -> Result<Registry<'a>> {
        let login = credentials.map(|credentials| &credentials.login);
        if matches!(login, Some(RegistryLogin::IdentityToken(_))) {
            return Err(Error::new(
                Kind::Denied,
                "the provider `local` does not support identity tokens: put a user name and a password into the pull secret",
            ));
        }
        let host = image.resolve_registry();
        let plain = is_loopback(host) || self.plain_http.iter().any(|plain| plain == host);
        let base = format!("{}{host}", if plain { "http://" } else { HTTPS });
        let key = RegistryKey { host: host.to_owned(), credentials: credentials.map(credentials_hash) };
        let (http, tokens) = (self.http()?, self.tokens.of(&key));
        Ok(Registry { http, base, login, tokens, document_time: self.document_time, key })
    }

    fn http(&self) -> Result<reqwest::Client> {
        if let Some(client) = self.http.get() {
            return Ok(client.clone());
        }
        let builder = reqwest::Client::builder()
            .user_agent(concat!("virtual-kubelet/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(READ_TIMEOUT)
            // It would contain the query.
            .referer(false)
            .redirect(Policy::custom(|attempt| match check_redirect(attempt.previous(), attempt.url()) {
                Ok(()) => attempt.follow(),
                Err(why) => attempt.error(why),
            }));
        let client = builder
            .build()
            .map_err(|why| Error::new(Kind::Internal, format!("create a client for registries: {why}")))?;
        Ok(self.http.get_or_init(|| client).clone())
    }
}

/// Whether a redirect may be followed: what begins with TLS ends with TLS, so that nobody on the way can replace or read anything.
fn check_redirect(previous: &[Url], next: &Url) -> Result<(), &'static str> {
    let has_tls = |url: &Url| url.scheme() == "https";
    if previous.first().is_some_and(has_tls) && !has_tls(next) {
        Err("the server redirects to a URL without TLS")
    } else if previous.len() > MAX_REDIRECTS {
        Err("too many redirects")
    } else {
        Ok(())
    }
}

/// Whether a registry is on the loopback address, where plain HTTP is safe; as in containerd.
fn is_loopback(registry: &str) -> bool {
    let host = registry.rsplit_once(':').map_or(registry, |(host, _)| host);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

// === impl Registry ===

impl Registry<'_> {
    /// A manifest or an index, by tag or digest. Its digest is not verified.
    pub(super) async fn manifest(
        &self,
        repository: &str,
        reference: &str,
        most: u64,
    ) -> Result<Vec<u8>, RegistryError> {
        self.in_time(async {
            let path = format!("manifests/{reference}");
            let response = self.get(repository, &path, &ACCEPTED_MEDIA_TYPES.join(", ")).await?;
            read_document(response, most).await
        })
        .await
    }

    /// A small blob. Its digest is not verified.
    pub(super) async fn document(
        &self,
        repository: &str,
        digest: &Digest,
        most: u64,
    ) -> Result<Vec<u8>, RegistryError> {
        self.in_time(async {
            let response = self.get(repository, &format!("blobs/{digest}"), "*/*").await?;
            read_document(response, most).await
        })
        .await
    }

    /// Requests a blob. Foreign URLs in the manifest are not used.
    pub(super) async fn blob(&self, repository: &str, digest: &Digest) -> Result<Blob, RegistryError> {
        self.in_time(self.get(repository, &format!("blobs/{digest}"), "*/*")).await.map(Blob)
    }

    async fn in_time<T>(
        &self,
        work: impl Future<Output = Result<T, RegistryError>>,
    ) -> Result<T, RegistryError> {
        let limit = self.document_time;
        tokio::time::timeout(limit, work).await.unwrap_or(Err(RegistryError::TooSlow(limit)))
    }

    /// Requests something of a repository, with a token if the registry wants one.
    async fn get(&self, repository: &str, path: &str, accept: &str) -> Result<Response, RegistryError> {
        let url = format!("{}/v2/{repository}/{path}", self.base);
        let known = match self.login {
            Some(RegistryLogin::RegistryToken(token)) => Some(Authorization::bearer(token.expose_secret())?),
            _ => self.tokens.get(repository),
        };
        let response = self.request(&url, accept, known.as_ref()).await?;
        let given = matches!(self.login, Some(RegistryLogin::RegistryToken(_)));
        if response.status() != StatusCode::UNAUTHORIZED || given {
            return check(response).await;
        }
        // The first request, or a token that has expired.
        self.tokens.remove(repository);
        let Some(challenge) = Challenge::of(response.headers()) else { return check(response).await };
        drop(response);
        let Some(authorization) = self.authorize(repository, &challenge).await? else {
            return Err(RegistryError::Denied);
        };
        let response = check(self.request(&url, accept, Some(&authorization)).await?).await?;
        self.tokens.insert(repository, authorization);
        Ok(response)
    }

    async fn request(
        &self,
        url: &str,
        accept: &str,
        authorization: Option<&Authorization>,
    ) -> Result<Response, RegistryError> {
        let mut request = self.http.get(url).header(ACCEPT, accept);
        match (authorization, self.login) {
            (Some(Authorization::Bearer(token)), _) => request = request.header(AUTHORIZATION, token),
            (Some(Authorization::Basic), Some(RegistryLogin::Basic { username, password })) => {
                request = request.basic_auth(username, Some(password.expose_secret()));
            }
            _ => {}
        }
        Ok(request.send().await?)
    }

    /// Answers a challenge; `None` if there are no credentials for it.
    async fn authorize(
        &self,
        repository: &str,
        challenge: &Challenge,
    ) -> Result<Option<Authorization>, RegistryError> {
        let Challenge::Bearer { realm, service } = challenge else {
            return Ok(self.login.map(|_| Authorization::Basic));
        };
        let mut url: Url = realm.parse().map_err(|why| {
            RegistryError::Invalid(format!("the URL of the token server is invalid: {why}"))
        })?;
        if self.base.starts_with(HTTPS) && url.scheme() != "https" {
            let url = without_query(&url);
            return Err(RegistryError::Invalid(format!(
                "the token server {url} does not use TLS, but the registry does"
            )));
        }
        url.query_pairs_mut().append_pair("scope", &format!("repository:{repository}:pull"));
        if let Some(service) = service {
            url.query_pairs_mut().append_pair("service", service);
        }
        let basic = self.login.map(|_| Authorization::Basic);
        let response = check(self.request(url.as_str(), "application/json", basic.as_ref()).await?).await?;
        let answer = read_document(response, MAX_TOKEN_BYTES).await?;
        let answer: TokenAnswer = serde_json::from_slice(&answer)
            .map_err(|why| RegistryError::Invalid(format!("the answer of the token server: {why}")))?;
        let token = answer.token.or(answer.access_token).ok_or_else(|| {
            RegistryError::Invalid("the answer of the token server contains no token".to_owned())
        })?;
        Authorization::bearer(&token).map(Some)
    }
}

// === impl Authorization ===

impl Authorization {
    fn bearer(token: &str) -> Result<Self, RegistryError> {
        let mut value = HeaderValue::from_str(&format!("Bearer {token}"))
            .map_err(|_| RegistryError::Invalid("the token is not a valid header".to_owned()))?;
        value.set_sensitive(true);
        Ok(Self::Bearer(value))
    }
}

// === impl Blob ===

impl Blob {
    /// The next part; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<bytes::Bytes>, RegistryError> {
        Ok(self.0.chunk().await?)
    }
}

/// Turns the status of a failed request into an error.
async fn check(response: Response) -> Result<Response, RegistryError> {
    if response.status() == StatusCode::OK { Ok(response) } else { Err(RegistryError::of(response).await) }
}

/// Reads a body that must not be larger than `most` bytes.
async fn read_document(mut response: Response, most: u64) -> Result<Vec<u8>, RegistryError> {
    let mut document = Vec::new();
    while let Some(part) = response.chunk().await? {
        if (document.len() + part.len()) as u64 > most {
            return Err(RegistryError::TooLarge { url: without_query(response.url()), most });
        }
        document.extend_from_slice(&part);
    }
    Ok(document)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let registries = Registries::new(Vec::new(), Duration::from_secs(1));
        let image = Reference::try_from("127.0.0.1:5000/x:1").unwrap();
        let login = RegistryLogin::IdentityToken("t".into());
        let credentials = PullCredentials { registry: "r.test".into(), login };
        let error = registries.of(&image, Some(&credentials)).err().unwrap();
        assert_eq!(error.kind(), Kind::Denied);
        assert!(error.message().contains("user name and a password"));
    }

    #[tokio::test]
    async fn credentials_for_a_registry_with_tls_are_not_sent_to_a_token_server_without() {
        let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let realm = format!("http://{}/token?key=s3cr3t", server.local_addr().unwrap());
        let challenge = Challenge::Bearer { realm, service: None };
        let registries = Registries::new(vec!["plain.test".to_owned()], Duration::from_secs(1));
        let credentials = PullCredentials::basic("r.test", "me", "hunter2");
        for (image, is_asked) in [("r.test/x:1", false), ("plain.test/x:1", true)] {
            let image = Reference::try_from(image).unwrap();
            let registry = registries.of(&image, Some(&credentials)).unwrap();
            tokio::select! {
                answer = registry.authorize("x", &challenge) => {
                    let error = answer.expect_err("no answer");
                    assert!(!is_asked, "{error:?}");
                    let RegistryError::Invalid(why) = error else { panic!("{error:?}") };
                    assert!(why.contains("does not use TLS") && !why.contains("s3cr3t"), "{why}");
                }
                connection = server.accept() => assert!(is_asked, "{connection:?}"),
            }
        }
    }

    #[test]
    fn a_redirect_from_tls_to_plain_http_is_not_followed() {
        let url = |text: &str| -> Url { text.parse().unwrap() };
        let (tls, plain) = (url("https://r.test/v2/"), url("http://cdn.test/blob?signature=s3cr3t"));
        assert!(check_redirect(std::slice::from_ref(&tls), &plain).is_err());
        assert!(check_redirect(&[tls.clone(), url("https://cdn.test/")], &plain).is_err());
        assert!(check_redirect(std::slice::from_ref(&tls), &url("https://cdn.test/")).is_ok());
        // The operator has allowed plain HTTP for this registry.
        assert!(check_redirect(std::slice::from_ref(&plain), &plain).is_ok());
        assert!(check_redirect(&vec![tls.clone(); MAX_REDIRECTS + 1], &tls).is_err());
    }

    #[test]
    fn a_token_that_is_no_header_is_an_error() {
        assert!(Authorization::bearer("abc").is_ok());
        assert!(Authorization::bearer("abc\r\nX-Other: 1").is_err());
    }
}
