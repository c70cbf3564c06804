//! Certificates signed by a real controller manager.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use jiff::SignedDuration;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::Api;
use tempfile::TempDir;
use tokio::{sync::watch, task::JoinSet};
use vk_kube::{
    Client, Metrics,
    csr::{CertificateSpec, CertificateStore, Error, RenewalStatus, Renewer, obtain},
};
use vk_supervisor::Clock;
use vk_testing::{ControlPlane, kubectl};

const SOON: Duration = Duration::from_secs(30);

/// A running renewer and its status.
struct RunningRenewer {
    status: watch::Receiver<RenewalStatus>,
    _tasks: JoinSet<()>,
}

impl RunningRenewer {
    fn start(renewer: Renewer) -> Self {
        let status = renewer.status();
        let mut tasks = JoinSet::new();
        tasks.spawn(renewer.run());
        Self { status, _tasks: tasks }
    }

    async fn wait_for(&mut self, what: impl FnMut(&RenewalStatus) -> bool) -> RenewalStatus {
        let seen = tokio::time::timeout(SOON, self.status.wait_for(what)).await;
        seen.expect("it takes too long").expect("the renewer runs").clone()
    }
}

fn client(client: kube::Client) -> Client {
    Client::fixed(client, Metrics::default())
}

fn node_client(cluster: &ControlPlane, node: &str) -> Client {
    client(cluster.node_client(node).unwrap())
}

fn serving(node: &str, addresses: &[&str]) -> CertificateSpec {
    CertificateSpec::serving(node, [node.to_owned()], addresses.iter().map(|text| text.parse().unwrap()))
}

async fn certificate(cluster: &ControlPlane, verb: &str, name: &str) {
    let done = kubectl(cluster, ["certificate", verb, name]).await.unwrap();
    assert!(done.success(), "{done:?}");
}

