//! What this build calls itself.

/// The version of Kubernetes that the nodes claim.
///
/// It is the release that the tests run against, so that the claim is one we have seen hold. The API types are of a later
/// minor, of which we use nothing that this one lacks; claiming the later one would make a node newer than its API server,
/// which the skew policy of Kubernetes forbids.
pub const KUBERNETES_VERSION: &str = "v1.36.4";

/// What stands in `status.nodeInfo.kubeletVersion`, such as `v1.36.4-vk-0.1.0`.
///
/// Tools (kubectl's skew warning, kubeadm, dashboards) read it as semantic version and compare major and minor, so it
/// begins with a Kubernetes version; what follows the first dash is ours, in the form that the Go original uses.
pub fn kubelet_version() -> String {
    format!("{KUBERNETES_VERSION}-vk-{}", env!("CARGO_PKG_VERSION"))
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
}
