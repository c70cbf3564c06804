//! Complete statuses, field by field, as the kubelet writes them with its default feature gates.

use super::*;

fn web() -> StatusFixture {
    let fixture = fixture(json!({
        "restartPolicy": "Always",
        "containers": [
            {"name": "web", "image": "web:1",
             "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}},
             "volumeMounts": [
                {"name": "data", "mountPath": "/data"},
                {"name": "conf", "mountPath": "/conf", "readOnly": true},
                {"name": "deep", "mountPath": "/deep", "readOnly": true, "recursiveReadOnly": "IfPossible"}]},
            {"name": "aid", "image": "aid:1"}],
    }));
    let mut fixture = fixture.sandbox();
    fixture.pod.status.as_mut().expect("a status").qos_class = None;
    fixture
}

#[test]
fn a_running_pod() {
    let mut fixture = web();
    fixture.step();
    fixture.add_record("web", RecordState::Running);
    fixture.add_record("aid", RecordState::Running);
    fixture.snapshot.containers[1].user =
        Some(snapshot::User { uid: 1000, gid: 1000, supplemental_groups: vec![1000, 2000] });
    fixture.now = time("00:00:20");
    let status = fixture.step();
    let at = "2026-01-01T00:00:10Z";
    let later = "2026-01-01T00:00:20Z";
    let condition = |kind: &str, at: &str| json!({"type": kind, "status": "True", "observedGeneration": 1, "lastTransitionTime": at});
    let expected = json!({
        "observedGeneration": 1,
        "phase": "Running",
        "conditions": [
            condition("PodReadyToStartContainers", at), condition("Initialized", at), condition("Ready", later),
            condition("ContainersReady", later), condition("PodScheduled", at)],
        "hostIP": "10.0.0.1",
        "hostIPs": [{"ip": "10.0.0.1"}],
        "podIP": "10.1.0.5",
        "podIPs": [{"ip": "10.1.0.5"}],
        "startTime": at,
        "containerStatuses": [
            {"name": "aid", "state": {"running": {"startedAt": "2026-01-01T00:00:03Z"}}, "ready": true, "restartCount": 0,
             "image": "registry.example/aid:1", "imageID": "registry.example/aid@sha256:abc", "containerID": "containerd://aid-0",
             "started": true, "resources": {}},
            {"name": "web", "state": {"running": {"startedAt": "2026-01-01T00:00:03Z"}}, "ready": true, "restartCount": 0,
             "image": "registry.example/web:1", "imageID": "registry.example/web@sha256:abc", "containerID": "containerd://web-0",
             "started": true, "allocatedResources": {"cpu": "100m", "memory": "64Mi"},
             "resources": {"limits": {"memory": "128Mi"}, "requests": {"cpu": "100m", "memory": "64Mi"}},
             "volumeMounts": [
                {"name": "data", "mountPath": "/data"},
                {"name": "conf", "mountPath": "/conf", "readOnly": true, "recursiveReadOnly": "Disabled"},
                {"name": "deep", "mountPath": "/deep", "readOnly": true, "recursiveReadOnly": "Enabled"}],
             "user": {"linux": {"uid": 1000, "gid": 1000, "supplementalGroups": [1000, 2000]}}}],
        "qosClass": "Burstable",
        "allocatedResources": {"cpu": "100m", "memory": "64Mi"},
        "resources": {"limits": {"memory": "128Mi"}, "requests": {"cpu": "100m", "memory": "64Mi"}},
    });
    assert_eq!(serde_json::to_value(&status).expect("JSON"), expected);
}

#[test]
fn an_end_with_all_that_is_known_of_it() {
    let mut fixture = web();
    fixture.add_record("web", RecordState::Exited(3));
    fixture.snapshot.containers[0].message = "out of luck".to_owned();
    let status = fixture.compute();
    let ended = container_status(&status, "web").state.clone();
    let expected = json!({"terminated": {"exitCode": 3, "reason": "Error", "message": "out of luck",
        "startedAt": "2026-01-01T00:00:03Z", "finishedAt": "2026-01-01T00:00:05Z", "containerID": "containerd://web-0"}});
    assert_eq!(serde_json::to_value(ended).expect("JSON"), expected);
}

