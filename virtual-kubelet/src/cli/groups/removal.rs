//! Removes groups whose pods do not exist.

use anyhow::anyhow;
use k8s_openapi::api::core::v1::Pod;
use vk_kube::{Client, Kind, Objects};
use vk_provider::{
    PodRef, error,
    inventory::{Group, InventoryScope},
};

use super::{
    Holding,
    pod_check::{ClusterPods, PodFate, pod_fate},
};
use crate::cli::{Failure, output::print};

/// Removes groups by id. None is removed unless all can be.
pub(super) async fn remove(
    ids: &[String],
    holdings: &[Holding],
    pods: &ClusterPods,
    scope: &InventoryScope,
    client: Option<&Client>,
) -> Result<(), Failure> {
    let mut chosen = Vec::new();
    for id in ids {
        let (holding, group) = find(id, holdings)?;
        let pod = removable(group, holding, pods, scope.cluster.is_some())?;
        if let Some(client) = client {
            confirm_missing(group, pod, client).await?;
        }
        chosen.push((holding, group));
    }
    for (holding, group) in chosen {
        match holding.inventory.remove(scope, &group.id).await {
            Ok(()) => print(&format!("removed {}\n", group.id))?,
            Err(error) if *error.kind() == error::Kind::NotFound => {
                print(&format!("{} is gone already\n", group.id))?;
            }
            Err(error) => return Err(anyhow!("remove group {}: {}", group.id, error.report()).into()),
        }
    }
    Ok(())
}

/// The group with this id, else with this name.
fn find<'a>(id: &str, holdings: &'a [Holding]) -> anyhow::Result<(&'a Holding, &'a Group)> {
    let all = || holdings.iter().flat_map(|holding| holding.groups.iter().map(move |group| (holding, group)));
    let named: Vec<(&Holding, &Group)> = match all().find(|(_, group)| group.id == id) {
        Some(found) => vec![found],
        None => all().filter(|(_, group)| group.name.as_deref() == Some(id)).collect(),
    };
    match named.as_slice() {
        [one] => Ok(*one),
        [] => Err(anyhow!("there is no group {id} of this cluster; `virtual-kubelet groups` lists them")),
        several => {
            let ids: Vec<&str> = several.iter().map(|(_, group)| group.id.as_str()).collect();
            Err(anyhow!("several groups have the name {id}: write an ID: {}", ids.join(", ")))
        }
    }
}

/// The pod of a group that may be removed, because the pod does not exist.
fn removable<'a>(
    group: &'a Group,
    holding: &Holding,
    pods: &ClusterPods,
    named: bool,
) -> anyhow::Result<&'a PodRef> {
    let (id, fate) = (&group.id, pod_fate(group, holding, pods, named));
    match (fate, &group.pod) {
        (PodFate::Missing, Some(pod)) => Ok(pod),
        (PodFate::Exists, Some(pod)) => Err(anyhow!(
            "group {id} belongs to pod {}/{}, which exists: delete the pod instead",
            pod.namespace,
            pod.name
        )),
        (PodFate::Unknown(why), _) => {
            Err(anyhow!("group {id} is not removed, because its pod may exist: {why}"))
        }
        (_, None) => Err(anyhow!("group {id} is not removed, because it is not marked with a pod")),
    }
}

/// Asks the API server once more, for this pod alone.
async fn confirm_missing(group: &Group, pod: &PodRef, client: &Client) -> anyhow::Result<()> {
    let PodRef { namespace, name, uid } = pod;
    let pods: Objects<Pod> = Objects::namespaced(client.clone(), &**namespace);
    match pods.get(name).await {
        Ok(found) if found.metadata.uid.as_deref() == Some(&**uid) => Err(anyhow!(
            "group {} belongs to pod {namespace}/{name}, which exists: delete the pod instead",
            group.id
        )),
        Ok(_) => Ok(()),
        Err(error) if error.kind == Kind::NotFound => Ok(()),
        Err(error) => Err(anyhow!(
            "group {} is not removed, because its pod may exist: cannot read pod {namespace}/{name}: {error}",
            group.id
        )),
    }
}

#[cfg(test)]
pub(super) mod tests;
