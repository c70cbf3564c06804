//! Resource usage: the real metrics-server reads a virtual node like a kubelet, `kubectl top` shows it, and the real autoscaler
//! acts on it.

mod metrics_test;

use serde_json::{Value, json};
use tokio::time::Instant;

use self::metrics_test::{MetricsTest, until};

/// A line of `kubectl top`: names and figures, without the units `m` and `Mi`.
async fn top(place: &MetricsTest, words: &[&str], name: &str) -> Result<Vec<String>, String> {
    let output = place.try_kubectl(&[&["top"], words, &["--no-headers"]].concat()).await;
    if !output.success() {
        return Err(output.stderr);
    }
    let mut lines = output.stdout.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let line = lines.find(|line| line.contains(&name)).ok_or_else(|| format!("no {name}: {output:?}"))?;
    Ok(line.into_iter().map(str::to_owned).collect())
}

/// A figure without its unit.
fn amount(text: &str, unit: &str) -> u64 {
    text.strip_suffix(unit).and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{text:?}"))
}

/// Rates are taken from two looks, whose times are told in whole milliseconds.
#[track_caller]
fn is_about(seen: u64, expected: u64) {
    assert!(seen.abs_diff(expected) <= expected.div_ceil(50), "{seen} is not about {expected}");
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_top_shows_what_a_node_its_pods_and_their_containers_use() {
    let place = MetricsTest::open("top").await;
    let mut pod = MetricsTest::template("web", "250m", "64Mi");
    pod["apiVersion"] = "v1".into();
    pod["kind"] = "Pod".into();
    pod["metadata"]["name"] = "web".into();
    pod["spec"]["nodeName"] = place.node.as_str().into();
    let mut second = pod["spec"]["containers"][0].clone();
    second["name"] = "second".into();
    pod["spec"]["containers"].as_array_mut().unwrap().push(second);
    place.apply(&pod).await;

    let begun = Instant::now();
    let shown = until("kubectl top shows the pod", || top(&place, &["pod", "web"], "web")).await;
    println!("kubectl top shows a new pod after {:.1?}", begun.elapsed());
    let [_, cpu, memory] = &shown[..] else { panic!("{shown:?}") };
    is_about(amount(cpu, "m"), 500);
    assert_eq!(memory, "128Mi");

    let shown = top(&place, &["pod", "web", "--containers"], "second").await.unwrap();
    let [pod, _, cpu, memory] = &shown[..] else { panic!("{shown:?}") };
    assert_eq!((pod.as_str(), memory.as_str()), ("web", "64Mi"));
    is_about(amount(cpu, "m"), 250);

    // Two looks after the pod began: with the 50m and 200Mi that the mock's node uses itself.
    let shown = until("kubectl top shows the node with its pod", || async {
        let shown = top(&place, &["node"], &place.node).await?;
        if shown[3] == "328Mi" && amount(&shown[1], "m") > 500 {
            Ok(shown)
        } else {
            Err(format!("{shown:?}"))
        }
    })
    .await;
    let [_, cpu, cpu_share, memory, memory_share] = &shown[..] else { panic!("{shown:?}") };
    is_about(amount(cpu, "m"), 550);
    // Of 20 cores and 100Gi.
    assert_eq!((cpu_share.as_str(), memory.as_str(), memory_share.as_str()), ("2%", "328Mi", "0%"));
    println!("kubectl top node: {}", shown.join(" "));

    // A change of what it uses is seen two looks later.
    place.kubectl(&["annotate", "pod", "web", "mock.virtual-kubelet.io/cpu=1", "--overwrite"]).await;
    let begun = Instant::now();
    until("kubectl top shows that the pod uses more", || async {
        let shown = top(&place, &["pod", "web"], "web").await?;
        let cpu = amount(&shown[1], "m");
        if cpu.abs_diff(2000) <= 40 { Ok(()) } else { Err(format!("{shown:?}")) }
    })
    .await;
    println!("kubectl top shows another load after {:.1?}", begun.elapsed());
    place.close().await;
}

/// How many pods an autoscaler wants, and what it sees them use, in percent of what they ask for.
fn wish(autoscaler: &Value) -> (Option<u64>, Option<u64>) {
    let status = &autoscaler["status"];
    let used = &status["currentMetrics"][0]["resource"]["current"]["averageUtilization"];
    (status["desiredReplicas"].as_u64(), used.as_u64())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_autoscaler_follows_the_load_of_a_deployment_up_and_down() {
    let place = MetricsTest::open("autoscaler").await;
    place
        .apply(&json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": {"app": "web"}},
                // Half of what a pod asks for, which is what the autoscaler aims at.
                "template": MetricsTest::template("web", "100m", "32Mi"),
            },
        }))
        .await;
    place
        .apply(&json!({
            "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "web"},
            "spec": {
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
                "minReplicas": 1, "maxReplicas": 4,
                "metrics": [{"type": "Resource", "resource": {
                    "name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50},
                }}],
                "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
            },
        }))
        .await;
    let begun = Instant::now();
    let seen = place
        .see("hpa/web", "it sees what the pod uses", |found| {
            wish(found).1.is_some_and(|used| used.abs_diff(50) <= 1)
        })
        .await;
    assert_eq!(wish(&seen).0, Some(1), "the load is as it should be: {seen}");
    println!("The autoscaler sees the load after {:.1?}", begun.elapsed());

    // Four times the aim: four pods.
    let begun = Instant::now();
    place.load("web", "400m").await;
    place.see("hpa/web", "it wants four", |found| wish(found).0 == Some(4)).await;
    let decided = begun.elapsed();
    let grown = |found: &Value| found["status"]["readyReplicas"] == 4;
    place.see("deployment/web", "four are ready", grown).await;
    println!("From one to four pods: decided after {decided:.1?}, ready after {:.1?}", begun.elapsed());
    assert_eq!(place.on_node("web").await, 4);

    // A twentieth of the aim: one is enough.
    let begun = Instant::now();
    place.load("web", "5m").await;
    place.see("hpa/web", "it wants one", |found| wish(found).0 == Some(1)).await;
    let decided = begun.elapsed();
    let shrunk = |found: &Value| found["status"]["replicas"] == 1 && found["spec"]["replicas"] == 1;
    place.see("deployment/web", "one is left", shrunk).await;
    until("one pod is left on the node", || async {
        let left = place.on_node("web").await;
        if left == 1 { Ok(()) } else { Err(format!("{left} are")) }
    })
    .await;
    println!("From four pods to one: decided after {decided:.1?}, gone after {:.1?}", begun.elapsed());
    place.close().await;
}
