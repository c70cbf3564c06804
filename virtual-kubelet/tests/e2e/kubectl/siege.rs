//! Connections that begin and do not go on: silent ones, some that stall in the middle of the TLS handshake, and some that write the
//! head of their request byte by byte.

use std::{io::Write as _, net::TcpStream, sync::Arc, time::Duration};

use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};

/// What those who write a head write, of which there is more than they will ever come to.
const HEAD: &[u8] = b"GET /pods HTTP/1.1\r\nHost: node\r\nX-Slowly: but surely";

/// All of them.
pub(crate) struct Siege {
    port: u16,
    config: Arc<ClientConfig>,
    silent: Vec<TcpStream>,
    writing: Vec<StreamOwned<ClientConnection, TcpStream>>,
    written: usize,
}

// === impl Siege ===

impl Siege {
    /// Of the node at this port, whose certificate is of this authority.
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

    /// So many more, a third of each kind.
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

    /// Each of those who write a head writes one more byte of it, where it still can.
    pub(crate) fn drip(&mut self) {
        let byte = [HEAD[self.written % HEAD.len()]];
        self.written += 1;
        for stream in &mut self.writing {
            drop(stream.write_all(&byte).and_then(|()| stream.flush()));
        }
    }

    /// How many there are, or were: the node closes them when it will.
    pub(crate) fn strength(&self) -> usize {
        self.silent.len() + self.writing.len()
    }
}
