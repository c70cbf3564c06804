//! What becomes of each field.

use k8s_openapi::api::core::v1::PodSpec;
use serde_json::Value;

use super::Reject;

#[cfg(test)]
mod tests;

/// What becomes of a field of an upper pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// It is the same below.
    Kept,
    /// It is of the upper cluster alone.
    Dropped,
    /// It is told to the upper scheduler; what the annotation [`LOWER`](crate::names::LOWER) and the operator say holds below.
    Replaced,
    /// It is kept but for what means something else below.
    Fitted,
    /// It is kept, or the pod is refused, as the operator says.
    Allowed,
    /// A pod that has it is refused.
    Refused,
    /// It is not made with the pod, but put into it when it runs.
    Later,
}

/// What becomes of the fields of a pod's `spec`. Every field of the API has a rule; a test fails when it gets one more.
pub const RULES: &[(&str, Rule)] = &[
    ("activeDeadlineSeconds", Rule::Kept),
    ("affinity", Rule::Replaced),
    ("automountServiceAccountToken", Rule::Fitted),
    ("containers", Rule::Fitted),
    ("dnsConfig", Rule::Kept),
    ("dnsPolicy", Rule::Kept),
    ("enableServiceLinks", Rule::Kept),
    ("ephemeralContainers", Rule::Later),
    // They watch evictions of the upper pod.
    ("evictionResponders", Rule::Dropped),
    ("hostAliases", Rule::Kept),
    ("hostIPC", Rule::Allowed),
    ("hostNetwork", Rule::Allowed),
    ("hostPID", Rule::Allowed),
    ("hostUsers", Rule::Kept),
    ("hostname", Rule::Kept),
    ("hostnameOverride", Rule::Kept),
    ("imagePullSecrets", Rule::Kept),
    ("initContainers", Rule::Fitted),
    ("nodeName", Rule::Dropped),
    ("nodeSelector", Rule::Replaced),
    ("os", Rule::Kept),
    // The admission below sets it anew from the RuntimeClass there, and refuses one that differs.
    ("overhead", Rule::Dropped),
    ("preemptionPolicy", Rule::Dropped),
    // The same of the PriorityClass.
    ("priority", Rule::Dropped),
    ("priorityClassName", Rule::Replaced),
    // Nobody would set their conditions below.
    ("readinessGates", Rule::Dropped),
    ("resourceClaims", Rule::Refused),
    ("resources", Rule::Kept),
    ("restartPolicy", Rule::Kept),
    ("runtimeClassName", Rule::Replaced),
    ("schedulerName", Rule::Replaced),
    ("schedulingGates", Rule::Dropped),
    // The group is an object above.
    ("schedulingGroup", Rule::Dropped),
    ("securityContext", Rule::Allowed),
    // The old name of the next one.
    ("serviceAccount", Rule::Dropped),
    ("serviceAccountName", Rule::Fitted),
    ("setHostnameAsFQDN", Rule::Kept),
    ("shareProcessNamespace", Rule::Kept),
    ("subdomain", Rule::Kept),
    ("terminationGracePeriodSeconds", Rule::Kept),
    ("tolerations", Rule::Replaced),
    ("topologySpreadConstraints", Rule::Replaced),
    ("volumes", Rule::Fitted),
];

/// What becomes of the fields of a container, whatever its kind.
pub const CONTAINER_RULES: &[(&str, Rule)] = &[
    ("args", Rule::Kept),
    ("command", Rule::Kept),
    ("env", Rule::Fitted),
    ("envFrom", Rule::Kept),
    ("image", Rule::Kept),
    ("imagePullPolicy", Rule::Kept),
    ("lifecycle", Rule::Kept),
    ("livenessProbe", Rule::Kept),
    ("name", Rule::Kept),
    ("ports", Rule::Kept),
    ("readinessProbe", Rule::Kept),
    ("resizePolicy", Rule::Kept),
    ("resources", Rule::Kept),
    ("restartPolicy", Rule::Kept),
    ("restartPolicyRules", Rule::Kept),
    ("securityContext", Rule::Allowed),
    ("startupProbe", Rule::Kept),
    ("stdin", Rule::Kept),
    ("stdinOnce", Rule::Kept),
    ("targetContainerName", Rule::Kept),
    ("terminationMessagePath", Rule::Kept),
    ("terminationMessagePolicy", Rule::Kept),
    ("tty", Rule::Kept),
    ("volumeDevices", Rule::Kept),
    ("volumeMounts", Rule::Fitted),
    ("workingDir", Rule::Kept),
];

/// What becomes of volumes, by their source.
pub const VOLUME_RULES: &[(&str, Rule)] = &[
    ("awsElasticBlockStore", Rule::Kept),
    ("azureDisk", Rule::Kept),
    ("azureFile", Rule::Kept),
    ("cephfs", Rule::Kept),
    ("cinder", Rule::Kept),
    ("configMap", Rule::Kept),
    ("csi", Rule::Kept),
    ("downwardAPI", Rule::Fitted),
    ("emptyDir", Rule::Kept),
    ("ephemeral", Rule::Fitted),
    ("fc", Rule::Kept),
    ("flexVolume", Rule::Kept),
    ("flocker", Rule::Kept),
    ("gcePersistentDisk", Rule::Kept),
    ("gitRepo", Rule::Kept),
    ("glusterfs", Rule::Kept),
    ("hostPath", Rule::Allowed),
    ("image", Rule::Kept),
    ("iscsi", Rule::Kept),
    ("name", Rule::Kept),
    ("nfs", Rule::Kept),
    ("persistentVolumeClaim", Rule::Kept),
    ("photonPersistentDisk", Rule::Kept),
    ("portworxVolume", Rule::Kept),
    ("projected", Rule::Fitted),
    ("quobyte", Rule::Kept),
    ("rbd", Rule::Kept),
    ("scaleIO", Rule::Kept),
    ("secret", Rule::Fitted),
    ("storageos", Rule::Kept),
    ("vsphereVolume", Rule::Kept),
];

/// The spec without what the lower pod does not have from it as it is. By the names in JSON, for some fields are not in all
/// versions of the API that this is built for.
pub(super) fn without_dropped(spec: &PodSpec) -> Result<PodSpec, Reject> {
    let unreadable = |error: serde_json::Error| Reject(format!("spec: {error}"));
    let mut value = serde_json::to_value(spec).map_err(unreadable)?;
    if let Value::Object(fields) = &mut value {
        for (name, rule) in RULES {
            if matches!(rule, Rule::Dropped | Rule::Replaced | Rule::Refused | Rule::Later) {
                fields.remove(*name);
            }
        }
    }
    serde_json::from_value(value).map_err(unreadable)
}
