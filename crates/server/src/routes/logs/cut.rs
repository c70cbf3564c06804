//! The part of a log that was asked for, cut out of the whole.

use std::{collections::VecDeque, io, time::Duration};

use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt as _, stream};
use jiff::Timestamp;
use vk_provider::ability::{LogOptions, LogStream};

use super::since;

/// What the last lines may weigh together while they are held back: of longer ones, fewer are shown.
const HELD: usize = 32 << 20;
/// A line that is longer goes on in pieces.
const LONGEST: usize = 1 << 20;
/// A followed log that is silent for so long has shown what it had.
const SILENCE: Duration = Duration::from_millis(300);

/// Applies the options that the provider has left to the server.
#[derive(Debug)]
pub(super) struct Cut {
    stamped: bool,
    since: Option<Timestamp>,
    timestamps: bool,
    follow: bool,
    /// How many bytes may still be shown.
    left: Option<u64>,
    /// The last lines so far, while older ones may still have to make room for newer ones.
    held: Option<Held>,
    /// When the log was opened: lines from then on are new.
    opened: Timestamp,
    partial: BytesMut,
    /// Whether the next piece belongs to a line whose beginning has been dealt with, and whether that was shown.
    inside: Option<bool>,
    out: BytesMut,
}

#[derive(Debug)]
struct Held {
    lines: VecDeque<Bytes>,
    limit: u64,
    weight: usize,
}

/// The part of a log that was asked for, as it comes.
pub(super) fn stream(source: LogStream, cut: Cut) -> impl Stream<Item = io::Result<Bytes>> + Send {
    stream::unfold(Some((source, cut)), |state| async move {
        let (mut source, mut cut) = state?;
        loop {
            let ready = cut.take();
            if !ready.is_empty() {
                return Some((Ok(ready), Some((source, cut))));
            }
            if cut.is_full() {
                return None;
            }
            let next = if cut.follow && cut.held.is_some() {
                tokio::time::timeout(SILENCE, source.next()).await
            } else {
                Ok(source.next().await)
            };
            match next {
                Err(_) => cut.release(),
                Ok(Some(Ok(bytes))) => cut.push(&bytes),
                Ok(Some(Err(error))) => return Some((Err(error), None)),
                Ok(None) => {
                    let rest = cut.finish();
                    return (!rest.is_empty()).then_some((Ok(rest), None));
                }
            }
        }
    })
}

// === impl Cut ===

impl Cut {
    pub(super) fn new(options: &LogOptions, stamped: bool, now: Timestamp) -> Self {
        let held = options.tail.map(|limit| Held { lines: VecDeque::new(), limit, weight: 0 });
        Self {
            stamped,
            since: since(options, now),
            timestamps: options.timestamps,
            follow: options.follow,
            left: options.limit_bytes,
            held,
            opened: now,
            partial: BytesMut::new(),
            inside: None,
            out: BytesMut::new(),
        }
    }

    /// Takes a piece of the log, cut anywhere.
    fn push(&mut self, mut bytes: &[u8]) {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            let (line, rest) = bytes.split_at(end + 1);
            self.partial.extend_from_slice(line);
            self.line();
            bytes = rest;
        }
        self.partial.extend_from_slice(bytes);
        if self.partial.len() > LONGEST {
            self.line();
        }
    }

    /// The log is over.
    fn finish(&mut self) -> Bytes {
        if !self.partial.is_empty() {
            self.line();
        }
        self.release();
        self.take()
    }

    /// What can be shown now.
    fn take(&mut self) -> Bytes {
        let mut ready = self.out.split().freeze();
        if let Some(left) = &mut self.left {
            let length = usize::try_from(*left).unwrap_or(usize::MAX).min(ready.len());
            ready.truncate(length);
            *left -= length as u64;
        }
        ready
    }

    /// Whether nothing more will be shown, whatever comes.
    fn is_full(&self) -> bool {
        self.left == Some(0) || (!self.follow && self.held.as_ref().is_some_and(|held| held.limit == 0))
    }

    /// Deals with what is collected: a line, its end, or a piece of a very long one.
    fn line(&mut self) {
        let piece = self.partial.split().freeze();
        let ends = piece.ends_with(b"\n");
        let shown = match self.inside {
            Some(shown) => shown.then_some((piece, None)),
            None => self.choose(piece),
        };
        self.inside = (!ends).then_some(shown.is_some());
        let Some((text, time)) = shown else { return };
        if self.follow && time.is_some_and(|time| time >= self.opened) {
            self.release();
        }
        match &mut self.held {
            Some(held) => held.push(text),
            None => self.out.extend_from_slice(&text),
        }
    }

    /// The line as it is to be shown, with its time, if it is wanted.
    fn choose(&self, line: Bytes) -> Option<(Bytes, Option<Timestamp>)> {
        let blank = line.iter().position(|byte| *byte == b' ').filter(|_| self.stamped);
        let time =
            blank.and_then(|blank| std::str::from_utf8(&line[..blank]).ok()?.parse::<Timestamp>().ok());
        // A line without a time is shown: better too much of a log than too little.
        let (Some(time), Some(blank)) = (time, blank) else { return Some((line, None)) };
        if self.since.is_some_and(|since| time < since) {
            return None;
        }
        let text = line.slice(blank + 1..);
        if !self.timestamps {
            return Some((text, Some(time)));
        }
        // Nine digits, as the kubelet writes them: so the times stand in columns.
        let mut stamped = BytesMut::from(format!("{time:.9} ").as_bytes());
        stamped.extend_from_slice(&text);
        Some((stamped.freeze(), Some(time)))
    }

    /// What was held back is shown, and from now on nothing is held.
    fn release(&mut self) {
        for line in self.held.take().into_iter().flat_map(|held| held.lines) {
            self.out.extend_from_slice(&line);
        }
    }
}

// === impl Held ===

impl Held {
    fn push(&mut self, text: Bytes) {
        let continues = self.lines.back().is_some_and(|last| !last.ends_with(b"\n"));
        self.weight += text.len();
        if continues && let Some(last) = self.lines.pop_back() {
            self.lines.push_back([last, text].concat().into());
        } else {
            self.lines.push_back(text);
        }
        while self.lines.len() as u64 > self.limit || (self.weight > HELD && self.lines.len() > 1) {
            let Some(oldest) = self.lines.pop_front() else { break };
            self.weight -= oldest.len();
        }
    }
}

#[cfg(test)]
mod tests;
