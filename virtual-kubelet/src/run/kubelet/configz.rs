//! The configuration as a KubeletConfiguration, for `/configz`.

use std::time::Duration;

use serde_json::{Value, json};

use super::ServedNode;
use crate::config::{EffectiveConfig, GoDuration};

/// The fields of a KubeletConfiguration that apply here, with their effective values.
pub(super) fn kubelet_configuration(config: &EffectiveConfig, served: &ServedNode<'_>, port: u16) -> Value {
    let go = |duration: Duration| GoDuration(duration).to_string();
    let files = config.tls.serving.as_ref();
    json!({
        "kind": "KubeletConfiguration",
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "enableServer": true,
        "address": served.node.address.map_or_else(|| "0.0.0.0".to_owned(), |address| address.to_string()),
        "port": port,
        "readOnlyPort": 0,
        "tlsCertFile": files.map(|(cert, _)| cert),
        "tlsPrivateKeyFile": files.map(|(_, key)| key),
        "serverTLSBootstrap": files.is_none() && config.tls.request,
        "authentication": {
            "x509": {"clientCAFile": config.tls.client_ca},
            "webhook": {"enabled": true, "cacheTTL": go(config.auth.token_ttl)},
            "anonymous": {"enabled": false},
        },
        "authorization": {
            "mode": "Webhook",
            "webhook": {
                "cacheAuthorizedTTL": go(config.auth.authorized_ttl),
                "cacheUnauthorizedTTL": go(config.auth.unauthorized_ttl),
            },
        },
        "eventRecordQPS": config.pods.events_per_second,
        "enableDebuggingHandlers": true,
        "enableSystemLogHandler": config.debug.system_logs.is_some(),
        "enableProfilingHandler": config.debug.profiling,
        "clusterDomain": served.context.cluster_domain,
        "streamingConnectionIdleTimeout": go(config.streaming.idle_timeout),
        "nodeStatusUpdateFrequency": go(config.timing.ping_interval),
        "nodeStatusReportFrequency": go(config.timing.status_interval),
        "nodeLeaseDurationSeconds": config.timing.lease.duration.as_secs(),
    })
}
