//! Version, conditions and handlers of the runtime.

use vk_pod_engine::backend::{RuntimeCondition, RuntimeHandler, RuntimeInfo};

use crate::proto;

/// The two conditions that tell whether pods can run. containerd 2 has more, which are false even in a healthy runtime.
const READY: &str = "RuntimeReady";
const NETWORK: &str = "NetworkReady";

pub(crate) fn runtime(
    version: proto::VersionResponse,
    status: proto::StatusResponse,
    config: Option<proto::RuntimeConfigResponse>,
) -> RuntimeInfo {
    let conditions = status.status.unwrap_or_default().conditions;
    let condition = |kind: &str| {
        let found = conditions.iter().find(|condition| condition.r#type == kind);
        found.map(|found| RuntimeCondition {
            ok: found.status,
            reason: found.reason.clone(),
            message: found.message.clone(),
        })
    };
    let driver = config.and_then(|config| config.linux).map(|linux| match linux.cgroup_driver() {
        proto::CgroupDriver::Systemd => "systemd".to_owned(),
        proto::CgroupDriver::Cgroupfs => "cgroupfs".to_owned(),
    });
    let mut handlers: Vec<RuntimeHandler> = status.runtime_handlers.into_iter().map(handler).collect();
    // Runtimes list them in random order, and another order would look like a change.
    handlers.sort_by(|a, b| a.name.cmp(&b.name));
    RuntimeInfo {
        name: version.runtime_name,
        version: version.runtime_version,
        ready: condition(READY).unwrap_or_default(),
        network: condition(NETWORK).unwrap_or_default(),
        handlers,
        cgroup_driver: driver,
    }
}

fn handler(handler: proto::RuntimeHandler) -> RuntimeHandler {
    let features = handler.features.unwrap_or_default();
    RuntimeHandler {
        name: handler.name,
        user_namespaces: features.user_namespaces,
        recursive_read_only: features.recursive_read_only_mounts,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condition(kind: &str, status: bool) -> proto::RuntimeCondition {
        proto::RuntimeCondition { r#type: kind.into(), status, ..Default::default() }
    }

    #[test]
    fn only_the_two_known_conditions_count() {
        let conditions = vec![
            condition("ContainerdHasNoDeprecationWarnings", false),
            condition(READY, true),
            condition(NETWORK, true),
        ];
        let status =
            proto::StatusResponse { status: Some(proto::RuntimeStatus { conditions }), ..Default::default() };
        let known = runtime(proto::VersionResponse::default(), status, None);
        assert!(known.ready.ok && known.network.ok);
        assert_eq!(known.cgroup_driver, None);
        let nothing = runtime(proto::VersionResponse::default(), proto::StatusResponse::default(), None);
        assert!(!nothing.ready.ok && !nothing.network.ok, "what is not said is not so");
    }
}
