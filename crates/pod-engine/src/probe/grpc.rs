//! Probes by gRPC's health checking protocol, without TLS. Two messages of one field each are written and read by hand.

use std::{collections::HashMap, time::Duration};

use bytes::{BufMut as _, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Version, header::CONTENT_TYPE};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2;
use hyper_util::rt::TokioIo;
use tokio::time::{Instant, sleep, timeout_at};

use super::{
    dial::{self, Beside, Driver, First, Watched, beside, drive, go_duration},
    prober::Outcome,
};

/// How long to wait before a connection that could not be made is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// As much of an answer as is read.
const MOST_ANSWER: usize = 64 << 10;

/// Asks a service whether it serves; the empty name is the server as a whole.
pub(super) async fn probe(host: &str, port: u16, service: &str, limit: Duration) -> Outcome {
    let address = dial::authority(host, port);
    let deadline = Instant::now() + limit;
    let within = go_duration(limit);
    let seen = parking_lot::Mutex::new(First::default());
    let answered = timeout_at(deadline, async {
        loop {
            if let Ok(stream) = dial::connect(host, port).await {
                let (stream, first) = Watched::new(stream);
                *seen.lock() = first.clone();
                let answer = check(stream, &address, service, limit).await;
                // Who does not speak HTTP/2 yet is waited for, as for one who does not listen yet.
                if first.is_http2() {
                    return answer;
                }
            }
            sleep(AGAIN).await;
        }
    })
    .await;
    let failed = match answered {
        Ok(Ok(1)) => return Outcome::Success,
        Ok(Ok(status)) => format!("service unhealthy (responded with \"{}\")", named(status)),
        Ok(Err(Failed { code: 12, message })) => format!(
            "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): {message}"
        ),
        Ok(Err(Failed { code: 4, .. })) => {
            format!("timeout: health rpc did not complete within {within}")
        }
        Ok(Err(Failed { code, message })) => {
            format!("error: health rpc probe failed: rpc error: code = {} desc = {message}", code_name(code))
        }
        Err(_) if seen.lock().is_http2() => format!("timeout: health rpc did not complete within {within}"),
        Err(_) => format!(
            "timeout: failed to connect service {address:?} within {within}: context deadline exceeded"
        ),
    };
    Outcome::Failure(failed)
}

/// A call that failed, as gRPC tells it.
struct Failed {
    code: u32,
    message: String,
}

impl Failed {
    fn unavailable(error: &hyper::Error) -> Self {
        Self { code: 14, message: format!("connection error: {error}") }
    }
}

async fn check(stream: Watched, address: &str, service: &str, limit: Duration) -> Result<u64, Failed> {
    let (executor, more) = Beside::new();
    let (mut sender, connection) = http2::handshake(executor, TokioIo::new(stream))
        .await
        .map_err(|error| Failed::unavailable(&error))?;
    let connection = async move {
        // What broke is told to whoever waits for the answer.
        let _broken = connection.await;
    };
    let mut driver: Driver = Some(Box::pin(drive(connection, more)));
    let request =
        request(address, service, limit).map_err(|error| Failed { code: 13, message: error.to_string() })?;
    beside(&mut driver, async {
        let response = sender.send_request(request).await.map_err(|error| Failed::unavailable(&error))?;
        let (head, mut body) = response.into_parts();
        if head.status != StatusCode::OK {
            return Err(not_grpc(head.status));
        }
        ended(&head.headers).unwrap_or(Ok(()))?;
        let mut data = BytesMut::new();
        while let Some(frame) = body.frame().await {
            match frame.map_err(|error| Failed::unavailable(&error))?.into_data() {
                Ok(more) if data.len() + more.len() <= MOST_ANSWER => data.extend_from_slice(&more),
                Ok(_) => return Err(Failed { code: 8, message: "the answer is too large".to_owned() }),
                Err(frame) => {
                    if let Ok(trailers) = frame.into_trailers() {
                        ended(&trailers).unwrap_or(Ok(()))?;
                    }
                }
            }
        }
        status(&data).ok_or_else(|| Failed { code: 13, message: "the answer cannot be read".to_owned() })
    })
    .await
}

fn request(address: &str, service: &str, limit: Duration) -> Result<Request<Full<Bytes>>, http::Error> {
    let agent = HeaderValue::from_static("kube-probe/1.36");
    Request::builder()
        .version(Version::HTTP_2)
        .method(Method::POST)
        .uri(format!("http://{address}/grpc.health.v1.Health/Check"))
        .header(CONTENT_TYPE, "application/grpc")
        .header(http::header::USER_AGENT, agent)
        .header(http::header::TE, "trailers")
        .header("grpc-timeout", format!("{}m", limit.as_millis().min(99_999_999)))
        .body(Full::new(message(service)))
}

