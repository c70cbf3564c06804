//! Temporary credentials of a role, from the Security Token Service (STS).

use std::path::PathBuf;

use http::Method;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use serde::Deserialize;
use vk_supervisor::Clock;

use super::{api, credential_chain::CredentialOptions};
use crate::cloud::{
    client::{Client, Endpoint, PlainHttp},
    credentials::Credentials,
    error::{Class, Error, Result},
    request::{Effect, Request},
    sign::{Attempt, Scheme},
};

const VERSION: &str = "2015-04-01";
const ASSUME_ROLE: &str = "AssumeRole";
const ASSUME_ROLE_WITH_OIDC: &str = "AssumeRoleWithOIDC";
/// The lifetime that every role allows.
const LIFETIME_SECONDS: u32 = 3600;
const SESSION: &str = "virtual-kubelet";

/// A role, and how it is assumed.
pub(super) struct Role {
    pub(super) arn: String,
    pub(super) session: Option<String>,
    pub(super) policy: Option<String>,
    pub(super) external_id: Option<String>,
    pub(super) lifetime_seconds: Option<u32>,
    /// The region of the token service.
    pub(super) region: Option<String>,
}

/// A role that is assumed with the token of an OIDC provider, such as a cluster.
pub(super) struct OidcRole {
    pub(super) role: Role,
    /// The ARN of the provider.
    pub(super) provider: String,
    pub(super) token_file: PathBuf,
}

/// Requests credentials of roles.
pub(super) struct RoleTokens {
    client: Client,
    clock: Clock,
    rng: Mutex<StdRng>,
    endpoint: Option<Endpoint>,
    region: Option<String>,
    is_vpc: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    credentials: TemporaryKey,
}

/// Temporary credentials, as the token service and the metadata server write them.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct TemporaryKey {
    access_key_id: String,
    access_key_secret: String,
    #[serde(default)]
    security_token: String,
    expiration: jiff::Timestamp,
}

// === impl Role ===

impl Role {
    pub(super) fn new(arn: String) -> Self {
        Self { arn, session: None, policy: None, external_id: None, lifetime_seconds: None, region: None }
    }

    /// Adds what every way to assume it needs.
    fn describe(&self, request: Request) -> Request {
        let lifetime = self.lifetime_seconds.unwrap_or(LIFETIME_SECONDS);
        let request = request
            .parameter("RoleArn", &self.arn)
            .parameter("RoleSessionName", self.session.as_deref().unwrap_or(SESSION))
            .parameter("DurationSeconds", lifetime.to_string());
        let optional = [("Policy", &self.policy), ("ExternalId", &self.external_id)];
        optional.into_iter().fold(request, |request, (name, value)| match value {
            Some(value) => request.parameter(name, value),
            None => request,
        })
    }
}

// === impl RoleTokens ===

impl RoleTokens {
    pub(super) fn new(options: &CredentialOptions, client: Client, clock: Clock, rng: Mutex<StdRng>) -> Self {
        let environment = &options.environment;
        Self {
            client,
            clock,
            rng,
            endpoint: options.sts.clone(),
            region: environment.get("ALIBABA_CLOUD_STS_REGION").or_else(|| options.region.clone()),
            is_vpc: environment.is_true("ALIBABA_CLOUD_VPC_ENDPOINT_ENABLED"),
        }
    }

    /// Assumes a role with the token in its file, which Kubernetes renews. The request is not signed: the token authenticates it.
    pub(super) async fn with_token(&self, oidc_role: &OidcRole) -> Result<Credentials> {
        let OidcRole { role, provider, token_file: file } = oidc_role;
        let token = tokio::fs::read_to_string(file).await.map_err(|error| {
            let text = format!("cannot read the token file {}: {error}", file.display());
            Error::new(Class::Auth, ASSUME_ROLE_WITH_OIDC, text)
        })?;
        let attempt = self.attempt();
        let request = role
            .describe(Request::new(Method::POST, ASSUME_ROLE_WITH_OIDC, Effect::Repeatable))
            .parameter("OIDCProviderArn", provider)
            .secret_parameter("OIDCToken", token.trim())
            .into_form()
            .parameter("Action", ASSUME_ROLE_WITH_OIDC)
            .parameter("Version", VERSION)
            .parameter("Format", "JSON")
            .parameter("Timestamp", attempt.date())
            .parameter("SignatureNonce", &attempt.nonce);
        self.send(role, &request, None).await
    }

    /// Assumes a role with an access key.
    pub(super) async fn with_key(&self, key: &Credentials, role: &Role) -> Result<Credentials> {
        let request = role
            .describe(Request::new(Method::POST, ASSUME_ROLE, Effect::Repeatable))
            .header("x-acs-action", ASSUME_ROLE)
            .header("x-acs-version", VERSION)
            .header("accept", "application/json");
        self.send(role, &request, Some(key)).await
    }

    async fn send(&self, role: &Role, request: &Request, key: Option<&Credentials>) -> Result<Credentials> {
        let endpoint = self.endpoint(role)?;
        let signed = key.map(|key| Scheme::Acs3.sign(request, &endpoint.host_header(), key, &self.attempt()));
        let response = self.client.send(&endpoint, signed.as_ref().unwrap_or(request)).await?;
        let key_redaction = || key.map_or_else(|| request.redaction(), Credentials::redaction);
        api::check(&response, || [request.redaction(), key_redaction()])?;
        let credentials = Credentials::from(response.json::<Answer>()?.credentials);
        Ok(credentials.from_source(format!("the role {}", role.arn)))
    }

    fn attempt(&self) -> Attempt {
        Attempt::new(self.clock.now(), &mut *self.rng.lock())
    }

    fn endpoint(&self, role: &Role) -> Result<Endpoint> {
        if let Some(endpoint) = &self.endpoint {
            return Ok(endpoint.clone());
        }
        let host = match role.region.as_ref().or(self.region.as_ref()) {
            Some(region) if self.is_vpc => format!("sts-vpc.{region}.aliyuncs.com"),
            Some(region) => format!("sts.{region}.aliyuncs.com"),
            None => "sts.aliyuncs.com".to_owned(),
        };
        Endpoint::parse(&host, PlainHttp::Loopback).map_err(|error| {
            Error::new(Class::Invalid { field: None }, "find the token service", error.to_string())
        })
    }
}

// === impl TemporaryKey ===

impl From<TemporaryKey> for Credentials {
    fn from(key: TemporaryKey) -> Self {
        let credentials = Self::new(key.access_key_id, key.access_key_secret).expiring(key.expiration);
        if key.security_token.is_empty() { credentials } else { credentials.with_token(key.security_token) }
    }
}
