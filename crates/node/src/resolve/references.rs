//! The objects that a pod references by name. Nothing else is read on its behalf.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, EnvFromSource, EnvVar, Pod, Volume};

/// Names of objects in the pod's namespace.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct References {
    pub(super) config_maps: BTreeSet<String>,
    pub(super) secrets: BTreeSet<String>,
    pub(super) claims: BTreeSet<String>,
}

impl References {
    pub(super) fn of(pod: &Pod) -> Self {
        let mut all = Self::default();
        let Some(spec) = &pod.spec else { return all };
        let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
        for Container { env, env_from, .. } in containers {
            all.environment(env.as_deref(), env_from.as_deref());
        }
        for container in spec.ephemeral_containers.iter().flatten() {
            all.environment(container.env.as_deref(), container.env_from.as_deref());
        }
        for volume in spec.volumes.iter().flatten() {
            all.volume(pod, volume);
        }
        all.secrets.extend(spec.image_pull_secrets.iter().flatten().map(|secret| secret.name.clone()));
        all.secrets.remove("");
        all.config_maps.remove("");
        all
    }

    fn environment(&mut self, env: Option<&[EnvVar]>, from: Option<&[EnvFromSource]>) {
        for source in env.into_iter().flatten().filter_map(|variable| variable.value_from.as_ref()) {
            self.config_maps.extend(source.config_map_key_ref.iter().map(|key| key.name.clone()));
            self.secrets.extend(source.secret_key_ref.iter().map(|key| key.name.clone()));
        }
        for source in from.into_iter().flatten() {
            self.config_maps.extend(source.config_map_ref.iter().map(|map| map.name.clone()));
            self.secrets.extend(source.secret_ref.iter().map(|secret| secret.name.clone()));
        }
    }

    fn volume(&mut self, pod: &Pod, volume: &Volume) {
        self.config_maps.extend(volume.config_map.iter().map(|map| map.name.clone()));
        self.secrets.extend(volume.secret.iter().filter_map(|secret| secret.secret_name.clone()));
        let projected = volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten());
        for source in projected {
            self.config_maps.extend(source.config_map.iter().map(|map| map.name.clone()));
            self.secrets.extend(source.secret.iter().map(|secret| secret.name.clone()));
        }
        self.claims.extend(volume.persistent_volume_claim.iter().map(|claim| claim.claim_name.clone()));
        if volume.ephemeral.is_some() {
            let name = pod.metadata.name.as_deref().unwrap_or_default();
            self.claims.insert(format!("{name}-{}", volume.name));
        }
        // Storage credentials, which volume types reference in different ways.
        let local = [
            volume.csi.as_ref().and_then(|it| it.node_publish_secret_ref.as_ref()),
            volume.cephfs.as_ref().and_then(|it| it.secret_ref.as_ref()),
            volume.cinder.as_ref().and_then(|it| it.secret_ref.as_ref()),
            volume.flex_volume.as_ref().and_then(|it| it.secret_ref.as_ref()),
            volume.iscsi.as_ref().and_then(|it| it.secret_ref.as_ref()),
            volume.rbd.as_ref().and_then(|it| it.secret_ref.as_ref()),
            volume.scale_io.as_ref().map(|it| &it.secret_ref),
            volume.storageos.as_ref().and_then(|it| it.secret_ref.as_ref()),
        ];
        self.secrets.extend(local.into_iter().flatten().map(|secret| secret.name.clone()));
        self.secrets.extend(volume.azure_file.iter().map(|file| file.secret_name.clone()));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_reference_of_a_pod_is_found() {
        let env = |name: &str| {
            json!({
                "name": name,
                "env": [
                    {"name": "A", "valueFrom": {"configMapKeyRef": {"name": format!("{name}-env-map"), "key": "a"}}},
                    {"name": "B", "valueFrom": {"secretKeyRef": {"name": format!("{name}-env-secret"), "key": "b"}}}
                ],
                "envFrom": [
                    {"configMapRef": {"name": format!("{name}-all-map")}},
                    {"secretRef": {"name": format!("{name}-all-secret")}}
                ]
            })
        };
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "web"},
            "spec": {
                "initContainers": [env("init")],
                "containers": [env("main")],
                "ephemeralContainers": [env("debug")],
                "imagePullSecrets": [{"name": "registry"}, {}],
                "volumes": [
                    {"name": "a", "configMap": {"name": "files"}},
                    {"name": "b", "secret": {"secretName": "keys"}},
                    {"name": "c", "projected": {"sources": [
                        {"configMap": {"name": "part"}}, {"secret": {"name": "secret-part"}}
                    ]}},
                    {"name": "d", "persistentVolumeClaim": {"claimName": "data"}},
                    {"name": "e", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}},
                    {"name": "f", "csi": {"driver": "d", "nodePublishSecretRef": {"name": "storage"}}}
                ]
            }
        }))
        .unwrap();
        let all = References::of(&pod);
        let mut maps = vec!["files".to_owned(), "part".to_owned()];
        let mut secrets: Vec<String> = ["keys", "secret-part", "registry", "storage"].map(Into::into).into();
        for name in ["init", "main", "debug"] {
            maps.extend([format!("{name}-env-map"), format!("{name}-all-map")]);
            secrets.extend([format!("{name}-env-secret"), format!("{name}-all-secret")]);
        }
        assert_eq!(all.config_maps, maps.into_iter().collect());
        assert_eq!(all.secrets, secrets.into_iter().collect());
        assert_eq!(all.claims, ["data".to_owned(), "web-e".to_owned()].into());
    }
}
