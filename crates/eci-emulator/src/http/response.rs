//! Responses, and how faults deliver them.

use std::{fmt::Write as _, io, time::Duration};

use tokio::io::{AsyncWrite, AsyncWriteExt as _};

/// A response.
#[derive(Clone, Debug)]
pub(crate) struct HttpResponse {
    pub(crate) status: u16,
    pub(crate) content_type: &'static str,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Vec<u8>,
}

/// How a response arrives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    Whole,
    /// After this time.
    Late(Duration),
    /// Not at all: the connection stays, and nothing comes.
    Hang,
    /// Not at all: the connection is closed.
    Reset,
    /// Half of it, then the connection is closed.
    Truncated,
    /// Followed by blanks up to this size.
    Huge(usize),
}

// === impl HttpResponse ===

impl HttpResponse {
    pub(crate) fn json(status: u16, body: &serde_json::Value) -> Self {
        Self {
            status,
            content_type: "application/json;charset=utf-8",
            headers: Vec::new(),
            body: body.to_string().into_bytes(),
        }
    }

    /// Writes it. Says whether the connection can be used again.
    pub(crate) async fn write(
        &self,
        stream: &mut (impl AsyncWrite + Unpin),
        delivery: Delivery,
        keep: bool,
    ) -> io::Result<bool> {
        let mut length = self.body.len();
        match delivery {
            Delivery::Hang => std::future::pending::<()>().await,
            Delivery::Reset => return Ok(false),
            Delivery::Late(delay) => tokio::time::sleep(delay).await,
            Delivery::Huge(size) => length = length.max(size),
            Delivery::Whole | Delivery::Truncated => {}
        }
        let mut head = format!(
            "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {length}\r\n",
            self.status,
            reason(self.status),
            self.content_type
        );
        for (name, value) in &self.headers {
            let _ = write!(head, "{name}: {value}\r\n");
        }
        let keep = keep && delivery != Delivery::Truncated;
        let _ = write!(head, "Connection: {}\r\n\r\n", if keep { "keep-alive" } else { "close" });
        let mut bytes = head.into_bytes();
        match delivery {
            Delivery::Truncated => bytes.extend(&self.body[..self.body.len() / 2]),
            _ => bytes.extend(&self.body),
        }
        stream.write_all(&bytes).await?;
        let blanks = vec![b' '; 64 << 10];
        let mut rest = if delivery == Delivery::Truncated { 0 } else { length - self.body.len() };
        while rest > 0 {
            let part = rest.min(blanks.len());
            stream.write_all(&blanks[..part]).await?;
            rest -= part;
        }
        stream.flush().await?;
        Ok(keep)
    }
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        302 => "Found",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        500 => "Internal Server Error",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        _ => "Status",
    }
}
