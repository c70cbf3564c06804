//! Decodes frames.

use std::collections::HashSet;

use bytes::{Buf, Bytes, BytesMut};

use super::{
    Frame, Headers, StreamId,
    compression::{InflateError, Inflater},
    frame::{FLAG_FIN, FLAG_UNIDIRECTIONAL, MAX_FRAME, Setting, VERSION, kind},
};

/// Limits of frames of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FrameLimits {
    /// Names in a header block. 1,000, as in Go.
    pub headers: usize,
    /// Bytes of one name or of all values of a name. 1 MiB, as in Go.
    pub field: usize,
    /// Bytes of a header block when inflated. 2 MiB.
    pub block: usize,
    /// Bytes of a control frame on the wire. 2^24-1, the maximum of a frame. DATA frames are returned in pieces and need no
    /// limit.
    pub control_frame: usize,
}

impl Default for FrameLimits {
    fn default() -> Self {
        Self { headers: 1000, field: 1 << 20, block: 2 << 20, control_frame: MAX_FRAME }
    }
}

/// Useful SETTINGS have at most eight parameters.
const MAX_SETTINGS: usize = 1000;

/// An error in a frame of the peer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An invalid header block. The next frame can be decoded, and the stream must be reset.
    #[error("headers of stream {id}: {reason}")]
    Stream {
        /// The stream.
        id: StreamId,
        /// What is wrong.
        reason: &'static str,
    },
    /// A control frame of another version: the peer probably does not speak SPDY.
    #[error("a control frame of version {0}, where SPDY/3.1 has 3: the peer speaks another protocol")]
    Version(u16),
    /// A frame with a wrong length or an invalid stream.
    #[error("{frame} frame: {reason}")]
    Malformed {
        /// The frame type.
        frame: &'static str,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The header compression is out of sync or invalid.
    #[error("a header block that cannot be inflated: no zlib stream with the dictionary of SPDY/3")]
    Compression,
    /// A limit is exceeded.
    #[error("{what} over the limit of {limit}")]
    Limit {
        /// Which limit.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
}

impl Error {
    /// The affected stream, if the connection can continue.
    pub fn stream(&self) -> Option<StreamId> {
        if let Self::Stream { id, .. } = self { Some(*id) } else { None }
    }
}

/// Decodes all frames that are received on a connection.
#[derive(Debug)]
pub struct Decoder {
    limits: FrameLimits,
    inflater: Inflater,
    state: DecodeState,
}

#[derive(Debug)]
enum DecodeState {
    /// Between frames.
    Boundary,
    /// In the payload of a DATA frame.
    Data { id: StreamId, fin: bool, left: usize },
    /// In a header block.
    Block { kind: HeaderFrame, left: usize, inflated: Vec<u8> },
    /// In an unknown frame.
    Skip { left: usize },
    /// After a fatal error.
    Failed(Error),
}

/// A frame whose header block is being read.
#[derive(Clone, Copy, Debug)]
enum HeaderFrame {
    Stream { id: StreamId, associated: StreamId, priority: u8, fin: bool, unidirectional: bool },
    Reply { id: StreamId, fin: bool },
    Headers { id: StreamId, fin: bool },
}

impl Decoder {
    /// Creates a decoder.
    pub fn new(limits: FrameLimits) -> Self {
        Self { limits, inflater: Inflater::new(), state: DecodeState::Boundary }
    }

    /// Whether the decoder is between frames, where a peer may close the connection.
    pub fn at_boundary(&self) -> bool {
        matches!(self.state, DecodeState::Boundary)
    }

    /// Decodes the next frame from `input`, or returns `None` if more bytes are needed.
    ///
    /// DATA is returned as it arrives, without a copy: `fin` is set only on the last piece of a frame. After an error with a
    /// [`stream`](Error::stream) the next frame can be decoded; all other errors are permanent.
    pub fn decode(&mut self, input: &mut BytesMut) -> Result<Option<Frame>, Error> {
        match self.step(input) {
            Err(error) if error.stream().is_none() => {
                self.state = DecodeState::Failed(error.clone());
                Err(error)
            }
            other => other,
        }
    }

    fn step(&mut self, input: &mut BytesMut) -> Result<Option<Frame>, Error> {
        loop {
            match &mut self.state {
                DecodeState::Boundary => match self.begin(input)? {
                    FrameStart::Whole(frame) => return Ok(Some(frame)),
                    FrameStart::Short => return Ok(None),
                    FrameStart::More => {}
                },
                DecodeState::Data { id, fin, left } => {
                    if input.is_empty() {
                        return Ok(None);
                    }
                    let payload = input.split_to(input.len().min(*left)).freeze();
                    *left -= payload.len();
                    let (id, last) = (*id, *left == 0);
                    let fin = *fin && last;
                    if last {
                        self.state = DecodeState::Boundary;
                    }
                    return Ok(Some(Frame::Data { id, payload, fin }));
                }
                DecodeState::Block { kind, left, inflated } => {
                    let piece = input.len().min(*left);
                    let result = self.inflater.inflate(&input[..piece], inflated, self.limits.block);
                    input.advance(piece);
                    *left -= piece;
                    result.map_err(|error| match error {
                        InflateError::Corrupt => Error::Compression,
                        InflateError::TooLarge => {
                            Error::Limit { what: "an inflated header block", limit: self.limits.block }
                        }
                    })?;
                    if *left > 0 {
                        return Ok(None);
                    }
                    let (kind, inflated) = (*kind, std::mem::take(inflated));
                    self.state = DecodeState::Boundary;
                    return self.open(kind, &inflated).map(Some);
                }
                DecodeState::Skip { left } => {
                    let piece = input.len().min(*left);
                    input.advance(piece);
                    *left -= piece;
                    if *left > 0 {
                        return Ok(None);
                    }
                    self.state = DecodeState::Boundary;
                }
                DecodeState::Failed(error) => return Err(error.clone()),
            }
        }
    }

    /// Decodes the start of a frame, or all of a short frame.
    fn begin(&mut self, input: &mut BytesMut) -> Result<FrameStart, Error> {
        let Some(head) = input.first_chunk::<8>() else { return Ok(FrameStart::Short) };
        let first = u32::from_be_bytes([head[0], head[1], head[2], head[3]]);
        let flags = head[4];
        let length = u32::from_be_bytes([0, head[5], head[6], head[7]]) as usize;
        if first & 0x8000_0000 == 0 {
            if first == 0 {
                return Err(Error::Malformed { frame: "DATA", reason: "there is no stream 0" });
            }
            input.advance(8);
            let fin = flags & FLAG_FIN != 0;
            if length == 0 {
                return Ok(FrameStart::Whole(Frame::Data { id: first, payload: Bytes::new(), fin }));
            }
            self.state = DecodeState::Data { id: first, fin, left: length };
            return Ok(FrameStart::More);
        }
        let bytes = first.to_be_bytes();
        let version = u16::from_be_bytes([bytes[0] & 0x7f, bytes[1]]);
        if version != VERSION {
            return Err(Error::Version(version));
        }
        if length > self.limits.control_frame {
            return Err(Error::Limit { what: "a control frame", limit: self.limits.control_frame });
        }
        let kind = u16::from_be_bytes([bytes[2], bytes[3]]);
        let Some((name, fixed)) = shape(kind) else {
            input.advance(8);
            self.state = DecodeState::Skip { left: length };
            return Ok(FrameStart::More);
        };
        let has_block = matches!(kind, kind::SYN_STREAM | kind::SYN_REPLY | kind::HEADERS);
        let wrong = Error::Malformed { frame: name, reason: "its length is wrong" };
        let whole = match kind {
            _ if has_block && length < fixed => return Err(wrong),
            _ if has_block => fixed,
            kind::SETTINGS if length > 4 + 8 * MAX_SETTINGS => {
                return Err(Error::Limit { what: "parameters of a SETTINGS frame", limit: MAX_SETTINGS });
            }
            kind::SETTINGS if length < fixed => return Err(wrong),
            kind::SETTINGS => length,
            _ if length == fixed => length,
            _ => return Err(wrong),
        };
        if input.len() < 8 + whole {
            return Ok(FrameStart::Short);
        }
        let mut body = input.split_to(8 + whole);
        body.advance(8);
        if has_block {
            let opening = opening(kind, name, flags, &mut body)?;
            self.state = DecodeState::Block { kind: opening, left: length - fixed, inflated: Vec::new() };
            return Ok(FrameStart::More);
        }
        short(kind, name, flags, &mut body).map(FrameStart::Whole)
    }

    /// Builds the frame of a complete header block.
    fn open(&self, opening: HeaderFrame, block: &[u8]) -> Result<Frame, Error> {
        let id = match opening {
            HeaderFrame::Stream { id, .. }
            | HeaderFrame::Reply { id, .. }
            | HeaderFrame::Headers { id, .. } => id,
        };
        let headers = self.headers(id, block)?;
        Ok(match opening {
            HeaderFrame::Stream { id, associated, priority, fin, unidirectional } => {
                Frame::SynStream { id, associated, priority, headers, fin, unidirectional }
            }
            HeaderFrame::Reply { id, fin } => Frame::SynReply { id, headers, fin },
            HeaderFrame::Headers { id, fin } => Frame::Headers { id, headers, fin },
        })
    }

    fn headers(&self, id: StreamId, mut block: &[u8]) -> Result<Headers, Error> {
        let count = take_length(&mut block)?;
        if count > self.limits.headers {
            return Err(Error::Limit { what: "the headers of a stream", limit: self.limits.headers });
        }
        let mut wrong = None;
        let mut seen = HashSet::with_capacity(count);
        let mut entries = Vec::with_capacity(count);
        for _ in 0..count {
            let name = self.field(&mut block)?;
            let value = self.field(&mut block)?;
            let Ok(name) = std::str::from_utf8(name) else {
                wrong = Some("a name is not UTF-8");
                continue;
            };
            if name.is_empty() {
                wrong = Some("a name is empty");
            } else if name.bytes().any(|byte| byte.is_ascii_uppercase()) {
                wrong = Some("a name has capital letters");
            } else if !seen.insert(name) {
                wrong = Some("a name comes twice");
            }
            entries.push((Box::from(name), Box::from(String::from_utf8_lossy(value))));
        }
        if !block.is_empty() {
            // Go would take the rest as the start of the next block.
            return Err(Error::Malformed {
                frame: "header block",
                reason: "there is more after the last header",
            });
        }
        wrong.map_or_else(|| Ok(Headers::from_wire(entries)), |reason| Err(Error::Stream { id, reason }))
    }

    fn field<'block>(&self, block: &mut &'block [u8]) -> Result<&'block [u8], Error> {
        let length = take_length(block)?;
        if length > self.limits.field {
            return Err(Error::Limit { what: "a header", limit: self.limits.field });
        }
        let (field, rest) = block.split_at_checked(length).ok_or(TRUNCATED)?;
        *block = rest;
        Ok(field)
    }
}

