//! The Pod Security Standards of Kubernetes: what a pod may not do on the machines of the lower cluster.
//!
//! The lists are those of Kubernetes 1.36, without its relaxations for user namespaces, which older lower clusters do not have.

use k8s_openapi::{
    api::core::v1::{
        Container, ContainerPort, EphemeralContainer, HTTPGetAction, Lifecycle, PodSpec, Probe,
        SELinuxOptions, SecurityContext, TCPSocketAction, Volume, WindowsSecurityContextOptions,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use serde::Deserialize;

use super::Rejection;

/// The level that pods have to meet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PodSecurity {
    /// Nothing is refused: `hostAccess: true`.
    #[serde(skip)]
    Privileged,
    /// Known ways to take over the machine are refused.
    #[default]
    Baseline,
    /// Pods have to give up everything that they can do without.
    Restricted,
}

/// Capabilities that a container may add.
const CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];
/// The only capability that a restricted container may add.
const BIND_SERVICE: &str = "NET_BIND_SERVICE";
/// Sysctls that are namespaced and do not affect other pods.
const SYSCTLS: [&str; 12] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_wmem",
];
const SELINUX_TYPES: [&str; 5] =
    ["", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"];
/// Types of seccomp and AppArmor profiles.
const PROFILES: [&str; 2] = ["RuntimeDefault", "Localhost"];
/// The annotation that names the AppArmor profile of a container in older clusters.
const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";
/// The volumes that a restricted pod may have.
const RESTRICTED_VOLUMES: [&str; 9] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

/// What the standards look at in a container of any kind.
struct ContainerView<'a> {
    name: &'a str,
    context: Option<&'a SecurityContext>,
    ports: Option<&'a Vec<ContainerPort>>,
    probes: [Option<&'a Probe>; 3],
    lifecycle: Option<&'a Lifecycle>,
}

/// Rejects a pod that does not meet the level.
pub(super) fn check(meta: &ObjectMeta, spec: &PodSpec, level: PodSecurity) -> Result<(), Rejection> {
    let mut violations = Vec::new();
    if level != PodSecurity::Privileged {
        check_pod(meta, spec, &mut violations);
    }
    if level == PodSecurity::Restricted {
        check_pod_restricted(spec, &mut violations);
    }
    let containers = spec.init_containers.iter().flatten().chain(&spec.containers).map(ContainerView::from);
    for container in containers {
        container.check(spec, level, &mut violations);
    }
    reject(&violations, level)
}

/// Rejects ephemeral containers that do not meet the level.
pub(super) fn check_ephemeral<'a>(
    containers: impl IntoIterator<Item = &'a EphemeralContainer>,
    spec: &PodSpec,
    level: PodSecurity,
) -> Result<(), Rejection> {
    let mut violations = Vec::new();
    for container in containers {
        ContainerView::from(container).check(spec, level, &mut violations);
    }
    reject(&violations, level)
}

fn reject(violations: &[String], level: PodSecurity) -> Result<(), Rejection> {
    if violations.is_empty() {
        return Ok(());
    }
    let remedy = match level {
        PodSecurity::Restricted => "the configuration of the provider has `podSecurity: restricted`",
        PodSecurity::Baseline | PodSecurity::Privileged => {
            "access to lower hosts is not allowed (`hostAccess: false`, the default, in the configuration of the provider)"
        }
    };
    Err(Rejection(format!("{}: {remedy}", violations.join(", "))))
}

