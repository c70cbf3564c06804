//! Encodes and decodes SPDY/3.1 frames, without I/O.
//!
//! A [`Decoder`] and an [`Encoder`] hold the compression state of one direction: all header blocks of a connection form one zlib
//! stream, so every block has to pass through them in order, whatever happens to the frame.

mod compression;
mod decoder;
mod dictionary;
mod encoder;
mod frame;
mod headers;

pub(crate) use self::encoder::data_header;
pub use self::{
    decoder::{Decoder, Error, FrameLimits},
    encoder::{EncodeError, Encoder},
    frame::{Frame, GoAwayStatus, MAX_FRAME, ResetStatus, Setting, StreamId},
    headers::Headers,
};
