//! Sessions: proxied, limited in number, and ended with their client or their node.

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_rustls::client::TlsStream;
use vk_provider::ability::{Exit, Session, Started};
use vk_server::ConnectionLimits;
use vk_testing::eventually;

use crate::harness::{SESSIONS, SOON, TOKEN, TestNode, until_end};

const PATH: &str = "/exec/ns/web/main?command=cat&input=1&output=1";

/// Requests exec over SPDY, and reads the head of the response.
async fn exec(node: &TestNode, path: &str) -> (TlsStream<TcpStream>, String) {
    let mut stream = node.connect(None, rustls::ALL_VERSIONS).await.unwrap();
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: node\r\nAuthorization: Bearer {TOKEN}\r\nConnection: Upgrade\r\n\
         Upgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\nContent-Length: 0\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !whole(&answer) {
        assert!(stream.read_buf(&mut answer).await.unwrap() > 0, "{}", String::from_utf8_lossy(&answer));
    }
    (stream, String::from_utf8_lossy(&answer).into_owned())
}

/// Whether a response is complete: only its head, if it switches protocols.
fn whole(answer: &[u8]) -> bool {
    let text = String::from_utf8_lossy(answer);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
    head.starts_with("HTTP/1.1 101") || length.is_some_and(|length| body.len() >= length)
}

/// A command that does nothing until it is dropped.
fn idle() -> Started {
    let (stdin, _) = tokio::io::duplex(64);
    Started::Session(Session {
        stdin: Some(Box::new(stdin)),
        stdout: None,
        stderr: None,
        resize: None,
        exit: Box::pin(std::future::pending::<vk_provider::Result<Exit>>()),
    })
}

async fn no_session(node: &TestNode) {
    eventually("no session is open", SOON, || async {
        let open = node.sessions("exec");
        if open == 0 { Ok(()) } else { Err(open) }
    })
    .await;
}

#[tokio::test]
async fn a_providers_url_is_proxied_byte_for_byte() {
    let runtime = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = runtime.local_addr().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let (mut stream, _) = runtime.accept().await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            stream.read_buf(&mut head).await.unwrap();
        }
        let answer = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\
                      X-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\n";
        stream.write_all(answer.as_bytes()).await.unwrap();
        let (mut read, mut write) = stream.split();
        tokio::io::copy(&mut read, &mut write).await.unwrap();
        String::from_utf8(head).unwrap()
    });
    let node = TestNode::start(ConnectionLimits::default()).await;
    *node.provider.started.lock() = Some(Started::Url(format!("http://{address}/exec/token")));
    let (mut stream, head) = exec(&node, PATH).await;
    assert!(head.starts_with("HTTP/1.1 101") && head.to_lowercase().contains("upgrade: spdy/3.1"), "{head}");
    let bytes: Vec<u8> = (0..100_000_u32).flat_map(u32::to_be_bytes).collect();
    let (mut read, mut write) = tokio::io::split(&mut stream);
    let mut back = vec![0; bytes.len()];
    let (sent, received) = tokio::join!(write.write_all(&bytes), read.read_exact(&mut back));
    sent.unwrap();
    received.unwrap();
    assert!(back == bytes);
    drop(stream);
    let asked = tasks.join_next().await.unwrap().unwrap();
    assert!(asked.starts_with("POST /exec/token HTTP/1.1\r\n"), "{asked}");
    // The caller's credentials are not forwarded.
    assert!(!asked.contains(TOKEN), "{asked}");
    no_session(&node).await;
}

#[tokio::test]
async fn the_number_of_sessions_is_limited() {
    let node = TestNode::start(ConnectionLimits::default()).await;
    let mut open = Vec::new();
    for _ in 0..SESSIONS {
        *node.provider.started.lock() = Some(idle());
        let (stream, head) = exec(&node, PATH).await;
        assert!(head.starts_with("HTTP/1.1 101"), "{head}");
        open.push(stream);
    }
    let (_, refused) = exec(&node, PATH).await;
    assert!(refused.starts_with("HTTP/1.1 429") && refused.contains("too many sessions"), "{refused}");
    drop(open);
    no_session(&node).await;
    *node.provider.started.lock() = Some(idle());
    assert!(exec(&node, PATH).await.1.starts_with("HTTP/1.1 101"));
}

#[tokio::test]
async fn sessions_end_with_their_node() {
    let node = TestNode::start(ConnectionLimits::default()).await;
    *node.provider.started.lock() = Some(idle());
    let (mut stream, _) = exec(&node, PATH).await;
    assert_eq!(node.sessions("exec"), 1);
    assert!(node.supervisor.shut_down(SOON).await, "all tasks ended in time");
    assert_eq!(node.sessions("exec"), 0);
    until_end(&mut stream).await;
}

#[tokio::test]
async fn invalid_session_requests_are_rejected() {
    let node = TestNode::start(ConnectionLimits::default()).await;
    let (_, missing) = exec(&node, PATH).await;
    assert!(missing.starts_with("HTTP/1.1 404") && missing.contains("nothing is prepared"), "{missing}");
    let (_, nobody) = exec(&node, "/exec/ns/web/nobody?command=cat&output=1").await;
    assert!(
        nobody.starts_with("HTTP/1.1 404") && nobody.contains("container not found (\"nobody\")"),
        "{nobody}"
    );
    let (_, other) = exec(&node, "/exec/ns/web/other-uid/main?command=cat&output=1").await;
    assert!(other.starts_with("HTTP/1.1 404") && other.contains("pod does not exist"), "{other}");
    let (_, attach) = exec(&node, "/attach/ns/web/main?output=1").await;
    assert!(attach.starts_with("HTTP/1.1 501"), "{attach}");
    let (_, forward) = exec(&node, "/portForward/ns/web").await;
    assert!(!forward.starts_with("HTTP/1.1 101"), "{forward}");
    let (code, plain) = node.get(PATH).await;
    assert!(code == 400, "{code} {plain}");
    assert_eq!(node.sessions("exec"), 0);
}
