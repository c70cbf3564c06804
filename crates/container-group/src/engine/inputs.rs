//! Reads what a pod refers to, before it is translated.

use std::{collections::BTreeMap, net::IpAddr};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Volume;
use vk_provider::{
    Error, PodBundle, Result,
    resolve::{Facts, TokenLifetime},
};

use crate::backend::ResolvedPod;

/// Everything that a pod refers to. A missing mandatory object is an error that the core waits for. Of the addresses only those of the node
/// are known before there is a group.
pub(super) async fn resolve(bundle: &PodBundle, node_ips: &[IpAddr]) -> Result<ResolvedPod> {
    let facts = Facts { host_ips: node_ips.to_vec(), ..Facts::default() };
    let resolver = &bundle.resolver;
    let mut resolved = ResolvedPod {
        pod: bundle.pod.clone(),
        containers: BTreeMap::new(),
        files: BTreeMap::new(),
        claims: BTreeMap::new(),
        credentials: BTreeMap::new(),
    };
    let Some(spec) = &bundle.pod.spec else { return Ok(resolved) };
    for container in spec.init_containers.iter().flatten().chain(&spec.containers) {
        let inputs = resolver.container(&container.name, &facts).await?;
        resolved.containers.insert(container.name.clone(), inputs);
        let Some(image) = container.image.as_ref().filter(|image| !resolved.credentials.contains_key(*image))
        else {
            continue;
        };
        let credentials = resolver.pull_credentials(image).await?;
        if !credentials.is_empty() {
            resolved.credentials.insert(image.clone(), credentials);
        }
    }
    for volume in spec.volumes.iter().flatten() {
        if has_files(volume) {
            // A group keeps its files, so its tokens should be valid for as long as possible.
            let mut sets = resolver.volume(&volume.name, TokenLifetime::Longest);
            let files = sets.next().await.ok_or_else(|| {
                Error::unavailable(format!("read volume {:?}: its files are not known", volume.name))
            })??;
            resolved.files.insert(volume.name.clone(), files);
        } else if let Some(claim) = &volume.persistent_volume_claim {
            resolved.claims.insert(volume.name.clone(), resolver.claim(&claim.claim_name).await?);
        }
    }
    Ok(resolved)
}

/// Whether the resolver has the files of the volume.
pub(super) fn has_files(volume: &Volume) -> bool {
    volume.config_map.is_some()
        || volume.secret.is_some()
        || volume.downward_api.is_some()
        || volume.projected.is_some()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use vk_provider::resolve::FileSet;

    use super::*;
    use crate::conformance::{FixedResolver, pod};

    #[tokio::test]
    async fn the_addresses_of_the_node_are_known_before_there_is_a_group() {
        let resolver = Arc::new(FixedResolver::new(FileSet::default()));
        let bundle = PodBundle { pod: Arc::new(pod("web", 1, jiff::Timestamp::UNIX_EPOCH)), resolver };
        let ips = ["10.0.0.1".parse().unwrap()];
        let resolved = resolve(&bundle, &ips).await.unwrap();
        let env = &resolved.containers["main"].env;
        assert_eq!((env[0].name.as_str(), env[0].value.as_str()), ("HOST_IP", "10.0.0.1"));
        assert!(resolve(&bundle, &[]).await.unwrap().containers["main"].env[0].deferred.is_some());
    }
}
