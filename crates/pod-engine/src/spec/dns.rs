//! DNS configuration of a pod on this host.

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use vk_provider::{
    Error, Result,
    dns::{self, NodeDns},
};

use super::RecordEvent;
use crate::{Settings, backend::Dns};

/// Reads the resolver configuration of the host; empty if the settings have no file.
pub async fn host_dns(settings: &Settings) -> Result<Dns> {
    let path = &settings.resolv_conf;
    if path.as_os_str().is_empty() {
        return Ok(Dns::default());
    }
    let content = tokio::fs::read(path).await;
    let content = content.map_err(|error| Error::internal(format!("open {}: {error}", path.display())))?;
    Dns::parse(&String::from_utf8_lossy(&content)).map_err(|why| {
        Error::invalid(format!("Encountered error while parsing resolv conf file. Error: {why}"))
    })
}

/// The DNS configuration of a pod. `host` is from [`host_dns`].
pub(super) fn pod_dns(
    pod: &Pod,
    spec: &PodSpec,
    settings: &Settings,
    host: &Dns,
    record: RecordEvent<'_>,
) -> Dns {
    let node = NodeDns {
        cluster_servers: &settings.cluster_dns,
        cluster_domain: &settings.cluster_domain,
        // Without a file in the settings, pods do not get the host's.
        host: (!settings.resolv_conf.as_os_str().is_empty()).then_some(host),
        node_ips: &settings.node_ips,
    };
    dns::pod_dns(pod, spec, &node, record)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::spec::tests::{RecordedEvents, pod, settings};

    fn server(address: &str) -> Dns {
        Dns { servers: vec![address.to_owned()], ..Dns::default() }
    }

    #[test]
    fn the_settings_choose_between_the_cluster_the_host_and_nothing() {
        let made = |policy: &str, settings: &Settings| {
            let (pod, events) =
                (pod(json!({"containers": [], "dnsPolicy": policy})), RecordedEvents::default());
            let spec = pod.spec.as_ref().unwrap();
            pod_dns(&pod, spec, settings, &server("192.0.2.53"), &events.record())
        };
        let cluster = made("ClusterFirst", &settings());
        assert_eq!(cluster.servers, ["10.96.0.10"]);
        assert_eq!(cluster.searches[0], "team.svc.cluster.local");
        assert_eq!(made("Default", &settings()), server("192.0.2.53"));
        let none = Settings { resolv_conf: "".into(), ..settings() };
        assert_eq!(made("Default", &none).servers, ["127.0.0.1"]);
    }

    #[tokio::test]
    async fn a_resolver_file_that_cannot_be_read_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("resolv.conf");
        let settings = Settings { resolv_conf: path.clone(), ..settings() };
        let error = host_dns(&settings).await.unwrap_err();
        assert!(error.message().starts_with(&format!("open {}: ", path.display())), "{error}");
        std::fs::write(&path, "nameserver\n").unwrap();
        let message = "Encountered error while parsing resolv conf file. Error: nameserver list is empty ";
        assert_eq!(host_dns(&settings).await.unwrap_err().message(), message);
        std::fs::write(&path, "nameserver 192.0.2.53\n").unwrap();
        assert_eq!(host_dns(&settings).await.unwrap(), server("192.0.2.53"));
        let none = Settings { resolv_conf: "".into(), ..settings };
        assert_eq!(host_dns(&none).await.unwrap(), Dns::default());
    }
}
