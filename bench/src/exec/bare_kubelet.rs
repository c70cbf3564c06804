//! A kubelet without protocols: it accepts every upgrade and then copies raw bytes over the connection. The throughput that the API
//! server reaches with it is the maximum: it copies bytes between two TLS connections, as it does for a real node.

use std::{path::PathBuf, sync::Arc};

use anyhow::Context as _;
use clap::Args;
use rustls::{
    ServerConfig,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

/// The size of a chunk: the capacity of a pipe on Linux.
pub(super) const CHUNK: usize = 64 * 1024;
const SWITCHING_PROTOCOLS: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
    Sec-WebSocket-Protocol: v4.channel.k8s.io\r\n\r\n";

#[derive(Debug, Args)]
pub(crate) struct BareKubelet {
    #[arg(long)]
    port: u16,
    #[arg(long)]
    certificate: PathBuf,
    #[arg(long)]
    key: PathBuf,
}

impl BareKubelet {
    /// Serves connections until the process is killed.
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        let chain = CertificateDer::pem_file_iter(&self.certificate)?.collect::<Result<_, _>>()?;
        let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, PrivateKeyDer::from_pem_file(&self.key)?)?;
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind(("127.0.0.1", self.port)).await?;
        let mut connections = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await?;
            let acceptor = acceptor.clone();
            // Errors are clients that disconnected.
            connections.spawn(async move { drop(serve(acceptor, stream).await) });
            while connections.try_join_next().is_some() {}
        }
    }
}

async fn serve(acceptor: TlsAcceptor, stream: TcpStream) -> anyhow::Result<()> {
    stream.set_nodelay(true)?;
    let mut stream = acceptor.accept(stream).await?;
    let head = read_head(&mut stream).await?;
    let path = head.split(' ').nth(1).context("no path")?;
    let query = path.split_once('?').map_or("", |(_, query)| query);
    let command: Vec<&str> = query.split('&').filter_map(|pair| pair.strip_prefix("command=")).collect();
    stream.write_all(SWITCHING_PROTOCOLS.as_bytes()).await?;
    match command.as_slice() {
        ["head", "-c", count, ..] => send_zeros(&mut stream, count.parse()?).await?,
        ["echo", ..] => stream.write_all(b"x\n").await?,
        _ => {
            let mut chunk = vec![0; CHUNK];
            loop {
                let length = stream.read(&mut chunk).await?;
                if length == 0 {
                    break;
                }
                stream.write_all(&chunk[..length]).await?;
                stream.flush().await?;
            }
        }
    }
    stream.shutdown().await?;
    Ok(())
}

async fn read_head(stream: &mut TlsStream<TcpStream>) -> anyhow::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        anyhow::ensure!(stream.read_buf(&mut head).await? > 0, "the connection ended in the request head");
    }
    Ok(String::from_utf8(head)?)
}

async fn send_zeros(stream: &mut TlsStream<TcpStream>, mut left: usize) -> anyhow::Result<()> {
    let chunk = vec![0; CHUNK];
    while left > 0 {
        let length = left.min(CHUNK);
        stream.write_all(&chunk[..length]).await?;
        left -= length;
    }
    stream.flush().await?;
    Ok(())
}
