//! The client's credentials, for servers other than the API server: kubelets accept the same client certificates, and tokens of people.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use http::{HeaderValue, Request, Response, header};
use kube::client::{Body, ConfigExt as _};
use rustls::client::ResolvesClientCert;
use tower::{BoxError, Layer as _, ServiceExt as _, util::BoxCloneSyncService};

use crate::{Error, Kind};

/// Answers a request with the `Authorization` header that it would be sent with.
type AuthorizationEcho = BoxCloneSyncService<Request<Body>, Response<()>, BoxError>;

/// The credentials of a [`Client`](crate::Client). Clones share them.
///
/// Whoever uses them must be sure of the server: a token that is sent to another one can be used against the API server. Nodes are not to be
/// trusted with the token of a ServiceAccount; request one with another audience for them.
#[derive(Clone)]
pub struct Credentials(Option<Arc<Inner>>);

struct Inner {
    config: kube::Config,
    /// Read when it is first needed, which may run a program.
    loaded: OnceLock<Result<Loaded, Error>>,
}

struct Loaded {
    certificate: Option<Arc<dyn ResolvesClientCert>>,
    authorization: Option<AuthorizationEcho>,
}

// === impl Credentials ===

impl Credentials {
    /// No credentials.
    pub(crate) fn none() -> Self {
        Self(None)
    }

    pub(crate) fn new(config: &kube::Config) -> Self {
        Self(Some(Arc::new(Inner { config: config.clone(), loaded: OnceLock::new() })))
    }

    /// The client certificate, if there is one.
    pub fn certificate(&self) -> Result<Option<Arc<dyn ResolvesClientCert>>, Error> {
        Ok(self.load()?.and_then(|loaded| loaded.certificate.clone()))
    }

    /// The current value of the header `Authorization`, if there is one. Tokens are refreshed as for the API server.
    pub async fn authorization(&self) -> Result<Option<HeaderValue>, Error> {
        let Some(echo) = self.load()?.and_then(|loaded| loaded.authorization.clone()) else {
            return Ok(None);
        };
        let answer = echo.oneshot(Request::new(Body::empty())).await;
        let answer = answer.map_err(|error| Error::new(Kind::Unauthorized, format!("no token: {error}")))?;
        Ok(answer.headers().get(header::AUTHORIZATION).cloned())
    }

    /// Whether both are the same, and not equal ones that were read again.
    pub fn is(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        }
    }

    fn load(&self) -> Result<Option<&Loaded>, Error> {
        let Some(inner) = &self.0 else { return Ok(None) };
        let loaded = inner.loaded.get_or_init(|| Loaded::new(&inner.config).map_err(Error::from));
        loaded.as_ref().map(Some).map_err(Clone::clone)
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").finish_non_exhaustive()
    }
}

// === impl Loaded ===

impl Loaded {
    fn new(config: &kube::Config) -> kube::Result<Self> {
        let resolver = config.rustls_client_config()?.client_auth_cert_resolver;
        let echo = tower::service_fn(|request: Request<Body>| async move {
            let mut response = Response::new(());
            if let Some(value) = request.headers().get(header::AUTHORIZATION) {
                response.headers_mut().insert(header::AUTHORIZATION, value.clone());
            }
            Ok::<_, BoxError>(response)
        });
        let authorization = config.auth_layer()?.map(|layer| AuthorizationEcho::new(layer.layer(echo)));
        Ok(Self { certificate: resolver.has_certs().then_some(resolver), authorization })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> kube::Config {
        kube::Config::new("https://127.0.0.1:1".parse().unwrap())
    }

    #[tokio::test]
    async fn a_token_is_the_value_of_the_header() {
        let mut config = config();
        config.auth_info.token = Some("secret".to_owned().into());
        let credentials = Credentials::new(&config);
        assert_eq!(credentials.authorization().await.unwrap().unwrap(), "Bearer secret");
        assert!(credentials.certificate().unwrap().is_none());
    }

    #[tokio::test]
    async fn a_token_in_a_file_is_read() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "from-file").unwrap();
        let mut config = config();
        config.auth_info.token_file = Some(file.path().display().to_string());
        let credentials = Credentials::new(&config);
        assert_eq!(credentials.authorization().await.unwrap().unwrap(), "Bearer from-file");
    }

    #[tokio::test]
    async fn without_credentials_there_is_neither_token_nor_certificate() {
        for credentials in [Credentials::none(), Credentials::new(&config())] {
            assert_eq!(credentials.authorization().await.unwrap(), None);
            assert!(credentials.certificate().unwrap().is_none());
        }
    }

    #[tokio::test]
    async fn a_token_that_cannot_be_read_is_an_error() {
        let mut config = config();
        config.auth_info.token_file = Some("/nonexistent/token".to_owned());
        assert!(Credentials::new(&config).authorization().await.is_err());
    }
}
