//! Command lines of the components, tested with Kubernetes 1.36. The comments name the flags that look optional and are not.

use std::path::Path;

use crate::certs::{Files, Pki};
use crate::options::Options;
use crate::ports::Ports;

/// Any valid range: without real nodes, no Service is ever reached.
const SERVICE_RANGE: &str = "10.0.0.0/24";
/// The first address of the range, which the API server assigns to the Service `kubernetes`.
pub(crate) const SERVICE_ADDRESS: &str = "10.0.0.1";
/// The issuer of service account tokens, and their default audience.
const ISSUER: &str = "https://kubernetes.default.svc";
/// The only client that may act for other users towards an aggregated API server.
pub(crate) const AGGREGATOR: &str = "front-proxy-client";

/// The certificates of the API server.
pub(crate) struct ApiServerFiles {
    pub(crate) serving: Files,
    pub(crate) kubelet_client: Files,
    pub(crate) proxy_client: Files,
}

pub(crate) fn etcd(data: &Path, ports: &Ports, temporary: bool) -> Vec<String> {
    let client = etcd_url(ports);
    let peer = format!("http://127.0.0.1:{}", ports.etcd_peer);
    let mut args = vec![
        flag("--name", "etcd"),
        flag("--data-dir", data.display()),
        flag("--listen-client-urls", &client),
        flag("--advertise-client-urls", &client),
        flag("--listen-peer-urls", &peer),
        flag("--initial-advertise-peer-urls", &peer),
        flag("--initial-cluster", format!("etcd={peer}")),
    ];
    if temporary {
        // The data need not survive a crash of the machine, and fsync is most of the cost of a write.
        args.push("--unsafe-no-fsync".to_owned());
    }
    args
}

pub(crate) fn api_server(options: &Options, ports: &Ports, pki: &Pki, files: &ApiServerFiles) -> Vec<String> {
    let cluster_ca = pki.cluster.cert_file.display();
    vec![
        flag("--etcd-servers", etcd_url(ports)),
        flag("--bind-address", options.bind_address),
        flag("--secure-port", ports.api_server),
        // Without an address it searches a network interface, and some machines have none.
        flag("--advertise-address", options.advertise_address),
        // The default refuses to publish a loopback address as the Service's endpoint.
        flag("--endpoint-reconciler-type", "none"),
        flag("--service-cluster-ip-range", SERVICE_RANGE),
        flag("--tls-cert-file", files.serving.cert.display()),
        flag("--tls-private-key-file", files.serving.key.display()),
        flag("--client-ca-file", &cluster_ca),
        flag("--authorization-mode", "Node,RBAC"),
        flag("--enable-admission-plugins", "NodeRestriction"),
        flag("--enable-bootstrap-token-auth", true),
        flag("--allow-privileged", true),
        // Without a client certificate the API server is an anonymous client of the kubelet.
        flag("--kubelet-client-certificate", files.kubelet_client.cert.display()),
        flag("--kubelet-client-key", files.kubelet_client.key.display()),
        flag("--kubelet-certificate-authority", &cluster_ca),
        flag("--service-account-issuer", ISSUER),
        flag("--service-account-key-file", pki.service_account_public.display()),
        flag("--service-account-signing-key-file", pki.service_account_key.display()),
        flag("--requestheader-client-ca-file", pki.front_proxy.cert_file.display()),
        flag("--requestheader-allowed-names", AGGREGATOR),
        flag("--requestheader-username-headers", "X-Remote-User"),
        flag("--requestheader-group-headers", "X-Remote-Group"),
        flag("--requestheader-extra-headers-prefix", "X-Remote-Extra-"),
        flag("--proxy-client-cert-file", files.proxy_client.cert.display()),
        flag("--proxy-client-key-file", files.proxy_client.key.display()),
    ]
}

pub(crate) fn audit(policy: &Path, log: &Path) -> Vec<String> {
    vec![flag("--audit-policy-file", policy.display()), flag("--audit-log-path", log.display())]
}

pub(crate) fn controller_manager(
    ports: &Ports,
    pki: &Pki,
    serving: &Files,
    kubeconfig: &Path,
) -> Vec<String> {
    let mut args = component(ports.controller_manager, pki, serving, kubeconfig);
    args.extend([
        // Without it the ConfigMap kube-root-ca.crt, which pods wait for, is never created.
        flag("--root-ca-file", pki.cluster.cert_file.display()),
        flag("--cluster-signing-cert-file", pki.cluster.cert_file.display()),
        flag("--cluster-signing-key-file", pki.cluster.key_file.display()),
        flag("--service-account-private-key-file", pki.service_account_key.display()),
        flag("--use-service-account-credentials", true),
        // It first creates an account and a token for each controller; with the default limit of 20 requests per second, this takes four
        // seconds of every start.
        flag("--kube-api-qps", 500),
        flag("--kube-api-burst", 1000),
    ]);
    args
}

pub(crate) fn scheduler(ports: &Ports, pki: &Pki, serving: &Files, kubeconfig: &Path) -> Vec<String> {
    component(ports.scheduler, pki, serving, kubeconfig)
}

/// The flag for a file with the configuration of kube-scheduler.
pub(crate) fn scheduler_config(file: &Path) -> String {
    flag("--config", file.display())
}

pub(crate) fn etcd_url(ports: &Ports) -> String {
    format!("http://127.0.0.1:{}", ports.etcd_client)
}

fn component(port: u16, pki: &Pki, serving: &Files, kubeconfig: &Path) -> Vec<String> {
    vec![
        flag("--kubeconfig", kubeconfig.display()),
        flag("--authentication-kubeconfig", kubeconfig.display()),
        flag("--authorization-kubeconfig", kubeconfig.display()),
        flag("--client-ca-file", pki.cluster.cert_file.display()),
        flag("--bind-address", "127.0.0.1"),
        flag("--secure-port", port),
        flag("--tls-cert-file", serving.cert.display()),
        flag("--tls-private-key-file", serving.key.display()),
        // There is one instance of each; an election only costs time, above all after a restart.
        flag("--leader-elect", false),
    ]
}

fn flag(name: &str, value: impl std::fmt::Display) -> String {
    format!("{name}={value}")
}
