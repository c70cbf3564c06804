//! Requests.

use std::io;

use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _};

use super::{decode, pairs};

/// Longest line of a request's head: a group's files are in the URL.
const MAX_LINE: u64 = 1 << 20;
const MAX_BODY: usize = 4 << 20;
const MAX_HEADERS: usize = 100;

/// A request, as it came.
#[derive(Clone, Debug, Default)]
pub(crate) struct HttpRequest {
    pub(crate) method: String,
    /// Decoded.
    pub(crate) path: String,
    pub(crate) query: Vec<(String, String)>,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) form: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

// === impl HttpRequest ===

impl HttpRequest {
    /// Reads a request. `None` at the end of the connection.
    pub(crate) async fn read(stream: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Option<Self>> {
        let first = line(stream).await?;
        if first.is_empty() {
            return Ok(None);
        }
        let mut fields = first.trim_end().split(' ');
        let (Some(method), Some(target), Some(_version)) = (fields.next(), fields.next(), fields.next())
        else {
            return Err(malformed("request line"));
        };
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let mut request = Self {
            method: method.to_owned(),
            path: decode(path, false).ok_or_else(|| malformed("path"))?,
            query: pairs(query).ok_or_else(|| malformed("query"))?,
            ..Self::default()
        };
        loop {
            let line = line(stream).await?;
            let Some((name, value)) = line.split_once(':') else { break };
            if request.headers.len() == MAX_HEADERS {
                return Err(malformed("number of headers"));
            }
            request.headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        if request.header("transfer-encoding").is_some() {
            return Err(malformed("transfer encoding: only Content-Length is supported"));
        }
        let length = request.header("content-length").map_or(Ok(0), str::parse);
        let length = length.ok().filter(|length| *length <= MAX_BODY).ok_or_else(|| malformed("length"))?;
        request.body = vec![0; length];
        stream.read_exact(&mut request.body).await?;
        if request.header("content-type").is_some_and(|kind| kind.starts_with("application/x-www-form")) {
            let body = std::str::from_utf8(&request.body).map_err(|_| malformed("form"))?;
            request.form = pairs(body).ok_or_else(|| malformed("form"))?;
        }
        Ok(Some(request))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    /// A parameter of the query or the form.
    pub(crate) fn parameter(&self, name: &str) -> Option<&str> {
        let mut all = self.query.iter().chain(&self.form);
        all.find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn parameters(&self) -> impl Iterator<Item = &(String, String)> {
        self.query.iter().chain(&self.form)
    }
}

async fn line(stream: &mut (impl AsyncBufRead + Unpin)) -> io::Result<String> {
    let mut line = String::new();
    if stream.take(MAX_LINE).read_line(&mut line).await? > 0 && !line.ends_with('\n') {
        return Err(malformed("line"));
    }
    Ok(line)
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("malformed request: {what}"))
}
