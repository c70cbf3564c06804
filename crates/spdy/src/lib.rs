//! SPDY/3.1, server and client, over any byte stream. API servers, kubectl and container runtimes use it with kubelets for `exec`,
//! `attach` and `port-forward`.
//!
//! The peer is nearly always Go's `moby/spdystream`, and where that differs from the specification this crate follows it:
//!
//! - There is **no flow control**: WINDOW_UPDATE and SETTINGS are ignored. A slow reader blocks the peer because the connection is not
//!   read any further, which blocks the other streams too. Nothing is dropped for being too much: a [`Reader`] has to be read or
//!   dropped.
//! - A stream is used only after SYN_REPLY: Go drops data that arrives earlier. So [`Connection::open`] waits for the reply, and an
//!   [`Incoming`] must be answered at once.
//! - GOAWAY is sent last, because Go reads nothing after it: [`Connection::close`] ensures that.
//!
//! Everything that is buffered is bounded in bytes and in number: received and sent data, streams, headers (also inflated) and
//! replies. See [`Config`] and [`FrameLimits`].
//!
//! A connection has two parts. [`Connection`] accepts and opens streams; the [`Driver`] is a future that moves the bytes, and should
//! run in its own task. A [`Stream`] is read and written like a socket, can be closed in each direction, and can be split.
//!
//! ```
//! use tokio::{io::{AsyncReadExt, AsyncWriteExt}, task::JoinSet};
//! use vk_spdy::{Config, Connection, Headers};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // A socket after `101 Switching Protocols`, or any other byte stream.
//! let (near, far) = tokio::io::duplex(1024);
//! let (server, server_driver) = Connection::server(near, Config::default());
//! let (client, client_driver) = Connection::client(far, Config::default());
//! let mut drivers = JoinSet::new();
//! drivers.spawn(server_driver);
//! drivers.spawn(client_driver);
//!
//! let serve = async {
//!     while let Some(incoming) = server.accept().await? {
//!         let mut stream = incoming.accept();
//!         assert_eq!(stream.headers().get("streamType"), Some("stdin"));
//!         let mut said = String::new();
//!         stream.read_to_string(&mut said).await?; // Until the client's FIN.
//!         stream.write_all(said.to_uppercase().as_bytes()).await?;
//!         stream.finish()?;
//!         stream.closed().await;
//!     }
//!     Ok::<_, Box<dyn std::error::Error>>(())
//! };
//! let call = async {
//!     let mut stream = client.open(&Headers::new().with("streamType", "stdin")).await?;
//!     stream.write_all(b"hello").await?;
//!     stream.finish()?;
//!     let mut answer = String::new();
//!     stream.read_to_string(&mut answer).await?;
//!     drop(stream);
//!     client.close().await?; // Everything that was written arrives.
//!     Ok::<_, Box<dyn std::error::Error>>(answer)
//! };
//! let (served, answer) = tokio::join!(serve, call);
//! served?;
//! assert_eq!(answer?, "HELLO");
//! # Ok(()) }
//! ```
//!
//! The [`codec`] encodes and decodes frames without I/O.

pub mod codec;
mod config;
mod connection;
mod driver;
mod error;
mod state;
mod stream;

pub use self::{
    codec::{FrameLimits, Headers, ResetStatus, StreamId},
    config::{Config, KeepAlive},
    connection::{Connection, Incoming},
    driver::Driver,
    error::Error,
    stream::{Reader, Stream, Writer},
};
