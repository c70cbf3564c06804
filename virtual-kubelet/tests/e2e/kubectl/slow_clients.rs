//! Connections that stay half open: silent ones, some that stall in the TLS handshake, and some that send the request head byte by
//! byte.

use std::{io::Write as _, net::TcpStream, sync::Arc, time::Duration};

use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};

/// The head that slow writers send, longer than they ever get.
const HEAD: &[u8] = b"GET /pods HTTP/1.1\r\nHost: node\r\nX-Slowly: but surely";

/// The open connections.
pub(crate) struct SlowClients {
    port: u16,
    config: Arc<ClientConfig>,
    silent: Vec<TcpStream>,
    writing: Vec<StreamOwned<ClientConnection, TcpStream>>,
    written: usize,
}

// === impl SlowClients ===

impl SlowClients {
    /// Clients of the node at this port, with a certificate of this CA.
    pub(crate) fn new(ca_pem: &str, port: u16) -> Self {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(ca_pem.as_bytes()) {
            roots.add(certificate.unwrap()).unwrap();
        }
        let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        Self { port, config: Arc::new(config), silent: Vec::new(), writing: Vec::new(), written: 0 }
    }

    /// Opens `count` more connections, a third of each kind.
    pub(crate) fn grow(&mut self, count: usize) {
        for number in 0..count {
            let mut socket = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            let name = ServerName::try_from("127.0.0.1").unwrap();
            let mut session = ClientConnection::new(Arc::clone(&self.config), name).unwrap();
            match number % 3 {
                0 => self.silent.push(socket),
                1 => {
                    let mut hello = Vec::new();
                    session.write_tls(&mut hello).unwrap();
                    socket.write_all(&hello[..hello.len() / 2]).unwrap();
                    self.silent.push(socket);
                }
                _ => {
                    session.complete_io(&mut socket).unwrap();
                    self.writing.push(StreamOwned::new(session, socket));
                }
            }
        }
    }

    /// Every slow writer sends one more byte, if its connection is still open.
    pub(crate) fn drip(&mut self) {
        let byte = [HEAD[self.written % HEAD.len()]];
        self.written += 1;
        for stream in &mut self.writing {
            drop(stream.write_all(&byte).and_then(|()| stream.flush()));
        }
    }

    /// Number of connections that were opened; the node may have closed some.
    pub(crate) fn strength(&self) -> usize {
        self.silent.len() + self.writing.len()
    }
}
