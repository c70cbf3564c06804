//! Test code: a raw client, for what a well-behaved one never does.

use std::fmt::Write as _;

use http::{Request, Response, request::Parts};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// A SPDY upgrade request.
pub(crate) fn spdy_request(path: &str, protocol: &str) -> String {
    let headers = format!("Upgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: {protocol}");
    format!(
        "POST {path} HTTP/1.1\r\nHost: node\r\nConnection: Upgrade\r\n{headers}\r\nContent-Length: 0\r\n\r\n"
    )
}

/// A WebSocket upgrade request.
pub(crate) fn websocket_request(path: &str, protocol: &str) -> String {
    let mut request = format!(
        "GET {path} HTTP/1.1\r\nHost: node\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    );
    write!(request, "Sec-WebSocket-Protocol: {protocol}\r\n\r\n").unwrap();
    request
}

/// Sends a request and reads the head of the response, which must switch protocols.
pub(crate) async fn upgrade(io: &mut (impl AsyncRead + AsyncWrite + Unpin), request: &str) {
    io.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(io.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap();
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
}

/// Reads the head of a request.
pub(crate) async fn head<IO: AsyncRead + Unpin>(mut io: IO) -> (Parts, IO) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(io.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap();
    let mut lines = head.lines();
    let mut first = lines.next().unwrap().split(' ');
    let mut request = Request::builder().method(first.next().unwrap()).uri(first.next().unwrap());
    for (name, value) in lines.filter_map(|line| line.split_once(": ")) {
        request = request.header(name, value);
    }
    (request.body(()).unwrap().into_parts().0, io)
}

/// Writes the head of a response.
pub(crate) async fn answer<IO: AsyncWrite + Unpin>(mut io: IO, response: &Response<()>) -> IO {
    let mut head = format!("HTTP/1.1 {}\r\n", response.status());
    for (name, value) in response.headers() {
        write!(head, "{name}: {}\r\n", value.to_str().unwrap()).unwrap();
    }
    head.push_str("\r\n");
    io.write_all(head.as_bytes()).await.unwrap();
    io
}

/// A client's WebSocket frame: complete, and masked with zeros.
pub(crate) fn frame(opcode: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x80 | opcode];
    match (u8::try_from(payload.len()), u16::try_from(payload.len())) {
        (Ok(length @ 0..=125), _) => frame.push(0x80 | length),
        (_, Ok(length)) => {
            frame.push(0xfe);
            frame.extend_from_slice(&length.to_be_bytes());
        }
        _ => {
            frame.push(0xff);
            frame.extend_from_slice(&(payload.len() as u64).to_be_bytes());
        }
    }
    frame.extend_from_slice(&[0; 4]);
    frame.extend_from_slice(payload);
    frame
}

pub(crate) const TEXT: u8 = 1;
pub(crate) const BINARY: u8 = 2;
pub(crate) const CLOSE: u8 = 8;
pub(crate) const PING: u8 = 9;

/// A frame of the server.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) opcode: u8,
    pub(crate) payload: Vec<u8>,
}

/// Reads one frame of the server.
pub(crate) async fn read_frame(io: &mut (impl AsyncRead + Unpin)) -> Frame {
    let opcode = io.read_u8().await.unwrap() & 0x0f;
    let length = match io.read_u8().await.unwrap() {
        126 => u64::from(io.read_u16().await.unwrap()),
        127 => io.read_u64().await.unwrap(),
        short => u64::from(short),
    };
    let mut payload = vec![0; usize::try_from(length).unwrap()];
    io.read_exact(&mut payload).await.unwrap();
    Frame { opcode, payload }
}
