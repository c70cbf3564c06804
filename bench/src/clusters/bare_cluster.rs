//! The minimum work between two clusters: list the lower cluster once, then copy each status.

use std::path::{Path, PathBuf};

use clap::Args;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
    runtime::watcher,
};
use serde_json::json;

use crate::candidate::NODE;

/// The page size of lists, as in client-go informers.
const PAGE: u32 = 500;

#[derive(Debug, Args)]
pub(crate) struct BareCluster {
    #[arg(long)]
    upper: PathBuf,
    #[arg(long)]
    lower: PathBuf,
    /// The namespace of the pods above
    #[arg(long)]
    above: String,
    /// The same below
    #[arg(long)]
    below: String,
}

impl BareCluster {
    /// Lists everything, then creates a Ready node, and copies statuses until the process is killed.
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        let (upper, lower) = (client(&self.upper).await?, client(&self.lower).await?);
        let mut page = ListParams::default().limit(PAGE);
        while let Some(token) = Api::<Node>::all(lower.clone()).list(&page).await?.metadata.continue_ {
            page = page.continue_token(&token);
        }
        let mut page = ListParams::default().limit(PAGE);
        while let Some(token) = Api::<Pod>::all(lower.clone()).list(&page).await?.metadata.continue_ {
            page = page.continue_token(&token);
        }
        let condition = json!({"type": "Ready", "status": "True", "reason": "Bench", "message": "bench"});
        let node = json!({"metadata": {"name": NODE}, "status": {"conditions": [condition]}});
        Api::<Node>::all(upper.clone())
            .create(&PostParams::default(), &serde_json::from_value(node)?)
            .await?;

        let above: Api<Pod> = Api::namespaced(upper, &self.above);
        let events = watcher(Api::<Pod>::namespaced(lower, &self.below), watcher::Config::default());
        let passed = events.map(|event| {
            let above = above.clone();
            async move {
                let Ok(watcher::Event::Apply(pod) | watcher::Event::InitApply(pod)) = event else {
                    return;
                };
                let name = pod.metadata.name.unwrap_or_default();
                let body = json!({"status": pod.status});
                // A failure shows as a missing status.
                let _ = above.patch_status(&name, &PatchParams::default(), &Patch::Merge(&body)).await;
            }
        });
        passed.buffer_unordered(64).for_each(|()| std::future::ready(())).await;
        Ok(())
    }
}

async fn client(path: &Path) -> anyhow::Result<Client> {
    let kubeconfig = Kubeconfig::read_from(path)?;
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}
