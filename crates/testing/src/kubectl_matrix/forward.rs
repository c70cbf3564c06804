//! `kubectl port-forward`.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
};

use super::{
    KubectlSession,
    session::{RunningKubectl, TIMEOUT},
};

/// Forwards a port and returns the local port.
async fn forward(session: &KubectlSession, port: u16) -> (RunningKubectl, u16) {
    let mut running = session.start(&["port-forward", "pod/web", &format!(":{port}")]);
    let local = running
        .line("a forwarded port", |line| {
            let rest = line.strip_prefix("Forwarding from 127.0.0.1:")?;
            rest.split(' ').next()?.parse().ok()
        })
        .await;
    (running, local)
}

async fn get(port: u16) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

/// `count` concurrent requests to an HTTP port; each gets its response.
pub async fn parallel_requests(session: &KubectlSession, port: u16, count: usize) {
    let (running, local) = forward(session, port).await;
    let mut requests = JoinSet::new();
    for _ in 0..count {
        requests.spawn(tokio::time::timeout(TIMEOUT, get(local)));
    }
    while let Some(answer) = requests.join_next().await {
        let answer = answer.expect("a request").expect("an answer in time").expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer:?}");
    }
    running.kill().await;
}

/// Sends `bytes` bytes to an echo port; all come back unchanged.
pub async fn much(session: &KubectlSession, port: u16, bytes: usize) {
    const PIECE: usize = 64 * 1024;
    let (running, local) = forward(session, port).await;
    let stream = TcpStream::connect(("127.0.0.1", local)).await.expect("a connection");
    let (mut read, mut write) = stream.into_split();
    let byte = |place: usize| u8::try_from(place.wrapping_mul(31) / 7 % 251).unwrap_or_default();
    let send = async move {
        let mut place = 0;
        while place < bytes {
            let piece: Vec<u8> = (place..bytes.min(place + PIECE)).map(byte).collect();
            write.write_all(&piece).await.expect("bytes are sent");
            place += piece.len();
        }
        write.shutdown().await.expect("the end is sent");
    };
    let receive = async move {
        let (mut place, mut piece) = (0, vec![0; PIECE]);
        while place < bytes {
            let length = read.read(&mut piece).await.expect("bytes come back");
            assert!(length > 0, "the connection ended after {place} of {bytes} bytes");
            for (offset, found) in piece[..length].iter().enumerate() {
                assert_eq!(*found, byte(place + offset), "byte {}", place + offset);
            }
            place += length;
        }
    };
    let both = async { tokio::join!(send, receive) };
    tokio::time::timeout(3 * TIMEOUT, both).await.expect("all bytes in time");
    running.kill().await;
}

/// A closed port: the connection ends, and other ports still work.
pub async fn refused_port(session: &KubectlSession, closed: u16, open: u16) {
    let mut running = session.start(&["port-forward", "pod/web", &format!(":{closed}"), &format!(":{open}")]);
    let mut ports = Vec::new();
    for _ in 0..2 {
        let local: u16 = running
            .line("a forwarded port", |line| {
                line.strip_prefix("Forwarding from 127.0.0.1:")?.split(' ').next()?.parse().ok()
            })
            .await;
        ports.push(local);
    }
    let refused = tokio::time::timeout(TIMEOUT, get(ports[0])).await.expect("an end in time");
    assert!(!refused.is_ok_and(|answer| answer.starts_with("HTTP/1.1 200")));
    running.kill().await;
    let (running, local) = forward(session, open).await;
    let answer = tokio::time::timeout(Duration::from_secs(30), get(local)).await.expect("an answer in time");
    assert!(answer.expect("an answer").starts_with("HTTP/1.1 200"));
    running.kill().await;
}
