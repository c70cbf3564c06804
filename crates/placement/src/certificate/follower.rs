//! Serves the certificate in the Secret.

use std::{pin::pin, sync::Arc};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Secret;
use rustls::sign::CertifiedKey;
use tokio::sync::watch;
use tracing::{info, warn};
use vk_kube::{Client, Kind, Objects, WatchEvent};

use super::{
    SECRET,
    contents::Contents,
    leaf::Leaf,
    maintainer::{SECRET_PERMISSION, selector},
};

/// Watches the Secret and sends each certificate, in every process, whether it leads or not. `None` until there is one: a server must not accept
/// connections before that. If the Secret is deleted or damaged, the last certificate stays.
///
/// Runs forever. Cancel-safe.
pub async fn follow(client: Client, namespace: String, leaf: watch::Sender<Option<Arc<CertifiedKey>>>) {
    let secrets = Objects::<Secret>::namespaced(client, &namespace);
    let mut events = pin!(secrets.watch(&selector(SECRET)));
    let mut is_forbidden = false;
    while let Some(event) = events.next().await {
        match event {
            WatchEvent::Error(error) if error.kind == Kind::Forbidden && !is_forbidden => {
                is_forbidden = true;
                warn!("cannot read the Secret {namespace}/{SECRET}: {SECRET_PERMISSION}");
            }
            WatchEvent::Applied(secret) => apply(&Contents::of(&secret), &namespace, &leaf),
            WatchEvent::Listed if leaf.borrow().is_none() => info!(
                "waiting for the certificate in the Secret {namespace}/{SECRET}, which the process that leads placement creates"
            ),
            _ => {}
        }
    }
}

fn apply(contents: &Contents, namespace: &str, leaf: &watch::Sender<Option<Arc<CertifiedKey>>>) {
    match Leaf::parse(&contents.leaf, &contents.leaf_key) {
        Ok(Leaf { certified_key, not_after, .. }) => {
            let is_new = leaf.send_if_modified(|current| {
                let is_new = current.as_ref().is_none_or(|current| current.cert != certified_key.cert);
                *current = Some(certified_key);
                is_new
            });
            if is_new {
                info!(until = %not_after, "serving the certificate of the Secret {namespace}/{SECRET}");
            }
        }
        Err(problem) => warn!(
            "the Secret {namespace}/{SECRET} has no usable certificate ({problem}): the process that leads placement replaces it"
        ),
    }
}
