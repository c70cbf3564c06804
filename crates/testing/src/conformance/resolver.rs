//! A resolver for the pods of the cases, without an API server.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use async_trait::async_trait;
use futures::{StreamExt, stream, stream::BoxStream};
use k8s_openapi::{
    api::{
        core::v1::{ConfigMap, Container, EnvVar, Pod, Secret, Service},
        node::v1::RuntimeClass,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use vk_provider::{
    Error, PodBundle, Resolver, Result,
    error::Kind,
    resolve::{
        Claim, ContainerInputs, Facts, File, FileSet, NodeFacts, PullCredentials, Reference, ReferenceKind,
        Token, TokenRequest,
    },
};

use super::{
    context::{NODE, NODE_IP},
    pod_builder::SETTINGS,
};

/// A resolver with fixed results.
struct FixedResolver {
    pod: Arc<Pod>,
    /// Whether the ConfigMap that pods refer to exists.
    settings: bool,
}

/// A pod with its resolver, which needs no API server. `settings`: whether the ConfigMap exists that pods of the suite refer to.
pub fn bundle(pod: &Arc<Pod>, settings: bool) -> PodBundle {
    PodBundle { pod: Arc::clone(pod), resolver: Arc::new(FixedResolver { pod: Arc::clone(pod), settings }) }
}

// === impl FixedResolver ===

impl FixedResolver {
    fn settings(&self, map: &str) -> Result<BTreeMap<String, String>> {
        let (name, key, value) = SETTINGS;
        let mut reference = Reference::new(ReferenceKind::ConfigMap, "default", map);
        if map == name && self.settings {
            return Ok([(key.to_owned(), value.to_owned())].into());
        }
        if map == name {
            reference = reference.key(key);
        }
        let message = format!("resolve {reference}: not found");
        Err(Error::new(Kind::Unresolved(reference), message))
    }

    /// A variable with its value; `None` for sources that the suite does not use.
    fn variable(&self, variable: &EnvVar) -> Result<Option<(String, String)>> {
        let Some(source) = &variable.value_from else {
            return Ok(Some((variable.name.clone(), variable.value.clone().unwrap_or_default())));
        };
        let Some(selector) = &source.config_map_key_ref else { return Ok(None) };
        let value = self.settings(&selector.name)?.remove(&selector.key);
        Ok(value.map(|value| (variable.name.clone(), value)))
    }
}

#[async_trait]
impl Resolver for FixedResolver {
    async fn container(&self, name: &str, _facts: &Facts) -> Result<ContainerInputs> {
        let spec = self.pod.spec.as_ref();
        let init = spec.into_iter().flat_map(|spec| spec.init_containers.iter().flatten());
        let all = init.chain(spec.into_iter().flat_map(|spec| &spec.containers));
        let found: Option<&Container> = all.into_iter().find(|container| container.name == name);
        let mut ephemeral = spec.into_iter().flat_map(|spec| spec.ephemeral_containers.iter().flatten());
        // The suite's ephemeral containers have a command and no variables.
        if let Some(joins) = ephemeral.find(|container| container.name == name) {
            let (command, args) = (joins.command.clone(), joins.args.clone());
            return Ok(ContainerInputs { env: Vec::new(), command, args });
        }
        let found =
            found.ok_or_else(|| Error::not_found(format!("resolve container {name}: no such one")))?;
        let env: Result<Vec<_>> =
            found.env.iter().flatten().map(|variable| self.variable(variable)).collect();
        Ok(ContainerInputs {
            env: env?.into_iter().flatten().collect(),
            command: found.command.clone(),
            args: found.args.clone(),
        })
    }

    fn volume(&self, name: &str) -> BoxStream<'static, Result<FileSet>> {
        let set = self.settings(name).map(|data| FileSet {
            files: data
                .into_iter()
                .map(|(path, content)| (path, File { content: content.into(), mode: 0o644, owner: None }))
                .collect(),
        });
        // One set, and no changes.
        stream::iter([set]).chain(stream::pending()).boxed()
    }

    async fn config_map(&self, name: &str) -> Result<Arc<ConfigMap>> {
        let metadata = ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some("default".to_owned()),
            ..ObjectMeta::default()
        };
        let data = Some(self.settings(name)?);
        Ok(Arc::new(ConfigMap { metadata, data, ..ConfigMap::default() }))
    }

    async fn secret(&self, name: &str) -> Result<Arc<Secret>> {
        let reference = Reference::new(ReferenceKind::Secret, "default", name);
        let message = format!("resolve {reference}: not found");
        Err(Error::new(Kind::Unresolved(reference), message))
    }

    async fn services(&self) -> Result<Vec<Arc<Service>>> {
        Ok(Vec::new())
    }

    async fn token(&self, _request: &TokenRequest) -> Result<Token> {
        Err(Error::unsupported("request a token: the suite has no ServiceAccount"))
    }

    async fn pull_credentials(&self, _image: &str) -> Result<Vec<PullCredentials>> {
        Ok(Vec::new())
    }

    async fn claim(&self, name: &str) -> Result<Claim> {
        let reference = Reference::new(ReferenceKind::PersistentVolumeClaim, "default", name);
        let message = format!("resolve {reference}: not found");
        Err(Error::new(Kind::Unresolved(reference), message))
    }

    async fn runtime_class(&self) -> Result<Option<Arc<RuntimeClass>>> {
        Ok(None)
    }

    fn node(&self) -> NodeFacts {
        let ips = vec![IpAddr::from(NODE_IP)];
        NodeFacts { name: NODE.to_owned(), ips, ..NodeFacts::default() }
    }

    async fn appeared(&self, _reference: &Reference) {
        std::future::pending::<()>().await;
    }
}
