//! Channels in WebSocket messages, as in `channel.k8s.io`: the first byte of a message is the channel.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::{BufMut as _, Bytes, BytesMut};

/// In version 5, `[255, n]` ends channel n.
const CLOSE: u8 = 255;

/// Encodes channel and payload as a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChannelCodec {
    /// A byte and the payload. `has_close`: close messages are known (version 5).
    Binary { has_close: bool },
    /// A digit and the payload in base64.
    Base64,
}

/// A decoded message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ChannelMessage {
    /// An empty message.
    Empty,
    /// Bytes on a channel.
    Data(u8, Bytes),
    /// The end of a channel.
    End(u8),
}

impl ChannelCodec {
    /// Decodes a message. The error says what is wrong with it.
    pub(crate) fn decode(self, message: &Bytes) -> Result<ChannelMessage, String> {
        let Some(&first) = message.first() else { return Ok(ChannelMessage::Empty) };
        match self {
            Self::Binary { has_close: true } if first == CLOSE => match message[..] {
                [_, channel] => Ok(ChannelMessage::End(channel)),
                _ => Err(format!("a close message must have 2 bytes, not {}", message.len())),
            },
            Self::Binary { .. } => Ok(ChannelMessage::Data(first, message.slice(1..))),
            Self::Base64 => {
                // As in Go's decoder, line breaks are skipped.
                let digits: Vec<u8> =
                    message[1..].iter().copied().filter(|byte| !matches!(byte, b'\r' | b'\n')).collect();
                let bytes = STANDARD.decode(digits).map_err(|error| format!("not base64: {error}"))?;
                Ok(ChannelMessage::Data(first.wrapping_sub(b'0'), bytes.into()))
            }
        }
    }

    /// Adds what precedes the payload.
    pub(crate) fn begin_frame(self, channel: u8, buffer: &mut BytesMut) {
        if let Self::Binary { .. } = self {
            buffer.put_u8(channel);
        }
    }

    /// Encodes a payload for which [`ChannelCodec::begin_frame`] was called.
    pub(crate) fn encode(self, channel: u8, framed: Bytes) -> EncodedMessage {
        match self {
            Self::Binary { .. } => EncodedMessage::Binary(framed),
            Self::Base64 => {
                let mut text = String::with_capacity(1 + framed.len().div_ceil(3) * 4);
                text.push(char::from(b'0'.wrapping_add(channel)));
                STANDARD.encode_string(&framed, &mut text);
                EncodedMessage::Text(text)
            }
        }
    }

    /// The message that closes a channel, if there is one.
    pub(crate) fn close_message(self, channel: u8) -> Option<Bytes> {
        (self == Self::Binary { has_close: true }).then(|| Bytes::copy_from_slice(&[CLOSE, channel]))
    }
}

/// A message to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EncodedMessage {
    Binary(Bytes),
    Text(String),
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: [ChannelCodec; 3] = [
        ChannelCodec::Binary { has_close: false },
        ChannelCodec::Binary { has_close: true },
        ChannelCodec::Base64,
    ];

    fn message(codec: ChannelCodec, channel: u8, payload: &[u8]) -> Bytes {
        let mut buffer = BytesMut::new();
        codec.begin_frame(channel, &mut buffer);
        buffer.extend_from_slice(payload);
        match codec.encode(channel, buffer.freeze()) {
            EncodedMessage::Binary(bytes) => bytes,
            EncodedMessage::Text(text) => text.into(),
        }
    }

    #[test]
    fn messages_look_as_kubernetes_writes_them() {
        assert_eq!(message(ChannelCodec::Binary { has_close: false }, 1, b"hi"), &b"\x01hi"[..]);
        assert_eq!(message(ChannelCodec::Base64, 1, b"hi"), &b"1aGk="[..]);
        assert_eq!(ChannelCodec::Binary { has_close: true }.close_message(0).unwrap(), &[255, 0][..]);
        assert_eq!(ChannelCodec::Binary { has_close: false }.close_message(0), None);
        assert_eq!(ChannelCodec::Base64.close_message(0), None);
    }

    #[test]
    fn only_version_5_ends_a_channel() {
        let close = Bytes::from_static(&[255, 0]);
        assert_eq!(ChannelCodec::Binary { has_close: true }.decode(&close), Ok(ChannelMessage::End(0)));
        let data = ChannelMessage::Data(255, Bytes::from_static(&[0]));
        assert_eq!(ChannelCodec::Binary { has_close: false }.decode(&close), Ok(data));
        for wrong in [&[255][..], &[255, 0, 0]] {
            ChannelCodec::Binary { has_close: true }.decode(&Bytes::copy_from_slice(wrong)).unwrap_err();
        }
    }

    #[test]
    fn base64_may_be_broken_into_lines_and_must_be_base64() {
        let lines = Bytes::from_static(b"0aG\r\nk=\n");
        assert_eq!(
            ChannelCodec::Base64.decode(&lines),
            Ok(ChannelMessage::Data(0, Bytes::from_static(b"hi")))
        );
        assert!(
            ChannelCodec::Base64.decode(&Bytes::from_static(b"0a")).unwrap_err().starts_with("not base64")
        );
    }

    proptest! {
        #[test]
        fn what_was_encoded_is_decoded(channel in 0_u8..80, payload: Vec<u8>) {
            for codec in ALL {
                let decoded = codec.decode(&message(codec, channel, &payload)).unwrap();
                prop_assert_eq!(decoded, ChannelMessage::Data(channel, payload.clone().into()));
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
