//! Pods, bundles and helpers to wait for changes.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::{StreamExt, stream, stream::BoxStream};
use k8s_openapi::{
    api::{
        core::v1::{ConfigMap, Container, Pod, PodSpec, PodStatus, Secret, Service},
        node::v1::RuntimeClass,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use vk_provider::{
    Changes, Error, PodBundle, PodChange, PodRef, Provider, Resolver, Result,
    resolve::{
        Claim, ContainerInputs, Facts, FileSet, NodeFacts, PullCredentials, Reference, Token, TokenRequest,
    },
};

/// A resolver without objects: containers start with an empty environment.
struct Nothing;

fn nothing<T>() -> Result<T> {
    Err(Error::unsupported("nothing can be resolved here"))
}

#[async_trait]
impl Resolver for Nothing {
    async fn container(&self, _name: &str, _facts: &Facts) -> Result<ContainerInputs> {
        Ok(ContainerInputs { env: Vec::new(), command: None, args: None })
    }

    fn volume(&self, _name: &str) -> BoxStream<'static, Result<FileSet>> {
        stream::empty().boxed()
    }

    async fn config_map(&self, _name: &str) -> Result<Arc<ConfigMap>> {
        nothing()
    }

    async fn secret(&self, _name: &str) -> Result<Arc<Secret>> {
        nothing()
    }

    async fn services(&self) -> Result<Vec<Arc<Service>>> {
        nothing()
    }

    async fn token(&self, _request: &TokenRequest) -> Result<Token> {
        nothing()
    }

    async fn pull_credentials(&self, _image: &str) -> Result<Vec<PullCredentials>> {
        nothing()
    }

    async fn claim(&self, _name: &str) -> Result<Claim> {
        nothing()
    }

    async fn runtime_class(&self) -> Result<Option<Arc<RuntimeClass>>> {
        nothing()
    }

    fn node(&self) -> NodeFacts {
        NodeFacts::default()
    }

    async fn appeared(&self, _reference: &Reference) {
        std::future::pending::<()>().await;
    }
}

pub(crate) fn pod(uid: &str, annotations: &[(&str, &str)]) -> Pod {
    let annotations = annotations
        .iter()
        .map(|(key, value)| (format!("{}{key}", vk_provider_mock::ANNOTATION_PREFIX), (*value).to_owned()));
    Pod {
        metadata: ObjectMeta {
            namespace: Some("default".into()),
            name: Some(format!("pod-{uid}")),
            uid: Some(uid.into()),
            annotations: Some(annotations.collect()),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            containers: vec![Container {
                name: "app".into(),
                image: Some("registry/app:1".into()),
                ..Container::default()
            }],
            ..PodSpec::default()
        }),
        ..Pod::default()
    }
}

pub(crate) fn bundle(pod: Pod) -> PodBundle {
    PodBundle { pod: Arc::new(pod), resolver: Arc::new(Nothing) }
}

pub(crate) fn reference(uid: &str) -> PodRef {
    PodRef::new("default", format!("pod-{uid}"), uid)
}

pub(crate) fn phase(status: &PodStatus) -> &str {
    status.phase.as_deref().unwrap()
}

pub(crate) fn changes(provider: &impl Provider) -> BoxStream<'static, PodChange> {
    match provider.changes() {
        Changes::Push(stream) => stream,
        Changes::Poll(_) => panic!("the mock pushes"),
    }
}

/// The next item, with a generous timeout.
pub(crate) async fn next<T>(stream: &mut BoxStream<'static, T>) -> T {
    let item = tokio::time::timeout(Duration::from_mins(1), stream.next());
    item.await.expect("an item in time").expect("the stream goes on")
}

/// Reads changes until one matches.
pub(crate) async fn until(
    stream: &mut BoxStream<'static, PodChange>,
    mut wanted: impl FnMut(&PodChange) -> bool,
) -> PodChange {
    loop {
        let change = next(stream).await;
        if wanted(&change) {
            return change;
        }
    }
}
