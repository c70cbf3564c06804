//! The API of the configured region, with its credentials.

use std::sync::Arc;

use rand::{SeedableRng as _, rngs::StdRng};
use vk_container_group::cloud::{
    CachedCredentials, Client, Limits,
    alibaba::{Api, CredentialChain, CredentialOptions, Environment},
};
use vk_container_group::engine::FileUpdates;
use vk_provider::Context;
use vk_supervisor::Clock;

use crate::{
    api::{EciApi, VERSION},
    backend::{BackendOptions, EciBackend},
    config::{Prices, Settings},
    translate::Translator,
};

/// Everything that is needed to make calls.
#[derive(Clone)]
pub(crate) struct Connection {
    /// For other connections.
    pub(crate) client: Client,
    /// The calls.
    pub(crate) api: EciApi,
    /// Who makes them.
    pub(crate) credentials: CachedCredentials,
}

// === impl Connection ===

impl Connection {
    /// Prepares calls. Nothing is sent and no credentials are read before the first call.
    pub(crate) fn new(settings: &Settings, limits: Limits, clock: &Clock) -> Self {
        let rng = || StdRng::from_rng(&mut rand::rng());
        let client = Client::new(limits, None);
        let options = CredentialOptions {
            mode: settings.credentials.mode,
            access_key: settings.credentials.access_key.clone(),
            profile: settings.credentials.profile.clone(),
            role_name: settings.credentials.role_name.clone(),
            region: Some(settings.region.clone()),
            ..CredentialOptions::new(Environment::process())
        };
        let chain = CredentialChain::new(options, &client, clock.clone(), rng());
        let credentials = CachedCredentials::new(Arc::new(chain), clock.clone(), rng());
        let endpoint = settings.endpoint.clone();
        let api = Api::new(client.clone(), endpoint, VERSION, credentials.clone(), clock.clone(), rng());
        Self { client, api: EciApi::new(api, &settings.region), credentials }
    }

    /// The backend of these settings.
    pub(crate) fn backend(self, settings: &Settings, context: &Context) -> EciBackend {
        EciBackend::new(BackendOptions {
            api: self.api,
            client: self.client,
            translator: translator(settings, context),
            prices: settings.prices.clone(),
            with_go_groups: settings.cluster_name.is_some(),
            supervisor: context.supervisor.clone(),
        })
    }
}

/// Translates pods by these settings.
pub(crate) fn translator(settings: &Settings, context: &Context) -> Translator {
    Translator {
        v_switches: settings.v_switches.clone(),
        is_random: settings.is_random,
        security_group: settings.security_group.clone(),
        resource_group: settings.resource_group.clone(),
        cluster_dns: settings.cluster_dns.clone(),
        cluster_domain: context.cluster_domain.clone(),
        choices: settings.fields.clone(),
        replaces_files: settings.file_updates == FileUpdates::Replace,
    }
}

/// Where prices come from, for users.
pub(crate) fn price_source(prices: &Prices) -> Result<&'static str, &'static str> {
    match prices {
        Prices::Off => Err("prices are off: set prices in the configuration"),
        Prices::Cloud => Ok("list price of the service"),
        Prices::List(_) => Ok("list price from the configuration"),
    }
}