fn check_pod(meta: &ObjectMeta, spec: &PodSpec, violations: &mut Vec<String>) {
    let namespaces =
        [("hostNetwork", spec.host_network), ("hostPID", spec.host_pid), ("hostIPC", spec.host_ipc)];
    let used = namespaces.iter().filter(|(_, set)| *set == Some(true));
    violations.extend(used.map(|(name, _)| format!("spec.{name}")));
    for volume in spec.volumes.iter().flatten() {
        if let Some(source) = &volume.host_path {
            violations.push(format!("volume {} (hostPath {})", volume.name, source.path));
        }
    }
    let annotations = meta.annotations.iter().flatten().filter(|(key, _)| key.starts_with(APP_ARMOR));
    for (key, profile) in annotations {
        if !profile.is_empty() && profile != "runtime/default" && !profile.starts_with("localhost/") {
            violations.push(format!("annotation {key} ({profile})"));
        }
    }
    let Some(context) = &spec.security_context else { return };
    let at = |field: &str| format!("spec.securityContext.{field}");
    for sysctl in context.sysctls.iter().flatten().filter(|one| !SYSCTLS.contains(&one.name.as_str())) {
        violations.push(format!("{} ({})", at("sysctls"), sysctl.name));
    }
    if is_host_process(context.windows_options.as_ref()) {
        violations.push(at("windowsOptions.hostProcess"));
    }
    let seccomp = context.seccomp_profile.as_ref().map(|profile| profile.type_.as_str());
    let app_armor = context.app_armor_profile.as_ref().map(|profile| profile.type_.as_str());
    for (field, profile) in [("seccompProfile", seccomp), ("appArmorProfile", app_armor)] {
        if let Some(profile) = profile.filter(|profile| !PROFILES.contains(profile)) {
            violations.push(format!("{} ({profile})", at(field)));
        }
    }
    if let Some(field) = selinux_field(context.se_linux_options.as_ref()) {
        violations.push(at(&format!("seLinuxOptions.{field}")));
    }
}

fn check_pod_restricted(spec: &PodSpec, violations: &mut Vec<String>) {
    for volume in spec.volumes.iter().flatten() {
        if let Some(kind) = restricted_kind(volume) {
            violations.push(format!("volume {} ({kind})", volume.name));
        }
    }
    let context = spec.security_context.as_ref();
    if context.and_then(|context| context.run_as_user) == Some(0) {
        violations.push("spec.securityContext.runAsUser (0)".to_owned());
    }
    if context.and_then(|context| context.run_as_non_root) == Some(false) {
        violations.push("spec.securityContext.runAsNonRoot (false)".to_owned());
    }
}

/// The kind of a volume that a restricted pod may not have. By JSON names, because API versions have different kinds.
pub(super) fn restricted_kind(volume: &Volume) -> Option<String> {
    let value = serde_json::to_value(volume).ok()?;
    let mut kinds = value.as_object()?.keys().filter(|key| *key != "name");
    kinds.find(|kind| !RESTRICTED_VOLUMES.contains(&kind.as_str())).cloned()
}

fn is_host_process(options: Option<&WindowsSecurityContextOptions>) -> bool {
    options.is_some_and(|options| options.host_process == Some(true))
}

/// The first field that is not allowed.
fn selinux_field(options: Option<&SELinuxOptions>) -> Option<&'static str> {
    let options = options?;
    let is_set = |text: &Option<String>| text.as_deref().is_some_and(|text| !text.is_empty());
    if !SELINUX_TYPES.contains(&options.type_.as_deref().unwrap_or_default()) {
        Some("type")
    } else if is_set(&options.user) {
        Some("user")
    } else {
        is_set(&options.role).then_some("role")
    }
}

// === impl ContainerView ===

impl<'a> From<&'a Container> for ContainerView<'a> {
    fn from(container: &'a Container) -> Self {
        let probes = [&container.liveness_probe, &container.readiness_probe, &container.startup_probe];
        Self {
            name: &container.name,
            context: container.security_context.as_ref(),
            ports: container.ports.as_ref(),
            probes: probes.map(Option::as_ref),
            lifecycle: container.lifecycle.as_ref(),
        }
    }
}

impl<'a> From<&'a EphemeralContainer> for ContainerView<'a> {
    fn from(container: &'a EphemeralContainer) -> Self {
        let probes = [&container.liveness_probe, &container.readiness_probe, &container.startup_probe];
        Self {
            name: &container.name,
            context: container.security_context.as_ref(),
            ports: container.ports.as_ref(),
            probes: probes.map(Option::as_ref),
            lifecycle: container.lifecycle.as_ref(),
        }
    }
}

