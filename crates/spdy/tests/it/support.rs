//! Two sides of a connection over a pipe.

use std::{future::Future, time::Duration};

use tokio::{io::DuplexStream, task::JoinSet};
use vk_spdy::{Config, Connection, Error, Headers, Stream};

/// Nothing here takes so long unless it hangs.
pub(crate) async fn soon<Answer>(future: impl Future<Output = Answer>) -> Answer {
    tokio::time::timeout(Duration::from_secs(30), future).await.expect("in time")
}

/// A server and a client that talk to each other, with their drivers.
pub(crate) struct Pair {
    pub(crate) server: Connection,
    pub(crate) client: Connection,
    pub(crate) drivers: JoinSet<Result<(), Error>>,
}

pub(crate) fn pair() -> Pair {
    pair_with(64 << 10, Config::default(), Config::default())
}

pub(crate) fn pair_with(pipe: usize, server: Config, client: Config) -> Pair {
    let (near, far) = tokio::io::duplex(pipe);
    let (server, server_driver) = Connection::server(near, server);
    let (client, client_driver) = Connection::client(far, client);
    let mut drivers = JoinSet::new();
    drivers.spawn(server_driver);
    drivers.spawn(client_driver);
    Pair { server, client, drivers }
}

impl Pair {
    /// A stream that the client opened and the server accepted.
    pub(crate) async fn stream(&self, name: &str) -> (Stream, Stream) {
        let headers = Headers::new().with("name", name);
        let accept = async { self.server.accept().await.expect("a connection").expect("a stream").accept() };
        let (client, server) = soon(async { tokio::join!(self.client.open(&headers), accept) }).await;
        (client.expect("an accepted stream"), server)
    }
}

/// A server whose peer is the test itself.
pub(crate) fn server(config: Config) -> (Connection, DuplexStream, JoinSet<Result<(), Error>>) {
    let (near, far) = tokio::io::duplex(1 << 20);
    let (server, driver) = Connection::server(near, config);
    let mut drivers = JoinSet::new();
    drivers.spawn(driver);
    (server, far, drivers)
}

/// Bytes in which a lost or doubled one shows; `dev/spdy-peer` has the same.
pub(crate) fn pattern(length: usize) -> Vec<u8> {
    let length = u32::try_from(length).expect("not that long");
    (0..length).map(|index| index.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect()
}
