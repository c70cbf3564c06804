//! A resolver that a test controls.

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use futures::{StreamExt as _, stream::BoxStream};
use k8s_openapi::api::{
    core::v1::{ConfigMap, Secret, Service},
    node::v1::RuntimeClass,
};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use vk_provider::{
    Error, Result,
    quantity::Quantity,
    resolve::{
        Claim, ContainerInputs, Facts, File, FileSet, NodeFacts, Origin, PullCredentials, Reference,
        Resolver, Token, TokenLifetime, TokenRequest,
    },
};

type Item = Result<FileSet>;

#[derive(Default)]
pub(super) struct FakeResolver {
    waiting: Mutex<BTreeMap<String, mpsc::UnboundedReceiver<Item>>>,
    pub(super) claims: Mutex<BTreeMap<String, Claim>>,
    panics: bool,
}

impl FakeResolver {
    /// One whose streams panic.
    pub(super) fn panicking() -> Self {
        Self { panics: true, ..Self::default() }
    }

    /// What the next stream of this volume says. Dropping the sender ends it.
    pub(super) fn volume(&self, name: &str) -> mpsc::UnboundedSender<Item> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.waiting.lock().insert(name.to_owned(), receiver);
        sender
    }
}

pub(super) fn set(files: &[(&str, &str)]) -> FileSet {
    let file = |content: &str| File::new(content.to_owned(), 0o644, Origin::ConfigMap);
    let files = files.iter().map(|(path, content)| ((*path).to_owned(), file(content))).collect();
    FileSet { files, expires: None }
}

fn unasked<T>() -> Result<T> {
    Err(Error::unsupported("volumes do not ask for this"))
}

#[async_trait]
impl Resolver for FakeResolver {
    async fn container(&self, _name: &str, _facts: &Facts) -> Result<ContainerInputs> {
        unasked()
    }

    fn volume(&self, name: &str, _: TokenLifetime) -> BoxStream<'static, Item> {
        if self.panics {
            return futures::stream::poll_fn(|_| panic!("this is a test")).boxed();
        }
        match self.waiting.lock().remove(name) {
            Some(receiver) => futures::stream::unfold(receiver, |mut receiver| async move {
                Some((receiver.recv().await?, receiver))
            })
            .boxed(),
            None => futures::stream::empty().boxed(),
        }
    }

    async fn config_map(&self, _name: &str) -> Result<Arc<ConfigMap>> {
        unasked()
    }

    async fn secret(&self, _name: &str) -> Result<Arc<Secret>> {
        unasked()
    }

    async fn services(&self) -> Result<Vec<Arc<Service>>> {
        unasked()
    }

    async fn token(&self, _request: &TokenRequest) -> Result<Token> {
        unasked()
    }

    async fn pull_credentials(&self, _image: &str) -> Result<Vec<PullCredentials>> {
        unasked()
    }

    async fn claim(&self, name: &str) -> Result<Claim> {
        self.claims
            .lock()
            .get(name)
            .cloned()
            .ok_or_else(|| Error::not_found(format!("claim {name:?}: it is not there")))
    }

    async fn runtime_class(&self) -> Result<Option<Arc<RuntimeClass>>> {
        unasked()
    }

    fn node(&self) -> NodeFacts {
        let allocatable = BTreeMap::from([("memory".to_owned(), Quantity::bytes(64 << 20))]);
        NodeFacts { allocatable, ..NodeFacts::default() }
    }

    async fn appeared(&self, _reference: &Reference) {}
}
