//! Test support: two sides of a connection over a pipe.

use std::{future::Future, time::Duration};

use tokio::{io::DuplexStream, task::JoinSet};
use vk_spdy::{Config, Connection, Error, Headers, Stream};

/// Fails if a future takes too long.
pub(crate) async fn soon<Answer>(future: impl Future<Output = Answer>) -> Answer {
    tokio::time::timeout(Duration::from_secs(30), future).await.expect("in time")
}

/// A connected server and client, with their drivers.
pub(crate) struct ConnectedPair {
    pub(crate) server: Connection,
    pub(crate) client: Connection,
    pub(crate) drivers: JoinSet<Result<(), Error>>,
}

pub(crate) fn pair() -> ConnectedPair {
    pair_with(64 << 10, Config::default(), Config::default())
}

pub(crate) fn pair_with(pipe: usize, server: Config, client: Config) -> ConnectedPair {
    let (near, far) = tokio::io::duplex(pipe);
    let (server, server_driver) = Connection::server(near, server);
    let (client, client_driver) = Connection::client(far, client);
    let mut drivers = JoinSet::new();
    drivers.spawn(server_driver);
    drivers.spawn(client_driver);
    ConnectedPair { server, client, drivers }
}

impl ConnectedPair {
    /// A stream that the client opened and the server accepted.
    pub(crate) async fn stream(&self, name: &str) -> (Stream, Stream) {
        let headers = Headers::new().with("name", name);
        let accept = async { self.server.accept().await.expect("a connection").expect("a stream").accept() };
        let (client, server) = soon(async { tokio::join!(self.client.open(&headers), accept) }).await;
        (client.expect("an accepted stream"), server)
    }
}

/// A server whose peer is the test.
pub(crate) fn server(config: Config) -> (Connection, DuplexStream, JoinSet<Result<(), Error>>) {
    let (near, far) = tokio::io::duplex(1 << 20);
    let (server, driver) = Connection::server(near, config);
    let mut drivers = JoinSet::new();
    drivers.spawn(driver);
    (server, far, drivers)
}

/// Bytes in which lost or duplicated ones are visible; `dev/spdy-peer` uses the same.
pub(crate) fn pattern(length: usize) -> Vec<u8> {
    let length = u32::try_from(length).expect("not that long");
    (0..length).map(|index| index.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect()
}
