//! Bootstrap tokens, with which a new node requests its client certificate.

use std::path::Path;

use k8s_openapi::api::{
    authorization::v1::SelfSubjectAccessReview, core::v1::Secret, rbac::v1::ClusterRoleBinding,
};
use kube::api::{Api, PostParams};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::component::READY_POLL;
use crate::error::{Error, Result};
use crate::{ControlPlane, certs, kubeconfig};

// Predefined roles without bindings.
const MAY_ASK: &str = "system:node-bootstrapper";
const IS_APPROVED: &str = "system:certificates.k8s.io:certificatesigningrequests:nodeclient";
const RENEWS: &str = "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient";

impl ControlPlane {
    /// Creates a bootstrap token, whose bearer may request the client certificate of a node. With `approved` the controller-manager approves
    /// these requests. Nodes may always renew their certificates.
    ///
    /// Needs [`Options::with_signing`](crate::Options::with_signing) or all controllers; otherwise nothing is signed.
    pub async fn bootstrap_token(&self, approved: bool) -> Result<String> {
        let admin = self.admin()?;
        let id = format!("{:06x}", rand::random::<u32>() & 0x00ff_ffff);
        let secret = format!("{:016x}", rand::random::<u64>());
        let group = format!("system:bootstrappers:{id}");
        self.bind(&format!("bootstrap-{id}"), MAY_ASK, &group).await?;
        if approved {
            self.bind(&format!("bootstrap-approve-{id}"), IS_APPROVED, &group).await?;
        }
        self.bind("nodes-renew", RENEWS, "system:nodes").await?;
        let object: Secret = typed(json!({
            "metadata": {"name": format!("bootstrap-token-{id}"), "namespace": "kube-system"},
            "type": "bootstrap.kubernetes.io/token",
            "stringData": {
                "token-id": id,
                "token-secret": secret,
                "usage-bootstrap-authentication": "true",
                "auth-extra-groups": group,
            },
        }));
        Api::<Secret>::namespaced(admin, "kube-system")
            .create(&PostParams::default(), &object)
            .await
            .map_err(Error::api(format!("create bootstrap token {id}")))?;
        let token = format!("{id}.{secret}");
        self.wait_for_token(&token).await?;
        Ok(token)
    }

    /// Writes a kubeconfig with a bearer token to a file that only its owner can read.
    pub fn write_token_kubeconfig(&self, path: &Path, token: &str) -> Result<()> {
        let user = json!({ "token": token });
        certs::write(path, &kubeconfig::with_user(&self.url, self.ca_pem(), &user))
    }

    async fn bind(&self, name: &str, role: &str, group: &str) -> Result<()> {
        let object: ClusterRoleBinding = typed(json!({
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": group}],
        }));
        match Api::all(self.admin()?).create(&PostParams::default(), &object).await {
            Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => Ok(()),
            made => made.map(drop).map_err(Error::api(format!("bind {group} to {role}"))),
        }
    }

    /// Waits until the API server accepts the token: it learns about tokens and bindings through its own watches.
    async fn wait_for_token(&self, token: &str) -> Result<()> {
        let client = kubeconfig::client_as(&self.url, self.ca_pem(), &json!({ "token": token }))?;
        let question: SelfSubjectAccessReview = typed(json!({"spec": {"resourceAttributes": {
            "group": "certificates.k8s.io", "resource": "certificatesigningrequests", "verb": "create",
        }}}));
        let reviews: Api<SelfSubjectAccessReview> = Api::all(client);
        let end = Instant::now() + self.deadline;
        loop {
            let answer = reviews.create(&PostParams::default(), &question).await;
            if answer.is_ok_and(|review| review.status.is_some_and(|status| status.allowed)) {
                return Ok(());
            }
            if Instant::now() > end {
                let what = "permission of a new bootstrap token to request certificates".to_owned();
                return Err(Error::Missing { what, waited: self.deadline });
            }
            sleep(READY_POLL).await;
        }
    }
}

fn typed<K: serde::de::DeserializeOwned>(value: serde_json::Value) -> K {
    serde_json::from_value(value).expect("a valid object")
}
