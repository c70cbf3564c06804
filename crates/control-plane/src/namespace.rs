//! Namespaces that are ready for pods; every test has its own.

use std::fmt;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace as KubeNamespace, ServiceAccount};
use kube::api::{Api, ObjectMeta, PostParams};
use tokio::time::{Instant, sleep};

use crate::error::{Error, Result};

/// The ConfigMap that every pod with the automatic token volume mounts.
const ROOT_CA: &str = "kube-root-ca.crt";
const DEFAULT_ACCOUNT: &str = "default";
/// Short compared to the time that the controllers need, and cheap for the API server.
const POLL: Duration = Duration::from_millis(50);

/// A namespace that is ready for pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace {
    name: String,
}

/// Who creates the objects that a namespace needs before pods can be created.
#[derive(Debug, Clone, Copy)]
pub(crate) enum NamespaceSetup<'a> {
    /// The controller-manager; we wait for it.
    ByControllers,
    /// This crate, because no controller-manager runs.
    ByUs { ca_pem: &'a str },
}

// === impl Namespace ===

impl Namespace {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) async fn create(
        client: &kube::Client,
        prefix: &str,
        setup: NamespaceSetup<'_>,
        deadline: Duration,
    ) -> Result<Self> {
        // Not generateName: with our own name, an error of the create request already contains it.
        let name = format!("{prefix}-{:08x}", rand::random::<u32>());
        let metadata = ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() };
        let namespace = KubeNamespace { metadata, ..KubeNamespace::default() };
        Api::<KubeNamespace>::all(client.clone())
            .create(&PostParams::default(), &namespace)
            .await
            .map_err(Error::api(format!("create namespace {name}")))?;
        prepare(client, &name, setup, deadline).await?;
        Ok(Self { name })
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl AsRef<str> for Namespace {
    fn as_ref(&self) -> &str {
        &self.name
    }
}

/// Waits until the namespace has its default ServiceAccount, without which pods are rejected, and the cluster's CA certificate, without which
/// they wait for a volume forever.
pub(crate) async fn prepare(
    client: &kube::Client,
    namespace: &str,
    setup: NamespaceSetup<'_>,
    deadline: Duration,
) -> Result<()> {
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), namespace);
    let maps = Api::<ConfigMap>::namespaced(client.clone(), namespace);
    let end = Instant::now() + deadline;
    loop {
        let missing = match setup {
            NamespaceSetup::ByControllers => missing(&accounts, &maps).await,
            NamespaceSetup::ByUs { ca_pem } => make(&accounts, &maps, ca_pem).await,
        };
        let missing = missing.map_err(Error::api(format!("prepare namespace {namespace}")))?;
        let Some(missing) = missing else { return Ok(()) };
        if Instant::now() >= end {
            let what = format!("{missing} in namespace {namespace}");
            return Err(Error::Missing { what, waited: deadline });
        }
        sleep(POLL).await;
    }
}

type Missing = Option<&'static str>;

async fn missing(accounts: &Api<ServiceAccount>, maps: &Api<ConfigMap>) -> kube::Result<Missing> {
    if accounts.get_opt(DEFAULT_ACCOUNT).await?.is_none() {
        return Ok(Some("the default ServiceAccount"));
    }
    Ok(maps.get_opt(ROOT_CA).await?.is_none().then_some("the ConfigMap kube-root-ca.crt"))
}

async fn make(accounts: &Api<ServiceAccount>, maps: &Api<ConfigMap>, ca_pem: &str) -> kube::Result<Missing> {
    let named = |name: &str| ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
    let account = ServiceAccount { metadata: named(DEFAULT_ACCOUNT), ..ServiceAccount::default() };
    let map = ConfigMap {
        metadata: named(ROOT_CA),
        data: Some([("ca.crt".to_owned(), ca_pem.to_owned())].into()),
        ..ConfigMap::default()
    };
    let made = created(accounts.create(&PostParams::default(), &account).await)?
        && created(maps.create(&PostParams::default(), &map).await)?;
    // The API server creates namespace `default` a moment after it reports ready.
    Ok((!made).then_some("the namespace itself"))
}

fn created<T>(result: kube::Result<T>) -> kube::Result<bool> {
    match result {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(true),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(false),
        Err(error) => Err(error),
    }
}
