//! Bytes to frames.

use std::collections::HashSet;

use bytes::{Buf, Bytes, BytesMut};

use super::{
    Frame, Headers, StreamId,
    compression::{InflateError, Inflater},
    frame::{FLAG_FIN, FLAG_UNIDIRECTIONAL, MAX_FRAME, Setting, VERSION, kind},
};

/// What the peer may make us hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Names in a header block. 1,000, as in Go.
    pub headers: usize,
    /// Bytes of one name or of all values of a name. 1 MiB, as in Go.
    pub field: usize,
    /// Bytes of a header block when inflated. 2 MiB.
    pub block: usize,
    /// Bytes of a control frame on the wire. 2^24-1, which is all that a frame can hold. DATA frames are given out in pieces
    /// and need no limit.
    pub control_frame: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { headers: 1000, field: 1 << 20, block: 2 << 20, control_frame: MAX_FRAME }
    }
}

/// SETTINGS of any use have eight parameters at most.
const MAX_SETTINGS: usize = 1000;

/// What is wrong with what the peer sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A header block breaks a rule, and the next frame can be read all the same: the stream has to be reset.
    #[error("headers of stream {id}: {reason}")]
    Stream {
        /// The stream.
        id: StreamId,
        /// Which rule.
        reason: &'static str,
    },
    /// A control frame of another version: most likely the peer does not speak SPDY at all.
    #[error("a control frame of version {0}, where SPDY/3.1 has 3: the peer speaks another protocol")]
    Version(u16),
    /// A frame of the wrong length, or for a stream that cannot be.
    #[error("{frame} frame: {reason}")]
    Malformed {
        /// Its type.
        frame: &'static str,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The header compression is out of step or was never right.
    #[error("a header block that cannot be inflated: no zlib stream with the dictionary of SPDY/3")]
    Compression,
    /// More than we are ready to hold.
    #[error("{what} over the limit of {limit}")]
    Limit {
        /// Which limit.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
}

impl Error {
    /// The stream that alone is at fault, where the connection can go on.
    pub fn stream(&self) -> Option<StreamId> {
        if let Self::Stream { id, .. } = self { Some(*id) } else { None }
    }
}

/// Reads frames. There is one for all that is received over a connection.
#[derive(Debug)]
pub struct Decoder {
    limits: Limits,
    inflater: Inflater,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Between frames.
    Boundary,
    /// In the payload of a DATA frame.
    Data { id: StreamId, fin: bool, left: usize },
    /// In a header block.
    Block { kind: Opening, left: usize, inflated: Vec<u8> },
    /// In a frame that nobody knows.
    Skip { left: usize },
    /// After an error that ends the connection.
    Failed(Error),
}

/// A frame whose header block is still to come.
#[derive(Clone, Copy, Debug)]
enum Opening {
    Stream { id: StreamId, associated: StreamId, priority: u8, fin: bool, unidirectional: bool },
    Reply { id: StreamId, fin: bool },
    Headers { id: StreamId, fin: bool },
}

impl Decoder {
    /// A decoder that has read nothing.
    pub fn new(limits: Limits) -> Self {
        Self { limits, inflater: Inflater::new(), state: State::Boundary }
    }

    /// Whether the last byte taken was the last one of a frame: where a peer may close the connection.
    pub fn at_boundary(&self) -> bool {
        matches!(self.state, State::Boundary)
    }

    /// Takes the next frame off `input`, or `None` when that needs more bytes; what cannot be taken yet stays in it.
    ///
    /// DATA is given out as it arrives, without a copy: every piece but the last of a frame has `fin` unset. After an error with a
    /// [`stream`](Error::stream) the next frame can be taken; any other error is for good.
    pub fn decode(&mut self, input: &mut BytesMut) -> Result<Option<Frame>, Error> {
        match self.step(input) {
            Err(error) if error.stream().is_none() => {
                self.state = State::Failed(error.clone());
                Err(error)
            }
            other => other,
        }
    }

    fn step(&mut self, input: &mut BytesMut) -> Result<Option<Frame>, Error> {
        loop {
            match &mut self.state {
                State::Boundary => match self.begin(input)? {
                    Begun::Whole(frame) => return Ok(Some(frame)),
                    Begun::Short => return Ok(None),
                    Begun::More => {}
                },
                State::Data { id, fin, left } => {
                    if input.is_empty() {
                        return Ok(None);
                    }
                    let payload = input.split_to(input.len().min(*left)).freeze();
                    *left -= payload.len();
                    let (id, last) = (*id, *left == 0);
                    let fin = *fin && last;
                    if last {
                        self.state = State::Boundary;
                    }
                    return Ok(Some(Frame::Data { id, payload, fin }));
                }
                State::Block { kind, left, inflated } => {
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
                    self.state = State::Boundary;
                    return self.open(kind, &inflated).map(Some);
                }
                State::Skip { left } => {
                    let piece = input.len().min(*left);
                    input.advance(piece);
                    *left -= piece;
                    if *left > 0 {
                        return Ok(None);
                    }
                    self.state = State::Boundary;
                }
                State::Failed(error) => return Err(error.clone()),
            }
        }
    }

    /// Reads what comes before a payload, or the whole of a short frame.
    fn begin(&mut self, input: &mut BytesMut) -> Result<Begun, Error> {
        let Some(head) = input.first_chunk::<8>() else { return Ok(Begun::Short) };
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
                return Ok(Begun::Whole(Frame::Data { id: first, payload: Bytes::new(), fin }));
            }
            self.state = State::Data { id: first, fin, left: length };
            return Ok(Begun::More);
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
            self.state = State::Skip { left: length };
            return Ok(Begun::More);
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
            return Ok(Begun::Short);
        }
        let mut body = input.split_to(8 + whole);
        body.advance(8);
        if has_block {
            let opening = opening(kind, name, flags, &mut body)?;
            self.state = State::Block { kind: opening, left: length - fixed, inflated: Vec::new() };
            return Ok(Begun::More);
        }
        short(kind, name, flags, &mut body).map(Begun::Whole)
    }

    /// Makes the frame of a header block that is complete.
    fn open(&self, opening: Opening, block: &[u8]) -> Result<Frame, Error> {
        let id = match opening {
            Opening::Stream { id, .. } | Opening::Reply { id, .. } | Opening::Headers { id, .. } => id,
        };
        let headers = self.headers(id, block)?;
        Ok(match opening {
            Opening::Stream { id, associated, priority, fin, unidirectional } => {
                Frame::SynStream { id, associated, priority, headers, fin, unidirectional }
            }
            Opening::Reply { id, fin } => Frame::SynReply { id, headers, fin },
            Opening::Headers { id, fin } => Frame::Headers { id, headers, fin },
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
            // Go would take the rest for the beginning of the next block.
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

/// How a frame began.
enum Begun {
    /// And ended.
    Whole(Frame),
    /// Its payload follows.
    More,
    /// It has not: there are too few bytes.
    Short,
}

/// The name of a control frame, and how many bytes it has (or begins with).
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

/// A stream's number, whose first bit means nothing.
fn stream(frame: &'static str, body: &mut BytesMut) -> Result<StreamId, Error> {
    match body.get_u32() & 0x7fff_ffff {
        0 => Err(Error::Malformed { frame, reason: "there is no stream 0" }),
        id => Ok(id),
    }
}

fn opening(kind: u16, name: &'static str, flags: u8, body: &mut BytesMut) -> Result<Opening, Error> {
    let id = stream(name, body)?;
    let fin = flags & FLAG_FIN != 0;
    Ok(match kind {
        kind::SYN_STREAM => Opening::Stream {
            id,
            associated: body.get_u32() & 0x7fff_ffff,
            priority: body.get_u8() >> 5,
            fin,
            unidirectional: flags & FLAG_UNIDIRECTIONAL != 0,
        },
        kind::SYN_REPLY => Opening::Reply { id, fin },
        _ => Opening::Headers { id, fin },
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
