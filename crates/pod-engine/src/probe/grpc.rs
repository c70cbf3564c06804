//! Probes with gRPC's health checking protocol, without TLS.
//!
//! Not `tonic-health`: the outcome needs the error texts of grpc-go and the first bytes of the peer, and the two messages have one field each.

use std::{collections::HashMap, time::Duration};

use bytes::{BufMut as _, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Version, header::CONTENT_TYPE};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2;
use hyper_util::rt::TokioIo;
use tokio::time::{Instant, sleep, timeout_at};

use super::{
    connection::{self, ConnectionExecutor, Driver, FirstBytes, RecordingStream, drive, drive_until},
    prober::ProbeOutcome,
};
use crate::text::go_duration;

/// The delay before another connection attempt.
const RECONNECT: Duration = Duration::from_secs(1);

/// Maximum size of a response, in bytes.
const MAX_RESPONSE: usize = 64 << 10;

/// Checks the health of a service; the empty name is the whole server.
pub(super) async fn probe(host: &str, port: u16, service: &str, timeout: Duration) -> ProbeOutcome {
    let address = connection::authority(host, port);
    let deadline = Instant::now() + timeout;
    let within = go_duration(timeout);
    let seen = parking_lot::Mutex::new(FirstBytes::default());
    let answered = timeout_at(deadline, async {
        loop {
            if let Ok(stream) = connection::connect(host, port).await {
                let (stream, first) = RecordingStream::new(stream);
                *seen.lock() = first.clone();
                let answer = check(stream, &address, service, timeout).await;
                // A server that does not speak HTTP/2 yet is retried, like one that does not listen yet.
                if first.is_http2() {
                    return answer;
                }
            }
            sleep(RECONNECT).await;
        }
    })
    .await;
    let failed = match answered {
        Ok(Ok(1)) => return ProbeOutcome::Success,
        Ok(Ok(status)) => format!("service unhealthy (responded with \"{}\")", status_name(status)),
        Ok(Err(RpcError { code: 12, message })) => format!(
            "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): {message}"
        ),
        Ok(Err(RpcError { code: 4, .. })) => {
            format!("timeout: health rpc did not complete within {within}")
        }
        Ok(Err(RpcError { code, message })) => {
            format!("error: health rpc probe failed: rpc error: code = {} desc = {message}", code_name(code))
        }
        Err(_) if seen.lock().is_http2() => format!("timeout: health rpc did not complete within {within}"),
        Err(_) => format!(
            "timeout: failed to connect service {address:?} within {within}: context deadline exceeded"
        ),
    };
    ProbeOutcome::Failure(failed)
}

/// A failed call, with its gRPC status.
struct RpcError {
    code: u32,
    message: String,
}

impl RpcError {
    fn unavailable(error: &hyper::Error) -> Self {
        Self { code: 14, message: format!("connection error: {error}") }
    }
}

async fn check(
    stream: RecordingStream,
    address: &str,
    service: &str,
    timeout: Duration,
) -> Result<u64, RpcError> {
    let (executor, more) = ConnectionExecutor::new();
    let (mut sender, connection) = http2::handshake(executor, TokioIo::new(stream))
        .await
        .map_err(|error| RpcError::unavailable(&error))?;
    let connection = async move {
        // The error is returned by the request.
        let _broken = connection.await;
    };
    let mut driver: Driver = Some(Box::pin(drive(connection, more)));
    let request = request(address, service, timeout)
        .map_err(|error| RpcError { code: 13, message: error.to_string() })?;
    drive_until(&mut driver, async {
        let response = sender.send_request(request).await.map_err(|error| RpcError::unavailable(&error))?;
        let (head, mut body) = response.into_parts();
        if head.status != StatusCode::OK {
            return Err(not_grpc(head.status));
        }
        grpc_status(&head.headers).unwrap_or(Ok(()))?;
        let mut data = BytesMut::new();
        while let Some(frame) = body.frame().await {
            match frame.map_err(|error| RpcError::unavailable(&error))?.into_data() {
                Ok(more) if data.len() + more.len() <= MAX_RESPONSE => data.extend_from_slice(&more),
                Ok(_) => return Err(RpcError { code: 8, message: "the response is too large".to_owned() }),
                Err(frame) => {
                    if let Ok(trailers) = frame.into_trailers() {
                        grpc_status(&trailers).unwrap_or(Ok(()))?;
                    }
                }
            }
        }
        status(&data).ok_or_else(|| RpcError { code: 13, message: "the response is malformed".to_owned() })
    })
    .await
}

fn request(address: &str, service: &str, timeout: Duration) -> Result<Request<Full<Bytes>>, http::Error> {
    let agent = HeaderValue::from_static("kube-probe/1.36");
    Request::builder()
        .version(Version::HTTP_2)
        .method(Method::POST)
        .uri(format!("http://{address}/grpc.health.v1.Health/Check"))
        .header(CONTENT_TYPE, "application/grpc")
        .header(http::header::USER_AGENT, agent)
        .header(http::header::TE, "trailers")
        .header("grpc-timeout", format!("{}m", timeout.as_millis().min(99_999_999)))
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

/// The status in `HealthCheckResponse { ServingStatus status = 1; }` with gRPC's prefix; `None` if it is malformed.
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

/// The gRPC status in headers or trailers; `None` if there is none.
fn grpc_status(headers: &HeaderMap) -> Option<Result<(), RpcError>> {
    let code = headers.get("grpc-status")?.to_str().ok().and_then(|code| code.parse().ok()).unwrap_or(2);
    if code == 0 {
        return Some(Ok(()));
    }
    let message = headers.get("grpc-message").map(|text| unescaped(text.as_bytes())).unwrap_or_default();
    Some(Err(RpcError { code, message }))
}

/// Removes the percent-encoding of a gRPC message.
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

/// The error for a server that speaks HTTP/2 and not gRPC.
fn not_grpc(status: StatusCode) -> RpcError {
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
    RpcError {
        code: codes.get(&status.as_u16()).copied().unwrap_or(2),
        message: format!("unexpected HTTP status code received from server: {} ({reason})", status.as_u16()),
    }
}

fn status_name(status: u64) -> String {
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
    fn a_status_is_read_among_unknown_fields_and_malformed_messages_are_rejected() {
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
