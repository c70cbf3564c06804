//! `kubectl port-forward`.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
};

use super::{
    Stage,
    stage::{Ongoing, PATIENCE},
};

/// Forwards a port, and answers where.
async fn forward(stage: &Stage, port: u16) -> (Ongoing, u16) {
    let mut ongoing = stage.start(&["port-forward", "pod/web", &format!(":{port}")]);
    let local = ongoing
        .line("a forwarded port", |line| {
            let rest = line.strip_prefix("Forwarding from 127.0.0.1:")?;
            rest.split(' ').next()?.parse().ok()
        })
        .await;
    (ongoing, local)
}

async fn get(port: u16) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

/// So many requests at once to a port that speaks HTTP; each has its answer.
pub async fn parallel_requests(stage: &Stage, port: u16, count: usize) {
    let (ongoing, local) = forward(stage, port).await;
    let mut requests = JoinSet::new();
    for _ in 0..count {
        requests.spawn(tokio::time::timeout(PATIENCE, get(local)));
    }
    while let Some(answer) = requests.join_next().await {
        let answer = answer.expect("a request").expect("an answer in time").expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer:?}");
    }
    ongoing.kill().await;
}

/// So many bytes to a port that gives back what it gets, and back; none is lost or changed.
pub async fn much(stage: &Stage, port: u16, bytes: usize) {
    const PIECE: usize = 64 * 1024;
    let (ongoing, local) = forward(stage, port).await;
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
    tokio::time::timeout(3 * PATIENCE, both).await.expect("all bytes in time");
    ongoing.kill().await;
}

/// A port on which nobody listens: the connection ends, and others go on.
pub async fn refused_port(stage: &Stage, closed: u16, open: u16) {
    let mut ongoing = stage.start(&["port-forward", "pod/web", &format!(":{closed}"), &format!(":{open}")]);
    let mut ports = Vec::new();
    for _ in 0..2 {
        let local: u16 = ongoing
            .line("a forwarded port", |line| {
                line.strip_prefix("Forwarding from 127.0.0.1:")?.split(' ').next()?.parse().ok()
            })
            .await;
        ports.push(local);
    }
    let refused = tokio::time::timeout(PATIENCE, get(ports[0])).await.expect("an end in time");
    assert!(!refused.is_ok_and(|answer| answer.starts_with("HTTP/1.1 200")));
    ongoing.kill().await;
    let (ongoing, local) = forward(stage, open).await;
    let answer = tokio::time::timeout(Duration::from_secs(30), get(local)).await.expect("an answer in time");
    assert!(answer.expect("an answer").starts_with("HTTP/1.1 200"));
    ongoing.kill().await;
}
