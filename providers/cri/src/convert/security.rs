//! Security contexts and resource limits of sandboxes and containers.

use vk_pod_engine::backend::{
    ContainerSecurity, IdMapping, Namespaces, Resources, SandboxSecurity, SeLinux, Seccomp, Share,
    SupplementalGroupsPolicy,
};

use crate::proto::{self, security_profile::ProfileType};

pub(super) fn sandbox_security(security: &SandboxSecurity) -> proto::LinuxSandboxSecurityContext {
    proto::LinuxSandboxSecurityContext {
        namespace_options: Some(namespaces(&security.namespaces)),
        selinux_options: security.selinux.as_ref().map(selinux),
        run_as_user: security.user.map(number),
        readonly_rootfs: security.read_only_root,
        supplemental_groups: security.supplemental_groups.clone(),
        privileged: security.privileged,
        run_as_group: security.group.map(number),
        seccomp: Some(seccomp(&security.seccomp)),
        supplemental_groups_policy: policy(security.supplemental_groups_policy).into(),
    }
}

pub(super) fn security(security: &ContainerSecurity) -> proto::LinuxContainerSecurityContext {
    let capabilities = proto::Capability {
        add_capabilities: security.capabilities.add.clone(),
        drop_capabilities: security.capabilities.drop.clone(),
    };
    proto::LinuxContainerSecurityContext {
        capabilities: Some(capabilities),
        privileged: security.privileged,
        namespace_options: Some(namespaces(&security.namespaces)),
        selinux_options: security.selinux.as_ref().map(selinux),
        run_as_user: security.user.map(number),
        run_as_username: security.username.clone().unwrap_or_default(),
        readonly_rootfs: security.read_only_root,
        supplemental_groups: security.supplemental_groups.clone(),
        apparmor_profile: security.apparmor.clone().unwrap_or_default(),
        no_new_privs: security.no_new_privileges,
        run_as_group: security.group.map(number),
        masked_paths: security.masked_paths.clone(),
        readonly_paths: security.read_only_paths.clone(),
        seccomp: Some(seccomp(&security.seccomp)),
        apparmor: security.apparmor.as_deref().map(apparmor),
        supplemental_groups_policy: policy(security.supplemental_groups_policy).into(),
    }
}

pub(super) fn resources(resources: &Resources) -> proto::LinuxContainerResources {
    let hugepages = resources.hugepages.iter();
    proto::LinuxContainerResources {
        cpu_period: resources.cpu_period,
        cpu_quota: resources.cpu_quota,
        cpu_shares: resources.cpu_shares,
        memory_limit_in_bytes: resources.memory_limit,
        oom_score_adj: resources.oom_score_adj,
        hugepage_limits: hugepages
            .map(|(size, limit)| proto::HugepageLimit { page_size: size.clone(), limit: *limit })
            .collect(),
        unified: resources.unified.clone(),
        memory_swap_limit_in_bytes: resources.memory_swap_limit,
    }
}

fn namespaces(namespaces: &Namespaces) -> proto::NamespaceOption {
    let mut target = String::new();
    let mut mode = |share: &Share| match share {
        Share::Pod => proto::NamespaceMode::Pod,
        Share::Container => proto::NamespaceMode::Container,
        Share::Node => proto::NamespaceMode::Node,
        Share::Target(id) => {
            target.clone_from(id);
            proto::NamespaceMode::Target
        }
    };
    let (network, pid, ipc) = (mode(&namespaces.network), mode(&namespaces.pid), mode(&namespaces.ipc));
    let users = match &namespaces.user {
        Some(own) => proto::UserNamespace {
            mode: proto::NamespaceMode::Pod.into(),
            uids: mappings(&own.uids),
            gids: mappings(&own.gids),
        },
        None => proto::UserNamespace { mode: proto::NamespaceMode::Node.into(), ..Default::default() },
    };
    proto::NamespaceOption {
        network: network.into(),
        pid: pid.into(),
        ipc: ipc.into(),
        target_id: target,
        userns_options: Some(users),
    }
}

pub(super) fn mappings(mappings: &[IdMapping]) -> Vec<proto::IdMapping> {
    let wire = |mapping: &IdMapping| proto::IdMapping {
        host_id: mapping.host,
        container_id: mapping.container,
        length: mapping.length,
    };
    mappings.iter().map(wire).collect()
}

fn seccomp(seccomp: &Seccomp) -> proto::SecurityProfile {
    match seccomp {
        Seccomp::Unconfined => profile(ProfileType::Unconfined, ""),
        Seccomp::RuntimeDefault => profile(ProfileType::RuntimeDefault, ""),
        Seccomp::Localhost(path) => profile(ProfileType::Localhost, path),
    }
}

/// Converts an AppArmor profile from the notation of the deprecated field, which older runtimes read.
fn apparmor(text: &str) -> proto::SecurityProfile {
    match text.strip_prefix("localhost/") {
        Some(name) => profile(ProfileType::Localhost, name),
        None if text == "unconfined" => profile(ProfileType::Unconfined, ""),
        None => profile(ProfileType::RuntimeDefault, ""),
    }
}

fn profile(kind: ProfileType, reference: &str) -> proto::SecurityProfile {
    proto::SecurityProfile { profile_type: kind.into(), localhost_ref: reference.to_owned() }
}

fn selinux(labels: &SeLinux) -> proto::SeLinuxOption {
    let SeLinux { user, role, kind, level } = labels.clone();
    proto::SeLinuxOption { user, role, r#type: kind, level }
}

fn policy(policy: SupplementalGroupsPolicy) -> proto::SupplementalGroupsPolicy {
    match policy {
        SupplementalGroupsPolicy::Merge => proto::SupplementalGroupsPolicy::Merge,
        SupplementalGroupsPolicy::Strict => proto::SupplementalGroupsPolicy::Strict,
    }
}

fn number(value: i64) -> proto::Int64Value {
    proto::Int64Value { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_of_another_container_is_named_by_its_id() {
        let wire = namespaces(&Namespaces { pid: Share::Target("abc".into()), ..Namespaces::default() });
        assert_eq!(wire.pid(), proto::NamespaceMode::Target);
        assert_eq!(wire.target_id, "abc");
        assert_eq!(wire.network(), proto::NamespaceMode::Pod);
        assert_eq!(wire.userns_options.unwrap().mode(), proto::NamespaceMode::Node);
    }

    #[test]
    fn an_apparmor_profile_is_set_in_both_fields() {
        for (text, kind, reference) in [
            ("runtime/default", ProfileType::RuntimeDefault, ""),
            ("unconfined", ProfileType::Unconfined, ""),
            ("localhost/mine", ProfileType::Localhost, "mine"),
        ] {
            let wire =
                security(&ContainerSecurity { apparmor: Some(text.into()), ..ContainerSecurity::default() });
            assert_eq!(wire.apparmor_profile, text);
            assert_eq!(wire.apparmor, Some(profile(kind, reference)));
        }
        let none = security(&ContainerSecurity::default());
        assert_eq!((none.apparmor_profile.as_str(), none.apparmor), ("", None));
    }
}
