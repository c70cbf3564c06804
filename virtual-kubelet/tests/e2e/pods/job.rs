//! Jobs and CronJobs.

use serde_json::{Value, json};
use tokio::time::Instant;
use vk_testing::ControlPlane;

use super::workload_test::{BRISK, WorkloadTest};

/// A Job whose pods run for a moment and end with this code.
fn job(test: &WorkloadTest<'_>, name: &str, code: &str, spec: Value) -> Value {
    let mut template = test.template(name, &[("run-for", "400ms"), ("exit-code", code)]);
    template["spec"]["restartPolicy"] = "Never".into();
    let mut job = json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {"template": template},
    });
    let Value::Object(spec) = spec else { panic!("not an object") };
    job["spec"].as_object_mut().unwrap().extend(spec);
    job
}

fn condition<'a>(found: &'a Value, kind: &str) -> Option<&'a Value> {
    let all = found["status"]["conditions"].as_array()?;
    all.iter().find(|condition| condition["type"] == kind && condition["status"] == "True")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_completes_with_no_more_pods_at_once_than_it_asks_for() {
    let begun = Instant::now();
    let cluster = ControlPlane::shared_with_controllers().await;
    let test = WorkloadTest::open(cluster, "job", 1, BRISK).await;
    test.apply(&job(&test, "batch", "0", json!({"completions": 12, "parallelism": 4}))).await;
    let done = test.see("job/batch", "complete", |found| condition(found, "Complete").is_some()).await;
    assert_eq!(done["status"]["succeeded"], 12);
    assert_eq!(done["status"]["failed"], Value::Null);
    // What has ended stays to be read, on both sides.
    test.agreed(12).await;
    assert_eq!(test.created_once(), 12);
    let most = test.log.most_alive("batch-", 0);
    assert!(most <= 4, "{most} at once");

    test.apply(&job(
        &test,
        "indexed",
        "0",
        json!({"completions": 3, "completionMode": "Indexed", "parallelism": 3}),
    ))
    .await;
    let done = test.see("job/indexed", "complete", |found| condition(found, "Complete").is_some()).await;
    assert_eq!(done["status"]["completedIndexes"], "0-2");
    test.agreed(15).await;
    test.kubectl(&["delete", "job/batch", "job/indexed"]).await;
    assert_eq!(test.close().await, 15);
    println!("Job of 12, 4 at once, and an indexed one of 3: {:.1?}", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_whose_pods_fail_gives_up_at_its_limit() {
    let begun = Instant::now();
    let cluster = ControlPlane::shared_with_controllers().await;
    let test = WorkloadTest::open(cluster, "backoff", 1, BRISK).await;
    test.apply(&job(&test, "doomed", "3", json!({"backoffLimit": 2}))).await;
    let done = test.see("job/doomed", "failed", |found| condition(found, "Failed").is_some()).await;
    assert_eq!(condition(&done, "Failed").unwrap()["reason"], "BackoffLimitExceeded");
    assert_eq!(done["status"]["failed"], 3);
    test.agreed(3).await;
    assert_eq!(test.log.codes("doomed-"), [3].into());

    // The containers' own restarts count too.
    let mut again = job(&test, "again", "3", json!({"backoffLimit": 2}));
    again["spec"]["template"]["spec"]["restartPolicy"] = "OnFailure".into();
    again["spec"]["template"]["metadata"]["annotations"]["mock.virtual-kubelet.io/restart-backoff"] =
        "100ms".into();
    test.apply(&again).await;
    let done = test.see("job/again", "failed", |found| condition(found, "Failed").is_some()).await;
    assert_eq!(condition(&done, "Failed").unwrap()["reason"], "BackoffLimitExceeded");

    // A Job that takes too long is stopped.
    let mut late =
        job(&test, "late", "0", json!({"activeDeadlineSeconds": 2, "parallelism": 3, "completions": 3}));
    late["spec"]["template"]["metadata"]["annotations"]["mock.virtual-kubelet.io/run-for"] = "1h".into();
    test.apply(&late).await;
    let done = test.see("job/late", "failed", |found| condition(found, "Failed").is_some()).await;
    assert_eq!(condition(&done, "Failed").unwrap()["reason"], "DeadlineExceeded");
    test.kubectl(&["delete", "job/doomed", "job/again", "job/late"]).await;
    let pods = test.close().await;
    println!("Jobs that fail, restart and take too long: {:.1?}; {pods} pods", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cron_job_runs_by_hand_and_by_the_clock() {
    let begun = Instant::now();
    let cluster = ControlPlane::shared_with_controllers().await;
    let test = WorkloadTest::open(cluster, "cron", 1, BRISK).await;
    let job = job(&test, "tick", "0", json!({"completions": 2, "parallelism": 2}));
    test.apply(&json!({
        "apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "tick"},
        "spec": {"schedule": "* * * * *", "concurrencyPolicy": "Forbid", "jobTemplate": {"spec": job["spec"]}},
    }))
    .await;
    test.kubectl(&["create", "job", "by-hand", "--from=cronjob/tick"]).await;
    test.see("job/by-hand", "complete", |found| condition(found, "Complete").is_some()).await;
    let scheduled = |found: &Value| {
        let name =
            |job: &Value| job["metadata"]["name"].as_str().is_some_and(|name| name.starts_with("tick-"));
        let mut jobs = found["items"].as_array().unwrap().iter();
        jobs.any(|job| name(job) && condition(job, "Complete").is_some())
    };
    test.see("jobs", "one that the clock began is complete", scheduled).await;
    test.kubectl(&["patch", "cronjob/tick", "--patch", r#"{"spec":{"suspend":true}}"#]).await;
    test.see("cronjob/tick", "nothing is active", |found| found["status"]["active"].is_null()).await;
    let jobs = test.get("jobs").await["items"].as_array().unwrap().len();
    test.agreed(2 * jobs).await;
    // All of them are its own, also the one by hand.
    test.kubectl(&["delete", "cronjob/tick"]).await;
    assert_eq!(test.close().await, 2 * jobs);
    println!("CronJob: {jobs} Jobs, one of them by hand, in {:.1?}", begun.elapsed());
}
