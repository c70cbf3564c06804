//! Serving certificates and client certificates.

use std::{fs, sync::Arc};

use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, KeyUsagePurpose};
use tokio::io::AsyncWriteExt as _;
use vk_server::{
    ConnectionLimits,
    tls::{certificate_files::CertificateFiles, client_ca::ClientCa, self_signed},
};
use vk_supervisor::Clock;

use crate::{
    certificates::{CA, TestCa, TestCertificate},
    harness::{SOON, TestNode, split, until_end},
};

const HEALTH: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n";

async fn code(node: &TestNode, client: &TestCertificate) -> u16 {
    split(&node.send_raw(Some(client), HEALTH).await.unwrap()).0
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
async fn a_client_certificate_of_version_1_counts_as_with_a_kubelet() {
    let node = TestNode::start(ConnectionLimits::default()).await;
    let other = TestCa::new("authority");
    let admin = CA.client_of_version_1("admin", 2030);
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        // 0 if there is no response at all.
        let code = async |client: &TestCertificate| {
            let Ok(mut stream) = node.connect(Some(client), &[version]).await else { return 0 };
            if stream.write_all(HEALTH).await.is_err() {
                return 0;
            }
            split(&until_end(&mut stream).await).0
        };
        assert_eq!(code(&admin).await, 200, "{version:?}");
        assert_eq!(code(&CA.client_of_version_1("somebody", 2030)).await, 403, "{version:?}");
        assert_eq!(code(&CA.client_of_version_1("admin", 2025)).await, 401, "{version:?}: it has expired");
        let forged = other.client_of_version_1("admin", 2030);
        assert_eq!(code(&forged).await, 401, "{version:?}: another CA of the same name");
        assert_eq!(code(&admin.with_key_of(&forged)).await, 0, "{version:?}: the key of another");
    }
}

/// A change of the certificate of a CA.
type Change<'a> = &'a dyn Fn(&mut CertificateParams);

#[test]
fn a_certificate_of_version_1_counts_only_if_its_ca_may_issue_it() {
    let now = "2026-06-01T00:00:00Z".parse().unwrap();
    let outcome = |change: Change<'_>| {
        let authority = TestCa::with("authority", change);
        let client_ca = ClientCa::default();
        client_ca.replace(authority.pem.as_bytes()).unwrap();
        client_ca.verify(&authority.client_of_version_1("admin", 2030).chain, now)
    };
    let ca = IsCa::Ca(BasicConstraints::Unconstrained);
    assert_eq!(outcome(&|params| params.is_ca = ca), Ok(()));
    let good = outcome(&|params| {
        params.is_ca = ca;
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    });
    assert_eq!(good, Ok(()));
    let refusals: [(Change<'_>, &str); 5] = [
        (&|params| params.is_ca = IsCa::NoCa, "not a CA"),
        (&|params| params.is_ca = IsCa::ExplicitNoCa, "not a CA"),
        (
            &|params| {
                params.is_ca = ca;
                params.key_usages = vec![KeyUsagePurpose::CrlSign];
            },
            "may not sign",
        ),
        (
            &|params| {
                params.is_ca = ca;
                params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
            },
            "client certificates",
        ),
        (
            &|params| {
                params.is_ca = ca;
                params.not_after = rcgen::date_time_ymd(2025, 1, 1);
            },
            "valid from",
        ),
    ];
    for (change, words) in refusals {
        let reason = outcome(change).unwrap_err();
        assert!(reason.contains(words), "{reason}");
    }
    let stranger = TestCa::new("another").client_of_version_1("admin", 2030);
    let client_ca = ClientCa::default();
    client_ca.replace(CA.pem.as_bytes()).unwrap();
    assert!(client_ca.verify(&stranger.chain, now).unwrap_err().contains("not issued by a trusted CA"));
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

#[tokio::test]
async fn the_fingerprint_is_the_one_of_the_key_that_clients_see() {
    let node = TestNode::start(ConnectionLimits::default()).await;
    let mut key = node.serving.key();
    let shown = async || {
        let stream = node.connect(None, rustls::ALL_VERSIONS).await.unwrap();
        vk_kube::key_fingerprint(&stream.get_ref().1.peer_certificates().unwrap()[0]).unwrap()
    };
    let published = |key: &mut tokio::sync::watch::Receiver<Option<Arc<str>>>| {
        key.borrow_and_update().as_deref().unwrap().to_owned()
    };
    let first = published(&mut key);
    assert_eq!(first, shown().await);
    // Another certificate for the same key changes nothing.
    node.serving.replace(node.serving.current());
    assert!(!key.has_changed().unwrap());
    node.serving.replace(CA.serving().certified_key());
    assert!(key.has_changed().unwrap());
    let second = published(&mut key);
    assert_eq!(second, shown().await);
    assert_ne!(first, second);
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
