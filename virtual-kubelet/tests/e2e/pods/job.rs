//! Jobs and CronJobs.

use serde_json::{Value, json};
use tokio::time::Instant;
use vk_testing::ControlPlane;

use super::site::{BRISK, Site};

/// A Job whose pods run for a moment and end with this code.
fn job(site: &Site<'_>, name: &str, code: &str, spec: Value) -> Value {
    let mut template = site.template(name, &[("run-for", "400ms"), ("exit-code", code)]);
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
    let site = Site::open(cluster, "job", 1, BRISK).await;
    site.apply(&job(&site, "batch", "0", json!({"completions": 12, "parallelism": 4}))).await;
    let done = site.see("job/batch", "complete", |found| condition(found, "Complete").is_some()).await;
    assert_eq!(done["status"]["succeeded"], 12);
    assert_eq!(done["status"]["failed"], Value::Null);
    // What has ended stays to be read, on both sides.
    site.agreed(12).await;
    assert_eq!(site.created_once(), 12);
    let most = site.chronicle.most_alive("batch-", 0);
    assert!(most <= 4, "{most} at once");

    site.apply(&job(
        &site,
        "indexed",
        "0",
        json!({"completions": 3, "completionMode": "Indexed", "parallelism": 3}),
    ))
    .await;
    let done = site.see("job/indexed", "complete", |found| condition(found, "Complete").is_some()).await;
    assert_eq!(done["status"]["completedIndexes"], "0-2");
    site.agreed(15).await;
    site.kubectl(&["delete", "job/batch", "job/indexed"]).await;
    assert_eq!(site.close().await, 15);
    println!("Job of 12, 4 at once, and an indexed one of 3: {:.1?}", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_whose_pods_fail_gives_up_at_its_limit() {
    let begun = Instant::now();
    let cluster = ControlPlane::shared_with_controllers().await;
    let site = Site::open(cluster, "backoff", 1, BRISK).await;
    site.apply(&job(&site, "doomed", "3", json!({"backoffLimit": 2}))).await;
    let done = site.see("job/doomed", "failed", |found| condition(found, "Failed").is_some()).await;
    assert_eq!(condition(&done, "Failed").unwrap()["reason"], "BackoffLimitExceeded");
    assert_eq!(done["status"]["failed"], 3);
    site.agreed(3).await;
    assert_eq!(site.chronicle.codes("doomed-"), [3].into());

    // The containers' own restarts count too.
    let mut again = job(&site, "again", "3", json!({"backoffLimit": 2}));
    again["spec"]["template"]["spec"]["restartPolicy"] = "OnFailure".into();
    again["spec"]["template"]["metadata"]["annotations"]["mock.virtual-kubelet.io/restart-backoff"] =
        "100ms".into();
    site.apply(&again).await;
    let done = site.see("job/again", "failed", |found| condition(found, "Failed").is_some()).await;
    assert_eq!(condition(&done, "Failed").unwrap()["reason"], "BackoffLimitExceeded");

    // A Job that takes too long is stopped.
    let mut late =
        job(&site, "late", "0", json!({"activeDeadlineSeconds": 2, "parallelism": 3, "completions": 3}));
    late["spec"]["template"]["metadata"]["annotations"]["mock.virtual-kubelet.io/run-for"] = "1h".into();
    site.apply(&late).await;
    let done = site.see("job/late", "failed", |found| condition(found, "Failed").is_some()).await;
    assert_eq!(condition(&done, "Failed").unwrap()["reason"], "DeadlineExceeded");
    site.kubectl(&["delete", "job/doomed", "job/again", "job/late"]).await;
    let pods = site.close().await;
    println!("Jobs that fail, restart and take too long: {:.1?}; {pods} pods", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cron_job_runs_by_hand_and_by_the_clock() {
    let begun = Instant::now();
    let cluster = ControlPlane::shared_with_controllers().await;
    let site = Site::open(cluster, "cron", 1, BRISK).await;
    let job = job(&site, "tick", "0", json!({"completions": 2, "parallelism": 2}));
    site.apply(&json!({
        "apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "tick"},
        "spec": {"schedule": "* * * * *", "concurrencyPolicy": "Forbid", "jobTemplate": {"spec": job["spec"]}},
    }))
    .await;
    site.kubectl(&["create", "job", "by-hand", "--from=cronjob/tick"]).await;
    site.see("job/by-hand", "complete", |found| condition(found, "Complete").is_some()).await;
    let scheduled = |found: &Value| {
        let name =
            |job: &Value| job["metadata"]["name"].as_str().is_some_and(|name| name.starts_with("tick-"));
        let mut jobs = found["items"].as_array().unwrap().iter();
        jobs.any(|job| name(job) && condition(job, "Complete").is_some())
    };
    site.see("jobs", "one that the clock began is complete", scheduled).await;
    site.kubectl(&["patch", "cronjob/tick", "--patch", r#"{"spec":{"suspend":true}}"#]).await;
    site.see("cronjob/tick", "nothing is active", |found| found["status"]["active"].is_null()).await;
    let jobs = site.get("jobs").await["items"].as_array().unwrap().len();
    site.agreed(2 * jobs).await;
    // All of them are its own, also the one by hand.
    site.kubectl(&["delete", "cronjob/tick"]).await;
    assert_eq!(site.close().await, 2 * jobs);
    println!("CronJob: {jobs} Jobs, one of them by hand, in {:.1?}", begun.elapsed());
}