#[test]
fn an_ephemeral_container_is_neither_ready_nor_started() {
    let mut spec = two_containers("Always");
    spec["ephemeralContainers"] = json!([{"name": "z", "image": "debug"}, {"name": "d", "image": "debug"}]);
    let fixture = fixture(spec)
        .sandbox()
        .record("a", RecordState::Running)
        .record("b", RecordState::Running)
        .record("d", RecordState::Running);
    let status = fixture.compute();
    let names: Vec<&str> =
        status.ephemeral_container_statuses.iter().flatten().map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["d", "z"]);
    assert_eq!((container_status(&status, "d").ready, container_status(&status, "d").started), (false, None));
    assert_eq!(state(&status, "z"), "waiting ContainerCreating");
    assert_eq!(phase(&status), "Running", "it does not count");
    assert_eq!(brief(&status, "Ready").0, "True");
}

#[test]
fn a_pod_as_a_whole_has_what_its_cgroup_has_while_it_runs() {
    let resources = |requests: Value, limits: Value| json!({"requests": requests, "limits": limits});
    let spec = json!({
        "restartPolicy": "Always",
        "overhead": {"cpu": "50m"},
        "initContainers": [
            {"name": "proxy", "restartPolicy": "Always", "resources": resources(json!({"cpu": "100m"}), json!({"cpu": "1"}))},
            {"name": "setup", "resources": resources(json!({"cpu": "2", "memory": "1Gi"}), json!({"cpu": "2"}))}],
        "containers": [{"name": "a", "resources": resources(json!({"cpu": "500m", "memory": "32Mi"}), json!({"cpu": "1", "memory": "64Mi"}))}],
    });
    let mut fixture = fixture(spec).sandbox();
    let waiting = fixture.compute();
    let json = |value: &Option<ResourceRequirements>| serde_json::to_value(value).expect("JSON");
    assert_eq!(
        serde_json::to_value(&waiting.allocated_resources).expect("JSON"),
        json!({"cpu": "2150m", "memory": "1Gi"}),
        "the largest step of the initialisation, and the overhead"
    );
    let before =
        json!({"requests": {"cpu": "2150m", "memory": "1Gi"}, "limits": {"cpu": "3050m", "memory": "64Mi"}});
    assert_eq!(json(&waiting.resources), before);
    fixture.pod.status.as_mut().expect("a status").phase = Some("Running".to_owned());
    let running = json!({"requests": {"cpu": "2150m", "memory": "1Gi"}, "limits": {"cpu": "3050m"}});
    assert_eq!(json(&fixture.compute().resources), running, "not every container has a limit of memory");
}

#[test]
fn the_class_of_service_follows_from_requests_and_limits() {
    let class = |containers: Value, whole: Value| {
        let pod = json!({"metadata": {}, "spec": {"containers": containers, "resources": whole}});
        qos(&serde_json::from_value(pod).expect("a pod")).as_str()
    };
    let both = json!({"cpu": "1", "memory": "1Gi"});
    let container = |requests: Value, limits: Value| json!({"name": "a", "resources": {"requests": requests, "limits": limits}});
    assert_eq!(class(json!([{"name": "a"}]), Value::Null), "BestEffort");
    assert_eq!(class(json!([container(json!({"cpu": "0"}), json!({}))]), Value::Null), "BestEffort");
    assert_eq!(class(json!([container(both.clone(), both.clone())]), Value::Null), "Guaranteed");
    assert_eq!(
        class(json!([container(json!({"cpu": "1000m", "memory": "1024Mi"}), both.clone())]), Value::Null),
        "Guaranteed"
    );
    assert_eq!(class(json!([container(json!({"cpu": "1"}), json!({"cpu": "1"}))]), Value::Null), "Burstable");
    assert_eq!(
        class(json!([container(both.clone(), both.clone()), {"name": "b"}]), Value::Null),
        "Burstable"
    );
    assert_eq!(class(json!([{"name": "a"}]), json!({"requests": both, "limits": both})), "Guaranteed");
    assert_eq!(class(json!([{"name": "a"}]), json!({"requests": both})), "Burstable");
    assert_eq!(
        class(json!([container(both.clone(), both.clone())]), json!({"limits": {"cpu": "1"}})),
        "Burstable"
    );
}
