//! A fake registry and runtime, and the credentials of a pod.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use futures::stream::BoxStream;
use k8s_openapi::api::{
    core::v1::{ConfigMap, Secret, Service},
    node::v1::RuntimeClass,
};
use parking_lot::Mutex;
use secrecy::ExposeSecret as _;
use vk_provider::{
    Error, PodRef, Resolver, Result,
    ability::{AttachOptions, ExecOptions, Forward, Started},
    resolve::{
        Claim, ContainerInputs, Facts, FileSet, NodeFacts, PullCredentials, Reference, RegistryLogin, Token,
        TokenLifetime, TokenRequest,
    },
};

use crate::{
    backend::{
        ContainerBackend, ContainerConfig, ExecOutput, FsUsage, Image, Listing, PodUsage, RuntimeInfo,
        SandboxConfig,
    },
    image::Access,
    snapshot::{Container, Sandbox},
};

/// A runtime that has images and pulls them.
#[derive(Debug, Default)]
pub(super) struct FakeImageRuntime(pub Mutex<State>);

#[derive(Debug, Default)]
pub(super) struct State {
    /// Local images by name.
    pub images: BTreeMap<String, Image>,
    /// What the registry asks for; `None` gives to everybody.
    pub password: Option<&'static str>,
    /// Errors of the next pulls.
    pub faults: VecDeque<Error>,
    /// Who may use every image, if the runtime records it.
    pub access: Option<Access>,
    /// The error of inspecting an image, if set.
    pub blind: Option<&'static str>,
    /// What a pull returns instead of the id of the image, if set.
    pub image_ref: Option<&'static str>,
    /// How long a pull takes.
    pub slow: Duration,
    /// Passwords of all pulls that were begun.
    pub pulls: Vec<Option<String>>,
    /// How many run now, and how many ever ran at once.
    pub running: usize,
    pub most: usize,
}

/// A pod's credentials.
pub(super) struct Pod(pub PodRef, pub Vec<PullCredentials>);

pub(super) fn pod(uid: &str, passwords: &[&str]) -> Pod {
    let basic = |password: &&str| PullCredentials::basic("example.com", "me", *password);
    Pod(PodRef::new("team", uid, uid), passwords.iter().map(basic).collect())
}

/// An error as a CRI client gives it: words, and the words with their code.
pub(super) fn rpc(code: &str, words: &'static str) -> Error {
    Error::internal(words).caused_by(format!("rpc error: code = {code} desc = {words}"))
}

fn unused<T>() -> Result<T> {
    Err(Error::unsupported("not in this test"))
}

/// Counts a pull as running until it is dropped.
struct Running<'a>(&'a FakeImageRuntime);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.0.lock().running -= 1;
    }
}

#[async_trait]
impl ContainerBackend for FakeImageRuntime {
    async fn image(&self, image: &str, _handler: &str) -> Result<Option<Image>> {
        let state = self.0.lock();
        state.blind.map_or_else(|| Ok(state.images.get(image).cloned()), |why| Err(rpc("Unavailable", why)))
    }

    async fn image_access(&self, _image: &str, _id: &str) -> Result<Access> {
        Ok(self.0.lock().access.clone().unwrap_or(Access::Unknown))
    }

    async fn pull(
        &self,
        image: &str,
        credentials: Option<&PullCredentials>,
        _sandbox: &SandboxConfig,
    ) -> Result<String> {
        let given = credentials.map(|credentials| match &credentials.login {
            RegistryLogin::Basic { password: secret, .. }
            | RegistryLogin::IdentityToken(secret)
            | RegistryLogin::RegistryToken(secret) => secret.expose_secret().to_owned(),
        });
        let (slow, fault) = {
            let mut state = self.0.lock();
            state.pulls.push(given.clone());
            state.running += 1;
            state.most = state.most.max(state.running);
            (state.slow, state.faults.pop_front())
        };
        let _running = Running(self);
        tokio::time::sleep(slow).await;
        let mut state = self.0.lock();
        match fault {
            Some(fault) => Err(fault),
            None if state.password.is_some() && state.password != given.as_deref() => {
                Err(rpc("Unknown", "pull access denied"))
            }
            None => {
                let id = format!("sha256:{image}");
                let there =
                    Image { id: id.clone(), size: 42, username: "www".to_owned(), ..Image::default() };
                state.images.insert(image.to_owned(), there);
                Ok(state.image_ref.map_or(id, ToOwned::to_owned))
            }
        }
    }