const TRUNCATED: Error = Error::Malformed { frame: "header block", reason: "it ends before its last header" };

fn take_length(block: &mut &[u8]) -> Result<usize, Error> {
    let (length, rest) = block.split_first_chunk::<4>().ok_or(TRUNCATED)?;
    *block = rest;
    Ok(u32::from_be_bytes(*length) as usize)
}

/// The result of decoding the start of a frame.
enum FrameStart {
    /// The whole frame.
    Whole(Frame),
    /// Its payload follows.
    More,
    /// More bytes are needed.
    Short,
}

/// The name of a control frame, and the length of its fixed part.
const fn shape(kind: u16) -> Option<(&'static str, usize)> {
    Some(match kind {
        kind::SYN_STREAM => ("SYN_STREAM", 10),
        kind::SYN_REPLY => ("SYN_REPLY", 4),
        kind::RST_STREAM => ("RST_STREAM", 8),
        kind::SETTINGS => ("SETTINGS", 4),
        kind::PING => ("PING", 4),
        kind::GOAWAY => ("GOAWAY", 8),
        kind::HEADERS => ("HEADERS", 4),
        kind::WINDOW_UPDATE => ("WINDOW_UPDATE", 8),
        _ => return None,
    })
}

/// Decodes a stream ID and ignores its reserved bit.
fn stream(frame: &'static str, body: &mut BytesMut) -> Result<StreamId, Error> {
    match body.get_u32() & 0x7fff_ffff {
        0 => Err(Error::Malformed { frame, reason: "there is no stream 0" }),
        id => Ok(id),
    }
}

