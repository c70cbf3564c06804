//! Encodes frames.

use bytes::{BufMut, BytesMut};

use super::{
    Frame, Headers, StreamId,
    compression::Deflater,
    frame::{FLAG_FIN, FLAG_UNIDIRECTIONAL, MAX_FRAME, VERSION, kind},
};

/// A frame that cannot be encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// A frame holds at most 16 MiB minus one byte.
    #[error("a frame of {0} bytes exceeds the maximum of {MAX_FRAME}: send less at once")]
    TooLarge(usize),
    /// Stream IDs are between 1 and 2^31-1.
    #[error("invalid stream ID {0}")]
    StreamId(StreamId),
}

/// Encodes all frames that are sent on a connection.
#[derive(Debug, Default)]
pub struct Encoder {
    deflater: Deflater,
    block: Vec<u8>,
}

/// The eight bytes before the payload of a DATA frame.
pub(crate) fn data_header(id: StreamId, fin: bool, length: usize) -> [u8; 8] {
    debug_assert!(length <= MAX_FRAME);
    let flags = u64::from(if fin { FLAG_FIN } else { 0 });
    (u64::from(id) << 32 | flags << 24 | length as u64).to_be_bytes()
}

impl Encoder {
    /// Creates an encoder.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a frame to `output`, or nothing if that fails.
    pub fn encode(&mut self, frame: &Frame, output: &mut BytesMut) -> Result<(), EncodeError> {
        match frame {
            Frame::SynStream { id, associated, priority, headers, fin, unidirectional } => {
                let flags = fin_flag(*fin) | if *unidirectional { FLAG_UNIDIRECTIONAL } else { 0 };
                let mut fixed = [0; 10];
                fixed[..4].copy_from_slice(&stream(*id)?.to_be_bytes());
                fixed[4..8].copy_from_slice(&associated.to_be_bytes());
                fixed[8] = priority << 5;
                self.with_headers(kind::SYN_STREAM, flags, &fixed, headers, output)
            }
            Frame::SynReply { id, headers, fin } => {
                let fixed = stream(*id)?.to_be_bytes();
                self.with_headers(kind::SYN_REPLY, fin_flag(*fin), &fixed, headers, output)
            }
            Frame::Headers { id, headers, fin } => {
                let fixed = stream(*id)?.to_be_bytes();
                self.with_headers(kind::HEADERS, fin_flag(*fin), &fixed, headers, output)
            }
            Frame::RstStream { id, status } => {
                let id = stream(*id)?;
                control(kind::RST_STREAM, 0, 8, output);
                output.put_u32(id);
                output.put_u32(status.code());
                Ok(())
            }
            Frame::Settings { clear, settings } => {
                let length = 4 + settings.len() * 8;
                fits(length)?;
                control(kind::SETTINGS, u8::from(*clear), length, output);
                output.put_u32(u32::try_from(settings.len()).unwrap_or_default());
                for setting in settings {
                    output.put_u32(u32::from(setting.flags) << 24 | setting.id & 0x00ff_ffff);
                    output.put_u32(setting.value);
                }
                Ok(())
            }
            Frame::Ping(id) => {
                control(kind::PING, 0, 4, output);
                output.put_u32(*id);
                Ok(())
            }
            Frame::GoAway { last_good, status } => {
                control(kind::GOAWAY, 0, 8, output);
                output.put_u32(*last_good);
                output.put_u32(status.code());
                Ok(())
            }
            Frame::WindowUpdate { id, delta } => {
                control(kind::WINDOW_UPDATE, 0, 8, output);
                output.put_u32(*id);
                output.put_u32(*delta);
                Ok(())
            }
            Frame::Data { id, payload, fin } => {
                let id = stream(*id)?;
                fits(payload.len())?;
                output.reserve(8 + payload.len());
                output.put_slice(&data_header(id, *fin, payload.len()));
                output.put_slice(payload);
                Ok(())
            }
        }
    }

    fn with_headers(
        &mut self,
        kind: u16,
        flags: u8,
        fixed: &[u8],
        headers: &Headers,
        output: &mut BytesMut,
    ) -> Result<(), EncodeError> {
        self.block.clear();
        self.block.put_u32(u32::try_from(headers.len()).unwrap_or(u32::MAX));
        for (name, value) in headers.joined() {
            for field in [name, value] {
                self.block.put_u32(u32::try_from(field.len()).unwrap_or(u32::MAX));
                self.block.put_slice(field.as_bytes());
            }
        }
        // Includes the maximum that zlib may add. A frame that is not sent must not change the zlib stream.
        fits(fixed.len() + self.block.len() + (self.block.len() / 65_535 + 2) * 5 + 6)?;
        let start = output.len();
        control(kind, flags, 0, output);
        output.put_slice(fixed);
        self.deflater.deflate(&self.block, output);
        let length = u32::try_from(output.len() - start - 8).unwrap_or(u32::MAX).to_be_bytes();
        output[start + 5..start + 8].copy_from_slice(&length[1..]);
        // A large buffer is not kept for the next block.
        self.block.shrink_to(1024);
        Ok(())
    }
}

fn fin_flag(fin: bool) -> u8 {
    if fin { FLAG_FIN } else { 0 }
}

fn stream(id: StreamId) -> Result<StreamId, EncodeError> {
    if id == 0 || id > 0x7fff_ffff { Err(EncodeError::StreamId(id)) } else { Ok(id) }
}

fn fits(length: usize) -> Result<(), EncodeError> {
    if length > MAX_FRAME { Err(EncodeError::TooLarge(length)) } else { Ok(()) }
}

fn control(kind: u16, flags: u8, length: usize, output: &mut BytesMut) {
    output.put_u16(0x8000 | VERSION);
    output.put_u16(kind);
    output.put_u32(u32::from(flags) << 24 | u32::try_from(length).unwrap_or(u32::MAX));
}