/// `HealthCheckRequest { string service = 1; }` with gRPC's prefix.
fn message(service: &str) -> Bytes {
    let mut text = BytesMut::new();
    if !service.is_empty() {
        text.put_u8(0x0a);
        let mut length = service.len();
        while length >= 0x80 {
            text.put_u8(u8::try_from(length & 0x7f).unwrap_or_default() | 0x80);
            length >>= 7;
        }
        text.put_u8(u8::try_from(length).unwrap_or_default());
        text.put_slice(service.as_bytes());
    }
    let mut framed = BytesMut::with_capacity(text.len() + 5);
    framed.put_u8(0);
    framed.put_u32(u32::try_from(text.len()).unwrap_or(u32::MAX));
    framed.put_slice(&text);
    framed.freeze()
}

/// The status in `HealthCheckResponse { ServingStatus status = 1; }` with gRPC's prefix; `None` when it is not one.
fn status(framed: &[u8]) -> Option<u64> {
    let (prefix, text) = framed.split_at_checked(5)?;
    let length = u32::from_be_bytes(prefix[1..].try_into().ok()?);
    let mut text = text.get(..usize::try_from(length).ok()?).filter(|_| prefix[0] == 0)?;
    let mut status = 0;
    while !text.is_empty() {
        let tag = varint(&mut text)?;
        match tag & 7 {
            0 => {
                let value = varint(&mut text)?;
                if tag >> 3 == 1 {
                    status = value;
                }
            }
            1 => text = text.get(8..)?,
            2 => {
                let length = varint(&mut text)?;
                text = text.get(usize::try_from(length).ok()?..)?;
            }
            5 => text = text.get(4..)?,
            _ => return None,
        }
    }
    Some(status)
}

fn varint(text: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = text.split_first()?;
        *text = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// What headers or trailers say about the end of the call; `None` when nothing.
fn ended(headers: &HeaderMap) -> Option<Result<(), Failed>> {
    let code = headers.get("grpc-status")?.to_str().ok().and_then(|code| code.parse().ok()).unwrap_or(2);
    if code == 0 {
        return Some(Ok(()));
    }
    let message = headers.get("grpc-message").map(|text| unescaped(text.as_bytes())).unwrap_or_default();
    Some(Err(Failed { code, message }))
}

/// gRPC escapes its messages as URLs are.
fn unescaped(text: &[u8]) -> String {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        let escaped = (byte == b'%').then(|| after.get(..2)).flatten();
        let value = escaped
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        plain.push(value.unwrap_or(byte));
        rest = if value.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&plain).into_owned()
}

/// A server that answers in HTTP/2 and not in gRPC.
fn not_grpc(status: StatusCode) -> Failed {
    let codes = HashMap::from([
        (400, 13),
        (401, 16),
        (403, 7),
        (404, 12),
        (429, 14),
        (502, 14),
        (503, 14),
        (504, 14),
    ]);
    let reason = status.canonical_reason().unwrap_or_default();
    Failed {
        code: codes.get(&status.as_u16()).copied().unwrap_or(2),
        message: format!("unexpected HTTP status code received from server: {} ({reason})", status.as_u16()),
    }
}

fn named(status: u64) -> String {
    match status {
        0 => "UNKNOWN".to_owned(),
        1 => "SERVING".to_owned(),
        2 => "NOT_SERVING".to_owned(),
        3 => "SERVICE_UNKNOWN".to_owned(),
        other => other.to_string(),
    }
}

fn code_name(code: u32) -> String {
    let names = [
        "OK",
        "Canceled",
        "Unknown",
        "InvalidArgument",
        "DeadlineExceeded",
        "NotFound",
        "AlreadyExists",
        "PermissionDenied",
        "ResourceExhausted",
        "FailedPrecondition",
        "Aborted",
        "OutOfRange",
        "Unimplemented",
        "Internal",
        "Unavailable",
        "DataLoss",
        "Unauthenticated",
    ];
    let name = usize::try_from(code).ok().and_then(|code| names.get(code));
    name.map_or_else(|| format!("Code({code})"), |name| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_as_protocol_buffers_write_them() {
        assert_eq!(&message("")[..], [0, 0, 0, 0, 0]);
        assert_eq!(&message("ab")[..], [0, 0, 0, 0, 4, 0x0a, 2, b'a', b'b']);
        let long = message(&"x".repeat(200));
        assert_eq!(&long[..8], [0, 0, 0, 0, 203, 0x0a, 0xc8, 1]);
    }

    #[test]
    fn a_status_is_read_among_fields_that_nobody_knows_and_nothing_else_is() {
        assert_eq!(status(&[0, 0, 0, 0, 2, 8, 1]), Some(1));
        assert_eq!(status(&[0, 0, 0, 0, 0]), Some(0), "an empty message is UNKNOWN");
        assert_eq!(status(&[0, 0, 0, 0, 6, 0x12, 2, 9, 9, 8, 2]), Some(2));
        for broken in [
            &[][..],
            &[0, 0, 0, 0, 9, 8, 1],
            &[1, 0, 0, 0, 2, 8, 1],
            &[0, 0, 0, 0, 1, 8],
            &[0, 0, 0, 0, 2, 0x12, 9],
        ] {
            assert_eq!(status(broken), None, "{broken:?}");
        }
    }

    #[test]
    fn messages_of_errors_are_unescaped() {
        assert_eq!(unescaped(b"a%20b%zz%"), "a b%zz%");
    }
}
