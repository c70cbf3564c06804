//! Throughput of vk-spdy over a local connection, compared with the connection without it.

use bytes::Bytes;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::Instant,
};
use vk_spdy::{Config, Connection, Headers};

use super::{bare_kubelet::CHUNK, measurement::rate};

/// Two ends of a connection.
async fn pair() -> anyhow::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let (client, accepted) = tokio::try_join!(TcpStream::connect(listener.local_addr()?), listener.accept())?;
    let (server, _) = accepted;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    Ok((client, server))
}

/// Megabytes per second without a protocol.
pub(super) async fn plain(megabytes: u32) -> anyhow::Result<f64> {
    let (mut client, mut server) = pair().await?;
    let mut sender = JoinSet::new();
    let begun = Instant::now();
    sender.spawn(async move {
        let piece = vec![0; CHUNK];
        let mut left = megabytes as usize * 1_000_000;
        while left > 0 {
            let length = left.min(CHUNK);
            server.write_all(&piece[..length]).await?;
            left -= length;
        }
        anyhow::Ok(())
    });
    let (mut piece, mut all) = (vec![0; CHUNK], 0);
    loop {
        match client.read(&mut piece).await? {
            0 => break,
            length => all += length,
        }
    }
    let took = begun.elapsed();
    while let Some(sent) = sender.join_next().await {
        sent??;
    }
    rate(megabytes, all, took)
}

/// Megabytes per second through one stream.
pub(super) async fn spdy(megabytes: u32) -> anyhow::Result<f64> {
    let (client, server) = pair().await?;
    let (client, client_driver) = Connection::client(client, Config::default());
    let (server, server_driver) = Connection::server(server, Config::default());
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { client_driver.await.map_err(anyhow::Error::from) });
    tasks.spawn(async move { server_driver.await.map_err(anyhow::Error::from) });
    let begun = Instant::now();
    tasks.spawn(async move {
        let Some(incoming) = server.accept().await? else { anyhow::bail!("no stream was opened") };
        let mut stream = incoming.accept();
        let piece = Bytes::from(vec![0; CHUNK]);
        let mut left = megabytes as usize * 1_000_000;
        while left > 0 {
            let length = left.min(CHUNK);
            stream.send(piece.slice(..length)).await?;
            left -= length;
        }
        stream.finish()?;
        stream.closed().await;
        Ok(())
    });
    let mut stream = client.open(&Headers::new().with("streamtype", "stdout")).await?;
    let mut all = 0;
    while let Some(piece) = stream.chunk().await? {
        all += piece.len();
    }
    let took = begun.elapsed();
    rate(megabytes, all, took)
}

#[cfg(test)]
mod tests {
    #[tokio::test(flavor = "multi_thread")]
    async fn all_bytes_arrive_with_and_without_the_protocol() {
        assert!(super::plain(3).await.unwrap() > 0.0);
        assert!(super::spdy(3).await.unwrap() > 0.0);
    }
}
