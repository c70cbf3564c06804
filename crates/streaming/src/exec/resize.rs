//! Terminal sizes: a sequence of JSON objects.

use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use vk_provider::ability::TermSize;

use crate::stream::StreamReader;

/// Pending bytes that cannot be a size any more.
const MAX_PENDING: usize = 4 << 10;

#[derive(Debug, Serialize, Deserialize)]
struct SizeJson {
    #[serde(rename = "Width", alias = "width", default)]
    width: u16,
    #[serde(rename = "Height", alias = "height", default)]
    height: u16,
}

/// Encodes a size.
pub(crate) fn size_message(size: TermSize) -> Vec<u8> {
    let json = SizeJson { width: size.width, height: size.height };
    // Serializing two numbers cannot fail.
    serde_json::to_vec(&json).unwrap_or_default()
}

/// Parses sizes from a byte stream.
#[derive(Debug, Default)]
struct SizeParser {
    pending: Vec<u8>,
    broken: bool,
}

impl SizeParser {
    /// The last complete size. After invalid input nothing more is parsed, as in the kubelet.
    fn push(&mut self, bytes: &[u8]) -> Option<TermSize> {
        if self.broken {
            return None;
        }
        self.pending.extend_from_slice(bytes);
        let mut last = None;
        let mut parsed = serde_json::Deserializer::from_slice(&self.pending).into_iter::<SizeJson>();
        let mut used = 0;
        loop {
            match parsed.next() {
                // Empty sizes are skipped, as in the kubelet.
                Some(Ok(SizeJson { width, height })) => {
                    used = parsed.byte_offset();
                    if width > 0 && height > 0 {
                        last = Some(TermSize { width, height });
                    }
                }
                Some(Err(error)) if error.is_eof() => break,
                Some(Err(_)) => {
                    self.broken = true;
                    break;
                }
                None => {
                    used = parsed.byte_offset();
                    break;
                }
            }
        }
        self.pending.drain(..used);
        self.broken |= self.pending.len() > MAX_PENDING;
        if self.broken {
            self.pending = Vec::new();
        }
        last
    }
}

/// Forwards sizes to the provider. If it is slow, only the newest is kept: sizes must not block input on the same connection. Never
/// returns.
pub(super) async fn relay(mut from: StreamReader, to: Option<mpsc::Sender<TermSize>>) {
    let mut sizes = SizeParser::default();
    let mut newest = None;
    let mut open = true;
    loop {
        let taken = async {
            match &to {
                Some(to) if newest.is_some() => to.reserve().await,
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            permit = taken => match (permit, newest.take()) {
                (Ok(permit), Some(size)) => permit.send(size),
                // The provider takes no more sizes: drop them.
                _ => crate::stream::discard(&mut from).await,
            },
            chunk = from.next_chunk(), if open => match chunk {
                Ok(Some(bytes)) => newest = sizes.push(&bytes).or(newest),
                _ => open = false,
            },
            else => {}
        }
        if !open && newest.is_none() {
            return std::future::pending().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_last_of_several_sizes_is_returned_and_partial_input_is_kept() {
        let mut sizes = SizeParser::default();
        let last = sizes.push(br#"{"Width":1,"Height":2} {"Width":80,"Height":24}{"Wid"#);
        assert_eq!(last, Some(TermSize { width: 80, height: 24 }));
        assert_eq!(sizes.push(br#"th":3,"#), None);
        assert_eq!(sizes.push(br#""Height":4}"#), Some(TermSize { width: 3, height: 4 }));
    }

    #[test]
    fn an_empty_size_is_skipped() {
        let mut sizes = SizeParser::default();
        assert_eq!(sizes.push(br#"{"Width":0,"Height":24}{}"#), None);
        assert_eq!(sizes.push(br#"{"width":2,"height":3}"#), Some(TermSize { width: 2, height: 3 }));
    }

    #[test]
    fn invalid_input_stops_the_parser_and_frees_its_memory() {
        let mut sizes = SizeParser::default();
        assert_eq!(sizes.push(b"nonsense"), None);
        assert_eq!(sizes.push(br#"{"Width":80,"Height":24}"#), None);
        let mut sizes = SizeParser::default();
        for _ in 0..100 {
            assert_eq!(sizes.push(&[b' '; 1000]), None);
            assert_eq!(sizes.push(&[b'{'; 10]), None);
            assert!(sizes.pending.len() <= MAX_PENDING);
        }
    }

    proptest! {
        #[test]
        fn sizes_survive_any_cut(width in 1_u16.., height in 1_u16.., cut in 0_usize..20) {
            let size = TermSize { width, height };
            let message = size_message(size);
            let (head, tail) = message.split_at(cut.min(message.len() - 1));
            let mut sizes = SizeParser::default();
            prop_assert_eq!(sizes.push(head), None);
            prop_assert_eq!(sizes.push(tail), Some(size));
        }

        #[test]
        fn no_bytes_are_too_strange(pieces: Vec<Vec<u8>>) {
            let mut sizes = SizeParser::default();
            for piece in pieces {
                let _ = sizes.push(&piece);
            }
        }
    }
}
