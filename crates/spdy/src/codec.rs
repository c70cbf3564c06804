//! SPDY/3.1 frames without I/O: bytes in, frames out, and back.
//!
//! A [`Decoder`] and an [`Encoder`] each hold what one direction of a connection must remember: header blocks are compressed by one
//! zlib stream for the whole connection, so every block has to pass through them, in the order of the wire, whatever becomes of
//! the frame.

mod compression;
mod decoder;
mod dictionary;
mod encoder;
mod frame;
mod headers;

pub(crate) use self::encoder::data_header;
pub use self::{
    decoder::{Decoder, Error, Limits},
    encoder::{EncodeError, Encoder},
    frame::{Frame, GoAwayStatus, MAX_FRAME, ResetStatus, Setting, StreamId},
    headers::Headers,
};