fn opening(kind: u16, name: &'static str, flags: u8, body: &mut BytesMut) -> Result<HeaderFrame, Error> {
    let id = stream(name, body)?;
    let fin = flags & FLAG_FIN != 0;
    Ok(match kind {
        kind::SYN_STREAM => HeaderFrame::Stream {
            id,
            associated: body.get_u32() & 0x7fff_ffff,
            priority: body.get_u8() >> 5,
            fin,
            unidirectional: flags & FLAG_UNIDIRECTIONAL != 0,
        },
        kind::SYN_REPLY => HeaderFrame::Reply { id, fin },
        _ => HeaderFrame::Headers { id, fin },
    })
}

fn short(kind: u16, name: &'static str, flags: u8, body: &mut BytesMut) -> Result<Frame, Error> {
    Ok(match kind {
        kind::RST_STREAM => Frame::RstStream { id: stream(name, body)?, status: body.get_u32().into() },
        kind::PING => Frame::Ping(body.get_u32()),
        kind::GOAWAY => {
            Frame::GoAway { last_good: body.get_u32() & 0x7fff_ffff, status: body.get_u32().into() }
        }
        kind::WINDOW_UPDATE => {
            Frame::WindowUpdate { id: body.get_u32() & 0x7fff_ffff, delta: body.get_u32() }
        }
        _ => {
            let count = body.get_u32() as usize;
            if count.checked_mul(8) != Some(body.len()) {
                return Err(Error::Malformed { frame: name, reason: "its length is wrong" });
            }
            let settings = std::iter::from_fn(|| {
                let first = (!body.is_empty()).then(|| body.get_u32().to_be_bytes())?;
                let id = u32::from_be_bytes([0, first[1], first[2], first[3]]);
                Some(Setting { flags: first[0], id, value: body.get_u32() })
            });
            Frame::Settings { clear: flags & 1 != 0, settings: settings.collect() }
        }
    })
}
