//! The AppArmor profile of a container.

use std::{collections::BTreeSet, fs};

use vk_pod_engine::backend::ContainerConfig;
use vk_provider::{Error, Result};

use super::HostFeatures;

/// The profiles that the kernel has, one per line: the name and the mode.
const PROFILES: &str = "/sys/kernel/security/apparmor/profiles";
/// Profiles that stand for `RuntimeDefault`, the first one that is loaded: one for this provider, and those that
/// containerd and docker load.
const DEFAULTS: [&str; 3] = ["virtual-kubelet-default", "cri-containerd.apparmor.d", "docker-default"];
const UNCONFINED: &str = "unconfined";
const RUNTIME_DEFAULT: &str = "runtime/default";

/// The profile of a container; `None` means unconfined. A profile that is requested and cannot be applied is an error.
pub fn select_profile(container: &ContainerConfig, host: &HostFeatures) -> Result<Option<String>> {
    let loaded = if host.apparmor { fs::read_to_string(PROFILES).unwrap_or_default() } else { String::new() };
    select(container, host.apparmor.then(|| names(&loaded)).as_ref())
}

/// `loaded` are the profiles of the kernel; `None` if AppArmor is not enabled.
fn select(container: &ContainerConfig, loaded: Option<&BTreeSet<&str>>) -> Result<Option<String>> {
    let (name, privileged) = (&container.name, container.security.privileged);
    let wanted = container.security.apparmor.as_deref();
    let Some(loaded) = loaded else {
        return match wanted {
            None | Some(UNCONFINED) => Ok(None),
            Some(profile) => Err(Error::invalid(format!(
                "AppArmor profile {profile:?} of container {name:?} is requested, but AppArmor is not enabled on this host"
            ))),
        };
    };
    let default = DEFAULTS.iter().find(|profile| loaded.contains(**profile)).map(|name| (*name).to_owned());
    match wanted {
        Some(UNCONFINED) => Ok(None),
        // As in containerd.
        None | Some(RUNTIME_DEFAULT) if privileged => Ok(None),
        None => Ok(default),
        Some(RUNTIME_DEFAULT) => default.map(Some).ok_or_else(|| {
            Error::invalid(format!(
                "AppArmor profile RuntimeDefault of container {name:?} cannot be applied: this host has loaded none of {}; load one with \
                 apparmor_parser, for example the one of containerd under the name {}",
                DEFAULTS.join(", "),
                DEFAULTS[0]
            ))
        }),
        Some(other) => match other.strip_prefix("localhost/") {
            Some(profile) if loaded.contains(profile) => Ok(Some(profile.to_owned())),
            Some(profile) => Err(Error::invalid(format!(
                "AppArmor profile {profile:?} of container {name:?} is not loaded on this host: load it with apparmor_parser"
            ))),
            None => Err(Error::invalid(format!("AppArmor profile {other:?} of container {name:?} is unknown"))),
        },
    }
}

/// The names of profiles, without their modes.
fn names(profiles: &str) -> BTreeSet<&str> {
    profiles.lines().map(|line| line.rsplit_once(" (").map_or(line, |(name, _)| name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::tests::container;

    fn with(profile: Option<&str>, privileged: bool, loaded: Option<&str>) -> Result<Option<String>> {
        let mut container = container();
        container.security.apparmor = profile.map(ToOwned::to_owned);
        container.security.privileged = privileged;
        select(&container, loaded.map(names).as_ref())
    }

    const LOADED: &str =
        "own profile (complain)\ndocker-default (enforce)\ncri-containerd.apparmor.d (enforce)\n";

    /// Point 35.
    #[test]
    fn the_default_profile_is_applied_or_refused_with_a_reason() {
        let default = Some("cri-containerd.apparmor.d".to_owned());
        assert_eq!(with(Some(RUNTIME_DEFAULT), false, Some(LOADED)).unwrap(), default);
        assert_eq!(with(None, false, Some(LOADED)).unwrap(), default, "as in containerd");
        assert_eq!(with(None, false, Some("")).unwrap(), None);
        for privileged in [None, Some(RUNTIME_DEFAULT)] {
            assert_eq!(with(privileged, true, Some(LOADED)).unwrap(), None);
        }
        let error = with(Some(RUNTIME_DEFAULT), false, Some("own (enforce)\n")).unwrap_err();
        assert!(
            error.message().contains("this host has loaded none of virtual-kubelet-default, "),
            "{error}"
        );
        let error = with(Some(RUNTIME_DEFAULT), false, None).unwrap_err();
        assert!(error.message().contains("AppArmor is not enabled on this host"), "{error}");
    }

    #[test]
    fn a_profile_of_the_host_must_be_loaded() {
        for privileged in [false, true] {
            let own = with(Some("localhost/own profile"), privileged, Some(LOADED)).unwrap();
            assert_eq!(own.as_deref(), Some("own profile"));
            let error = with(Some("localhost/other"), privileged, Some(LOADED)).unwrap_err();
            assert!(error.message().contains("\"other\" of container"), "{error}");
            assert!(with(Some("localhost/own profile"), privileged, None).is_err());
        }
        for loaded in [None, Some(LOADED)] {
            assert_eq!(with(Some(UNCONFINED), false, loaded).unwrap(), None);
        }
        assert_eq!(with(None, false, None).unwrap(), None);
    }
}