    async fn runtime(&self) -> Result<RuntimeInfo> {
        unused()
    }
    async fn run_sandbox(&self, _: &SandboxConfig) -> Result<String> {
        unused()
    }
    async fn stop_sandbox(&self, _: &str) -> Result<()> {
        unused()
    }
    async fn remove_sandbox(&self, _: &str) -> Result<()> {
        unused()
    }
    async fn sandbox(&self, _: &str) -> Result<Sandbox> {
        unused()
    }
    async fn create_container(&self, _: &str, _: &ContainerConfig, _: &SandboxConfig) -> Result<String> {
        unused()
    }
    async fn start_container(&self, _: &str) -> Result<()> {
        unused()
    }
    async fn stop_container(&self, _: &str, _: Duration) -> Result<()> {
        unused()
    }
    async fn remove_container(&self, _: &str) -> Result<()> {
        unused()
    }
    async fn container(&self, _: &str) -> Result<Container> {
        unused()
    }
    async fn list(&self, _: &BTreeMap<String, String>) -> Result<Listing> {
        unused()
    }
    async fn run(&self, _: &str, _: &[String], _: Duration) -> Result<ExecOutput> {
        unused()
    }
    async fn exec(&self, _: &str, _: &[String], _: &ExecOptions) -> Result<Started> {
        unused()
    }
    async fn attach(&self, _: &str, _: &AttachOptions) -> Result<Started> {
        unused()
    }
    async fn port_forward(&self, _: &str, _: u16) -> Result<Forward> {
        unused()
    }
    async fn reopen_log(&self, _: &str) -> Result<()> {
        unused()
    }
    async fn images(&self) -> Result<Vec<Image>> {
        unused()
    }
    async fn remove_image(&self, _: &str) -> Result<()> {
        unused()
    }
    async fn used_images(&self) -> Result<std::collections::BTreeSet<String>> {
        unused()
    }
    async fn image_fs(&self) -> Result<Vec<FsUsage>> {
        unused()
    }
    async fn usage(&self, _: &BTreeMap<String, String>) -> Result<Vec<PodUsage>> {
        unused()
    }
}

#[async_trait]
impl Resolver for Pod {
    async fn pull_credentials(&self, _image: &str) -> Result<Vec<PullCredentials>> {
        Ok(self.1.clone())
    }

    async fn container(&self, _: &str, _: &Facts) -> Result<ContainerInputs> {
        unused()
    }
    fn volume(&self, _: &str, _: TokenLifetime) -> BoxStream<'static, Result<FileSet>> {
        Box::pin(futures::stream::empty())
    }
    async fn config_map(&self, _: &str) -> Result<Arc<ConfigMap>> {
        unused()
    }
    async fn secret(&self, _: &str) -> Result<Arc<Secret>> {
        unused()
    }
    async fn services(&self) -> Result<Vec<Arc<Service>>> {
        unused()
    }
    async fn token(&self, _: &TokenRequest) -> Result<Token> {
        unused()
    }
    async fn claim(&self, _: &str) -> Result<Claim> {
        unused()
    }
    async fn runtime_class(&self) -> Result<Option<Arc<RuntimeClass>>> {
        unused()
    }
    fn node(&self) -> NodeFacts {
        NodeFacts::default()
    }
    async fn appeared(&self, _: &Reference) {}
}