async fn requests(cluster: &ControlPlane, node: &str) -> Vec<CertificateSigningRequest> {
    let all = Api::<CertificateSigningRequest>::all(cluster.admin().unwrap());
    let all = all.list(&kube::api::ListParams::default()).await.unwrap();
    let user = format!("system:node:{node}");
    all.items.into_iter().filter(|request| request.spec.username.as_ref() == Some(&user)).collect()
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_serving_certificate_is_issued_on_approval_and_again_for_a_new_address() {
    let cluster = ControlPlane::shared_with_signing().await;
    let folder = TempDir::new().unwrap();
    let store = CertificateStore::new(folder.path().join("serving.pem"));
    let spec = watch::Sender::new(serving("serves", &["127.0.0.1"]));
    let renewer = || {
        let client = node_client(cluster, "serves");
        Renewer::new(client, spec.subscribe(), store.clone(), Clock::system())
    };
    let mut running = RunningRenewer::start(renewer());
    let pending = running.wait_for(|status| status.pending.is_some()).await;
    assert_eq!(pending.current, None);
    certificate(cluster, "approve", &pending.pending.unwrap()).await;
    let first = running.wait_for(|status| status.current.is_some()).await.current.unwrap();
    assert_eq!(first.mismatch(&spec.borrow()), None);

    spec.send_replace(serving("serves", &["127.0.0.1", "::1"]));
    let pending = running.wait_for(|status| status.pending.is_some()).await;
    assert_eq!(pending.current.as_ref(), Some(&first), "the old one is used meanwhile");
    // A restarted process waits for the same request.
    drop(running);
    let mut running = RunningRenewer::start(renewer());
    let again = running.wait_for(|status| status.pending.is_some()).await;
    assert_eq!((&again.pending, again.current.as_ref()), (&pending.pending, Some(&first)));
    assert_eq!(requests(cluster, "serves").await.len(), 2);
    certificate(cluster, "approve", &pending.pending.unwrap()).await;
    let second = running.wait_for(|status| status.current.as_ref() != Some(&first)).await.current.unwrap();
    assert_eq!(second.mismatch(&spec.borrow()), None);
    assert_eq!(store.load().unwrap(), Some(second));
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_denial_is_reported_and_requested_again() {
    let cluster = ControlPlane::shared_with_signing().await;
    let folder = TempDir::new().unwrap();
    let store = CertificateStore::new(folder.path().join("serving.pem"));
    let spec = watch::Sender::new(serving("unwelcome", &["127.0.0.1"]));
    let client = node_client(cluster, "unwelcome");
    let mut running = RunningRenewer::start(Renewer::new(client, spec.subscribe(), store, Clock::system()));
    let first = running.wait_for(|status| status.pending.is_some()).await.pending.unwrap();
    certificate(cluster, "deny", &first).await;
    let denied = running.wait_for(|status| status.last_error.is_some()).await;
    assert!(
        denied.last_error.as_ref().unwrap().contains(&format!("{first} was denied: KubectlDeny")),
        "{denied:?}"
    );
    let second = running.wait_for(|status| status.pending.is_some()).await.pending.unwrap();
    assert_ne!(first, second);
    certificate(cluster, "approve", &second).await;
    running.wait_for(|status| status.current.is_some() && status.last_error.is_none()).await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_client_certificate_is_approved_by_the_controller_manager_and_renewed() {
    let cluster = ControlPlane::shared_with_signing().await;
    let folder = TempDir::new().unwrap();
    let store = CertificateStore::new(folder.path().join("client.pem"));
    // The bindings of the bootstrap token let nodes renew.
    cluster.bootstrap_token(true).await.unwrap();
    let ahead = Arc::new(AtomicI64::new(0));
    let clock = Clock::new({
        let (ahead, system) = (Arc::clone(&ahead), Clock::system());
        move || system.now() + SignedDuration::from_secs(ahead.load(Ordering::Relaxed))
    });
    let lifetime = Some(Duration::from_mins(10));
    let spec = watch::Sender::new(CertificateSpec { lifetime, ..CertificateSpec::client("renews") });
    let client = node_client(cluster, "renews");
    let mut running =
        RunningRenewer::start(Renewer::new(client, spec.subscribe(), store.clone(), clock.clone()));
    let first = running.wait_for(|status| status.current.is_some()).await.current.unwrap();
    let left = first.not_after().duration_since(clock.now());
    assert!(left <= SignedDuration::from_mins(10) && left > SignedDuration::from_mins(4), "{left}");
    assert_eq!(requests(cluster, "renews").await.len(), 1);

    // Shortly before it expires. A certificate issued now is as old by this clock, and is not renewed at once. The renewer
    // waits a minute after each, so another renewer has to wait_for the new time.
    ahead.store((left - SignedDuration::from_secs(20)).as_secs(), Ordering::Relaxed);
    drop(running);
    let client = node_client(cluster, "renews");
    let mut running = RunningRenewer::start(Renewer::new(client, spec.subscribe(), store.clone(), clock));
    let second = running.wait_for(|status| status.current.as_ref() != Some(&first)).await.current.unwrap();
    assert_eq!(store.load().unwrap(), Some(second));
    assert_eq!(requests(cluster, "renews").await.len(), 2);
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn without_the_right_to_watch_requests_are_read() {
    let cluster = ControlPlane::shared_with_signing().await;
    let role =
        ["create", "clusterrole", "asks", "--verb=create,get", "--resource=certificatesigningrequests"];
    let bind = ["create", "clusterrolebinding", "asks", "--clusterrole=asks", "--user=asker"];
    for args in [&role[..], &bind[..]] {
        let done = kubectl(cluster, args).await.unwrap();
        assert!(done.success(), "{done:?}");
    }
    let folder = TempDir::new().unwrap();
    let store = CertificateStore::new(folder.path().join("serving.pem"));
    let spec = watch::Sender::new(serving("of-asker", &["127.0.0.1"]));
    let asker = client(cluster.client_for("asker", &[]).unwrap());
    let mut running = RunningRenewer::start(Renewer::new(asker, spec.subscribe(), store, Clock::system()));
    let name = running.wait_for(|status| status.pending.is_some()).await.pending.unwrap();
    certificate(cluster, "approve", &name).await;
    running.wait_for(|status| status.current.is_some()).await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn without_the_right_to_create_requests_the_api_servers_error_is_reported() {
    let cluster = ControlPlane::shared_with_signing().await;
    let folder = TempDir::new().unwrap();
    let store = CertificateStore::new(folder.path().join("client.pem"));
    let nobody = client(cluster.client_for("nobody", &[]).unwrap());
    let refused =
        obtain(&nobody, &CertificateSpec::client("any"), &store, &Clock::system(), |_| {}).await.unwrap_err();
    assert_eq!(refused.api(), Some(vk_kube::Kind::Forbidden), "{refused}");
    assert!(refused.to_string().contains("nobody"), "{refused}");
    // A node may not request a certificate for another node.
    let node = node_client(cluster, "honest");
    let refused =
        obtain(&node, &CertificateSpec::client("other"), &store, &Clock::system(), |_| {}).await.unwrap_err();
    assert!(
        matches!(&refused, Error::Api { error, .. } if error.message.contains("system:node:honest")),
        "{refused}"
    );
}
