//! Names of cgroups, as a kubelet gives them.

use super::Qos;
use crate::backend::RuntimeInfo;

/// How the runtime names and creates cgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupDriver {
    /// Directories in the cgroup filesystem.
    Cgroupfs,
    /// Slices of systemd.
    Systemd,
}

// === impl CgroupDriver ===

impl CgroupDriver {
    /// The driver of a runtime: cgroupfs unless it says otherwise.
    pub fn of(runtime: &RuntimeInfo) -> Self {
        match runtime.cgroup_driver.as_deref() {
            Some("systemd") => Self::Systemd,
            _ => Self::Cgroupfs,
        }
    }
}

/// The cgroup of a QoS class below the parent cgroup of all pods. Guaranteed pods have none between that and their own.
pub fn class_cgroup(root: &str, driver: CgroupDriver, class: Qos) -> String {
    match driver {
        CgroupDriver::Cgroupfs => format!("{}{}", root.trim_end_matches('/'), class_suffix(class, '/')),
        CgroupDriver::Systemd => slice_path(&format!("{}{}", slice_name(root), class_suffix(class, '-'))),
    }
}

/// The cgroup of a pod.
pub fn pod_cgroup(root: &str, driver: CgroupDriver, class: Qos, uid: &str) -> String {
    match driver {
        CgroupDriver::Cgroupfs => format!("{}/pod{uid}", class_cgroup(root, driver, class)),
        CgroupDriver::Systemd => {
            let suffix = class_suffix(class, '-');
            slice_path(&format!("{}{suffix}-pod{}", slice_name(root), uid.replace('-', "_")))
        }
    }
}

fn class_suffix(class: Qos, separator: char) -> String {
    match class {
        Qos::Guaranteed => String::new(),
        Qos::Burstable => format!("{separator}burstable"),
        Qos::BestEffort => format!("{separator}besteffort"),
    }
}

/// The name of a slice without its suffix: that of a configured slice, or one made of a path. Each dash of a slice's name
/// leads one level down, so those of a path are replaced.
fn slice_name(root: &str) -> String {
    let path = root.trim_matches('/');
    match path.rsplit('/').next().and_then(|last| last.strip_suffix(".slice")) {
        Some(name) => name.to_owned(),
        None => path.replace('-', "_").replace('/', "-"),
    }
}

/// The path of a slice: `a-b` is `/a.slice/a-b.slice`.
fn slice_path(name: &str) -> String {
    let ends = name.match_indices('-').map(|(end, _)| end).chain([name.len()]);
    ends.flat_map(|end| ["/", &name[..end], ".slice"]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "4bfa3ae4-9f0d";

    #[test]
    fn paths_are_those_of_a_kubelet_with_the_driver_cgroupfs() {
        let names = |class| {
            let class_name = class_cgroup("/kubepods/", CgroupDriver::Cgroupfs, class);
            (class_name, pod_cgroup("/kubepods/", CgroupDriver::Cgroupfs, class, UID))
        };
        let pair = |class: &str, pod: &str| (class.to_owned(), pod.to_owned());
        assert_eq!(names(Qos::Guaranteed), pair("/kubepods", "/kubepods/pod4bfa3ae4-9f0d"));
        assert_eq!(
            names(Qos::Burstable),
            pair("/kubepods/burstable", "/kubepods/burstable/pod4bfa3ae4-9f0d")
        );
        assert_eq!(
            names(Qos::BestEffort),
            pair("/kubepods/besteffort", "/kubepods/besteffort/pod4bfa3ae4-9f0d")
        );
    }

    #[test]
    fn slices_are_those_of_a_kubelet_with_the_driver_systemd() {
        for (root, class, expected) in [
            ("kubepods.slice", Qos::Guaranteed, "/kubepods.slice/kubepods-pod4bfa3ae4_9f0d.slice"),
            (
                "/kubepods.slice",
                Qos::BestEffort,
                "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod4bfa3ae4_9f0d.slice",
            ),
            (
                "/virtual-kubelet-node-1",
                Qos::Guaranteed,
                "/virtual_kubelet_node_1.slice/virtual_kubelet_node_1-pod4bfa3ae4_9f0d.slice",
            ),
        ] {
            assert_eq!(pod_cgroup(root, CgroupDriver::Systemd, class, UID), expected);
        }
        assert_eq!(class_cgroup("a-b.slice", CgroupDriver::Systemd, Qos::Guaranteed), "/a.slice/a-b.slice");
    }
}
