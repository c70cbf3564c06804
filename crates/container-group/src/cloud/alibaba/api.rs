//! Signed calls of RPC APIs.

use std::{fmt, sync::Arc};

use http::Method;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use serde::{Deserialize, de::DeserializeOwned};
use vk_supervisor::Clock;

use super::error_code;
use crate::cloud::{
    client::{Client, Endpoint, Response},
    credentials::{CachedCredentials, Credentials},
    error::{Class, Error, Result},
    redaction::Redaction,
    request::{Effect, Request},
    sign::{Attempt, Scheme},
};

/// Longer queries are sent as a form: `http` has no longer URLs, and proxies rarely take them.
const MAX_QUERY: usize = 48 << 10;

/// An RPC API: a product in a version at an endpoint. Clones share everything.
#[derive(Clone)]
pub struct Api {
    client: Client,
    endpoint: Endpoint,
    version: &'static str,
    scheme: Scheme,
    credentials: CachedCredentials,
    clock: Clock,
    rng: Arc<Mutex<StdRng>>,
}

/// A call of an action.
pub struct Call {
    request: Request,
    action: &'static str,
}

/// What every answer may contain.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(super) struct Envelope {
    code: Option<String>,
    message: Option<String>,
    request_id: Option<String>,
}

// === impl Call ===

impl Call {
    /// A call of this action.
    pub fn new(action: &'static str, effect: Effect) -> Self {
        Self { request: Request::new(Method::POST, action, effect), action }
    }

    /// Adds a parameter. Lists are flattened: `Tag.1.Key`.
    #[must_use]
    pub fn parameter(self, name: impl Into<String>, value: impl Into<String>) -> Self {
        Self { request: self.request.parameter(name, value), ..self }
    }

    /// Adds a parameter whose value is masked if the cloud repeats it in an error.
    #[must_use]
    pub fn secret_parameter(self, name: impl Into<String>, value: impl Into<String>) -> Self {
        Self { request: self.request.secret_parameter(name, value), ..self }
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.request.fmt(f)
    }
}

// === impl Api ===

impl Api {
    /// An API with the current signature scheme.
    pub fn new(
        client: Client,
        endpoint: Endpoint,
        version: &'static str,
        credentials: CachedCredentials,
        clock: Clock,
        rng: StdRng,
    ) -> Self {
        let rng = Arc::new(Mutex::new(rng));
        Self { client, endpoint, version, scheme: Scheme::Acs3, credentials, clock, rng }
    }

    /// Signs with another scheme.
    #[must_use]
    pub fn with_scheme(self, scheme: Scheme) -> Self {
        Self { scheme, ..self }
    }

    /// Calls once, and once more if the credentials had expired and there are newer ones: such a call was not carried out.
    pub async fn call<T: DeserializeOwned>(&self, call: Call) -> Result<T> {
        let action = call.action;
        let request = self.request(call);
        let credentials = self.credentials.get().await.map_err(|error| error.within(action))?;
        let error = match self.attempt(&request, &credentials).await {
            Err(error) if is_refusal_of_credentials(&error) => error,
            outcome => return outcome,
        };
        self.credentials.reject(&credentials);
        if *error.class() != Class::ExpiredToken {
            return Err(error);
        }
        match self.credentials.get().await {
            Ok(newer) if !newer.is_same(&credentials) => self.attempt(&request, &newer).await,
            _ => Err(error),
        }
    }

    fn request(&self, Call { request, action }: Call) -> Request {
        let request = if request.encoded_query().len() > MAX_QUERY { request.into_form() } else { request };
        match self.scheme {
            Scheme::Acs3 => request
                .header("x-acs-action", action)
                .header("x-acs-version", self.version)
                .header("accept", "application/json"),
            Scheme::Rpc => request
                .parameter("Action", action)
                .parameter("Version", self.version)
                .parameter("Format", "JSON"),
        }
    }

    async fn attempt<T: DeserializeOwned>(&self, request: &Request, credentials: &Credentials) -> Result<T> {
        let attempt = Attempt::new(self.clock.now(), &mut *self.rng.lock());
        let signed = self.scheme.sign(request, &self.endpoint.host_header(), credentials, &attempt);
        let response = self.client.send(&self.endpoint, &signed).await?;
        check(&response, || [signed.redaction(), credentials.redaction()]).map_err(|error| {
            if concerns_credentials(&error) { error.with_hint(&hint(credentials)) } else { error }
        })?;
        response.json()
    }
}

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Api")
            .field("endpoint", &self.endpoint)
            .field("version", &self.version)
            .field("scheme", &self.scheme)
            .finish_non_exhaustive()
    }
}

fn concerns_credentials(error: &Error) -> bool {
    matches!(error.class(), Class::Auth | Class::ExpiredToken)
}

fn hint(credentials: &Credentials) -> String {
    format!("the credentials are those of {}", credentials.source)
}

fn is_refusal_of_credentials(error: &Error) -> bool {
    // A key that does not exist may have been replaced in its file.
    *error.class() == Class::ExpiredToken || error.code().is_some_and(error_code::is_unknown_key)
}

/// Turns an answer that is a refusal into an error, whatever its status is.
pub(super) fn check<const N: usize>(
    response: &Response,
    redactions: impl FnOnce() -> [Redaction; N],
) -> Result<()> {
    let status = response.status();
    let envelope: Envelope = match response.json() {
        Ok(envelope) => envelope,
        // A gateway that is in trouble says so by the status alone.
        Err(error) if status.is_success() || status.is_redirection() => return Err(error),
        Err(_) => Envelope::default(),
    };
    let code = envelope.code.filter(|code| !matches!(code.as_str(), "" | "200" | "OK" | "Success"));
    if status.is_success() && code.is_none() {
        return Ok(());
    }
    let said = envelope.message.unwrap_or_default();
    let (effect, delay) = (response.effect(), error_code::delay(response));
    let class = error_code::classify(status, code.as_deref(), &said, effect, delay);
    let said = if code.as_deref().is_some_and(error_code::repeats_the_request) {
        String::new()
    } else {
        redactions().iter().fold(said, |text, redaction| redaction.apply(&text))
    };
    let mut text = error_code::explain(&class, code.as_deref(), &said, status);
    if let (Class::ClockSkew, Some(date)) = (&class, response.header("date")) {
        text = format!("{text}, and says that it is {}", Redaction::new([]).apply(date));
    }
    let error = Error::new(class, response.operation(), text);
    let id =
        envelope.request_id.filter(|id| id.len() <= 64 && id.bytes().all(|byte| byte.is_ascii_graphic()));
    Err(match code {
        Some(code) => error.with_code(Redaction::new([]).apply(&code), id),
        None => error,
    })
}
