//! Whether a container is restarted after the engine stopped it, or after its first success.

use k8s_openapi::api::core::v1::{Container, Pod};
use vk_provider::restart_policy::pod_policy;

/// Whether a container that the engine stops is restarted.
pub(super) fn restarts_after_stop(pod: &Pod, container: &Container) -> bool {
    policy(pod, container) != "Never"
}

/// Whether the container is done after its first success.
pub(super) fn runs_once(pod: &Pod, container: &Container) -> bool {
    policy(pod, container) == "OnFailure"
}

fn policy<'a>(pod: &'a Pod, container: &'a Container) -> &'a str {
    container.restart_policy.as_deref().unwrap_or_else(|| pod_policy(pod))
}
