//! A webhook of somebody else, which adds a key to the node selector of every pod after ours has run.

use axum::{Router, body::Bytes, routing::post};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use vk_testing::ControlPlane;

use crate::server::Server;

/// The last in the order of the API server.
const NAME: &str = "zz-foreign";

/// What the webhook does to a pod.
pub(crate) fn add_key(pod: &mut Value) {
    pod["spec"]["nodeSelector"]["late"] = json!("x");
}

pub(crate) async fn start(cluster: &ControlPlane) -> Server {
    let router = Router::new()
        .route("/", post(async |body: Bytes| respond(&serde_json::from_slice(&body).unwrap()).to_string()));
    Server::start(cluster, router).await
}

fn respond(review: &Value) -> Value {
    let selector = &review["request"]["object"]["spec"]["nodeSelector"];
    let patch = match selector {
        Value::Null => json!([{"op": "add", "path": "/spec/nodeSelector", "value": {"late": "x"}}]),
        _ => json!([{"op": "add", "path": "/spec/nodeSelector/late", "value": "x"}]),
    };
    let mut response = json!({"uid": review["request"]["uid"], "allowed": true});
    // It is called again after the policy has moved its key, and has done its work by then.
    let moved =
        review["request"]["object"]["metadata"]["annotations"]["multicluster.virtual-kubelet.io/lower-nodes"]
            .as_str()
            .is_some_and(|text| text.contains("late=x"));
    if selector["late"].is_null() && !moved {
        response["patchType"] = json!("JSONPatch");
        response["patch"] = json!(STANDARD.encode(patch.to_string()));
    }
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
}

/// The configuration that makes the API server call it.
pub(crate) fn configuration(server: &Server, ca_pem: &str) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": NAME},
        "webhooks": [{
            "name": "foreign.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "clientConfig": {"url": format!("{}/", server.url), "caBundle": STANDARD.encode(ca_pem)},
            "rules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]},
            ],
        }],
    })
}
