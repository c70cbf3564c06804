//! Many nodes in one process.

use std::{
    process::{Command, Stdio},
    time::Duration,
};

use k8s_openapi::api::{coordination::v1::Lease, core::v1::Node};
use kube::{Api, api::ListParams};
use tokio::time::Instant;
use vk_testing::{ControlPlane, Process, Usage, control_plane, eventually};

const NODES: usize = 100;
const WATCHED: Duration = Duration::from_mins(1);

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

async fn ready_nodes(nodes: &Api<Node>) -> usize {
    let list = nodes.list(&ListParams::default()).await.unwrap();
    list.items.iter().filter(|node| is_ready(node)).count()
}

/// Seconds since the renewal that is longest ago.
async fn oldest_renewal(leases: &Api<Lease>) -> (usize, i64) {
    let list = leases.list(&ListParams::default()).await.unwrap();
    let now = vk_supervisor::Clock::system().now();
    let renewals = list.items.iter().filter_map(|lease| lease.spec.as_ref()?.renew_time.as_ref());
    let ages: Vec<i64> = renewals.map(|time| now.duration_since(time.0).as_secs()).collect();
    (ages.len(), ages.into_iter().max().unwrap_or(i64::MAX))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_nodes_in_one_process_become_ready_and_renew_their_leases() {
    let cluster = ControlPlane::start(control_plane::Options::with_controllers()).await.unwrap();
    let config = cluster.data_dir().join("vk.yaml");
    let text = format!(
        "provider: mock\nmetricsAddr: 'off'\ntls: {{request: false}}\nnodes:\n- {{count: {NODES}, namePattern: 'vk-{{}}', portBase: 31000}}\n"
    );
    std::fs::write(&config, text).unwrap();

    let begun = Instant::now();
    let mut command = Command::new(env!("CARGO_BIN_EXE_virtual-kubelet"));
    command.arg("run").arg("--config").arg(&config).arg("--kubeconfig").arg(cluster.admin_kubeconfig());
    let process = Process::spawn(command.args(["--log-level", "warn"]).stdout(Stdio::null())).unwrap();

    let nodes: Api<Node> = Api::all(cluster.admin().unwrap());
    eventually("all nodes are Ready", Duration::from_mins(1), || async {
        let ready = ready_nodes(&nodes).await;
        if ready == NODES { Ok(()) } else { Err(format!("{ready} of {NODES} are Ready")) }
    })
    .await;
    println!("{NODES} nodes Ready after {:.1?}", begun.elapsed());

    let leases: Api<Lease> = Api::namespaced(cluster.admin().unwrap(), "kube-node-lease");
    let before = Usage::of(process.id()).unwrap();
    let (begun, mut oldest) = (Instant::now(), 0);
    let mut looks = tokio::time::interval(Duration::from_secs(5));
    while begun.elapsed() < WATCHED {
        looks.tick().await;
        let (count, age) = oldest_renewal(&leases).await;
        assert_eq!(count, NODES, "leases");
        assert!(age <= 15, "a lease was last renewed {age} s ago");
        oldest = oldest.max(age);
        assert_eq!(ready_nodes(&nodes).await, NODES, "Ready nodes after {:?}", begun.elapsed());
    }
    let after = Usage::of(process.id()).unwrap();
    let cores = after.cores_since(&before, begun.elapsed());
    println!(
        "{NODES} nodes for {WATCHED:?}: all Ready, oldest renewal {oldest} s, resident {:.1} MB, {:.3} cores, {} open files",
        after.megabytes(),
        cores,
        after.files
    );
}
