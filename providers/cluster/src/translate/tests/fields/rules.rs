//! The expected treatment of every field. Fields that the API gets later need a rule.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, EphemeralContainer, PodSpec, Volume};

/// How the translation treats a field of an upper pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FieldRule {
    /// Copied unchanged.
    Kept,
    /// Only meaningful in the upper cluster.
    Dropped,
    /// The upper scheduler consumes it. The annotation [`LOWER`](crate::names::LOWER) and the configuration replace it.
    Replaced,
    /// Copied, with the parts rewritten that mean something else in the lower cluster.
    Rewritten,
    /// Copied, or the pod is rejected, depending on the configuration.
    Allowed,
    /// A pod that sets it is rejected.
    Rejected,
    /// Not created with the pod but added while it runs.
    Added,
}

/// The fields of `PodSpec`.
pub(super) const RULES: &[(&str, FieldRule)] = &[
    ("activeDeadlineSeconds", FieldRule::Kept),
    ("affinity", FieldRule::Replaced),
    ("automountServiceAccountToken", FieldRule::Rewritten),
    ("containers", FieldRule::Rewritten),
    ("dnsConfig", FieldRule::Kept),
    ("dnsPolicy", FieldRule::Kept),
    ("enableServiceLinks", FieldRule::Kept),
    ("ephemeralContainers", FieldRule::Added),
    ("evictionResponders", FieldRule::Dropped),
    ("hostAliases", FieldRule::Kept),
    ("hostIPC", FieldRule::Allowed),
    ("hostNetwork", FieldRule::Allowed),
    ("hostPID", FieldRule::Allowed),
    ("hostUsers", FieldRule::Kept),
    ("hostname", FieldRule::Kept),
    ("hostnameOverride", FieldRule::Kept),
    ("imagePullSecrets", FieldRule::Kept),
    ("initContainers", FieldRule::Rewritten),
    ("nodeName", FieldRule::Dropped),
    ("nodeSelector", FieldRule::Replaced),
    ("os", FieldRule::Kept),
    ("overhead", FieldRule::Dropped),
    ("preemptionPolicy", FieldRule::Dropped),
    ("priority", FieldRule::Dropped),
    ("priorityClassName", FieldRule::Replaced),
    ("readinessGates", FieldRule::Dropped),
    ("resourceClaims", FieldRule::Rejected),
    ("resources", FieldRule::Kept),
    ("restartPolicy", FieldRule::Kept),
    ("runtimeClassName", FieldRule::Replaced),
    ("schedulerName", FieldRule::Replaced),
    ("schedulingGates", FieldRule::Dropped),
    ("schedulingGroup", FieldRule::Dropped),
    ("securityContext", FieldRule::Allowed),
    ("serviceAccount", FieldRule::Dropped),
    ("serviceAccountName", FieldRule::Rewritten),
    ("setHostnameAsFQDN", FieldRule::Kept),
    ("shareProcessNamespace", FieldRule::Kept),
    ("subdomain", FieldRule::Kept),
    ("terminationGracePeriodSeconds", FieldRule::Kept),
    ("tolerations", FieldRule::Replaced),
    ("topologySpreadConstraints", FieldRule::Replaced),
    ("volumes", FieldRule::Rewritten),
];

/// The fields of containers of all kinds.
pub(super) const CONTAINER_RULES: &[(&str, FieldRule)] = &[
    ("args", FieldRule::Kept),
    ("command", FieldRule::Kept),
    ("env", FieldRule::Rewritten),
    ("envFrom", FieldRule::Kept),
    ("image", FieldRule::Kept),
    ("imagePullPolicy", FieldRule::Kept),
    ("lifecycle", FieldRule::Kept),
    ("livenessProbe", FieldRule::Kept),
    ("name", FieldRule::Kept),
    ("ports", FieldRule::Allowed),
    ("readinessProbe", FieldRule::Kept),
    ("resizePolicy", FieldRule::Kept),
    ("resources", FieldRule::Kept),
    ("restartPolicy", FieldRule::Kept),
    ("restartPolicyRules", FieldRule::Kept),
    ("securityContext", FieldRule::Allowed),
    ("startupProbe", FieldRule::Kept),
    ("stdin", FieldRule::Kept),
    ("stdinOnce", FieldRule::Kept),
    ("targetContainerName", FieldRule::Kept),
    ("terminationMessagePath", FieldRule::Kept),
    ("terminationMessagePolicy", FieldRule::Kept),
    ("tty", FieldRule::Kept),
    ("volumeDevices", FieldRule::Kept),
    ("volumeMounts", FieldRule::Rewritten),
    ("workingDir", FieldRule::Kept),
];

