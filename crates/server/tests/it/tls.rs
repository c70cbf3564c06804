//! Certificates: the node's and its callers'.

use std::{fs, sync::Arc};

use vk_server::{
    Limits,
    tls::{files::Files, self_signed},
};
use vk_supervisor::Clock;

use crate::harness::{AUTHORITY, Authority, Node, Pair, SOON, split};

async fn code(node: &Node, client: &Pair) -> u16 {
    let answer =
        node.say(Some(client), b"GET /healthz HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n").await;
    split(&answer.unwrap()).0
}

#[tokio::test]
async fn a_client_certificate_counts_while_its_authority_vouches_for_it() {
    let node = Node::start(Limits::default()).await;
    assert_eq!(code(&node, &AUTHORITY.client("admin", 2030)).await, 200);
    assert_eq!(code(&node, &AUTHORITY.client("somebody", 2030)).await, 403);
    // The handshake goes well, so that a token could count beside it; the request does not.
    assert_eq!(code(&node, &AUTHORITY.client("admin", 2025)).await, 401, "it has expired");
    assert_eq!(code(&node, &AUTHORITY.serving()).await, 401, "it is no client's");
    assert_eq!(code(&node, &Authority::new("another").client("admin", 2030)).await, 401);
    assert_eq!(code(&node, &AUTHORITY.client("", 2030)).await, 401, "it names nobody");
}

#[tokio::test]
async fn both_versions_of_tls_that_are_left_are_spoken() {
    let node = Node::start(Limits::default()).await;
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        node.connect(None, &[version]).await.unwrap();
    }
}

#[tokio::test]
async fn another_certificate_is_shown_to_whoever_comes_next() {
    let node = Node::start(Limits::default()).await;
    let shown = async || {
        let stream = node.connect(None, rustls::ALL_VERSIONS).await.unwrap();
        stream.get_ref().1.peer_certificates().unwrap()[0].to_vec()
    };
    let first = shown().await;
    node.serving.replace(AUTHORITY.serving().certified());
    assert_ne!(shown().await, first);
}

#[tokio::test(start_paused = true)]
async fn files_are_read_again_when_they_change_and_a_broken_one_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let files = Files { cert: folder.path().join("tls.crt"), key: folder.path().join("tls.key") };
    let write = |pair: &Pair| {
        fs::write(&files.cert, &pair.cert_pem).unwrap();
        fs::write(&files.key, &pair.key_pem).unwrap();
    };
    write(&AUTHORITY.serving());
    let serving = vk_server::tls::Serving::new(files.read().unwrap());
    let first = serving.current();
    let mut following = std::pin::pin!(files.clone().follow(serving.clone()));
    // The clock is paused: this takes no time.
    let mut looks = async || drop(tokio::time::timeout(SOON, &mut following).await);
    looks().await;
    fs::write(&files.cert, "half-writ").unwrap();
    looks().await;
    assert!(Arc::ptr_eq(&serving.current(), &first));
    write(&AUTHORITY.serving());
    looks().await;
    assert!(!Arc::ptr_eq(&serving.current(), &first));
}

#[test]
fn files_that_cannot_be_used_are_named_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let files = Files { cert: folder.path().join("tls.crt"), key: folder.path().join("tls.key") };
    let why = || files.read().unwrap_err().to_string();
    assert!(why().contains("tls.crt") && why().contains("cannot read"), "{}", why());
    fs::write(&files.cert, "nothing").unwrap();
    fs::write(&files.key, "nothing").unwrap();
    assert!(why().contains("tls.crt: holds no certificate"), "{}", why());
    fs::write(&files.cert, AUTHORITY.serving().cert_pem).unwrap();
    assert!(why().contains("tls.key: holds no private key"), "{}", why());
    fs::write(&files.key, AUTHORITY.serving().key_pem).unwrap();
    assert!(why().contains("does not belong to the certificate in"), "{}", why());
}

#[test]
fn a_node_can_sign_its_own_certificate_for_its_addresses() {
    let now = Clock::system().now();
    let certificate =
        self_signed::certificate("vk", &["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()], now);
    assert_eq!(certificate.unwrap().cert.len(), 1);
}