impl ContainerView<'_> {
    fn check(&self, spec: &PodSpec, level: PodSecurity, violations: &mut Vec<String>) {
        let mut found = Vec::new();
        if level != PodSecurity::Privileged {
            self.check_baseline(&mut found);
        }
        if level == PodSecurity::Restricted {
            self.check_restricted(spec, &mut found);
        }
        violations.extend(found.into_iter().map(|what| format!("container {} ({what})", self.name)));
    }

    fn check_baseline(&self, found: &mut Vec<String>) {
        for port in self.ports.into_iter().flatten().filter_map(|port| port.host_port) {
            if port != 0 {
                found.push(format!("hostPort {port}"));
            }
        }
        found.extend(self.hosts().map(|host| format!("probe or hook of host {host}")));
        let Some(context) = self.context else { return };
        if context.privileged == Some(true) {
            found.push("privileged".to_owned());
        }
        if is_host_process(context.windows_options.as_ref()) {
            found.push("hostProcess".to_owned());
        }
        let added = context.capabilities.iter().flat_map(|all| all.add.iter().flatten());
        for capability in added.filter(|one| !CAPABILITIES.contains(&one.as_str())) {
            found.push(format!("capability {capability}"));
        }
        if let Some(kind) = context.proc_mount.as_deref().filter(|kind| *kind != "Default") {
            found.push(format!("procMount {kind}"));
        }
        let seccomp = context.seccomp_profile.as_ref().map(|profile| profile.type_.as_str());
        let app_armor = context.app_armor_profile.as_ref().map(|profile| profile.type_.as_str());
        for (name, profile) in [("seccompProfile", seccomp), ("appArmorProfile", app_armor)] {
            if let Some(profile) = profile.filter(|profile| !PROFILES.contains(profile)) {
                found.push(format!("{name} {profile}"));
            }
        }
        if let Some(field) = selinux_field(context.se_linux_options.as_ref()) {
            found.push(format!("seLinuxOptions.{field}"));
        }
    }

    /// The hosts that probes and hooks name. A kubelet connects to them from the network of its machine.
    fn hosts(&self) -> impl Iterator<Item = &str> {
        fn host<'a>(
            http: Option<&'a HTTPGetAction>,
            tcp: Option<&'a TCPSocketAction>,
        ) -> impl Iterator<Item = &'a str> + use<'a> {
            let hosts = [
                http.and_then(|action| action.host.as_deref()),
                tcp.and_then(|action| action.host.as_deref()),
            ];
            hosts.into_iter().flatten().filter(|host| !host.is_empty())
        }
        let probes = self.probes.into_iter().flatten();
        let hooks =
            self.lifecycle.into_iter().flat_map(|all| [all.post_start.as_ref(), all.pre_stop.as_ref()]);
        probes
            .flat_map(|probe| host(probe.http_get.as_ref(), probe.tcp_socket.as_ref()))
            .chain(hooks.flatten().flat_map(|hook| host(hook.http_get.as_ref(), hook.tcp_socket.as_ref())))
    }

    fn check_restricted(&self, spec: &PodSpec, found: &mut Vec<String>) {
        let pod = spec.security_context.as_ref();
        let context = self.context;
        let non_root = context.and_then(|context| context.run_as_non_root);
        if non_root.or_else(|| pod?.run_as_non_root) != Some(true) {
            found.push("runAsNonRoot is not true".to_owned());
        }
        if context.and_then(|context| context.run_as_user) == Some(0) {
            found.push("runAsUser 0".to_owned());
        }
        // Pods of Windows have none of the rest.
        if spec.os.as_ref().is_some_and(|os| os.name == "windows") {
            return;
        }
        if context.and_then(|context| context.allow_privilege_escalation) != Some(false) {
            found.push("allowPrivilegeEscalation is not false".to_owned());
        }
        let profile = context.and_then(|context| context.seccomp_profile.as_ref());
        if profile.or_else(|| pod?.seccomp_profile.as_ref()).is_none() {
            found.push("no seccompProfile".to_owned());
        }
        let capabilities = context.and_then(|context| context.capabilities.as_ref());
        let mut dropped = capabilities.into_iter().flat_map(|all| all.drop.iter().flatten());
        if !dropped.any(|capability| capability == "ALL") {
            found.push("capabilities are not dropped: ALL".to_owned());
        }
        let added = capabilities.into_iter().flat_map(|all| all.add.iter().flatten());
        // Those beyond the baseline are reported already.
        for capability in added.filter(|one| *one != BIND_SERVICE && CAPABILITIES.contains(&one.as_str())) {
            found.push(format!("capability {capability}"));
        }
    }
}
