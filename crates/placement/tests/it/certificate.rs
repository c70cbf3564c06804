//! The certificates in the Secret, with the real API server as the one who verifies them.

use std::{
    collections::BTreeSet,
    future::Future,
    pin::pin,
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures::StreamExt as _;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{
    admissionregistration::v1::MutatingWebhookConfiguration, core::v1::Secret, events::v1::Event,
};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::watch;
use vk_kube::{Client, Metrics, Objects, Selector, WatchEvent};
use vk_placement::{
    certificate::{CaBundleError, Maintainer, SECRET, ServedNames, ca_bundle, follow},
    convert::Settings,
    names,
    policy::{FailurePolicy, NAME, WebhookAddress, webhook_configuration},
    rbac, webhook,
};
use vk_server::tls::ServingCertificate;
use vk_supervisor::{Clock, Supervisor, task};
use vk_testing::{ControlPlane, control_plane::Options, eventually};

use crate::{
    kubectl::{apply, kubectl},
    properties::read,
    server::Server,
};

const NAMESPACE: &str = "infra";
/// A busy machine may take long.
const SOON: Duration = Duration::from_mins(1);
const KEY: &str = "-----BEGIN PRIVATE KEY-----";

fn days(days: i64) -> SignedDuration {
    SignedDuration::from_hours(24 * days)
}

/// A cluster with two processes, both of which believe that they lead.
struct Cluster {
    control_plane: ControlPlane,
    /// The account of `print rbac`.
    placement: Client,
    /// What the clocks of both processes show.
    clock: Arc<Mutex<Timestamp>>,
    supervisor: Supervisor,
    _leading: watch::Sender<bool>,
}

// === impl Cluster ===

impl Cluster {
    /// The objects exist before the processes start.
    async fn start(now: Timestamp, objects: &[&str]) -> Self {
        let control_plane = ControlPlane::start(Options::default()).await.unwrap();
        kubectl(&control_plane, &["create", "namespace", NAMESPACE]).await;
        apply(&control_plane, &rbac::manifests(NAMESPACE)).await;
        for object in objects {
            apply(&control_plane, object).await;
        }
        let groups = ["system:serviceaccounts", "system:authenticated"];
        let account = control_plane.client_for(&rbac::user(NAMESPACE), &groups).unwrap();
        let placement = Client::fixed(account, Metrics::default());
        let (leading, leads) = watch::channel(true);
        let cluster = Self {
            control_plane,
            placement,
            clock: Arc::new(Mutex::new(now)),
            supervisor: Supervisor::new(),
            _leading: leading,
        };
        for name in ["first", "second"] {
            let clock = Arc::clone(&cluster.clock);
            let maintainer = Maintainer {
                client: cluster.placement.clone(),
                namespace: NAMESPACE.to_owned(),
                names: ServedNames::of_service(NAMESPACE),
                webhook: true,
                clock: Clock::new(move || *clock.lock()),
            };
            let running = maintainer.run_while_leading(leads.clone(), cluster.supervisor.clone());
            cluster.supervisor.spawn(name, task::Kind::Critical, running);
        }
        cluster
    }

    fn admin(&self) -> kube::Client {
        self.control_plane.admin().unwrap()
    }

    async fn kubectl(&self, arguments: &[&str]) -> String {
        kubectl(&self.control_plane, arguments).await
    }

    /// A value of the Secret, as text.
    async fn value(&self, key: &str) -> Option<String> {
        let secrets: Api<Secret> = Api::namespaced(self.admin(), NAMESPACE);
        let data = secrets.get_opt(SECRET).await.unwrap()?.data?;
        Some(String::from_utf8(data.get(key)?.0.clone()).unwrap())
    }

    async fn expect(&self, what: &str, key: &str, check: impl Fn(&str) -> bool) -> String {
        eventually(what, SOON, || async {
            let value = self.value(key).await.ok_or_else(|| format!("no {key}"))?;
            if check(&value) { Ok(value) } else { Err(format!("{key} does not do")) }
        })
        .await
    }

    /// The clocks show another time. A change of the Secret makes the processes look at them at once.
    async fn set_clock(&self, now: Timestamp) {
        *self.clock.lock() = now;
        let looked = format!("example.com/looked={}", now.as_second());
        self.kubectl(&["annotate", "--overwrite", "--namespace", NAMESPACE, "secret", SECRET, &looked]).await;
    }

    /// Removes a value from the Secret.
    async fn damage(&self, key: &str) {
        let patch = json!({"data": {key: ""}}).to_string();
        self.kubectl(&[
            "patch",
            "--namespace",
            NAMESPACE,
            "secret",
            SECRET,
            "--type=merge",
            "--patch",
            &patch,
        ])
        .await;
    }

    /// Another replica of the webhook, which the API server calls from now on.
    async fn serve_webhook(&self) -> (Server, Supervisor) {
        let supervisor = Supervisor::new();
        let (sender, mut leaf) = watch::channel(None);
        supervisor.spawn(
            "certificate",
            task::Kind::Critical,
            follow(self.placement.clone(), NAMESPACE.to_owned(), sender),
        );
        let first = leaf.wait_for(Option::is_some).await.unwrap().clone().unwrap();
        let serving = ServingCertificate::new(first);
        let server = Server::serve(serving.clone(), webhook::router(Settings::default())).await;
        supervisor.spawn("replacement", task::Kind::Work, async move {
            while leaf.changed().await.is_ok() {
                let current = leaf.borrow_and_update().clone();
                serving.replace(current.unwrap());
            }
        });
        let address = WebhookAddress::Url(server.url.clone());
        let settings = Settings::default();
        let configuration = webhook_configuration(&address, None, &settings, NAMESPACE, FailurePolicy::Fail);
        apply(&self.control_plane, &configuration).await;
        let url = &server.url;
        eventually("the API server calls this replica", SOON, || async {
            let configuration = self.configuration().await;
            let client = configuration.webhooks.unwrap().remove(0).client_config;
            let is_ours = client.url.is_some_and(|it| it.starts_with(url)) && client.ca_bundle.is_some();
            if is_ours { self.convert().await } else { Err("the configuration has no CA".to_owned()) }
        })
        .await;
        (server, supervisor)
    }

    async fn configuration(&self) -> MutatingWebhookConfiguration {
        Api::all(self.admin()).get(NAME).await.unwrap()
    }

    /// The account of placement can change nothing else of the configuration.
    async fn expect_only_cas_to_be_changed(&self) {
        let configurations: Api<MutatingWebhookConfiguration> = Api::all(self.placement.kube());
        let dry_run = PatchParams { dry_run: true, ..PatchParams::default() };
        let client = "/webhooks/1/clientConfig";
        for (operation, path, value) in [
            ("replace", format!("{client}/url"), json!("https://example.com/mutate")),
            ("add", format!("{client}/service"), json!({"name": "a", "namespace": "b"})),
            ("replace", "/webhooks/0/rules/0/resources".to_owned(), json!(["*/*"])),
            ("remove", "/webhooks/0/objectSelector".to_owned(), json!(null)),
            ("replace", "/webhooks/0/failurePolicy".to_owned(), json!("Ignore")),
            ("add", "/webhooks/0/matchConditions".to_owned(), json!([{"name": "a", "expression": "true"}])),
            ("remove", "/webhooks/0".to_owned(), json!(null)),
            ("add", "/metadata/labels/a".to_owned(), json!("b")),
            ("add", "/metadata/finalizers".to_owned(), json!(["example.com/a"])),
        ] {
            let mut operations = vec![json!({"op": operation, "path": path, "value": value})];
            if path.ends_with("service") {
                operations.push(json!({"op": "remove", "path": format!("{client}/url")}));
            }
            let patch: Patch<()> = Patch::Json(serde_json::from_value(json!(operations)).unwrap());
            eventually("the guard is in force", SOON, || async {
                match configurations.patch(NAME, &dry_run, &patch).await {
                    Err(error) if error.to_string().contains("placement may change only the CAs") => Ok(()),
                    other => Err(format!("{operations:?}: {:?}", other.map(drop))),
                }
            })
            .await;
        }
    }

    /// Lets the API server convert a pod. It is a dry run.
    async fn convert(&self) -> Result<(), String> {
        let pod = json!({
            "metadata": {"name": "probe", "labels": {names::VIRTUAL_POD: "true"}},
            "spec": {
                "automountServiceAccountToken": false, "nodeSelector": {"disk": "ssd"},
                "containers": [{"name": "main", "image": "none"}],
            },
        });
        let pods: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(self.admin(), "default");
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        let created = pods.create(&dry_run, &read(&pod)).await.map_err(|error| error.to_string())?;
        let lower = created.metadata.annotations.unwrap_or_default().remove(names::LOWER_NODES);
        if lower.as_deref() == Some("disk=ssd") { Ok(()) } else { Err(format!("not converted: {lower:?}")) }
    }

    /// Converts pods all the time, which never fails until this is done.
    async fn convert_during<T>(&self, done: impl Future<Output = T>) -> T {
        let mut done = pin!(done);
        loop {
            tokio::select! {
                biased;
                result = &mut done => return result,
                converted = self.convert() => converted.unwrap(),
            }
        }
    }

    /// The CAs in the configuration of the webhook are those in the Secret.
    async fn expect_published(&self) {
        eventually("the API server trusts the CAs of the Secret", SOON, || async {
            let bundle = self.value("ca.crt").await.unwrap();
            let webhooks = self.configuration().await.webhooks.unwrap();
            let differs = webhooks.iter().any(|webhook| {
                webhook.client_config.ca_bundle.as_ref().map(|it| &it.0[..]) != Some(bundle.as_bytes())
            });
            if differs { Err("it has others") } else { Ok(()) }
        })
        .await;
    }
}

fn authorities(bundle: &str) -> usize {
    bundle.matches("BEGIN CERTIFICATE").count()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: make test"]
async fn the_api_server_accepts_the_webhook_while_its_ca_is_rotated_repaired_and_deleted() {
    let now = Clock::system().now();
    // The CA is as old as it can be without a successor that issues leaves.
    let ten_years = 3652;
    let cluster = Cluster::start(now - days(ten_years - 100) - SignedDuration::from_hours(1), &[]).await;
    let old = cluster.expect("there is a CA", "ca.crt", |it| authorities(it) == 1).await;
    let old_key = cluster.value("ca.key").await.unwrap();

    cluster.set_clock(now - days(61)).await;
    let both = cluster.expect("the next CA is in the bundle", "ca.crt", |it| authorities(it) == 2).await;
    assert!(both.starts_with(&old) && cluster.value("ca.key").await.as_deref() == Some(&old_key));
    let next_key = cluster.value("next-ca.key").await.unwrap();
    let leaf = cluster.value("tls.crt").await.unwrap();
    // Until now the permission for the webhook was missing.
    apply(&cluster.control_plane, &rbac::webhook_manifests(NAMESPACE)).await;
    let _first = cluster.serve_webhook().await;
    cluster.expect_published().await;
    assert_eq!(ca_bundle(&cluster.placement, NAMESPACE).await.unwrap(), both);

    cluster.expect_only_cas_to_be_changed().await;

    // The next CA issues leaves.
    cluster
        .convert_during(async {
            cluster.set_clock(now).await;
            cluster.expect("the next CA issues leaves", "ca.key", |it| it == next_key).await;
            cluster.expect("there is a leaf of it", "tls.crt", |it| it != leaf).await;
            assert_eq!(cluster.value("next-ca.key").await, None);
            let bundle = cluster.value("ca.crt").await.unwrap();
            assert!(authorities(&bundle) == 2 && bundle.ends_with(&old), "{bundle}");
        })
        .await;
    let _second = cluster.serve_webhook().await;
    cluster.convert_during(cluster.expect_published()).await;

    // Its key is lost: the present leaf remains, and the CA with it.
    cluster
        .convert_during(async {
            cluster.damage("ca.key").await;
            cluster.expect("there is another CA", "ca.key", |it| it.starts_with(KEY) && it != next_key).await;
            cluster.expect_published().await;
        })
        .await;
    let repaired: Api<Event> = Api::namespaced(cluster.admin(), NAMESPACE);
    eventually("there is an event", SOON, || async {
        let all = repaired.list(&ListParams::default()).await.unwrap();
        let event =
            all.items.into_iter().find(|it| it.reason.as_deref() == Some("CertificateAuthorityReplaced"));
        event.and_then(|event| event.note).filter(|note| !note.contains("KEY")).ok_or("none")
    })
    .await;
    cluster
        .convert_during(async {
            cluster.damage("tls.key").await;
            cluster.expect("there is another leaf", "tls.key", |it| it.starts_with(KEY)).await;
        })
        .await;
    let _third = cluster.serve_webhook().await;

    // All is lost: what served goes on, and then there is a new CA.
    let before = cluster.value("ca.crt").await.unwrap();
    cluster.kubectl(&["delete", "--namespace", NAMESPACE, "secret", SECRET]).await;
    cluster.expect("there is a new CA", "ca.crt", |it| authorities(it) == 1 && !before.contains(it)).await;
    cluster.expect_published().await;
    eventually("the API server accepts a leaf of the new CA", SOON, || cluster.convert()).await;
    let _fourth = cluster.serve_webhook().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: make test"]
async fn two_leaders_create_and_repair_one_ca_in_a_secret_that_was_empty() {
    const ROUNDS: usize = 12;
    let metadata = json!({"name": SECRET, "namespace": NAMESPACE});
    let empty = json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata}).to_string();
    let cluster = Cluster::start(Clock::system().now(), &[&empty]).await;
    cluster.expect("there is a CA", "ca.crt", |it| authorities(it) == 1).await;
    // Every CA that ever was in the Secret, by its key.
    let secrets =
        Objects::<Secret>::namespaced(Client::fixed(cluster.admin(), Metrics::default()), NAMESPACE);
    let keys = Arc::new(Mutex::new(BTreeSet::new()));
    let (seen, watching) = (Arc::clone(&keys), OnceLock::new());
    let watched = async {
        let mut events = pin!(secrets.watch(&Selector::default()));
        while let Some(event) = events.next().await {
            let WatchEvent::Applied(secret) = event else { continue };
            let key = secret.data.unwrap_or_default().remove("ca.key").unwrap_or_default().0;
            if !key.is_empty() {
                seen.lock().insert(key);
            }
            watching.get_or_init(|| ());
        }
    };
    let damaged = async {
        eventually("the Secret is watched", SOON, || async { watching.get().ok_or("no event") }).await;
        for round in 0..ROUNDS {
            let before = cluster.value("ca.key").await.unwrap();
            cluster.damage("ca.key").await;
            cluster.expect("there is another CA", "ca.key", |it| it.starts_with(KEY) && it != before).await;
            eventually("it is seen", SOON, || async {
                let keys = keys.lock().len();
                if keys >= round + 2 { Ok(()) } else { Err(keys) }
            })
            .await;
        }
    };
    tokio::select! {
        () = watched => panic!("the watch has ended"),
        () = damaged => {}
    }
    assert_eq!(keys.lock().len(), 1 + ROUNDS);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: make test"]
async fn without_the_secret_the_error_says_how_to_get_the_cas() {
    let cluster = ControlPlane::shared().await;
    let namespace = cluster.namespace("certificates").await.unwrap();
    let admin = Client::fixed(cluster.admin().unwrap(), Metrics::default());
    let error = ca_bundle(&admin, namespace.name()).await.unwrap_err();
    assert!(matches!(error, CaBundleError::Missing { .. }), "{error:?}");
    assert!(error.to_string().contains("start `virtual-kubelet placement`"), "{error}");
    let nobody = Client::fixed(cluster.client_for("nobody", &[]).unwrap(), Metrics::default());
    let error = ca_bundle(&nobody, namespace.name()).await.unwrap_err();
    assert!(matches!(error, CaBundleError::Unreadable { .. }), "{error:?}");

    let set = ["create", "secret", "generic", SECRET, "--from-literal=ca.crt=garbage", "--namespace"];
    kubectl(cluster, &[&set[..], &[namespace.name()]].concat()).await;
    let error = ca_bundle(&admin, namespace.name()).await.unwrap_err();
    assert!(matches!(error, CaBundleError::Malformed { .. }), "{error:?}");
}
