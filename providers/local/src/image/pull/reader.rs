//! A reader that ends when the pull is cancelled.

use std::io::{self, Read};

use tokio_util::sync::CancellationToken;

use crate::image::{Error, Kind};

/// Reads from a source until the pull is cancelled: the thread that unpacks a layer cannot be.
pub(super) struct CancellableReader<R> {
    source: R,
    cancelled: CancellationToken,
}

impl<R: Read> CancellableReader<R> {
    pub(super) fn new(source: R, cancelled: CancellationToken) -> Self {
        Self { source, cancelled }
    }
}

impl<R: Read> Read for CancellableReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.cancelled.is_cancelled() {
            return Err(Error::new(Kind::Unavailable, "cancelled").into());
        }
        self.source.read(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cancelled_source_is_never_taken_for_a_complete_one() {
        let token = CancellationToken::new();
        let mut reader = CancellableReader::new(&b"abc"[..], token.clone());
        let mut all = [0; 2];
        reader.read_exact(&mut all).unwrap();
        token.cancel();
        let error = reader.read_to_end(&mut Vec::new()).unwrap_err();
        assert_eq!(Error::io("read", error).kind(), Kind::Unavailable);
    }
}
