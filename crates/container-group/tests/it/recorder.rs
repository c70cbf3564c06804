//! A server on loopback that records one request and answers it.

use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpListener,
};
use vk_container_group::cloud::{Endpoint, client::PlainHttp};

pub(crate) struct Recorder {
    listener: TcpListener,
    pub(crate) endpoint: Endpoint,
}

/// A request that arrived, decoded.
pub(crate) struct Arrived {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) query: Vec<(String, String)>,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Recorder {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        Self { endpoint: Endpoint::parse(&url, PlainHttp::Loopback).unwrap(), listener }
    }

    /// Answers one request with this status line, type and body.
    pub(crate) async fn answer(
        &self,
        status: &str,
        kind: &str,
        body: impl FnOnce(&Arrived) -> String,
    ) -> Arrived {
        let (stream, _) = self.listener.accept().await.unwrap();
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        stream.read_line(&mut line).await.unwrap();
        let (method, target) = line.split_once(' ').unwrap();
        let (target, _) = target.split_once(' ').unwrap();
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let mut headers = Vec::new();
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).await.unwrap();
            let Some((name, value)) = line.split_once(':') else { break };
            headers.push((name.to_owned(), value.trim().to_owned()));
        }
        let (method, body_of_request) = (method.to_owned(), String::new());
        let mut arrived =
            Arrived { method, path: decode(path), query: pairs(query), headers, body: body_of_request };
        let mut bytes = vec![0; arrived.header("content-length").parse().unwrap_or(0)];
        stream.read_exact(&mut bytes).await.unwrap();
        arrived.body = String::from_utf8(bytes).unwrap();
        let body = body(&arrived);
        let length = body.len();
        let head = format!(
            "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Type: {kind}\r\nContent-Length: {length}"
        );
        stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).await.unwrap();
        arrived
    }
}

impl Arrived {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.iter().find(|(other, _)| other == name).map_or("", |(_, value)| value)
    }
}

/// The parameters of a query or a form.
pub(crate) fn pairs(encoded: &str) -> Vec<(String, String)> {
    let pairs = encoded.split('&').filter(|pair| !pair.is_empty());
    let pairs = pairs.map(|pair| pair.split_once('=').unwrap());
    pairs.map(|(name, value)| (decode(name), decode(value))).collect()
}

/// Decodes as RFC 3986 says: a plus sign is no blank.
fn decode(encoded: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = encoded.as_bytes();
    while let [first, tail @ ..] = rest {
        if *first == b'%' {
            let digits = std::str::from_utf8(&tail[..2]).unwrap();
            bytes.push(u8::from_str_radix(digits, 16).unwrap());
            rest = &tail[2..];
        } else {
            bytes.push(*first);
            rest = tail;
        }
    }
    String::from_utf8(bytes).unwrap()
}
