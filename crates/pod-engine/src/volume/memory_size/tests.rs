use serde_json::{Value, json};

use super::*;

const MI: i64 = 1024 * 1024;

fn pod(spec: &Value) -> Pod {
    serde_json::from_value(json!({ "spec": spec })).expect("a pod")
}

fn container(limit: &str) -> Value {
    json!({ "name": "c", "resources": { "limits": { "memory": limit } } })
}

fn sidecar(limit: &str) -> Value {
    json!({ "name": "s", "restartPolicy": "Always", "resources": { "limits": { "memory": limit } } })
}

#[test]
fn memory_volumes_are_as_large_as_the_least_of_node_pod_and_volume() {
    let none = json!({ "name": "none" });
    let table = [
        // Containers, init containers, the volume's limit, the node's allocatable memory, the expected limit.
        (json!([none]), json!([]), None, Some(1000), Some(1000)),
        (json!([none]), json!([]), None, None, None),
        (json!([none]), json!([]), Some("64Mi"), None, Some(64)),
        (json!([none]), json!([]), Some("64Mi"), Some(1000), Some(64)),
        (json!([none]), json!([]), Some("2000Mi"), Some(1000), Some(1000)),
        (json!([none]), json!([]), Some("0"), Some(1000), Some(1000)),
        (json!([container("100Mi")]), json!([]), None, Some(1000), Some(100)),
        (json!([container("100Mi"), container("50Mi")]), json!([]), None, Some(1000), Some(150)),
        (json!([container("100Mi"), none]), json!([]), None, Some(1000), Some(1000)),
        (json!([container("2000Mi")]), json!([]), None, Some(1000), Some(1000)),
        (json!([container("100Mi")]), json!([]), Some("200Mi"), Some(1000), Some(100)),
        (json!([container("100Mi")]), json!([]), Some("20Mi"), Some(1000), Some(20)),
        (json!([container("100Mi")]), json!([container("300Mi")]), None, Some(1000), Some(300)),
        (json!([container("100Mi")]), json!([none]), None, Some(1000), Some(1000)),
        (
            json!([container("100Mi")]),
            json!([sidecar("30Mi"), container("90Mi")]),
            None,
            Some(1000),
            Some(130),
        ),
        (
            json!([container("10Mi")]),
            json!([sidecar("30Mi"), container("90Mi")]),
            None,
            Some(1000),
            Some(120),
        ),
        (json!([container("100Mi")]), json!([sidecar("30Mi"), none]), None, Some(1000), Some(130)),
    ];
    for (containers, inits, limit, node, wanted) in table {
        let pod = pod(&json!({ "containers": containers, "initContainers": inits }));
        let limit = limit.map(|limit| ApiQuantity(limit.to_owned()));
        let source = EmptyDirVolumeSource { size_limit: limit, ..EmptyDirVolumeSource::default() };
        let found = memory(&pod, Some(&source), node.map(|node: i64| node * MI));
        assert_eq!(found, wanted.map(|wanted: u64| wanted * 1024 * 1024), "{pod:?}");
    }
}

#[test]
fn the_pods_own_limit_counts_before_its_containers_and_overhead_is_added() {
    let whole = json!({ "limits": { "memory": "80Mi" } });
    let overhead = json!({ "memory": "5Mi" });
    let limited = pod(&json!({ "containers": [{ "name": "c" }], "resources": whole, "overhead": overhead }));
    assert_eq!(memory(&limited, None, Some(1000 * MI)), Some(85 * 1024 * 1024));
    let summed = pod(&json!({ "containers": [container("10Mi")], "overhead": overhead }));
    assert_eq!(memory(&summed, None, Some(1000 * MI)), Some(15 * 1024 * 1024));
    let unlimited = pod(&json!({ "containers": [{ "name": "c" }], "overhead": overhead }));
    assert_eq!(memory(&unlimited, None, Some(1000 * MI)), Some(1000 * 1024 * 1024));
}

#[test]
fn huge_pages_have_the_size_that_containers_ask_for() {
    let asking = |sizes: &[&str]| {
        let requests: serde_json::Map<String, Value> =
            sizes.iter().map(|size| (format!("hugepages-{size}"), json!("4Mi"))).collect();
        pod(&json!({ "containers": [{ "name": "c", "resources": { "requests": requests } }] }))
    };
    assert_eq!(huge_page(&asking(&["2Mi"]), "HugePages"), Ok("2Mi".to_owned()));
    assert_eq!(huge_page(&asking(&["2Mi", "1Gi"]), "HugePages-1Gi"), Ok("1Gi".to_owned()));
    assert_eq!(huge_page(&asking(&["1024Mi"]), "HugePages-1Gi"), Ok("1024Mi".to_owned()));
    assert_eq!(
        huge_page(&asking(&["2Mi", "1Gi"]), "HugePages").expect_err("two sizes"),
        "medium: HugePages can't be used if container requests multiple huge page sizes"
    );
    assert_eq!(
        huge_page(&asking(&["2Mi"]), "HugePages-1Gi").expect_err("another size"),
        "medium HugePages-1Gi: hugePages storage requested, but there is no resource request for huge pages"
    );
}
