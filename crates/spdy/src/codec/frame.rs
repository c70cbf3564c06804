//! The frames of SPDY/3.1.

use bytes::Bytes;

use super::Headers;

/// Names a stream of a connection. Those of the client are odd, those of the server even; 31 bits.
pub type StreamId = u32;

/// What a frame can hold at most: its length has 24 bits.
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

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Opens a stream.
    SynStream {
        /// The new stream.
        id: StreamId,
        /// The stream that it belongs to, or 0.
        associated: StreamId,
        /// 0 (most urgent) to 7.
        priority: u8,
        /// What the stream is for.
        headers: Headers,
        /// The opener sends nothing more.
        fin: bool,
        /// The other side may send nothing.
        unidirectional: bool,
    },
    /// Accepts a stream.
    SynReply {
        /// The stream.
        id: StreamId,
        /// What the acceptor has to say.
        headers: Headers,
        /// The acceptor sends nothing more.
        fin: bool,
    },
    /// Ends a stream at once, in both directions.
    RstStream {
        /// The stream.
        id: StreamId,
        /// Why.
        status: ResetStatus,
    },
    /// Parameters of the connection. Nobody in Kubernetes sends or heeds them.
    Settings {
        /// What was set earlier is forgotten.
        clear: bool,
        /// The parameters.
        settings: Vec<Setting>,
    },
    /// Is sent back by the side that did not make the id: the client makes odd ones, the server even ones.
    Ping(u32),
    /// The sender opens no more streams, and takes no more.
    GoAway {
        /// The last stream of the receiver that the sender has dealt with.
        last_good: StreamId,
        /// Why.
        status: GoAwayStatus,
    },
    /// More headers for an open stream.
    Headers {
        /// The stream.
        id: StreamId,
        /// The headers.
        headers: Headers,
        /// The sender sends nothing more.
        fin: bool,
    },
    /// Flow control, which nobody in Kubernetes does.
    WindowUpdate {
        /// The stream, or 0 for the connection.
        id: StreamId,
        /// By how much the window grows.
        delta: u32,
    },
    /// Bytes of a stream. The decoder gives out a long frame in pieces, as they arrive.
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
    /// Whether it is to be kept over connections (1), or was (2).
    pub flags: u8,
    /// Which parameter; 24 bits.
    pub id: u32,
    /// Its value.
    pub value: u32,
}

/// Defines an enum of wire codes that keeps those it does not know.
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
        /// The peer broke a rule of the protocol.
        ProtocolError = 1 => "PROTOCOL_ERROR",
        /// There is no such stream.
        InvalidStream = 2 => "INVALID_STREAM",
        /// Nothing was done for the stream: it may be tried again.
        RefusedStream = 3 => "REFUSED_STREAM",
        /// Another version of SPDY.
        UnsupportedVersion = 4 => "UNSUPPORTED_VERSION",
        /// Nobody wants the stream any more.
        Cancel = 5 => "CANCEL",
        /// Something went wrong on the sender's side.
        InternalError = 6 => "INTERNAL_ERROR",
        /// More was sent than the window allows.
        FlowControlError = 7 => "FLOW_CONTROL_ERROR",
        /// A second answer to a stream.
        StreamInUse = 8 => "STREAM_IN_USE",
        /// Bytes for a stream that is half closed.
        StreamAlreadyClosed = 9 => "STREAM_ALREADY_CLOSED",
        /// No longer used.
        InvalidCredentials = 10 => "INVALID_CREDENTIALS",
        /// A frame that the receiver cannot hold.
        FrameTooLarge = 11 => "FRAME_TOO_LARGE",
    }
}

codes! {
    /// Why a side goes away.
    GoAwayStatus {
        /// It is done.
        Ok = 0 => "OK",
        /// The peer broke a rule of the protocol.
        ProtocolError = 1 => "PROTOCOL_ERROR",
        /// Something went wrong on the sender's side.
        InternalError = 2 => "INTERNAL_ERROR",
    }
}
