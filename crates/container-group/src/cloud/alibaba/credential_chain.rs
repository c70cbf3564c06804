//! Where the credentials for Alibaba Cloud come from, in the order of the vendor's SDKs: environment, RRSA, profile, instance role.

use std::{fmt, path::PathBuf, sync::Arc};

use async_trait::async_trait;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use serde::Deserialize;
use vk_supervisor::Clock;

use super::{
    instance_role::InstanceRole,
    profile::{self, Profile},
    role_token::{OidcRole, Role, RoleTokens},
};
use crate::cloud::{
    client::{Client, Endpoint},
    credentials::{CredentialSource, Credentials},
    error::{Class, Error, Result},
};

const OPERATION: &str = "load credentials";

/// Which credentials are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CredentialMode {
    /// The first of those below that is configured.
    #[default]
    Auto,
    /// An access key from the configuration or from the environment.
    Static,
    /// A token file and a role: RAM Roles for Service Accounts.
    Oidc,
    /// A profile of the vendor's command line or SDKs.
    Profile,
    /// The role of the instance that this process runs on.
    RamRole,
}

/// Settings of a [`CredentialChain`].
#[derive(Clone, Debug)]
pub struct CredentialOptions {
    /// Which credentials are used.
    pub mode: CredentialMode,
    /// The access key of the configuration.
    pub access_key: Option<Credentials>,
    /// The name of the profile; otherwise that of the environment, or the current one.
    pub profile: Option<String>,
    /// The name of the instance's role; otherwise that of the environment, or the one that the instance has.
    pub role_name: Option<String>,
    /// The region whose token service is asked; otherwise that of the environment, or the central one.
    pub region: Option<String>,
    /// The token service, if it is not the vendor's.
    pub sts: Option<Endpoint>,
    /// The metadata server, if it is not the vendor's.
    pub metadata: Option<Endpoint>,
    /// The environment variables.
    pub environment: Environment,
}

/// Environment variables. Empty ones count as not set.
#[derive(Clone)]
pub struct Environment(Arc<ReadVariable>);

type ReadVariable = dyn Fn(&str) -> Option<String> + Send + Sync;

/// A source of credentials for Alibaba Cloud.
pub struct CredentialChain {
    options: CredentialOptions,
    roles: RoleTokens,
    instance: InstanceRole,
}

/// The result of a source that may be unused.
pub(super) enum Lookup<T> {
    Found(T),
    /// Why there is nothing, for users.
    NotConfigured(String),
}

// === impl CredentialOptions ===

impl CredentialOptions {
    /// Everything by default, with these environment variables.
    pub fn new(environment: Environment) -> Self {
        Self {
            mode: CredentialMode::Auto,
            access_key: None,
            profile: None,
            role_name: None,
            region: None,
            sts: None,
            metadata: None,
            environment,
        }
    }
}

// === impl Environment ===

impl Environment {
    /// What `variable` returns.
    pub fn new(variable: impl Fn(&str) -> Option<String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(variable))
    }

    /// The environment of this process.
    pub fn process() -> Self {
        Self::new(|name| std::env::var(name).ok())
    }

    pub(super) fn get(&self, name: &str) -> Option<String> {
        // Values from files often end with a new line.
        (self.0)(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
    }

    pub(super) fn is_true(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| value.eq_ignore_ascii_case("true"))
    }

    pub(super) fn home(&self) -> Option<PathBuf> {
        self.get("HOME").map(PathBuf::from)
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Environment")
    }
}

// === impl CredentialChain ===

impl CredentialChain {
    /// A source with these settings. Nothing is read before it is used.
    pub fn new(options: CredentialOptions, client: &Client, clock: Clock, rng: StdRng) -> Self {
        let roles = RoleTokens::new(&options, client.clone(), clock, Mutex::new(rng));
        let instance = InstanceRole::new(&options, client);
        Self { options, roles, instance }
    }

