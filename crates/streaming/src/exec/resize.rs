//! The size of a terminal: JSON objects, one after another.

use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use vk_provider::ability::TermSize;

use crate::wire::Input;

/// What cannot be taken for a size any more.
const TOO_LONG: usize = 4 << 10;

#[derive(Debug, Serialize, Deserialize)]
struct Wire {
    #[serde(rename = "Width", alias = "width", default)]
    width: u16,
    #[serde(rename = "Height", alias = "height", default)]
    height: u16,
}

/// The message that tells a size.
pub(crate) fn size_message(size: TermSize) -> Vec<u8> {
    let wire = Wire { width: size.width, height: size.height };
    // Two numbers always have a JSON form.
    serde_json::to_vec(&wire).unwrap_or_default()
}

/// Finds sizes in bytes that come in pieces.
#[derive(Debug, Default)]
struct Sizes {
    pending: Vec<u8>,
    broken: bool,
}

impl Sizes {
    /// The last size that is complete now. After something that is no size nothing is read any more, as by a kubelet.
    fn push(&mut self, bytes: &[u8]) -> Option<TermSize> {
        if self.broken {
            return None;
        }
        self.pending.extend_from_slice(bytes);
        let mut last = None;
        let mut parsed = serde_json::Deserializer::from_slice(&self.pending).into_iter::<Wire>();
        let mut used = 0;
        loop {
            match parsed.next() {
                // No terminal has no columns; a kubelet passes such sizes over too.
                Some(Ok(Wire { width, height })) => {
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
        self.broken |= self.pending.len() > TOO_LONG;
        if self.broken {
            self.pending = Vec::new();
        }
        last
    }
}

/// Brings sizes to the provider. When it is slow to take them, only the newest counts: a terminal's size must not hold up
/// the input that comes on the same connection. Never ends by itself.
pub(super) async fn relay(mut from: Input, to: Option<mpsc::Sender<TermSize>>) {
    let mut sizes = Sizes::default();
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
                // The provider takes no sizes any more: they are read and thrown away.
                _ => crate::wire::discard(&mut from).await,
            },
            chunk = from.next(), if open => match chunk {
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
    fn the_last_of_several_sizes_counts_and_a_piece_waits_for_its_rest() {
        let mut sizes = Sizes::default();
        let last = sizes.push(br#"{"Width":1,"Height":2} {"Width":80,"Height":24}{"Wid"#);
        assert_eq!(last, Some(TermSize { width: 80, height: 24 }));
        assert_eq!(sizes.push(br#"th":3,"#), None);
        assert_eq!(sizes.push(br#""Height":4}"#), Some(TermSize { width: 3, height: 4 }));
    }

    #[test]
    fn a_size_of_nothing_is_passed_over() {
        let mut sizes = Sizes::default();
        assert_eq!(sizes.push(br#"{"Width":0,"Height":24}{}"#), None);
        assert_eq!(sizes.push(br#"{"width":2,"height":3}"#), Some(TermSize { width: 2, height: 3 }));
    }

    #[test]
    fn garbage_ends_the_reading_and_keeps_no_memory() {
        let mut sizes = Sizes::default();
        assert_eq!(sizes.push(b"nonsense"), None);
        assert_eq!(sizes.push(br#"{"Width":80,"Height":24}"#), None);
        let mut sizes = Sizes::default();
        for _ in 0..100 {
            assert_eq!(sizes.push(&[b' '; 1000]), None);
            assert_eq!(sizes.push(&[b'{'; 10]), None);
            assert!(sizes.pending.len() <= TOO_LONG);
        }
    }

    proptest! {
        #[test]
        fn sizes_survive_any_cut(width in 1_u16.., height in 1_u16.., cut in 0_usize..20) {
            let size = TermSize { width, height };
            let message = size_message(size);
            let (head, tail) = message.split_at(cut.min(message.len() - 1));
            let mut sizes = Sizes::default();
            prop_assert_eq!(sizes.push(head), None);
            prop_assert_eq!(sizes.push(tail), Some(size));
        }

        #[test]
        fn no_bytes_are_too_strange(pieces: Vec<Vec<u8>>) {
            let mut sizes = Sizes::default();
            for piece in pieces {
                let _ = sizes.push(&piece);
            }
        }
    }
}
