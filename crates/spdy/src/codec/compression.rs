//! The zlib streams of header blocks, one for each direction of a connection.

use bytes::{BufMut, BytesMut};
use flate2::{Decompress, FlushDecompress, Status};

use super::dictionary::{DICTIONARY, ID};

/// Writes header blocks as a zlib stream of stored blocks, without compression.
///
/// A compressor would cost every connection a quarter of a megabyte to shorten blocks that are mostly four bytes long (a reply
/// without headers) and rarely more than sixty. Stored blocks are a valid deflate stream.
#[derive(Debug, Default)]
pub(super) struct Deflater {
    begun: bool,
}

/// The maximum length of a stored block.
const STORED: usize = u16::MAX as usize;

impl Deflater {
    /// Appends a header block to the frame at the end of `output`.
    pub(super) fn deflate(&mut self, block: &[u8], output: &mut BytesMut) {
        if !self.begun {
            self.begun = true;
            // Deflate, a window of 32 KiB, a preset dictionary; then the checksum of the dictionary.
            output.put_u16(0x78bb);
            output.put_u32(ID);
        }
        for piece in block.chunks(STORED) {
            store(piece, output);
        }
        // A sync flush ends with an empty block. Go's inflater returns data only when it sees that (or its window is full);
        // otherwise it would look for the next block in this frame and fail.
        store(&[], output);
    }
}

fn store(piece: &[u8], output: &mut BytesMut) {
    let length = u16::try_from(piece.len()).unwrap_or(u16::MAX);
    output.put_u8(0);
    output.put_u16_le(length);
    output.put_u16_le(!length);
    output.put_slice(piece);
}

/// Why a header block could not be inflated. The zlib stream is unusable afterwards.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum InflateError {
    /// Not a deflate stream, another dictionary, or the end of the stream.
    Corrupt,
    /// More data than the limit.
    TooLarge,
}

/// Inflates the peer's header blocks.
#[derive(Debug)]
pub(super) struct Inflater {
    stream: Option<Box<Decompress>>,
}

impl Inflater {
    /// Allocates nothing until the first block.
    pub(super) const fn new() -> Self {
        Self { stream: None }
    }

    /// Inflates another piece of a header block and appends it to `output`, up to a length of `limit`.
    pub(super) fn inflate(
        &mut self,
        mut input: &[u8],
        output: &mut Vec<u8>,
        limit: usize,
    ) -> Result<(), InflateError> {
        let stream = self.stream.get_or_insert_with(|| Box::new(Decompress::new(true)));
        // Not directly into the output: its spare capacity would be zeroed in every call, which is expensive if the peer sends
        // single bytes.
        let mut scratch = [0; 2048];
        loop {
            let before = (stream.total_in(), stream.total_out());
            let result = stream.decompress(input, &mut scratch, FlushDecompress::Sync);
            let read = usize::try_from(stream.total_in() - before.0).map_err(|_| InflateError::Corrupt)?;
            let written =
                usize::try_from(stream.total_out() - before.1).map_err(|_| InflateError::Corrupt)?;
            input = input.get(read..).ok_or(InflateError::Corrupt)?;
            let inflated = scratch.get(..written).ok_or(InflateError::Corrupt)?;
            if output.len() + inflated.len() > limit {
                return Err(InflateError::TooLarge);
            }
            output.extend_from_slice(inflated);
            match result {
                Err(error) if error.needs_dictionary().is_some() => {
                    stream.set_dictionary(&DICTIONARY).map_err(|_| InflateError::Corrupt)?;
                }
                Err(_) | Ok(Status::StreamEnd) => return Err(InflateError::Corrupt),
                // If the buffer is full, there may be more.
                Ok(_) if written == scratch.len() => {}
                Ok(_) if input.is_empty() => return Ok(()),
                Ok(_) if read == 0 && written == 0 => return Err(InflateError::Corrupt),
                Ok(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use flate2::{Compress, Compression, FlushCompress};

    use super::*;

    /// A compressing peer, like Go's.
    fn compressor() -> impl FnMut(&[u8]) -> Vec<u8> {
        let mut stream = Compress::new(Compression::best(), true);
        stream.set_dictionary(&DICTIONARY).unwrap();
        move |block| {
            let mut output = Vec::with_capacity(block.len() + 1024);
            stream.compress_vec(block, &mut output, FlushCompress::Sync).unwrap();
            output
        }
    }

    #[test]
    fn compressed_blocks_are_inflated_one_after_the_other_at_any_split() {
        let mut compress = compressor();
        let blocks =
            [b"\0\0\0\x01content-type".to_vec(), vec![], b"content-type".repeat(1000), vec![7; 100_000]];
        let wire: Vec<_> = blocks.iter().map(|block| compress(block)).collect();
        for step in [1, 2, 7, 4096] {
            let mut inflater = Inflater::new();
            for (block, wire) in blocks.iter().zip(&wire) {
                let mut output = Vec::new();
                for piece in wire.chunks(step) {
                    inflater.inflate(piece, &mut output, 100_000).unwrap();
                }
                assert_eq!(&output, block);
            }
        }
    }

    #[test]
    fn stored_blocks_of_any_length_come_back() {
        let (mut deflater, mut inflater) = (Deflater::default(), Inflater::new());
        for length in [0, 1, 4, 65_535, 65_536, 200_000] {
            let block: Vec<u8> = (0..length).map(|index: u32| index.to_le_bytes()[0]).collect();
            let mut wire = BytesMut::new();
            deflater.deflate(&block, &mut wire);
            let mut output = Vec::new();
            inflater.inflate(&wire, &mut output, block.len()).unwrap();
            assert_eq!(output, block);
        }
    }

    #[test]
    fn a_zip_bomb_stops_at_the_limit() {
        let bomb = compressor()(&vec![0; 5_000_000]);
        assert!(bomb.len() < 100_000, "{}", bomb.len());
        let mut output = Vec::new();
        let result = Inflater::new().inflate(&bomb, &mut output, 10_000);
        assert_eq!(result, Err(InflateError::TooLarge));
        assert!(output.capacity() < 100_000, "{}", output.capacity());
    }

    #[test]
    fn one_byte_over_the_limit_is_too_large_and_the_limit_is_not() {
        let wire = compressor()(&[b'x'; 1001]);
        assert_eq!(Inflater::new().inflate(&wire, &mut Vec::new(), 1000), Err(InflateError::TooLarge));
        assert_eq!(Inflater::new().inflate(&wire, &mut Vec::new(), 1001), Ok(()));
    }

    #[test]
    fn an_invalid_zlib_stream_is_corrupt() {
        for garbage in [&b"GET / HTTP/1.1\r\n"[..], &[0xff; 100], b"\x78\xbb\0\0\0\x01\0\0\0"] {
            assert_eq!(Inflater::new().inflate(garbage, &mut Vec::new(), 1000), Err(InflateError::Corrupt));
        }
    }
}
