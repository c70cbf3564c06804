//! The parts of a status that are left out when the API server refuses them. The phase is always written.

use k8s_openapi::api::core::v1::{PodCondition, PodStatus};

use super::conditions::DISRUPTION_TARGET;
use crate::pods::digest::ValueDigest;

/// A part of a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusPart {
    /// `hostIP` and `hostIPs`.
    HostIps,
    /// `podIP` and `podIPs`.
    PodIps,
    /// `conditions`.
    Conditions,
    /// `containerStatuses`.
    Containers,
    /// `initContainerStatuses`.
    InitContainers,
    /// `ephemeralContainerStatuses`.
    EphemeralContainers,
    /// `resources` and `allocatedResources` of the pod as a whole.
    Resources,
}

// === impl StatusPart ===

impl StatusPart {
    /// The part that has this field, as the API server names it: `status.podIPs[1]`.
    pub fn of_field(field: &str) -> Option<Self> {
        let field = field.strip_prefix("status.")?;
        match field.split(['.', '[']).next()? {
            "hostIP" | "hostIPs" => Some(Self::HostIps),
            "podIP" | "podIPs" => Some(Self::PodIps),
            "conditions" => Some(Self::Conditions),
            "containerStatuses" => Some(Self::Containers),
            "initContainerStatuses" => Some(Self::InitContainers),
            "ephemeralContainerStatuses" => Some(Self::EphemeralContainers),
            "resources" | "allocatedResources" => Some(Self::Resources),
            _ => None,
        }
    }

    /// The field, for messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::HostIps => "status.hostIPs",
            Self::PodIps => "status.podIPs",
            Self::Conditions => "status.conditions",
            Self::Containers => "status.containerStatuses",
            Self::InitContainers => "status.initContainerStatuses",
            Self::EphemeralContainers => "status.ephemeralContainerStatuses",
            Self::Resources => "status.resources",
        }
    }

    /// The digest of this part, without the times of conditions, which are of the attempt to write them.
    pub(crate) fn digest(self, status: &PodStatus) -> ValueDigest {
        match self {
            Self::HostIps => ValueDigest::of(&(&status.host_ip, &status.host_ips)),
            Self::PodIps => ValueDigest::of(&(&status.pod_ip, &status.pod_ips)),
            Self::Conditions => {
                // One that others may set, too, is not sent if it is stored.
                let ours = |one: &&PodCondition| one.type_ != DISRUPTION_TARGET;
                let conditions = status.conditions.iter().flatten().filter(ours);
                let said = conditions.map(|one| (&one.type_, &one.status, &one.reason, &one.message));
                ValueDigest::of(&said.collect::<Vec<_>>())
            }
            Self::Containers => ValueDigest::of(&status.container_statuses),
            Self::InitContainers => ValueDigest::of(&status.init_container_statuses),
            Self::EphemeralContainers => ValueDigest::of(&status.ephemeral_container_statuses),
            Self::Resources => ValueDigest::of(&(&status.resources, &status.allocated_resources)),
        }
    }

    /// Replaces this part by the stored one.
    pub fn restore(self, status: &mut PodStatus, there: &PodStatus) {
        match self {
            Self::HostIps => {
                status.host_ip.clone_from(&there.host_ip);
                status.host_ips.clone_from(&there.host_ips);
            }
            Self::PodIps => {
                status.pod_ip.clone_from(&there.pod_ip);
                status.pod_ips.clone_from(&there.pod_ips);
            }
            Self::Conditions => status.conditions.clone_from(&there.conditions),
            Self::Containers => status.container_statuses.clone_from(&there.container_statuses),
            Self::InitContainers => {
                status.init_container_statuses.clone_from(&there.init_container_statuses);
            }
            Self::EphemeralContainers => {
                status.ephemeral_container_statuses.clone_from(&there.ephemeral_container_statuses);
            }
            Self::Resources => {
                status.resources.clone_from(&there.resources);
                status.allocated_resources.clone_from(&there.allocated_resources);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_api_servers_fields_belong_to_their_parts() {
        let table = [
            ("status.podIPs", Some(StatusPart::PodIps)),
            ("status.hostIPs[0].ip", Some(StatusPart::HostIps)),
            ("status.conditions[3].Type", Some(StatusPart::Conditions)),
            ("status.containerStatuses[0].state", Some(StatusPart::Containers)),
            ("status.initContainerStatuses[1].user.linux.uid", Some(StatusPart::InitContainers)),
            ("status.phase", None),
            ("metadata.annotations", None),
            ("", None),
        ];
        for (field, part) in table {
            assert_eq!(StatusPart::of_field(field), part, "{field}");
        }
    }
}
