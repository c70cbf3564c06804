//! Serving certificates and client certificates.

use std::{fs, sync::Arc};

use vk_server::{
    ConnectionLimits,
    tls::{certificate_files::CertificateFiles, self_signed},
};
use vk_supervisor::Clock;

use crate::harness::{CA, SOON, TestCa, TestCertificate, TestNode, split};

async fn code(node: &TestNode, client: &TestCertificate) -> u16 {
    let answer =
        node.send_raw(Some(client), b"GET /healthz HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n").await;
    split(&answer.unwrap()).0
}

#[tokio::test]
async fn a_client_certificate_is_accepted_while_it_is_valid() {
    let node = TestNode::start(ConnectionLimits::default()).await;
    assert_eq!(code(&node, &CA.client("admin", 2030)).await, 200);
    assert_eq!(code(&node, &CA.client("somebody", 2030)).await, 403);
    // The handshake succeeds, so that a token could be used; the request does not.
    assert_eq!(code(&node, &CA.client("admin", 2025)).await, 401, "it has expired");
    assert_eq!(code(&node, &CA.serving()).await, 401, "not a client certificate");
    assert_eq!(code(&node, &TestCa::new("another").client("admin", 2030)).await, 401);
    assert_eq!(code(&node, &CA.client("", 2030)).await, 401, "no user name");
}

#[tokio::test]
async fn tls_1_2_and_1_3_are_supported() {
    let node = TestNode::start(ConnectionLimits::default()).await;
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        node.connect(None, &[version]).await.unwrap();
    }
}

#[tokio::test]
async fn a_replaced_certificate_is_used_for_new_connections() {
    let node = TestNode::start(ConnectionLimits::default()).await;
    let shown = async || {
        let stream = node.connect(None, rustls::ALL_VERSIONS).await.unwrap();
        stream.get_ref().1.peer_certificates().unwrap()[0].to_vec()
    };
    let first = shown().await;
    node.serving.replace(CA.serving().certified_key());
    assert_ne!(shown().await, first);
}

#[tokio::test(start_paused = true)]
async fn files_are_reloaded_when_they_change_and_broken_ones_are_ignored() {
    let folder = tempfile::tempdir().unwrap();
    let files = CertificateFiles { cert: folder.path().join("tls.crt"), key: folder.path().join("tls.key") };
    let write = |pair: &TestCertificate| {
        fs::write(&files.cert, &pair.cert_pem).unwrap();
        fs::write(&files.key, &pair.key_pem).unwrap();
    };
    write(&CA.serving());
    let serving = vk_server::tls::ServingCertificate::new(files.read().unwrap());
    let first = serving.current();
    let mut following = std::pin::pin!(files.clone().follow(serving.clone()));
    // The clock is paused: this takes no time.
    let mut reload = async || drop(tokio::time::timeout(SOON, &mut following).await);
    reload().await;
    fs::write(&files.cert, "half-writ").unwrap();
    reload().await;
    assert!(Arc::ptr_eq(&serving.current(), &first));
    write(&CA.serving());
    reload().await;
    assert!(!Arc::ptr_eq(&serving.current(), &first));
}

#[test]
fn unusable_files_are_reported_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let files = CertificateFiles { cert: folder.path().join("tls.crt"), key: folder.path().join("tls.key") };
    let why = || files.read().unwrap_err().to_string();
    assert!(why().contains("tls.crt") && why().contains("cannot read"), "{}", why());
    fs::write(&files.cert, "nothing").unwrap();
    fs::write(&files.key, "nothing").unwrap();
    assert!(why().contains("tls.crt: holds no certificate"), "{}", why());
    fs::write(&files.cert, CA.serving().cert_pem).unwrap();
    assert!(why().contains("tls.key: holds no private key"), "{}", why());
    fs::write(&files.key, CA.serving().key_pem).unwrap();
    assert!(why().contains("does not belong to the certificate in"), "{}", why());
}

#[test]
fn a_self_signed_certificate_is_generated() {
    let now = Clock::system().now();
    let certificate =
        self_signed::certificate("vk", &["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()], now);
    assert_eq!(certificate.unwrap().cert.len(), 1);
}
