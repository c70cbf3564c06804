//! A namespace of its own for every test.

use std::fmt;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace as KubeNamespace, ServiceAccount};
use kube::api::{Api, ObjectMeta, PostParams};
use tokio::time::{Instant, sleep};

use super::error::{Error, Result};

/// The ConfigMap that every pod with the automatic token volume mounts.
const ROOT_CA: &str = "kube-root-ca.crt";
const DEFAULT_ACCOUNT: &str = "default";
/// Small beside the time the controllers need, and cheap for the API server.
const POLL: Duration = Duration::from_millis(50);

/// A namespace that is ready for pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace {
    name: String,
}

/// Who makes the objects without which a namespace takes no pods.
#[derive(Debug, Clone, Copy)]
pub(super) enum Furnishing<'a> {
    /// The controller-manager does, and we wait.
    Awaited,
    /// Nobody else, so we do, with this authority.
    Ours { ca_pem: &'a str },
}

// === impl Namespace ===

impl Namespace {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(super) async fn create(
        client: &kube::Client,
        prefix: &str,
        furnishing: Furnishing<'_>,
        deadline: Duration,
    ) -> Result<Self> {
        // Named by us and not by generateName: the name is then the same in every error message.
        let name = format!("{prefix}-{:08x}", rand::random::<u32>());
        let metadata = ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() };
        let namespace = KubeNamespace { metadata, ..KubeNamespace::default() };
        Api::<KubeNamespace>::all(client.clone())
            .create(&PostParams::default(), &namespace)
            .await
            .map_err(Error::api(format!("create namespace {name}")))?;
        furnish(client, &name, furnishing, deadline).await?;
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

/// Sees to it that the namespace has its default account and the cluster's authority: without the one
/// pods are refused, without the other they wait for a volume forever.
pub(super) async fn furnish(
    client: &kube::Client,
    namespace: &str,
    furnishing: Furnishing<'_>,
    deadline: Duration,
) -> Result<()> {
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), namespace);
    let maps = Api::<ConfigMap>::namespaced(client.clone(), namespace);
    let end = Instant::now() + deadline;
    loop {
        let missing = match furnishing {
            Furnishing::Awaited => missing(&accounts, &maps).await,
            Furnishing::Ours { ca_pem } => make(&accounts, &maps, ca_pem).await,
        };
        let missing = missing.map_err(Error::api(format!("furnish namespace {namespace}")))?;
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
    // The API server makes the namespace `default` a moment after it says that it is ready.
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
