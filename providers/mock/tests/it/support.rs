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
        Claim, ContainerInputs, Deferred, Facts, FileSet, NodeFacts, Origin, PullCredentials, Reference,
        Token, TokenLifetime, TokenRequest, Variable,
    },
};

/// A resolver without objects: containers have the address of their pod in their environment, if they ask for it.
struct Nothing {
    has_address: bool,
}

fn nothing<T>() -> Result<T> {
    Err(Error::unsupported("nothing can be resolved here"))
}

#[async_trait]
impl Resolver for Nothing {
    async fn container(&self, _name: &str, facts: &Facts) -> Result<ContainerInputs> {
        let deferred = Deferred { field: "status.podIP".to_owned(), whole: true };
        let address = facts.pod_ips.first();
        let variable = Variable {
            name: "IP".to_owned(),
            value: address.map(ToString::to_string).unwrap_or_default(),
            origin: Origin::Field,
            deferred: address.is_none().then_some(deferred),
        };
        Ok(ContainerInputs {
            env: self.has_address.then_some(variable).into_iter().collect(),
            ..ContainerInputs::default()
        })
    }

    fn volume(&self, _name: &str, _tokens: TokenLifetime) -> BoxStream<'static, Result<FileSet>> {
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
    PodBundle { pod: Arc::new(pod), resolver: Arc::new(Nothing { has_address: false }) }
}

/// A bundle of a pod whose container has its address in the variable `IP`.
pub(crate) fn bundle_with_address(mut pod: Pod) -> PodBundle {
    let variable =
        serde_json::json!([{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]);
    pod.spec.as_mut().unwrap().containers[0].env = serde_json::from_value(variable).unwrap();
    PodBundle { pod: Arc::new(pod), resolver: Arc::new(Nothing { has_address: true }) }
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
