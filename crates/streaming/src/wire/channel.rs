//! Channels in WebSocket messages: `channel.k8s.io` and its relatives. The first byte of a message names the channel.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::{BufMut as _, Bytes, BytesMut};

/// In version 5, `[255, n]` ends channel n.
const CLOSE: u8 = 255;

/// How channel and payload become a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Codec {
    /// A byte and the payload. `closes`: the messages that end a channel are known (version 5).
    Binary { closes: bool },
    /// A digit and the payload in base64.
    Base64,
}

/// What a message says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// Nothing: an empty message.
    Nothing,
    /// Bytes on a channel.
    Data(u8, Bytes),
    /// The end of a channel.
    End(u8),
}

impl Codec {
    /// Takes a message apart. The error says what is wrong with it.
    pub(crate) fn decode(self, message: &Bytes) -> Result<Said, String> {
        let Some(&first) = message.first() else { return Ok(Said::Nothing) };
        match self {
            Self::Binary { closes: true } if first == CLOSE => match message[..] {
                [_, channel] => Ok(Said::End(channel)),
                _ => Err(format!("a close message has 2 bytes, and this one has {}", message.len())),
            },
            Self::Binary { .. } => Ok(Said::Data(first, message.slice(1..))),
            Self::Base64 => {
                // As Go's decoder: line ends between the digits do not count.
                let digits: Vec<u8> =
                    message[1..].iter().copied().filter(|byte| !matches!(byte, b'\r' | b'\n')).collect();
                let bytes = STANDARD.decode(digits).map_err(|error| format!("not base64: {error}"))?;
                Ok(Said::Data(first.wrapping_sub(b'0'), bytes.into()))
            }
        }
    }

    /// Puts in what goes before the payload.
    pub(crate) fn begin(self, channel: u8, buffer: &mut BytesMut) {
        if let Self::Binary { .. } = self {
            buffer.put_u8(channel);
        }
    }

    /// Makes the message of a payload for which [`Codec::begin`] was called. Text where it says so.
    pub(crate) fn encode(self, channel: u8, begun: Bytes) -> Encoded {
        match self {
            Self::Binary { .. } => Encoded::Binary(begun),
            Self::Base64 => {
                let mut text = String::with_capacity(1 + begun.len().div_ceil(3) * 4);
                text.push(char::from(b'0'.wrapping_add(channel)));
                STANDARD.encode_string(&begun, &mut text);
                Encoded::Text(text)
            }
        }
    }

    /// The message that ends a channel, if there is one.
    pub(crate) fn end(self, channel: u8) -> Option<Bytes> {
        (self == Self::Binary { closes: true }).then(|| Bytes::copy_from_slice(&[CLOSE, channel]))
    }
}

/// A message to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Encoded {
    Binary(Bytes),
    Text(String),
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: [Codec; 3] = [Codec::Binary { closes: false }, Codec::Binary { closes: true }, Codec::Base64];

    fn message(codec: Codec, channel: u8, payload: &[u8]) -> Bytes {
        let mut buffer = BytesMut::new();
        codec.begin(channel, &mut buffer);
        buffer.extend_from_slice(payload);
        match codec.encode(channel, buffer.freeze()) {
            Encoded::Binary(bytes) => bytes,
            Encoded::Text(text) => text.into(),
        }
    }

    #[test]
    fn messages_look_as_kubernetes_writes_them() {
        assert_eq!(message(Codec::Binary { closes: false }, 1, b"hi"), &b"\x01hi"[..]);
        assert_eq!(message(Codec::Base64, 1, b"hi"), &b"1aGk="[..]);
        assert_eq!(Codec::Binary { closes: true }.end(0).unwrap(), &[255, 0][..]);
        assert_eq!(Codec::Binary { closes: false }.end(0), None);
        assert_eq!(Codec::Base64.end(0), None);
    }

    #[test]
    fn only_version_5_ends_a_channel() {
        let close = Bytes::from_static(&[255, 0]);
        assert_eq!(Codec::Binary { closes: true }.decode(&close), Ok(Said::End(0)));
        let data = Said::Data(255, Bytes::from_static(&[0]));
        assert_eq!(Codec::Binary { closes: false }.decode(&close), Ok(data));
        for wrong in [&[255][..], &[255, 0, 0]] {
            Codec::Binary { closes: true }.decode(&Bytes::copy_from_slice(wrong)).unwrap_err();
        }
    }

    #[test]
    fn base64_may_be_broken_into_lines_and_must_be_base64() {
        let lines = Bytes::from_static(b"0aG\r\nk=\n");
        assert_eq!(Codec::Base64.decode(&lines), Ok(Said::Data(0, Bytes::from_static(b"hi"))));
        assert!(Codec::Base64.decode(&Bytes::from_static(b"0a")).unwrap_err().starts_with("not base64"));
    }

    proptest! {
        #[test]
        fn what_was_encoded_is_decoded(channel in 0_u8..80, payload: Vec<u8>) {
            for codec in ALL {
                let said = codec.decode(&message(codec, channel, &payload)).unwrap();
                prop_assert_eq!(said, Said::Data(channel, payload.clone().into()));
            }
        }

        #[test]
        fn no_message_is_too_strange(bytes: Vec<u8>) {
            for codec in ALL {
                let _ = codec.decode(&bytes.clone().into());
            }
        }
    }
}
