//! The frames of SPDY/3.1.

use bytes::Bytes;

use super::Headers;

/// A stream ID: odd for streams of the client, even for those of the server; 31 bits.
pub type StreamId = u32;

/// The maximum length of a frame: it has 24 bits.
pub const MAX_FRAME: usize = (1 << 24) - 1;

pub(super) const VERSION: u16 = 3;
pub(super) const FLAG_FIN: u8 = 1;
pub(super) const FLAG_UNIDIRECTIONAL: u8 = 2;

/// The types of control frames.
pub(super) mod kind {
    pub(in crate::codec) const SYN_STREAM: u16 = 1;
    pub(in crate::codec) const SYN_REPLY: u16 = 2;
    pub(in crate::codec) const RST_STREAM: u16 = 3;
    pub(in crate::codec) const SETTINGS: u16 = 4;
    pub(in crate::codec) const PING: u16 = 6;
    pub(in crate::codec) const GOAWAY: u16 = 7;
    pub(in crate::codec) const HEADERS: u16 = 8;
    pub(in crate::codec) const WINDOW_UPDATE: u16 = 9;
}

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Opens a stream.
    SynStream {
        /// The new stream.
        id: StreamId,
        /// The associated stream, or 0.
        associated: StreamId,
        /// 0 (most urgent) to 7.
        priority: u8,
        /// The stream's headers.
        headers: Headers,
        /// The sender sends nothing more.
        fin: bool,
        /// The receiver may send nothing.
        unidirectional: bool,
    },
    /// Accepts a stream.
    SynReply {
        /// The stream.
        id: StreamId,
        /// The headers of the reply.
        headers: Headers,
        /// The sender sends nothing more.
        fin: bool,
    },
    /// Closes a stream in both directions.
    RstStream {
        /// The stream.
        id: StreamId,
        /// Why.
        status: ResetStatus,
    },
    /// Parameters of the connection. Nobody in Kubernetes uses them.
    Settings {
        /// Clear earlier settings.
        clear: bool,
        /// The parameters.
        settings: Vec<Setting>,
    },
    /// A PING or its reply. The client uses odd IDs, the server even ones.
    Ping(u32),
    /// The sender opens and accepts no more streams.
    GoAway {
        /// The last stream of the receiver that the sender has processed.
        last_good: StreamId,
        /// Why.
        status: GoAwayStatus,
    },
    /// Headers of an open stream.
    Headers {
        /// The stream.
        id: StreamId,
        /// The headers.
        headers: Headers,
        /// The sender sends nothing more.
        fin: bool,
    },
    /// Flow control, which Kubernetes does not use.
    WindowUpdate {
        /// The stream, or 0 for the connection.
        id: StreamId,
        /// The increment of the window.
        delta: u32,
    },
    /// Data of a stream. The decoder returns a long frame in pieces.
    Data {
        /// The stream.
        id: StreamId,
        /// The bytes.
        payload: Bytes,
        /// The sender sends nothing more.
        fin: bool,
    },
}

/// One parameter of a SETTINGS frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Flags: persist the value (1), or persisted value (2).
    pub flags: u8,
    /// The parameter's ID; 24 bits.
    pub id: u32,
    /// The value.
    pub value: u32,
}

/// Defines an enum of wire codes that keeps unknown ones.
macro_rules! codes {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $code:literal => $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)+
            /// A code that SPDY/3.1 does not define.
            Other(u32),
        }

        impl $name {
            /// The number on the wire.
            pub const fn code(self) -> u32 {
                match self {
                    $(Self::$variant => $code,)+
                    Self::Other(code) => code,
                }
            }
        }

        impl From<u32> for $name {
            fn from(code: u32) -> Self {
                match code {
                    $($code => Self::$variant,)+
                    other => Self::Other(other),
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self {
                    $(Self::$variant => formatter.write_str($text),)+
                    Self::Other(code) => write!(formatter, "status {code}"),
                }
            }
        }
    };
}

codes! {
    /// Why a stream was reset.
    ResetStatus {
        /// The peer violated the protocol.
        ProtocolError = 1 => "PROTOCOL_ERROR",
        /// The stream does not exist.
        InvalidStream = 2 => "INVALID_STREAM",
        /// The stream was not processed and may be retried.
        RefusedStream = 3 => "REFUSED_STREAM",
        /// Unsupported version of SPDY.
        UnsupportedVersion = 4 => "UNSUPPORTED_VERSION",
        /// The stream is not needed any more.
        Cancel = 5 => "CANCEL",
        /// An internal error of the sender.
        InternalError = 6 => "INTERNAL_ERROR",
        /// The flow-control window was exceeded.
        FlowControlError = 7 => "FLOW_CONTROL_ERROR",
        /// A second reply to a stream.
        StreamInUse = 8 => "STREAM_IN_USE",
        /// Data for a half-closed stream.
        StreamAlreadyClosed = 9 => "STREAM_ALREADY_CLOSED",
        /// No longer used.
        InvalidCredentials = 10 => "INVALID_CREDENTIALS",
        /// The frame is too large for the receiver.
        FrameTooLarge = 11 => "FRAME_TOO_LARGE",
    }
}

codes! {
    /// Why a side closes the connection.
    GoAwayStatus {
        /// Normal close.
        Ok = 0 => "OK",
        /// The peer violated the protocol.
        ProtocolError = 1 => "PROTOCOL_ERROR",
        /// An internal error of the sender.
        InternalError = 2 => "INTERNAL_ERROR",
    }
}
