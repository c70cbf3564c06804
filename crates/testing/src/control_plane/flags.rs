//! The command lines of the components.
//!
//! The choices behind them were tried on Kubernetes 1.36; the comments name the ones that look optional and
//! are not.

use std::path::Path;

use super::certs::{Files, Pki};
use super::options::Options;
use super::ports::Ports;

/// Only names have to fit: no service of a control plane without nodes is ever reached.
const SERVICE_RANGE: &str = "10.0.0.0/24";
/// The first address of the range, which the API server gives to the Service `kubernetes`.
pub(super) const SERVICE_ADDRESS: &str = "10.0.0.1";
/// Who issues service account tokens; also their default audience.
const ISSUER: &str = "https://kubernetes.default.svc";
/// The only client that may speak for others to an aggregated API server.
pub(super) const AGGREGATOR: &str = "front-proxy-client";

/// The certificates of the API server.
pub(super) struct ApiServerFiles {
    pub(super) serving: Files,
    pub(super) kubelet_client: Files,
    pub(super) proxy_client: Files,
}

pub(super) fn etcd(data: &Path, ports: &Ports, temporary: bool) -> Vec<String> {
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
        // Nobody reads the data after a crash of the machine, and waiting for the disk is most of a write.
        args.push("--unsafe-no-fsync".to_owned());
    }
    args
}

pub(super) fn api_server(options: &Options, ports: &Ports, pki: &Pki, files: &ApiServerFiles) -> Vec<String> {
    let cluster_ca = pki.cluster.cert_file.display();
    vec![
        flag("--etcd-servers", etcd_url(ports)),
        flag("--bind-address", options.bind_address),
        flag("--secure-port", ports.api_server),
        // Without an address of its own it looks for a network interface, and some machines have none.
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
        // Without its own certificate the API server comes to a kubelet as an anonymous client.
        flag("--kubelet-client-certificate", files.kubelet_client.cert.display()),
        flag("--kubelet-client-key", files.kubelet_client.key.display()),
        flag("--kubelet-certificate-authority", &cluster_ca),
        // The default tries the host name first, which nothing resolves.
        flag("--kubelet-preferred-address-types", "InternalIP"),
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

pub(super) fn audit(policy: &Path, log: &Path) -> Vec<String> {
    vec![flag("--audit-policy-file", policy.display()), flag("--audit-log-path", log.display())]
}

pub(super) fn controller_manager(
    ports: &Ports,
    pki: &Pki,
    serving: &Files,
    kubeconfig: &Path,
) -> Vec<String> {
    let mut args = component(ports.controller_manager, pki, serving, kubeconfig);
    args.extend([
        // Without it the ConfigMap kube-root-ca.crt never appears, and pods wait for it.
        flag("--root-ca-file", pki.cluster.cert_file.display()),
        flag("--cluster-signing-cert-file", pki.cluster.cert_file.display()),
        flag("--cluster-signing-key-file", pki.cluster.key_file.display()),
        flag("--service-account-private-key-file", pki.service_account_key.display()),
        flag("--use-service-account-credentials", true),
        // It makes an account and a token for each of its controllers first; its default limit of 20 requests
        // a second alone takes four seconds of every start.
        flag("--kube-api-qps", 500),
        flag("--kube-api-burst", 1000),
    ]);
    args
}

pub(super) fn scheduler(ports: &Ports, pki: &Pki, serving: &Files, kubeconfig: &Path) -> Vec<String> {
    component(ports.scheduler, pki, serving, kubeconfig)
}

pub(super) fn etcd_url(ports: &Ports) -> String {
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
        // There is one of each; electing it would only cost time, above all after a restart.
        flag("--leader-elect", false),
    ]
}

fn flag(name: &str, value: impl std::fmt::Display) -> String {
    format!("{name}={value}")
}
