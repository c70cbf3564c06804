//! Lines of a log file.

use std::borrow::Cow;

use jiff::{
    Timestamp,
    civil::{Date, DateTime, Time},
    tz::Offset,
};
use serde::Deserialize;

/// The format of a log file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// `2016-10-06T00:17:09.669794202Z stdout P log content 1`
    Cri,
    /// `{"log":"content 1","stream":"stdout","time":"2016-10-20T18:39:20.57606443Z"}`
    Json,
}

/// A parsed line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line<'a> {
    pub(super) time: LogTimestamp,
    pub(super) stream: LineStream,
    /// Whether the line continues in the next one.
    pub(super) partial: bool,
    /// The content with its line end, if it has one.
    pub(super) content: Cow<'a, [u8]>,
}

/// The output streams of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineStream {
    Stdout,
    Stderr,
}

/// A timestamp: with `Z` or an offset, and any number of fractional digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LogTimestamp {
    civil: DateTime,
    offset: i32,
}

impl Format {
    /// Detects the format from a line.
    pub(super) fn detect(line: &[u8]) -> Option<Self> {
        [Self::Cri, Self::Json].into_iter().find(|format| format.parse(line).is_some())
    }

    /// Parses a line with its line end; `None` if it has another format.
    pub(super) fn parse(self, line: &[u8]) -> Option<Line<'_>> {
        match self {
            Self::Cri => cri(line),
            Self::Json => json(line),
        }
    }
}

fn cri(line: &[u8]) -> Option<Line<'_>> {
    let (time, rest) = word(line)?;
    let time = LogTimestamp::parse(time)?;
    let (stream, rest) = word(rest)?;
    let stream = LineStream::parse(stream)?;
    let (tags, content) = word(rest)?;
    let partial = tags.split(|byte| *byte == b':').next() == Some(b"P");
    let content = if partial { content.strip_suffix(b"\n").unwrap_or(content) } else { content };
    Some(Line { time, stream, partial, content: Cow::Borrowed(content) })
}

fn word(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let blank = text.iter().position(|byte| *byte == b' ')?;
    Some((&text[..blank], &text[blank + 1..]))
}

fn json(line: &[u8]) -> Option<Line<'_>> {
    #[derive(Deserialize)]
    struct Entry {
        #[serde(default)]
        log: String,
        #[serde(default)]
        stream: String,
        time: String,
    }
    let entry: Entry = serde_json::from_slice(line).ok()?;
    let (time, stream) =
        (LogTimestamp::parse(entry.time.as_bytes())?, LineStream::parse(entry.stream.as_bytes())?);
    let content = entry.log.into_bytes();
    Some(Line { time, stream, partial: false, content: Cow::Owned(content) })
}

impl LineStream {
    fn parse(text: &[u8]) -> Option<Self> {
        match text {
            b"stdout" => Some(Self::Stdout),
            b"stderr" => Some(Self::Stderr),
            _ => None,
        }
    }
}

impl LogTimestamp {
    /// Parses `YYYY-MM-DDThh:mm:ss`, an optional fraction, and `Z` or `+hh:mm` or `-hh:mm`.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let (civil, rest) = text.split_at_checked(19)?;
        let separators = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')];
        if separators.iter().any(|(place, separator)| civil[*place] != *separator) {
            return None;
        }
        let two =
            |place: usize| number(&civil[place..place + 2]).and_then(|number| i8::try_from(number).ok());
        let year = i16::try_from(number(&civil[..4])?).ok()?;
        let date = Date::new(year, two(5)?, two(8)?).ok()?;
        let (nanos, zone) = fraction(rest)?;
        let second = two(17).filter(|second| *second < 60)?;
        let time = Time::new(two(11)?, two(14)?, second, nanos).ok()?;
        Some(Self { civil: date.to_datetime(time), offset: offset(zone)? })
    }

    /// The point in time.
    pub(super) fn to_timestamp(self) -> Option<Timestamp> {
        Offset::from_seconds(self.offset).ok()?.to_timestamp(self.civil).ok()
    }

    /// Writes it as a kubelet does: with nine fractional digits, and `Z` if there is no offset.
    pub(super) fn write(self, out: &mut Vec<u8>) {
        use std::io::Write as _;
        let (date, time) = (self.civil.date(), self.civil.time());
        // Writing to memory cannot fail.
        let _ = write!(
            out,
            "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:09}",
            date.year(),
            date.month(),
            date.day(),
            time.hour(),
            time.minute(),
            time.second(),
            time.subsec_nanosecond()
        );
        if self.offset == 0 {
            out.push(b'Z');
        } else {
            let sign = if self.offset < 0 { '-' } else { '+' };
            let minutes = self.offset.abs() / 60;
            let _ = write!(out, "{sign}{:02}:{:02}", minutes / 60, minutes % 60);
        }
    }
}

fn number(digits: &[u8]) -> Option<u32> {
    digits.iter().try_fold(0_u32, |number, digit| {
        digit.is_ascii_digit().then(|| number * 10 + u32::from(digit - b'0'))
    })
}

/// Nanoseconds and the rest. Digits after the ninth are dropped.
fn fraction(text: &[u8]) -> Option<(i32, &[u8])> {
    let Some(digits) = text.strip_prefix(b".").or_else(|| text.strip_prefix(b",")) else {
        return Some((0, text));
    };
    let length = digits.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if length == 0 {
        return None;
    }
    let kept = length.min(9);
    let mut nanos = number(&digits[..kept])?;
    for _ in kept..9 {
        nanos *= 10;
    }
    Some((i32::try_from(nanos).ok()?, &digits[length..]))
}

/// Seconds east of Greenwich.
fn offset(zone: &[u8]) -> Option<i32> {
    if zone == b"Z" {
        return Some(0);
    }
    let [sign @ (b'+' | b'-'), h1, h2, b':', m1, m2] = zone else { return None };
    let (hours, minutes) = (number(&[*h1, *h2])?, number(&[*m1, *m2])?);
    if hours > 24 || minutes > 60 {
        return None;
    }
    let seconds = i32::try_from(hours * 3600 + minutes * 60).ok()?;
    Some(if *sign == b'-' { -seconds } else { seconds })
}
