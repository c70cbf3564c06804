//! Decompression of layers, with digests and limits on both sides.

use std::{
    cell::Cell,
    io::{self, BufRead, BufReader, Read},
};

use super::ImageLimits;
use crate::image::{Digest, Error, Result, digest::Hasher};

/// Buffer size on either side.
pub(crate) const CHUNK: usize = 256 * 1024;

/// Maximum memory of a zstd decoder, as a power of two: 64 MiB. The strongest level of the builders of images needs 32.
const MAX_ZSTD_WINDOW: u32 = 26;

/// A reader that hashes and counts what is read, and checks a limit.
pub(crate) struct HashingReader<'a, R, G> {
    inner: R,
    hasher: Hasher,
    taken: &'a Cell<u64>,
    gate: G,
}

impl<'a, R: Read, G: Fn(u64) -> Result<()>> HashingReader<'a, R, G> {
    pub(crate) fn new(inner: R, taken: &'a Cell<u64>, gate: G) -> Self {
        Self { inner, hasher: Hasher::new(), taken, gate }
    }

    /// Reads the rest, and returns the digest of everything.
    pub(crate) fn finish(mut self) -> io::Result<Digest> {
        io::copy(&mut self, &mut io::sink())?;
        Ok(self.hasher.finish())
    }
}

impl<R: Read, G: Fn(u64) -> Result<()>> Read for HashingReader<'_, R, G> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.hasher.update(&buffer[..count]);
        self.taken.set(self.taken.get() + count as u64);
        (self.gate)(self.taken.get())?;
        Ok(count)
    }
}

/// Decompresses gzip or zstd, detected by the first bytes, because media types are unreliable.
pub(crate) fn decompress<'a>(source: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
    let mut source = BufReader::with_capacity(CHUNK, source);
    let head = source.fill_buf()?;
    if !(1..4).contains(&head.len()) {
        let (gzip, zstd) = (is_gzip(head), is_zstd(head));
        return decoder(source, gzip, zstd);
    }
    // The first read of a network stream may return less than four bytes.
    let mut head = Vec::new();
    (&mut source).take(4).read_to_end(&mut head)?;
    let (gzip, zstd) = (is_gzip(&head), is_zstd(&head));
    decoder(BufReader::with_capacity(CHUNK, io::Cursor::new(head).chain(source)), gzip, zstd)
}

fn decoder<'a>(source: impl BufRead + 'a, gzip: bool, zstd: bool) -> io::Result<Box<dyn Read + 'a>> {
    Ok(match (gzip, zstd) {
        (true, _) => Box::new(flate2::bufread::MultiGzDecoder::new(source)),
        (_, true) => {
            let mut decoder = zstd::Decoder::with_buffer(source)?;
            decoder.window_log_max(MAX_ZSTD_WINDOW)?;
            Box::new(decoder)
        }
        _ => Box::new(source),
    })
}

fn is_gzip(head: &[u8]) -> bool {
    head.starts_with(&[0x1f, 0x8b])
}

fn is_zstd(head: &[u8]) -> bool {
    // The second magic number is a skippable frame, with which some writers begin.
    head.starts_with(&[0x28, 0xb5, 0x2f, 0xfd])
        || (head.len() >= 4 && head[0] & 0xf0 == 0x50 && head[1..4] == [0x2a, 0x4d, 0x18])
}

/// Checks decompressed content against the size and ratio limits.
pub(crate) fn check_limits(content: u64, compressed: u64, limits: &ImageLimits) -> Result<()> {
    if content > limits.layer_bytes {
        return Err(Error::corrupt(format!(
            "the layer is larger than the maximum of {} bytes",
            limits.layer_bytes
        )));
    }
    if content > limits.ratio_from && content > compressed.saturating_mul(limits.ratio) {
        return Err(Error::corrupt(format!(
            "{compressed} bytes of the layer decompress to more than {content}: the ratio exceeds the maximum of {}:1",
            limits.ratio
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    /// Returns one byte at a time.
    struct Drip<'a>(&'a [u8]);

    impl Read for Drip<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let count = usize::from(!self.0.is_empty()).min(buffer.len());
            buffer[..count].copy_from_slice(&self.0[..count]);
            self.0 = &self.0[count..];
            Ok(count)
        }
    }

    fn all(bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        decompress(Drip(bytes)).unwrap().read_to_end(&mut out).unwrap();
        let mut again = Vec::new();
        decompress(bytes).unwrap().read_to_end(&mut again).unwrap();
        assert_eq!(out, again);
        out
    }

    #[test]
    fn compression_is_detected_by_the_first_bytes_in_any_chunking() {
        let text = b"some words ".repeat(1000);
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&text).unwrap();
        let gzip = gzip.finish().unwrap();
        let zstd = zstd::encode_all(&*text, 3).unwrap();
        assert_eq!(all(&text), text);
        assert_eq!(all(&gzip), text);
        assert_eq!(all(&zstd), text);
        assert_eq!(all(&[&gzip[..], &gzip[..]].concat()), [&text[..], &text[..]].concat());
        assert_eq!(all(b""), b"");
        assert_eq!(all(b"ab"), b"ab");
    }
}
