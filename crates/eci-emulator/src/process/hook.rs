//! Hooks, and the requests that hooks and probes have in common.

use std::{sync::Arc, time::Duration};

use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
};

use super::{Handle, command::processes};
use crate::emulator::Emulator;

const LIMIT: Duration = Duration::from_secs(30);

/// Runs the hook before the end.
pub(super) async fn pre_stop(emulator: &Arc<Emulator>, handle: &Handle, spec: &Value) -> Result<(), String> {
    hook(emulator, handle, spec, "PreStop").await
}

/// Runs the hook after the start.
pub(super) async fn post_start(
    emulator: &Arc<Emulator>,
    handle: &Handle,
    spec: &Value,
) -> Result<(), String> {
    hook(emulator, handle, spec, "PostStart").await
}

async fn hook(emulator: &Arc<Emulator>, handle: &Handle, spec: &Value, which: &str) -> Result<(), String> {
    let field = |name: &str| &spec[format!("Lifecycle{which}Handler{name}")];
    if let Some(command) = words(field("Exec")) {
        return processes(emulator).run_in(handle, &command, LIMIT).await;
    }
    let text = |name: &str| field(name).as_str().unwrap_or_default().to_owned();
    if let Some(port) = port(field("HttpGetPort")) {
        return http_get(&host(&text("HttpGetHost")), port, &text("HttpGetPath"), LIMIT).await;
    }
    if let Some(port) = port(field("TcpSocketPort")) {
        return connect(&host(&text("TcpSocketHost")), port, LIMIT).await.map(drop);
    }
    Ok(())
}

/// The words of a command, if there is one.
pub(super) fn words(list: &Value) -> Option<Vec<String>> {
    let words = list.as_array()?.iter().filter_map(Value::as_str).map(str::to_owned).collect::<Vec<_>>();
    (!words.is_empty()).then_some(words)
}

pub(super) fn port(value: &Value) -> Option<u16> {
    value.as_i64().and_then(|port| u16::try_from(port).ok())
}

/// Containers are in the network of the host.
fn host(name: &str) -> String {
    if name.is_empty() { "127.0.0.1".to_owned() } else { name.to_owned() }
}

/// Opens a connection.
pub(super) async fn connect(host: &str, port: u16, limit: Duration) -> Result<TcpStream, String> {
    match tokio::time::timeout(limit, TcpStream::connect((host, port))).await {
        Ok(connected) => connected.map_err(|error| format!("dial tcp {host}:{port}: {error}")),
        Err(_) => Err(format!("dial tcp {host}:{port}: timed out after {limit:?}")),
    }
}

/// Asks for a page. Statuses from 200 to 399 are success.
pub(super) async fn http_get(host: &str, port: u16, path: &str, limit: Duration) -> Result<(), String> {
    let asked = async {
        let mut stream = BufReader::new(connect(host, port, limit).await?);
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.map_err(|error| error.to_string())?;
        let mut line = String::new();
        stream.read_line(&mut line).await.map_err(|error| error.to_string())?;
        let status = line.split(' ').nth(1).and_then(|status| status.parse::<u16>().ok());
        match status {
            Some(200..=399) => Ok(()),
            Some(status) => Err(format!("HTTP probe failed with statuscode: {status}")),
            None => Err("no HTTP server".to_owned()),
        }
    };
    tokio::time::timeout(limit, asked).await.unwrap_or_else(|_| Err(format!("timed out after {limit:?}")))
}
