//! Version of this build.

use vk_kube::ServerVersion;

/// The Kubernetes version that the nodes report.
///
/// It is the release that the tests run against. The API types are of a later minor, but we use nothing that this one lacks.
/// Reporting the later one would make a node newer than its API server, which the version skew policy forbids.
pub const KUBERNETES_VERSION: &str = "v1.36.4";

/// The value of `status.nodeInfo.kubeletVersion`, such as `v1.36.4-vk-0.1.0`.
///
/// Tools (kubectl's skew warning, kubeadm, dashboards) read it as semantic version and compare major and minor, so it
/// starts with a Kubernetes version; the part after the first dash is ours, in the format of the Go original.
pub fn kubelet_version() -> String {
    format!("{KUBERNETES_VERSION}-vk-{}", env!("CARGO_PKG_VERSION"))
}

/// The kubelet version for an API server of the given version. A kubelet may not be newer than its API server, so with an older
/// server the node reports the server's minor.
pub(crate) fn kubelet_version_beside(server: Option<ServerVersion>) -> String {
    let ours = kubelet_version();
    let minors = || KUBERNETES_VERSION.strip_prefix('v')?.split('.').nth(1)?.parse::<u32>().ok();
    match server {
        // Ignore servers without a usable version.
        Some(ServerVersion { major: 1, minor }) if minor > 0 && Some(minor) < minors() => {
            let (_, own) = ours.split_once('-').unwrap_or_default();
            format!("v1.{minor}.0-{own}")
        }
        _ => ours,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kubelet_version_reads_as_a_semantic_version_of_kubernetes() {
        let text = kubelet_version();
        let version = semver::Version::parse(text.strip_prefix('v').unwrap()).unwrap();
        assert_eq!((version.major, version.minor), (1, 36));
        assert!(version.pre.starts_with("vk-"), "{version}");
        assert!(version.pre.ends_with(env!("CARGO_PKG_VERSION")), "{version}");
    }

    #[test]
    fn no_node_claims_a_later_minor_than_its_api_server() {
        let beside = |major, minor| kubelet_version_beside(Some(ServerVersion { major, minor }));
        assert_eq!(beside(1, 33), format!("v1.33.0-vk-{}", env!("CARGO_PKG_VERSION")));
        for (major, minor) in [(1, 36), (1, 37), (2, 0), (1, 0), (0, 0)] {
            assert_eq!(beside(major, minor), kubelet_version(), "{major}.{minor}");
        }
        assert_eq!(kubelet_version_beside(None), kubelet_version());
    }
}