    /// The first source that is configured. One that is configured and fails is an error: to go on with another identity would
    /// be a surprise.
    async fn first(&self) -> Result<Credentials> {
        let mut reasons = Vec::new();
        match self.key() {
            Lookup::Found(key) => return Ok(key),
            Lookup::NotConfigured(reason) => reasons.push(reason),
        }
        match self.oidc_role()? {
            Lookup::Found(role) => return self.roles.with_token(&role).await,
            Lookup::NotConfigured(reason) => reasons.push(reason),
        }
        match self.profile().await? {
            Lookup::Found(profile) => return self.of_profile(profile).await,
            Lookup::NotConfigured(reason) => reasons.push(reason),
        }
        match self.instance.load(None).await {
            Ok(Lookup::Found(credentials)) => return Ok(credentials),
            Ok(Lookup::NotConfigured(reason)) => reasons.push(reason),
            Err(error) => reasons.push(error.to_string()),
        }
        let text = format!(
            "none found: {}; set ALIBABA_CLOUD_ACCESS_KEY_ID and ALIBABA_CLOUD_ACCESS_KEY_SECRET, or one of the others",
            reasons.join("; ")
        );
        Err(Error::new(Class::Auth, OPERATION, text))
    }

    /// An access key of configuration or environment.
    fn key(&self) -> Lookup<Credentials> {
        if let Some(key) = &self.options.access_key {
            return Lookup::Found(key.clone());
        }
        let environment = &self.options.environment;
        let (id, secret) = ("ALIBABA_CLOUD_ACCESS_KEY_ID", "ALIBABA_CLOUD_ACCESS_KEY_SECRET");
        match (environment.get(id), environment.get(secret)) {
            (Some(id), Some(secret)) => {
                let key = Credentials::new(id, secret).from_source("the environment");
                Lookup::Found(match environment.get("ALIBABA_CLOUD_SECURITY_TOKEN") {
                    Some(token) => key.with_token(token),
                    None => key,
                })
            }
            (Some(_), None) => Lookup::NotConfigured(format!("{secret} is not set")),
            (None, _) => Lookup::NotConfigured(format!("{id} is not set")),
        }
    }

    /// What the webhook of RRSA sets in pods. A part of it is a mistake.
    fn oidc_role(&self) -> Result<Lookup<OidcRole>> {
        let names =
            ["ALIBABA_CLOUD_ROLE_ARN", "ALIBABA_CLOUD_OIDC_PROVIDER_ARN", "ALIBABA_CLOUD_OIDC_TOKEN_FILE"];
        let environment = &self.options.environment;
        match names.map(|name| environment.get(name)) {
            [Some(arn), Some(provider), Some(file)] => {
                let role =
                    Role { session: environment.get("ALIBABA_CLOUD_ROLE_SESSION_NAME"), ..Role::new(arn) };
                Ok(Lookup::Found(OidcRole { role, provider, token_file: file.into() }))
            }
            // The role alone has other uses.
            [_, None, None] => {
                Ok(Lookup::NotConfigured("ALIBABA_CLOUD_OIDC_TOKEN_FILE (RRSA) is not set".to_owned()))
            }
            values => {
                let missing = names.iter().zip(values).find(|(_, value)| value.is_none());
                let text = format!(
                    "RRSA needs {}; {} is not set",
                    names.join(", "),
                    missing.map_or("one", |(name, _)| name)
                );
                Err(Error::new(Class::Auth, OPERATION, text))
            }
        }
    }

    async fn profile(&self) -> Result<Lookup<Profile>> {
        profile::find(&self.options.environment, self.options.profile.as_deref()).await
    }

    async fn of_profile(&self, profile: Profile) -> Result<Credentials> {
        match profile {
            Profile::Key(key) => Ok(key),
            Profile::Role { key, role } => self.roles.with_key(&key, &role).await,
            Profile::OidcRole(role) => self.roles.with_token(&role).await,
            Profile::InstanceRole(name) => required(self.instance.load(name.as_deref()).await?),
        }
    }
}

#[async_trait]
impl CredentialSource for CredentialChain {
    async fn load(&self) -> Result<Credentials> {
        match self.options.mode {
            CredentialMode::Auto => self.first().await,
            CredentialMode::Static => required(self.key()),
            CredentialMode::Oidc => self.roles.with_token(&required(self.oidc_role()?)?).await,
            CredentialMode::Profile => self.of_profile(required(self.profile().await?)?).await,
            CredentialMode::RamRole => required(self.instance.load(None).await?),
        }
    }
}

fn required<T>(lookup: Lookup<T>) -> Result<T> {
    match lookup {
        Lookup::Found(found) => Ok(found),
        Lookup::NotConfigured(reason) => Err(Error::new(Class::Auth, OPERATION, reason)),
    }
}
