//! A blocking reader of a download.

use std::io::{self, Read};

use bytes::{Buf as _, Bytes};
use tokio::sync::mpsc;

use crate::image::{Error, Kind};

/// A message from the download task.
pub(super) enum Chunk {
    Bytes(Bytes),
    /// The download is complete.
    End,
    /// The download failed.
    Failed(Error),
}

/// The reader.
pub(super) struct DownloadReader {
    parts: mpsc::Receiver<Chunk>,
    current: Bytes,
    ended: bool,
}

impl DownloadReader {
    pub(super) fn new(parts: mpsc::Receiver<Chunk>) -> Self {
        Self { parts, current: Bytes::new(), ended: false }
    }
}

impl Read for DownloadReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() && !self.ended {
            match self.parts.blocking_recv() {
                Some(Chunk::Bytes(bytes)) => self.current = bytes,
                Some(Chunk::End) => self.ended = true,
                Some(Chunk::Failed(error)) => return Err(error.into()),
                // The download task is gone, because the pull was cancelled.
                None => return Err(Error::new(Kind::Unavailable, "cancelled").into()),
            }
        }
        let count = self.current.len().min(buffer.len());
        self.current.copy_to_slice(&mut buffer[..count]);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_incomplete_download_is_never_taken_for_a_complete_one() {
        let (sender, receiver) = mpsc::channel(4);
        sender.blocking_send(Chunk::Bytes(Bytes::from_static(b"abc"))).unwrap();
        drop(sender);
        let mut all = Vec::new();
        let error = DownloadReader::new(receiver).read_to_end(&mut all).unwrap_err();
        assert_eq!(Error::io("read", error).kind(), Kind::Unavailable);

        let (sender, receiver) = mpsc::channel(4);
        sender.blocking_send(Chunk::Bytes(Bytes::from_static(b"abc"))).unwrap();
        sender.blocking_send(Chunk::End).unwrap();
        let mut all = Vec::new();
        DownloadReader::new(receiver).read_to_end(&mut all).unwrap();
        assert_eq!(all, b"abc");
    }
}
