//! Containers.

use vk_pod_engine::{
    backend::{ContainerConfig, Mount, Propagation},
    snapshot::{Container, ContainerState, Mounted, User},
};
use vk_provider::{Error, Result};

use super::{
    security::{mappings, resources, security},
    time,
};
use crate::{error, proto};

pub(crate) fn container_config(config: &ContainerConfig) -> Result<proto::ContainerConfig> {
    // CRI-O requires the image as the user wrote it.
    let image = proto::ImageSpec {
        image: config.image.clone(),
        user_specified_image: config.user_image.clone(),
        ..proto::ImageSpec::default()
    };
    let envs = config.env.iter();
    let devices = config.devices.iter();
    let linux = proto::LinuxContainerConfig {
        resources: Some(resources(&config.resources)),
        security_context: Some(security(&config.security)),
    };
    Ok(proto::ContainerConfig {
        metadata: Some(proto::ContainerMetadata { name: config.name.clone(), attempt: config.attempt }),
        image: Some(image),
        command: config.command.clone(),
        args: config.args.clone(),
        working_dir: config.working_dir.clone(),
        envs: envs
            .map(|(key, value)| proto::KeyValue { key: key.clone(), value: value.clone().into_bytes() })
            .collect(),
        mounts: config.mounts.iter().map(mount).collect(),
        devices: devices
            .map(|device| proto::Device {
                container_path: device.container_path.clone(),
                host_path: device.host_path.clone(),
                permissions: device.permissions.clone(),
            })
            .collect(),
        labels: config.labels.clone(),
        annotations: config.annotations.clone(),
        log_path: config.log_path.clone(),
        stdin: config.stdin,
        stdin_once: config.stdin_once,
        tty: config.tty,
        linux: Some(linux),
        stop_signal: signal(config.stop_signal.as_deref())?.into(),
    })
}

fn mount(mount: &Mount) -> proto::Mount {
    let propagation = match mount.propagation {
        Propagation::Private => proto::MountPropagation::PropagationPrivate,
        Propagation::HostToContainer => proto::MountPropagation::PropagationHostToContainer,
        Propagation::Bidirectional => proto::MountPropagation::PropagationBidirectional,
    };
    let image = mount.image.clone();
    proto::Mount {
        container_path: mount.container_path.clone(),
        host_path: mount.host_path.clone(),
        readonly: mount.read_only,
        selinux_relabel: mount.selinux_relabel,
        propagation: propagation.into(),
        uid_mappings: mappings(&mount.uids),
        gid_mappings: mappings(&mount.gids),
        recursive_read_only: mount.recursive_read_only,
        image: image.map(|image| proto::ImageSpec { image, ..proto::ImageSpec::default() }),
        image_sub_path: mount.image_sub_path.clone(),
    }
}

/// Converts a stop signal. The interface writes `SIGRTMIN+1` without the sign.
fn signal(name: Option<&str>) -> Result<proto::Signal> {
    let Some(name) = name else { return Ok(proto::Signal::RuntimeDefault) };
    let spelled = name.replace('+', "PLUS").replace('-', "MINUS");
    proto::Signal::from_str_name(&spelled).ok_or_else(|| {
        Error::invalid(format!("the stop signal {name:?} does not exist in the Container Runtime Interface"))
    })
}

/// Converts a status. It does not contain the sandbox, which is passed separately.
pub(crate) fn container(status: proto::ContainerStatus, sandbox: String) -> Result<Container> {
    if status.id.is_empty() {
        return Err(error::missing_field("ContainerStatus", "id"));
    }
    let state = state(status.state());
    let metadata = status.metadata.ok_or_else(|| error::missing_field("ContainerStatus", "metadata"))?;
    // As in a kubelet: every state after `Created` has a start time, even if it is zero.
    let started = (state != ContainerState::Created).then(|| time(status.started_at));
    let ended = state == ContainerState::Exited;
    let user = status.user.and_then(|user| user.linux).map(|user| User {
        uid: user.uid,
        gid: user.gid,
        supplemental_groups: user.supplemental_groups,
    });
    let mounts = status.mounts.into_iter();
    Ok(Container {
        id: status.id,
        name: metadata.name,
        attempt: metadata.attempt,
        sandbox,
        state,
        created: time(status.created_at),
        started,
        finished: ended.then(|| time(status.finished_at)),
        exit_code: if ended { status.exit_code } else { 0 },
        reason: status.reason,
        message: status.message,
        image: status.image.map(|image| image.image).unwrap_or_default(),
        image_ref: status.image_ref,
        image_id: status.image_id,
        log_path: status.log_path,
        user,
        mounts: mounts
            .map(|mount| Mounted {
                container_path: mount.container_path,
                host_path: mount.host_path,
                read_only: mount.readonly,
            })
            .collect(),
        labels: status.labels,
        annotations: status.annotations,
    })
}

pub(super) fn state(state: proto::ContainerState) -> ContainerState {
    match state {
        proto::ContainerState::ContainerCreated => ContainerState::Created,
        proto::ContainerState::ContainerRunning => ContainerState::Running,
        proto::ContainerState::ContainerExited => ContainerState::Exited,
        proto::ContainerState::ContainerUnknown => ContainerState::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    fn status(state: proto::ContainerState) -> proto::ContainerStatus {
        proto::ContainerStatus {
            id: "c".into(),
            metadata: Some(proto::ContainerMetadata { name: "main".into(), attempt: 4 }),
            state: state.into(),
            created_at: 1_000_000_000,
            exit_code: 128,
            reason: "StartError".into(),
            ..proto::ContainerStatus::default()
        }
    }

    #[test]
    fn a_container_that_never_came_up_was_started_at_no_time_at_all() {
        let failed = container(status(proto::ContainerState::ContainerExited), "s".into()).unwrap();
        assert_eq!(failed.started, Some(Timestamp::UNIX_EPOCH));
        assert_eq!(failed.finished, Some(Timestamp::UNIX_EPOCH));
        assert_eq!((failed.exit_code, failed.attempt, failed.sandbox.as_str()), (128, 4, "s"));
        let created = container(status(proto::ContainerState::ContainerCreated), "s".into()).unwrap();
        assert_eq!((created.started, created.finished, created.exit_code), (None, None, 0));
    }

    #[test]
    fn signals_are_found_by_the_names_that_kubernetes_has() {
        assert_eq!(signal(None).unwrap(), proto::Signal::RuntimeDefault);
        assert_eq!(signal(Some("SIGUSR1")).unwrap(), proto::Signal::Sigusr1);
        assert_eq!(signal(Some("SIGRTMIN+3")).unwrap(), proto::Signal::Sigrtminplus3);
        assert_eq!(signal(Some("SIGRTMAX-14")).unwrap(), proto::Signal::Sigrtmaxminus14);
        assert!(signal(Some("SIGNONE")).unwrap_err().message().contains("SIGNONE"));
    }

    #[test]
    fn a_status_without_id_or_name_is_refused() {
        let nobody =
            proto::ContainerStatus { id: String::new(), ..status(proto::ContainerState::ContainerRunning) };
        assert!(container(nobody, "s".into()).unwrap_err().message().contains("no id"));
        let nameless =
            proto::ContainerStatus { metadata: None, ..status(proto::ContainerState::ContainerRunning) };
        assert!(container(nameless, "s".into()).unwrap_err().message().contains("no metadata"));
    }
}
