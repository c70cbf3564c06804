//! `/run`: runs a command in a container and returns its output.

use std::{collections::HashMap, sync::Arc};

use axum::{
    extract::{Extension, Path},
    response::Response,
};
use http::{StatusCode, Uri};
use tokio::io::AsyncReadExt as _;
use vk_provider::ability::{BoxRead, ExecOptions, Session, Started};

use super::{PLAIN, QueryParams, text};
use crate::{Api, http_error::HttpError};

/// Limit of the output, which is held in memory until the command has ended.
const MAX_OUTPUT: u64 = 16 << 20;

pub(super) async fn run(
    Extension(api): Extension<Arc<Api>>,
    Path(path): Path<HashMap<String, String>>,
    uri: Uri,
) -> Result<Response, HttpError> {
    let part = |name: &str| path.get(name).map_or("", String::as_str);
    let uid = path.get("uid").map(String::as_str);
    let exec = api.provider.exec().ok_or_else(|| HttpError::not_implemented("commands in containers"))?;
    let container = api.container(part("namespace"), part("pod"), uid, part("container"))?;
    let query = QueryParams::from_uri(&uri);
    // One parameter, split at spaces, as in the kubelet.
    let command: Vec<String> = query.get("cmd").unwrap_or_default().split(' ').map(str::to_owned).collect();
    if command.first().is_none_or(String::is_empty) {
        return Err(HttpError::bad_request("no command: use ?cmd=..."));
    }
    let _open = api.begin_session("run")?;
    let options = ExecOptions { stdin: false, stdout: true, stderr: true, tty: false };
    let session = match exec.start(&container, &command, &options).await? {
        Started::Session(session) => session,
        Started::Url(url) => vk_streaming::client::exec(&url, &options, &api.streaming).await?,
    };
    let (output, code) = collect(session).await?;
    if code != 0 {
        let output = String::from_utf8_lossy(&output);
        let message = format!("command '{}' exited with {code}: {output}", command.join(" "));
        return Err(HttpError::new(StatusCode::INTERNAL_SERVER_ERROR, message));
    }
    Ok(text(PLAIN, output))
}

/// Waits for the end. Returns stdout followed by stderr, and the exit code.
async fn collect(session: Session) -> Result<(Vec<u8>, i32), HttpError> {
    let Session { stdin, stdout, stderr, resize, exit } = session;
    drop((stdin, resize));
    let (exit, mut output, errors) = tokio::join!(exit, read(stdout), read(stderr));
    output.extend(errors);
    Ok((output, exit?.code))
}

/// Reads to the end. Output over the limit is read and dropped, so that the command can continue.
async fn read(stream: Option<BoxRead>) -> Vec<u8> {
    let mut output = Vec::new();
    let Some(mut stream) = stream else { return output };
    if (&mut stream).take(MAX_OUTPUT).read_to_end(&mut output).await.is_ok() {
        let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
    }
    output
}
