//! Requests to a node without the API server.

use std::{
    fmt::Write as _,
    io::{Read as _, Write as _},
    net::TcpStream,
    sync::Arc,
    time::Duration,
};

use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
};
use vk_testing::control_plane::Certificate;

/// A caller and its request.
#[derive(Clone, Default)]
pub(super) struct Caller {
    pub(super) certificate: Option<Certificate>,
    pub(super) token: Option<String>,
    pub(super) headers: Vec<String>,
    pub(super) method: Option<&'static str>,
}

/// A response.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) code: u16,
    pub(super) body: String,
}

pub(super) type Tls = StreamOwned<ClientConnection, TcpStream>;

// === impl Caller ===

impl Caller {
    pub(super) fn with_token(token: &str) -> Self {
        Self { token: Some(token.to_owned()), ..Self::default() }
    }

    pub(super) fn with_certificate(certificate: Certificate) -> Self {
        Self { certificate: Some(certificate), ..Self::default() }
    }

    /// Connects to a node whose certificate is of this authority.
    pub(super) fn connect(&self, ca_pem: &str, port: u16) -> std::io::Result<Tls> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(ca_pem.as_bytes()) {
            roots.add(certificate.unwrap()).unwrap();
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let config = match &self.certificate {
            Some(Certificate { cert_pem, key_pem }) => {
                let chain = CertificateDer::pem_slice_iter(cert_pem.as_bytes()).map(Result::unwrap).collect();
                let key = PrivateKeyDer::from_pem_slice(key_pem.as_bytes()).unwrap();
                builder.with_client_auth_cert(chain, key).unwrap()
            }
            None => builder.with_no_client_auth(),
        };
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let session = ClientConnection::new(Arc::new(config), name).map_err(std::io::Error::other)?;
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        Ok(StreamOwned::new(session, stream))
    }

    /// The text of a request.
    pub(super) fn request(&self, path: &str) -> String {
        let method = self.method.unwrap_or("GET");
        let mut text = format!("{method} {path} HTTP/1.1\r\nHost: node\r\n");
        if let Some(token) = &self.token {
            write!(text, "Authorization: Bearer {token}\r\n").unwrap();
        }
        for header in &self.headers {
            write!(text, "{header}\r\n").unwrap();
        }
        if self.headers.is_empty() {
            text += "Connection: close\r\n";
        }
        text + "\r\n"
    }

    /// Makes a call and reads the answer.
    pub(super) fn call(&self, ca_pem: &str, port: u16, path: &str) -> std::io::Result<Answer> {
        let mut stream = self.connect(ca_pem, port)?;
        stream.write_all(self.request(path).as_bytes())?;
        let mut answer = Vec::new();
        let mut piece = [0; 4096];
        loop {
            match stream.read(&mut piece) {
                Ok(0) | Err(_) if !answer.is_empty() => break,
                Ok(0) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                Err(error) => return Err(error),
                Ok(length) => answer.extend_from_slice(&piece[..length]),
            }
            if whole(&answer) {
                break;
            }
        }
        let text = String::from_utf8_lossy(&answer).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or_default();
        let in_pieces = head.lines().any(|line| line.eq_ignore_ascii_case("transfer-encoding: chunked"));
        let body = if in_pieces { joined(body) } else { body.to_owned() };
        Ok(Answer { code, body })
    }
}

/// A body that came in pieces of told lengths.
fn joined(mut body: &str) -> String {
    let mut text = String::new();
    while let Some((length, rest)) = body.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).unwrap_or_default();
        let Some(piece) = rest.get(..length).filter(|piece| !piece.is_empty()) else { break };
        text += piece;
        body = rest[length..].trim_start_matches("\r\n");
    }
    text
}

/// Whether an answer is complete on a connection that stays open: one that changes the protocol, or one of known length.
fn whole(answer: &[u8]) -> bool {
    let text = String::from_utf8_lossy(answer);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length =
        head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
    head.starts_with("HTTP/1.1 101") || length.is_some_and(|length: usize| body.len() >= length)
}
