//! A resolver whose Secret can be changed.

use std::sync::Arc;

use async_trait::async_trait;
use futures::{StreamExt as _, stream, stream::BoxStream};
use k8s_openapi::api::{
    core::v1::{ConfigMap, Secret, Service},
    node::v1::RuntimeClass,
};
use tokio::sync::watch;
use vk_provider::{
    Error, Resolver, Result,
    error::Kind,
    resolve::{
        Claim, ContainerInputs, Deferred, Facts, FileSet, NodeFacts, Origin, PullCredentials, Reference,
        ReferenceKind, Token, TokenLifetime, TokenRequest, Variable,
    },
};

/// Resolves every volume to the same files.
#[derive(Debug)]
pub struct FixedResolver {
    /// The files.
    pub files: watch::Sender<FileSet>,
    /// Whether the object behind them exists.
    pub found: watch::Sender<bool>,
}

// === impl FixedResolver ===

impl FixedResolver {
    /// A resolver with these files.
    pub fn new(files: FileSet) -> Self {
        Self { files: watch::Sender::new(files), found: watch::Sender::new(true) }
    }
}

fn nothing<T>() -> Result<T> {
    Err(Error::unsupported("the pods of the suite do not refer to this"))
}

#[async_trait]
impl Resolver for FixedResolver {
    /// One variable: the address of the host.
    async fn container(&self, _name: &str, facts: &Facts) -> Result<ContainerInputs> {
        let address = facts.host_ips.first().map(ToString::to_string);
        let deferred = address.is_none().then(|| Deferred { field: "status.hostIP".to_owned(), whole: true });
        let value = address.unwrap_or_default();
        let variable = Variable { name: "HOST_IP".to_owned(), value, origin: Origin::Field, deferred };
        Ok(ContainerInputs { env: vec![variable], ..ContainerInputs::default() })
    }

    fn volume(&self, _name: &str, _tokens: TokenLifetime) -> BoxStream<'static, Result<FileSet>> {
        let (mut files, found) = (self.files.subscribe(), self.found.subscribe());
        files.mark_changed();
        stream::unfold((files, found), |(mut files, mut found)| async move {
            tokio::select! {
                changed = files.changed() => changed.ok()?,
                changed = found.changed() => changed.ok()?,
            }
            let set = files.borrow_and_update().clone();
            if *found.borrow_and_update() {
                return Some((Ok(set), (files, found)));
            }
            let secret = Reference::new(ReferenceKind::Secret, "shop", "secret");
            Some((Err(Error::new(Kind::Unresolved(secret), "the Secret does not exist")), (files, found)))
        })
        .boxed()
    }

    async fn config_map(&self, _name: &str) -> Result<Arc<ConfigMap>> {
        nothing()
    }

    async fn secret(&self, _name: &str) -> Result<Arc<Secret>> {
        nothing()
    }

    async fn services(&self) -> Result<Vec<Arc<Service>>> {
        Ok(Vec::new())
    }

    async fn token(&self, _request: &TokenRequest) -> Result<Token> {
        nothing()
    }

    async fn pull_credentials(&self, _image: &str) -> Result<Vec<PullCredentials>> {
        Ok(Vec::new())
    }

    async fn claim(&self, _name: &str) -> Result<Claim> {
        nothing()
    }

    async fn runtime_class(&self) -> Result<Option<Arc<RuntimeClass>>> {
        Ok(None)
    }

    fn node(&self) -> NodeFacts {
        NodeFacts::default()
    }

    async fn appeared(&self, _reference: &Reference) {}
}
