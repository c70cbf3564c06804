//! Temporary credentials of the role of the instance, from its metadata server.

use std::time::Duration;

use http::{Method, StatusCode};

use super::{
    api,
    credential_chain::{CredentialOptions, Lookup},
    role_token::TemporaryKey,
};
use crate::cloud::{
    client::{Client, Endpoint, InvalidEndpoint, Limits, PlainHttp, Response},
    credentials::Credentials,
    error::{Class, Error, Result},
    request::{Effect, Request},
};

/// The metadata server is a link-local address without TLS.
const METADATA: &str = "http://100.100.100.200";
const ROLES: &str = "/latest/meta-data/ram/security-credentials/";
const TOKEN: &str = "/latest/api/token";
/// How long a session with the metadata server may last: the longest that it allows.
const SESSION_SECONDS: &str = "21600";
const OPERATION: &str = "read the credentials of the instance's role";

/// The role of the instance that this process runs on.
pub(super) struct InstanceRole {
    client: Client,
    endpoint: Result<Endpoint, InvalidEndpoint>,
    role_name: Option<String>,
    is_disabled: bool,
    /// Whether the older protocol, without a session, is not used.
    needs_session: bool,
}

// === impl InstanceRole ===

impl InstanceRole {
    pub(super) fn new(options: &CredentialOptions, client: &Client) -> Self {
        let environment = &options.environment;
        // The server is near, or there is none.
        let limits = Limits {
            first_byte: Duration::from_secs(2),
            total: Duration::from_secs(5),
            response_bytes: 64 << 10,
            ..Limits::default()
        };
        Self {
            client: client.with_limits(limits),
            endpoint: match &options.metadata {
                Some(endpoint) => Ok(endpoint.clone()),
                None => Endpoint::parse(METADATA, PlainHttp::Anywhere),
            },
            role_name: options.role_name.clone().or_else(|| environment.get("ALIBABA_CLOUD_ECS_METADATA")),
            is_disabled: environment.is_true("ALIBABA_CLOUD_ECS_METADATA_DISABLED"),
            needs_session: environment.is_true("ALIBABA_CLOUD_IMDSV1_DISABLED"),
        }
    }

    /// The credentials of this role, or of the one that the instance has.
    pub(super) async fn load(&self, role_name: Option<&str>) -> Result<Lookup<Credentials>> {
        if self.is_disabled {
            let text = "the instance role is disabled by ALIBABA_CLOUD_ECS_METADATA_DISABLED";
            return Ok(Lookup::NotConfigured(text.to_owned()));
        }
        let session = self.session().await?;
        let name = match role_name.or(self.role_name.as_deref()) {
            Some(name) => name.to_owned(),
            None => match self.role_of_instance(session.as_deref()).await? {
                Lookup::Found(name) => name,
                Lookup::NotConfigured(reason) => return Ok(Lookup::NotConfigured(reason)),
            },
        };
        let response = self.get(&format!("{ROLES}{name}"), session.as_deref()).await?;
        if response.status() == StatusCode::NOT_FOUND {
            let text = format!("the instance has no RAM role {name}: attach it");
            return Err(Error::new(Class::Auth, OPERATION, text));
        }
        expect_ok(&response)?;
        api::check(&response, || [])?;
        let credentials = Credentials::from(response.json::<TemporaryKey>()?);
        Ok(Lookup::Found(credentials.from_source(format!("the instance's role {name}"))))
    }

    /// A token for a session, without which a forged request gets no credentials. `None` if the server knows only the older
    /// protocol.
    async fn session(&self) -> Result<Option<String>> {
        let request = Request::new(Method::PUT, OPERATION, Effect::Repeatable)
            .path(TOKEN)
            .header("x-aliyun-ecs-metadata-token-ttl-seconds", SESSION_SECONDS);
        let response = self.send(&request).await?;
        if !self.needs_session && response.status().is_client_error() {
            return Ok(None);
        }
        expect_ok(&response)?;
        text(&response).map(Some)
    }

    async fn role_of_instance(&self, session: Option<&str>) -> Result<Lookup<String>> {
        let response = self.get(ROLES, session).await?;
        if response.status() != StatusCode::NOT_FOUND {
            expect_ok(&response)?;
            if let Some(name) = text(&response)?.lines().next() {
                return Ok(Lookup::Found(name.trim().to_owned()));
            }
        }
        Ok(Lookup::NotConfigured("the instance has no RAM role".to_owned()))
    }

    async fn get(&self, path: &str, session: Option<&str>) -> Result<Response> {
        let request = Request::new(Method::GET, OPERATION, Effect::Repeatable).path(path);
        let request = match session {
            Some(session) => request.header("x-aliyun-ecs-metadata-token", session),
            None => request,
        };
        self.send(&request).await
    }

    async fn send(&self, request: &Request) -> Result<Response> {
        let endpoint = self
            .endpoint
            .as_ref()
            .map_err(|error| Error::new(Class::Invalid { field: None }, OPERATION, error.to_string()))?;
        self.client.send(endpoint, request).await
    }
}

fn expect_ok(response: &Response) -> Result<()> {
    let status = response.status();
    if status == StatusCode::OK {
        return Ok(());
    }
    Err(response.unexpected(&format!("the metadata server answered with status {}", status.as_u16())))
}

fn text(response: &Response) -> Result<String> {
    std::str::from_utf8(response.body())
        .map(|text| text.trim().to_owned())
        .map_err(|_| response.unexpected("the answer of the metadata server is not text"))
}
