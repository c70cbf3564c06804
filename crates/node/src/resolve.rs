//! What pods refer to. Not built yet: every question is answered with `Unsupported`, so a provider that needs an
//! environment or files says so on the pod, and one that takes the pod as it is works.

#![allow(dead_code, reason = "the resolver that asks is not there yet")]

mod amounts;
pub(crate) mod env;
mod expansion;
mod fields;
pub(crate) mod files;
pub(crate) mod objects;
pub(crate) mod registry;
mod services;

use std::{net::IpAddr, sync::Arc};

use async_trait::async_trait;
use futures::{StreamExt as _, stream, stream::BoxStream};
use k8s_openapi::api::{
    core::v1::{ConfigMap, Secret, Service},
    node::v1::RuntimeClass,
};
use vk_provider::{
    Error, Resolver, Result,
    resolve::{Claim, ContainerInputs, Facts, FileSet, NodeFacts, PullCredentials, Token, TokenRequest},
};

/// Resolves nothing but the node's facts.
#[derive(Clone, Debug)]
pub struct Unresolving {
    /// The node's name.
    pub node: String,
    /// The node's addresses.
    pub ips: Vec<IpAddr>,
}

fn not_yet<T>(what: &str) -> Result<T> {
    Err(Error::unsupported(format!("{what} of pods cannot be resolved yet")))
}

#[async_trait]
impl Resolver for Unresolving {
    async fn container(&self, _name: &str, _facts: &Facts) -> Result<ContainerInputs> {
        not_yet("the environment")
    }

    fn volume(&self, _name: &str) -> BoxStream<'static, Result<FileSet>> {
        stream::iter([not_yet("volumes")]).boxed()
    }

    async fn config_map(&self, _name: &str) -> Result<Arc<ConfigMap>> {
        not_yet("ConfigMaps")
    }

    async fn secret(&self, _name: &str) -> Result<Arc<Secret>> {
        not_yet("Secrets")
    }

    async fn services(&self) -> Result<Vec<Arc<Service>>> {
        not_yet("Services")
    }

    async fn token(&self, _request: &TokenRequest) -> Result<Token> {
        not_yet("tokens")
    }

    async fn pull_credentials(&self, _image: &str) -> Result<Vec<PullCredentials>> {
        not_yet("registry credentials")
    }

    async fn claim(&self, _name: &str) -> Result<Claim> {
        not_yet("volume claims")
    }

    async fn runtime_class(&self) -> Result<Option<Arc<RuntimeClass>>> {
        not_yet("the RuntimeClass")
    }

    fn node(&self) -> NodeFacts {
        NodeFacts { name: self.node.clone(), ips: self.ips.clone(), ..NodeFacts::default() }
    }
}
