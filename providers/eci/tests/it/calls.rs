//! Explanations and dry runs over HTTP.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use vk_provider::{
    Factory as _,
    explanation::{BackendAnswer, ExplainRequest, Explanation, FieldPolicy, PriceEstimate},
};
use vk_provider_eci::EciFactory;

use crate::{
    scripted_server::{Reply, ScriptedServer},
    support::{config, context},
};

async fn explain(endpoint: &str, pod: Value, ask_backend: bool) -> Explanation {
    let pod: Pod = serde_json::from_value(pod).unwrap();
    let request = ExplainRequest { pod: Arc::new(pod), ask_backend };
    EciFactory::default().explain(config(endpoint), context(), request).await.unwrap()
}

fn web() -> Value {
    json!({
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {
            "containers": [{
                "name": "web", "image": "nginx", "args": ["-v"],
                "resources": {"requests": {"cpu": "1500m", "memory": "3Gi"}, "limits": {"memory": "4Gi"}},
                "livenessProbe": {"tcpSocket": {"port": 80}},
                "startupProbe": {"tcpSocket": {"port": 80}, "periodSeconds": 10, "failureThreshold": 6},
                "env": [{"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "db", "key": "password"}}}],
                "volumeMounts": [{"name": "config", "mountPath": "/etc/web"}],
            }],
            "volumes": [{"name": "config", "configMap": {"name": "web"}}],
            "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
        },
    })
}

#[tokio::test]
async fn a_pod_is_explained_without_a_call() {
    // Nothing listens there.
    let found = explain("http://127.0.0.1:1", web(), false).await;
    assert!(found.runs());
    assert_eq!(found.place.as_deref(), Some("cn-hangzhou"));
    let size = found.size.as_ref().unwrap();
    assert_eq!(
        (size.given.as_ref().unwrap().to_string(), size.reason.as_str()),
        ("2-4Gi".to_owned(), "next larger ECI size")
    );
    match found.price.as_ref().unwrap() {
        PriceEstimate::Known { price, source } => {
            assert_eq!(
                (price.to_string(), source.as_str()),
                ("0.1224 USD".to_owned(), "list price from the configuration")
            );
        }
        other @ PriceEstimate::Unknown(_) => panic!("{other:?}"),
    }
    let unread: Vec<String> = found.not_read.iter().map(ToString::to_string).collect();
    assert_eq!(unread, ["ConfigMap shop/web", "Secret shop/db"]);
    let files = found.files.unwrap();
    assert_eq!((files.volumes, files.limit), (1, Some(60 << 10)));
    let row = |field: &str| found.fields.iter().find(|row| row.field == field).unwrap();
    assert_eq!(row("spec.containers[web].args").result, "Container.1.Arg");
    let startup = row("spec.containers[web].startupProbe");
    assert_eq!((startup.policy, startup.warning), (FieldPolicy::Emulated, true));
    assert!(startup.result.contains("60 s later"), "{startup:?}");
    let limits = row("spec.containers[web].resources.limits");
    assert_eq!((limits.policy, limits.warning), (FieldPolicy::Ignored, true));
    assert_eq!(row("spec.topologySpreadConstraints").policy, FieldPolicy::Elsewhere);
    assert_eq!(found.warnings().count(), 2);
}

#[tokio::test]
async fn a_pod_that_does_not_run_has_all_refused_fields() {
    let mut pod = web();
    pod["spec"]["hostNetwork"] = json!(true);
    pod["spec"]["volumes"][0] = json!({"name": "config", "hostPath": {"path": "/"}});
    let found = explain("http://127.0.0.1:1", pod, true).await;
    assert!(!found.runs());
    let fields: Vec<&str> = found.refused().map(|row| row.field.as_str()).collect();
    assert_eq!(fields, ["spec.hostNetwork", "spec.volumes[config].hostPath"]);
    assert_eq!(found.backend, None, "the service is not asked about a pod that does not run");
}

#[tokio::test]
async fn the_service_is_asked_for_a_dry_run() {
    for (reply, expected) in [
        (("DryRunOperation", "would have succeeded"), true),
        (("OperationDenied.NoStock", "sold out"), false),
    ] {
        let server = ScriptedServer::start(move |received| {
            assert_eq!(
                (received.action.as_str(), received.parameter("DryRun")),
                ("CreateContainerGroup", "true")
            );
            assert_eq!(received.parameter("VSwitchId"), "vsw-a");
            Reply::refusal(400, reply.0, reply.1)
        })
        .await;
        let found = explain(&server.url, web(), true).await;
        assert_eq!(
            matches!(found.backend, Some(BackendAnswer::Accepted(_))),
            expected,
            "{:?}",
            found.backend
        );
        assert_eq!(found.runs(), expected);
    }
    let found = explain("http://127.0.0.1:1", web(), true).await;
    assert!(matches!(found.backend, Some(BackendAnswer::Failed(_))) && found.runs());
}
