//! Filters a log by the options that the provider did not apply.

use std::{collections::VecDeque, io, time::Duration};

use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt as _, stream};
use jiff::Timestamp;
use vk_provider::ability::{LogOptions, LogStream};

use super::since;

/// Bytes of the last lines that are buffered for `tailLines`; if they are longer, fewer are returned.
const MAX_TAIL_BYTES: usize = 32 << 20;
/// Longer lines are processed in pieces.
const MAX_LINE: usize = 1 << 20;
/// After this silence, a followed log has returned its existing lines.
const FOLLOW_SILENCE: Duration = Duration::from_millis(300);

/// Applies the log options that the provider left to the server.
#[derive(Debug)]
pub(super) struct LogFilter {
    stamped: bool,
    since: Option<Timestamp>,
    timestamps: bool,
    follow: bool,
    /// How many bytes may still be returned.
    bytes_left: Option<u64>,
    /// The last lines so far, until no newer line can displace them.
    tail: Option<TailBuffer>,
    /// When the log was opened: later lines are new.
    opened: Timestamp,
    partial: BytesMut,
    /// Set if the next piece continues a line; the value says whether the line is returned.
    continues_line: Option<bool>,
    out: BytesMut,
}

#[derive(Debug)]
struct TailBuffer {
    lines: VecDeque<Bytes>,
    limit: u64,
    bytes: usize,
}

/// The filtered log as a stream.
pub(super) fn stream(source: LogStream, filter: LogFilter) -> impl Stream<Item = io::Result<Bytes>> + Send {
    stream::unfold(Some((source, filter)), |state| async move {
        let (mut source, mut filter) = state?;
        loop {
            let ready = filter.take();
            if !ready.is_empty() {
                return Some((Ok(ready), Some((source, filter))));
            }
            if filter.is_full() {
                return None;
            }
            let next = if filter.follow && filter.tail.is_some() {
                tokio::time::timeout(FOLLOW_SILENCE, source.next()).await
            } else {
                Ok(source.next().await)
            };
            match next {
                Err(_) => filter.release_tail(),
                Ok(Some(Ok(bytes))) => filter.push(&bytes),
                Ok(Some(Err(error))) => return Some((Err(error), None)),
                Ok(None) => {
                    let rest = filter.finish();
                    return (!rest.is_empty()).then_some((Ok(rest), None));
                }
            }
        }
    })
}

// === impl LogFilter ===

impl LogFilter {
    pub(super) fn new(options: &LogOptions, stamped: bool, now: Timestamp) -> Self {
        let tail = options.tail.map(|limit| TailBuffer { lines: VecDeque::new(), limit, bytes: 0 });
        Self {
            stamped,
            since: since(options, now),
            timestamps: options.timestamps,
            follow: options.follow,
            bytes_left: options.limit_bytes,
            tail,
            opened: now,
            partial: BytesMut::new(),
            continues_line: None,
            out: BytesMut::new(),
        }
    }

    /// Adds a piece of the log, which may end anywhere.
    fn push(&mut self, mut bytes: &[u8]) {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            let (line, rest) = bytes.split_at(end + 1);
            self.partial.extend_from_slice(line);
            self.process_line();
            bytes = rest;
        }
        self.partial.extend_from_slice(bytes);
        if self.partial.len() > MAX_LINE {
            self.process_line();
        }
    }

    /// Ends the log and returns the rest.
    fn finish(&mut self) -> Bytes {
        if !self.partial.is_empty() {
            self.process_line();
        }
        self.release_tail();
        self.take()
    }

    /// Takes what can be returned now.
    fn take(&mut self) -> Bytes {
        let mut ready = self.out.split().freeze();
        if let Some(bytes_left) = &mut self.bytes_left {
            let length = usize::try_from(*bytes_left).unwrap_or(usize::MAX).min(ready.len());
            ready.truncate(length);
            *bytes_left -= length as u64;
        }
        ready
    }

    /// Whether nothing more will be returned.
    fn is_full(&self) -> bool {
        self.bytes_left == Some(0) || (!self.follow && self.tail.as_ref().is_some_and(|tail| tail.limit == 0))
    }

    /// Processes what is collected: a line, its end, or a piece of a very long one.
    fn process_line(&mut self) {
        let piece = self.partial.split().freeze();
        let ends = piece.ends_with(b"\n");
        let selected = match self.continues_line {
            Some(selected) => selected.then_some((piece, None)),
            None => self.select(piece),
        };
        self.continues_line = (!ends).then_some(selected.is_some());
        let Some((text, time)) = selected else { return };
        if self.follow && time.is_some_and(|time| time >= self.opened) {
            self.release_tail();
        }
        match &mut self.tail {
            Some(tail) => tail.push(text),
            None => self.out.extend_from_slice(&text),
        }
    }

    /// The line as returned, with its time, unless it is filtered out.
    fn select(&self, line: Bytes) -> Option<(Bytes, Option<Timestamp>)> {
        let blank = line.iter().position(|byte| *byte == b' ').filter(|_| self.stamped);
        let time =
            blank.and_then(|blank| std::str::from_utf8(&line[..blank]).ok()?.parse::<Timestamp>().ok());
        // A line without a time is returned: better too much of a log than too little.
        let (Some(time), Some(blank)) = (time, blank) else { return Some((line, None)) };
        if self.since.is_some_and(|since| time < since) {
            return None;
        }
        let text = line.slice(blank + 1..);
        if !self.timestamps {
            return Some((text, Some(time)));
        }
        // Nine digits, as in the kubelet, so that times align.
        let mut stamped = BytesMut::from(format!("{time:.9} ").as_bytes());
        stamped.extend_from_slice(&text);
        Some((stamped.freeze(), Some(time)))
    }

    /// Returns the buffered lines, and stops buffering.
    fn release_tail(&mut self) {
        for line in self.tail.take().into_iter().flat_map(|tail| tail.lines) {
            self.out.extend_from_slice(&line);
        }
    }
}

// === impl TailBuffer ===

impl TailBuffer {
    fn push(&mut self, text: Bytes) {
        let continues = self.lines.back().is_some_and(|last| !last.ends_with(b"\n"));
        self.bytes += text.len();
        if continues && let Some(last) = self.lines.pop_back() {
            self.lines.push_back([last, text].concat().into());
        } else {
            self.lines.push_back(text);
        }
        while self.lines.len() as u64 > self.limit || (self.bytes > MAX_TAIL_BYTES && self.lines.len() > 1) {
            let Some(oldest) = self.lines.pop_front() else { break };
            self.bytes -= oldest.len();
        }
    }
}

#[cfg(test)]
mod tests;
