//! `/logs/`: a directory of log files, if enabled.

use std::{
    io,
    path::{Component, Path as FilePath, PathBuf},
    sync::Arc,
};

use axum::{
    body::Body,
    extract::{Extension, Path},
    response::{IntoResponse as _, Response},
};
use futures::stream;
use http::StatusCode;
use tokio::io::AsyncReadExt as _;

use super::{PLAIN, text};
use crate::{Api, http_error::HttpError};

const CHUNK: usize = 64 * 1024;

pub(super) async fn get(
    Extension(api): Extension<Arc<Api>>,
    path: Option<Path<String>>,
) -> Result<Response, HttpError> {
    let Some(folder) = &api.debug_handlers.logs else {
        return Err(HttpError::new(StatusCode::METHOD_NOT_ALLOWED, "logs endpoint is disabled.\n"));
    };
    let path = path.map_or_else(String::new, |Path(path)| path);
    let missing = || HttpError::not_found(format!("no file {path:?}\n"));
    let file = resolve(folder, &path).await.ok_or_else(missing)?;
    let metadata = tokio::fs::metadata(&file).await.map_err(|_| missing())?;
    if metadata.is_dir() {
        let names = list_html(&file).await.map_err(|_| missing())?;
        return Ok(text("text/html; charset=utf-8", format!("<pre>\n{names}</pre>\n")));
    }
    if !metadata.is_file() {
        return Err(missing());
    }
    let opened = tokio::fs::File::open(&file).await.map_err(|_| missing())?;
    let chunks = stream::try_unfold(opened, |mut file| async move {
        let mut chunk = bytes::BytesMut::with_capacity(CHUNK);
        let length = file.read_buf(&mut chunk).await?;
        Ok::<_, io::Error>((length > 0).then(|| (chunk.freeze(), file)))
    });
    Ok(text(PLAIN, Body::from_stream(chunks)).into_response())
}

/// Resolves a file below the directory. Neither `..` nor symlinks lead out of it.
async fn resolve(folder: &FilePath, path: &str) -> Option<PathBuf> {
    let path = FilePath::new(path.trim_start_matches('/'));
    if !path.components().all(|part| matches!(part, Component::Normal(_))) {
        return None;
    }
    let root = tokio::fs::canonicalize(folder).await.ok()?;
    let file = tokio::fs::canonicalize(root.join(path)).await.ok()?;
    file.starts_with(&root).then_some(file)
}

async fn list_html(folder: &FilePath) -> io::Result<String> {
    let mut names = Vec::new();
    let mut entries = tokio::fs::read_dir(folder).await?;
    while let Some(entry) = entries.next_entry().await? {
        let end = if entry.file_type().await?.is_dir() { "/" } else { "" };
        names.push(format!("{}{end}", entry.file_name().to_string_lossy()));
    }
    names.sort();
    let escaped = |name: &String| name.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;");
    let line = |name: String| format!("<a href=\"{name}\">{name}</a>\n");
    Ok(names.iter().map(escaped).map(line).collect())
}
