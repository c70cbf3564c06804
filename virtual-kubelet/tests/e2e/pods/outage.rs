//! Outages of the control plane and restarts of the process during a rollout.

use std::{collections::BTreeMap, time::Duration};

use kube::api::PostParams;
use serde_json::{Value, json};
use tokio::time::Instant;
use vk_testing::{ControlPlane, control_plane::Options, eventually};

use super::workload_test::{BRISK, PATIENCE, WorkloadTest};

const ROLLED: usize = 500;
const STEADY: usize = 50;

/// A Deployment in the middle of its rollout, and one that nobody touches.
struct Rollout<'a> {
    test: WorkloadTest<'a>,
    /// What ran before the trouble began.
    before: BTreeMap<String, String>,
    begun: Instant,
}

impl<'a> Rollout<'a> {
    async fn begin(cluster: &'a ControlPlane, prefix: &str) -> Self {
        let test = WorkloadTest::open(cluster, prefix, 2, BRISK).await;
        test.apply(&test.deployment("steady", STEADY)).await;
        let mut web = test.deployment("web", ROLLED);
        web["spec"]["strategy"] = json!({"rollingUpdate": {"maxUnavailable": "10%", "maxSurge": "10%"}});
        test.apply(&web).await;
        for app in ["steady", "web"] {
            let name = format!("deployment/{app}");
            test.kubectl(&["rollout", "status", &name, "--timeout=300s"]).await;
        }
        test.agreed(STEADY + ROLLED).await;
        let begun = Instant::now();
        test.kubectl(&["set", "image", "deployment/web", "main=example.com/app:2"]).await;
        let new = |set: &Value| {
            let image = &set["spec"]["template"]["spec"]["containers"][0]["image"];
            image == "example.com/app:2"
                && set["status"]["readyReplicas"].as_u64().is_some_and(|ready| ready > 100)
        };
        let partly = |found: &Value| found["items"].as_array().unwrap().iter().any(new);
        test.see("replicasets", "a part of the new pods is ready", partly).await;
        let before = test.running().await;
        Self { test, before, begun }
    }

    /// A pod that needs neither scheduler nor controller-manager, which come back at their leisure: how long until it runs.
    async fn probe(&self) -> Duration {
        let back = Instant::now();
        let pod = serde_json::from_value(self.test.pod("probe", &[])).unwrap();
        eventually("a pod can be created", PATIENCE, || async {
            match self.test.pods.create(&PostParams::default(), &pod).await {
                Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
                other => other.map(|_| ()).map_err(|error| error.to_string()),
            }
        })
        .await;
        self.test.see("pod/probe", "it runs", |found| found["status"]["phase"] == "Running").await;
        let took = back.elapsed();
        self.test.kubectl(&["delete", "pod/probe"]).await;
        took
    }

    /// Waits until the rollout has come to its end all the same.
    async fn end(self) -> String {
        let back = Instant::now();
        let probe = self.probe().await;
        // Two retries with the longest wait, and a machine with other things to do.
        assert!(probe < Duration::from_secs(40), "a new pod ran only after {probe:?}");
        let Self { test, before, begun } = self;
        // kubectl's own watch may not outlive the API server.
        eventually("the rollout has come to its end", 2 * PATIENCE, || async {
            let told = test.try_kubectl(&["rollout", "status", "deployment/web", "--timeout=10s"]).await;
            if told.success() { Ok(()) } else { Err(told.stderr) }
        })
        .await;
        test.agreed(STEADY + ROLLED).await;
        let converged = back.elapsed();
        let after = test.running().await;
        assert_eq!(after.len(), STEADY + ROLLED);
        // Who ran before and still runs is the same instance.
        let stayed: Vec<_> = before.iter().filter(|(uid, _)| after.contains_key(*uid)).collect();
        assert!(stayed.len() > STEADY + 100, "{} pods stayed", stayed.len());
        for (uid, instance) in &stayed {
            assert_eq!(after[*uid], **instance, "{uid} was started again");
        }
        let steady = test.list().await.into_iter().filter(|(name, _)| name.starts_with("steady-"));
        let kept = steady.filter(|(_, pod)| before.contains_key(pod.metadata.uid.as_ref().unwrap())).count();
        assert_eq!(kept, STEADY, "pods that nobody touched");
        for (name, pod) in test.list().await {
            let images: Vec<_> =
                pod.status.unwrap().container_statuses.unwrap().into_iter().map(|one| one.image).collect();
            let wanted = if name.starts_with("web-") { "example.com/app:2" } else { "example.com/app:1" };
            assert_eq!(images, [wanted], "{name}");
        }
        let stayed = stayed.len();
        let whole = begun.elapsed();
        test.kubectl(&["delete", "deployments", "--all", "--wait=false"]).await;
        let pods = test.close().await;
        format!(
            "rollout of {ROLLED} pods in {whole:.1?}, {converged:.1?} of it after the trouble; {pods} pods, \
             none made twice; a new pod ran after {probe:.1?}; {stayed} ran before and after as the same instances"
        )
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_of_five_hundred_pods_survives_an_api_server_that_is_away_for_half_a_minute() {
    let cluster = ControlPlane::start(Options::with_controllers()).await.unwrap();
    let rollout = Rollout::begin(&cluster, "away").await;
    cluster.kill_api_server().await.unwrap();
    tokio::time::sleep(Duration::from_secs(30)).await;
    cluster.start_api_server().await.unwrap();
    println!("API server away for 30 s: {}", rollout.end().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_survives_a_restart_of_etcd() {
    let cluster = ControlPlane::start(Options::with_controllers()).await.unwrap();
    let rollout = Rollout::begin(&cluster, "etcd").await;
    cluster.stop_etcd().await.unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    cluster.start_etcd().await.unwrap();
    println!("etcd away for 5 s: {}", rollout.end().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_survives_a_process_that_is_killed_again_and_again() {
    let cluster = ControlPlane::start(Options::with_controllers()).await.unwrap();
    let mut rollout = Rollout::begin(&cluster, "killed").await;
    for _ in 0..8 {
        rollout.test.restart().await;
        tokio::time::sleep(Duration::from_millis(700)).await;
    }
    println!("a process that is killed 8 times: {}", rollout.end().await);
}
