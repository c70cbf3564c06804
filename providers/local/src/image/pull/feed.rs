//! A blocking reader of a download.

use std::io::{self, Read};

use bytes::{Buf as _, Bytes};
use tokio::sync::mpsc;

use crate::image::{Error, Kind};

/// A message from the download task.
pub(super) enum Part {
    Bytes(Bytes),
    /// The download is complete.
    End,
    /// The download failed.
    Broken(Error),
}

/// The reader.
pub(super) struct Feed {
    parts: mpsc::Receiver<Part>,
    current: Bytes,
    ended: bool,
}

impl Feed {
    pub(super) fn new(parts: mpsc::Receiver<Part>) -> Self {
        Self { parts, current: Bytes::new(), ended: false }
    }
}

impl Read for Feed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() && !self.ended {
            match self.parts.blocking_recv() {
                Some(Part::Bytes(bytes)) => self.current = bytes,
                Some(Part::End) => self.ended = true,
                Some(Part::Broken(error)) => return Err(error.into()),
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
        sender.blocking_send(Part::Bytes(Bytes::from_static(b"abc"))).unwrap();
        drop(sender);
        let mut all = Vec::new();
        let error = Feed::new(receiver).read_to_end(&mut all).unwrap_err();
        assert_eq!(Error::io("read", error).kind(), Kind::Unavailable);

        let (sender, receiver) = mpsc::channel(4);
        sender.blocking_send(Part::Bytes(Bytes::from_static(b"abc"))).unwrap();
        sender.blocking_send(Part::End).unwrap();
        let mut all = Vec::new();
        Feed::new(receiver).read_to_end(&mut all).unwrap();
        assert_eq!(all, b"abc");
    }
}
