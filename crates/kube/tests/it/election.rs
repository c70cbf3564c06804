//! Leader election on a real API server.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use tokio::{sync::watch, task::JoinSet, time::Instant};
use vk_kube::{
    Client, Fence, Metrics,
    lease::{Election, LeaseTimes},
};
use vk_supervisor::{Clock, Supervisor};
use vk_testing::{ControlPlane, eventually, kubectl};

const SOON: Duration = Duration::from_secs(10);
const NAME: &str = "component";

/// A candidate that runs in the background.
struct RunningElection {
    fence: Fence,
    leading: watch::Receiver<bool>,
    supervisor: Supervisor,
    tasks: JoinSet<()>,
}

impl RunningElection {
    fn start(client: &Client, namespace: &str, process: &str, times: LeaseTimes) -> Self {
        let (fence, supervisor) = (Fence::default(), Supervisor::new());
        let (sender, leading) = watch::channel(false);
        let election = Election {
            client: client.fenced(fence.clone()),
            namespace: namespace.to_owned(),
            name: NAME.to_owned(),
            instance: process.parse().unwrap(),
            times,
            clock: Clock::system(),
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(election.run(fence.clone(), sender, supervisor.clone()));
        Self { fence, leading, supervisor, tasks }
    }

    async fn wait_for(&mut self, leads: bool) {
        let seen = tokio::time::timeout(SOON, self.leading.wait_for(|now| *now == leads)).await;
        drop(seen.expect("it takes too long").expect("the election runs"));
        assert_eq!(self.fence.is_open(), leads);
    }
}

/// A user who may only get, create and patch the lease.
async fn candidate(cluster: &ControlPlane, user: &str, namespace: &str) -> Client {
    let within = ["--namespace", namespace];
    let leases = "--resource=leases.coordination.k8s.io";
    let (creates, name) = (format!("{user}-creates"), format!("--resource-name={NAME}"));
    let who = format!("--user={user}");
    for args in [
        &["create", "role", user, "--verb=get,patch", leases, &name][..],
        &["create", "role", &creates, "--verb=create", leases],
        &["create", "rolebinding", user, &format!("--role={user}"), &who],
        &["create", "rolebinding", &creates, &format!("--role={creates}"), &who],
    ] {
        let made = kubectl(cluster, within.iter().chain(args)).await.unwrap();
        assert!(made.success(), "{made:?}");
    }
    for (verb, lease) in [("create", "leases"), ("patch", &*format!("leases/{NAME}"))] {
        eventually("the role is in force", SOON, || async {
            let (who, ask) = (format!("--as={user}"), ["auth", "can-i", verb, lease]);
            let asked = kubectl(cluster, within.iter().chain(&ask).chain(&[who.as_str()])).await.unwrap();
            if asked.success() { Ok(()) } else { Err(format!("{asked:?}")) }
        })
        .await;
    }
    Client::fixed(cluster.client_for(user, &[]).unwrap(), Metrics::default())
}

async fn holder(cluster: &ControlPlane, namespace: &str) -> Option<String> {
    let leases: Api<Lease> = Api::namespaced(cluster.admin().unwrap(), namespace);
    leases.get(NAME).await.unwrap().spec.unwrap().holder_identity
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_leader_that_stops_hands_over_at_once_and_one_that_dies_when_its_lease_expires() {
    let cluster = ControlPlane::shared().await;
    let namespace = cluster.namespace("election").await.unwrap();
    let namespace = namespace.name();
    let client = candidate(cluster, "elected", namespace).await;
    let (first, second, third) = ("host///1/0", "host///2/0", "host///3/0");

    let mut leader = RunningElection::start(&client, namespace, first, LeaseTimes::LEADER_ELECTION);
    leader.wait_for(true).await;
    assert_eq!(holder(cluster, namespace).await.as_deref(), Some(first));
    let times = LeaseTimes {
        duration: Duration::from_secs(4),
        renew_deadline: Duration::from_secs(3),
        standby: Some(Duration::from_millis(500)),
    };
    let mut standby = RunningElection::start(&client, namespace, second, times);
    // It must have seen the lease before the leader releases it.
    assert!(tokio::time::timeout(Duration::from_secs(1), standby.wait_for(true)).await.is_err());
    leader.supervisor.stop();
    standby.wait_for(true).await;
    leader.tasks.join_next().await.unwrap().unwrap();
    assert_eq!(holder(cluster, namespace).await.as_deref(), Some(second));

    let begin = Instant::now();
    standby.tasks.shutdown().await;
    let mut last = RunningElection::start(&client, namespace, third, times);
    last.wait_for(true).await;
    assert!(begin.elapsed() >= times.duration, "{:?}", begin.elapsed());
    assert_eq!(holder(cluster, namespace).await.as_deref(), Some(third));
    last.supervisor.stop();
    last.wait_for(false).await;
    last.tasks.join_next().await.unwrap().unwrap();
    assert_eq!(holder(cluster, namespace).await, None);
}
