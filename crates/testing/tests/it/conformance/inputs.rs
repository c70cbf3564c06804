//! Faults in the use of the resolver.

use std::sync::Arc;

use async_trait::async_trait;
use futures::{StreamExt, stream, stream::BoxStream};
use k8s_openapi::api::{
    core::v1::{ConfigMap, Secret, Service},
    node::v1::RuntimeClass,
};
use vk_provider::{
    PodBundle, Resolver, Result,
    resolve::{
        Claim, ContainerInputs, Facts, FileSet, NodeFacts, Origin, PullCredentials, Reference, Token,
        TokenLifetime, TokenRequest,
    },
};

use super::fault::Fault;

/// The resolver of a bundle as a faulty provider uses it.
struct MisusedResolver {
    inner: Arc<dyn Resolver>,
    fault: Fault,
}

/// The bundle for a provider with this fault.
pub(super) fn misused(bundle: PodBundle, fault: Fault) -> PodBundle {
    PodBundle { resolver: Arc::new(MisusedResolver { inner: bundle.resolver, fault }), pod: bundle.pod }
}

impl MisusedResolver {
    fn bent(fault: Fault, mut set: FileSet) -> FileSet {
        match fault {
            Fault::LosesSecretFiles => set.files.retain(|_, file| file.origin != Origin::Secret),
            Fault::IgnoresModes => set.files.values_mut().for_each(|file| file.mode = 0o644),
            _ => {}
        }
        set
    }
}

#[async_trait]
impl Resolver for MisusedResolver {
    async fn container(&self, name: &str, facts: &Facts) -> Result<ContainerInputs> {
        let without = Facts { pod_ips: Vec::new(), ..facts.clone() };
        let facts = if self.fault == Fault::StartsWithoutAddress { &without } else { facts };
        let mut inputs = self.inner.container(name, facts).await?;
        if self.fault == Fault::LosesSecretVariables {
            inputs.env.retain(|variable| variable.origin != Origin::Secret);
        }
        Ok(inputs)
    }

    fn volume(&self, name: &str, tokens: TokenLifetime) -> BoxStream<'static, Result<FileSet>> {
        let fault = self.fault;
        let sets = self.inner.volume(name, tokens).map(move |set| set.map(|set| Self::bent(fault, set)));
        if fault == Fault::KeepsOldTokens {
            return sets.take(1).chain(stream::pending()).boxed();
        }
        sets.boxed()
    }

    async fn config_map(&self, name: &str) -> Result<Arc<ConfigMap>> {
        self.inner.config_map(name).await
    }

    async fn secret(&self, name: &str) -> Result<Arc<Secret>> {
        self.inner.secret(name).await
    }

    async fn services(&self) -> Result<Vec<Arc<Service>>> {
        self.inner.services().await
    }

    async fn token(&self, request: &TokenRequest) -> Result<Token> {
        self.inner.token(request).await
    }

    async fn pull_credentials(&self, image: &str) -> Result<Vec<PullCredentials>> {
        self.inner.pull_credentials(image).await
    }

    async fn claim(&self, name: &str) -> Result<Claim> {
        self.inner.claim(name).await
    }

    async fn runtime_class(&self) -> Result<Option<Arc<RuntimeClass>>> {
        self.inner.runtime_class().await
    }

    fn node(&self) -> NodeFacts {
        self.inner.node()
    }

    async fn appeared(&self, reference: &Reference) {
        self.inner.appeared(reference).await;
    }
}
