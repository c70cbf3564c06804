//! Bytes from a network for a thread that reads.

use std::io::{self, Read};

use bytes::{Buf as _, Bytes};
use tokio::sync::mpsc;

use crate::image::{Error, Kind};

/// What comes.
pub(super) enum Part {
    Bytes(Bytes),
    /// It is whole.
    End,
    /// It is not.
    Broken(Error),
}

/// The reading end.
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
                // Who fed us is gone, and with it whoever waits for the layer.
                None => return Err(Error::new(Kind::Unavailable, "given up").into()),
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
    fn what_is_not_whole_never_looks_as_if_it_were() {
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