/// The volume sources.
pub(super) const VOLUME_RULES: &[(&str, FieldRule)] = &[
    ("awsElasticBlockStore", FieldRule::Kept),
    ("azureDisk", FieldRule::Kept),
    ("azureFile", FieldRule::Kept),
    ("cephfs", FieldRule::Kept),
    ("cinder", FieldRule::Kept),
    ("configMap", FieldRule::Kept),
    ("csi", FieldRule::Allowed),
    ("downwardAPI", FieldRule::Rewritten),
    ("emptyDir", FieldRule::Kept),
    ("ephemeral", FieldRule::Rewritten),
    ("fc", FieldRule::Kept),
    ("flexVolume", FieldRule::Allowed),
    ("flocker", FieldRule::Kept),
    ("gcePersistentDisk", FieldRule::Kept),
    ("gitRepo", FieldRule::Kept),
    ("glusterfs", FieldRule::Kept),
    ("hostPath", FieldRule::Allowed),
    ("image", FieldRule::Kept),
    ("iscsi", FieldRule::Kept),
    ("name", FieldRule::Kept),
    ("nfs", FieldRule::Kept),
    ("persistentVolumeClaim", FieldRule::Kept),
    ("photonPersistentDisk", FieldRule::Kept),
    ("portworxVolume", FieldRule::Kept),
    ("projected", FieldRule::Rewritten),
    ("quobyte", FieldRule::Kept),
    ("rbd", FieldRule::Kept),
    ("scaleIO", FieldRule::Kept),
    ("secret", FieldRule::Rewritten),
    ("storageos", FieldRule::Kept),
    ("vsphereVolume", FieldRule::Kept),
];

/// The JSON names of the fields of a type. It fails to compile when the API gets another field.
macro_rules! fields {
    ($name:ident { $($field:ident),* $(,)? }) => {{
        let _all = |value: &$name| { let $name { $($field: _),* } = value; };
        BTreeSet::from([$(in_json(stringify!($field))),*])
    }};
}

fn in_json(field: &str) -> String {
    let mut name = String::new();
    for (index, word) in field.split('_').enumerate() {
        match word {
            "ipc" | "pid" | "fqdn" | "api" | "io" => name.push_str(&word.to_uppercase()),
            word if index == 0 => name.push_str(word),
            word => {
                name.push_str(&word[..1].to_uppercase());
                name.push_str(&word[1..]);
            }
        }
    }
    name
}

pub(super) fn names(rules: &[(&str, FieldRule)]) -> BTreeSet<String> {
    let names: BTreeSet<String> = rules.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(names.len(), rules.len(), "one rule for each");
    names
}

#[test]
fn every_field_of_a_pod_has_a_rule() {
    let fields = fields!(PodSpec {
        active_deadline_seconds,
        affinity,
        automount_service_account_token,
        containers,
        dns_config,
        dns_policy,
        enable_service_links,
        ephemeral_containers,
        eviction_responders,
        host_aliases,
        host_ipc,
        host_network,
        host_pid,
        host_users,
        hostname,
        hostname_override,
        image_pull_secrets,
        init_containers,
        node_name,
        node_selector,
        os,
        overhead,
        preemption_policy,
        priority,
        priority_class_name,
        readiness_gates,
        resource_claims,
        resources,
        restart_policy,
        runtime_class_name,
        scheduler_name,
        scheduling_gates,
        scheduling_group,
        security_context,
        service_account,
        service_account_name,
        set_hostname_as_fqdn,
        share_process_namespace,
        subdomain,
        termination_grace_period_seconds,
        tolerations,
        topology_spread_constraints,
        volumes,
    });
    assert_eq!(names(RULES), fields);
}

#[test]
fn every_field_of_a_container_has_a_rule() {
    let common = fields!(Container {
        args,
        command,
        env,
        env_from,
        image,
        image_pull_policy,
        lifecycle,
        liveness_probe,
        name,
        ports,
        readiness_probe,
        resize_policy,
        resources,
        restart_policy,
        restart_policy_rules,
        security_context,
        startup_probe,
        stdin,
        stdin_once,
        termination_message_path,
        termination_message_policy,
        tty,
        volume_devices,
        volume_mounts,
        working_dir,
    });
    let ephemeral = fields!(EphemeralContainer {
        args,
        command,
        env,
        env_from,
        image,
        image_pull_policy,
        lifecycle,
        liveness_probe,
        name,
        ports,
        readiness_probe,
        resize_policy,
        resources,
        restart_policy,
        restart_policy_rules,
        security_context,
        startup_probe,
        stdin,
        stdin_once,
        target_container_name,
        termination_message_path,
        termination_message_policy,
        tty,
        volume_devices,
        volume_mounts,
        working_dir,
    });
    assert_eq!(names(CONTAINER_RULES), &common | &ephemeral);
}

#[test]
fn every_kind_of_volume_has_a_rule() {
    let fields = fields!(Volume {
        aws_elastic_block_store,
        azure_disk,
        azure_file,
        cephfs,
        cinder,
        config_map,
        csi,
        downward_api,
        empty_dir,
        ephemeral,
        fc,
        flex_volume,
        flocker,
        gce_persistent_disk,
        git_repo,
        glusterfs,
        host_path,
        image,
        iscsi,
        name,
        nfs,
        persistent_volume_claim,
        photon_persistent_disk,
        portworx_volume,
        projected,
        quobyte,
        rbd,
        scale_io,
        secret,
        storageos,
        vsphere_volume,
    });
    assert_eq!(names(VOLUME_RULES), fields);
}
