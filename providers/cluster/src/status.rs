//! The status of an upper pod, from its lower one.

use k8s_openapi::api::core::v1::{Pod, PodStatus};
