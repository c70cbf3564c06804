//! The end of a log, as far as it was read: what comes next is new.

use bytes::Bytes;
use jiff::Timestamp;

use crate::backend::LogLimits;

/// A line of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    /// When it was written, if the cloud says so.
    pub(super) time: Option<Timestamp>,
    /// Its text, without the end of the line.
    pub(super) text: Bytes,
}

/// What was read of a log.
#[derive(Debug)]
pub(super) struct LogTail {
    limits: LogLimits,
    /// The time of the last line that was read.
    last: Option<Timestamp>,
    /// The lines that were read of that time; for a log without times, those of the last answer.
    before: Vec<Line>,
}

/// Splits text into lines. A line without a time belongs to the line before it.
pub(super) fn parse(text: &Bytes, stamped: bool) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut time = None;
    let mut rest = text.clone();
    while !rest.is_empty() {
        let end = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
        let line = rest.split_to(end);
        if !rest.is_empty() {
            let _ = rest.split_to(1);
        }
        let line = if stamped { stamped_line(&line) } else { Line { time: None, text: line } };
        time = line.time.or(time);
        lines.push(Line { time, ..line });
    }
    lines
}

/// A line with its time, if it has one.
fn stamped_line(line: &Bytes) -> Line {
    let end = line.iter().position(|byte| *byte == b' ').unwrap_or(line.len());
    let time = std::str::from_utf8(&line[..end]).ok().and_then(|text| text.parse().ok());
    let text = if time.is_some() { line.slice((end + 1).min(line.len())..) } else { line.clone() };
    Line { time, text }
}

// === impl LogTail ===

impl LogTail {
    pub(super) fn new(limits: LogLimits) -> Self {
        Self { limits, last: None, before: Vec::new() }
    }

    /// From when on lines have to be read again.
    pub(super) fn last_time(&self) -> Option<Timestamp> {
        self.last
    }

    /// Whether these lines begin where the last answer ended, so that they are surely of the same log.
    pub(super) fn continues(&self, lines: &[Line]) -> bool {
        if !self.limits.stamped {
            return self.overlap(lines) > 0;
        }
        let at_last: Vec<&Line> = lines.iter().filter(|line| line.time == self.last).collect();
        let count = self.before.len();
        count > 0 && at_last.windows(count).any(|some| some.iter().copied().eq(&self.before))
    }

    /// The lines that were not read before. `full`: the cloud has cut off what did not fit.
    pub(super) fn new_lines(&mut self, lines: Vec<Line>, full: bool) -> Vec<Line> {
        if self.limits.stamped { self.by_time(lines, full) } else { self.by_overlap(lines) }
    }

    fn by_time(&mut self, lines: Vec<Line>, full: bool) -> Vec<Line> {
        let last = self.last;
        let is_old = |line: &Line| last.zip(line.time).is_some_and(|(last, time)| time < last);
        let at_last = |line: &Line| last.is_some() && line.time == last;
        // The cloud was asked for lines from the last time on: if it cut off lines of that time, others may be missing, too.
        let lost = full && last.is_some() && !lines.iter().any(|line| is_old(line) || at_last(line));
        let repeated: Vec<Line> = lines.iter().filter(|line| at_last(line)).cloned().collect();
        let mut known = self.repeated(&repeated);
        let mut new = Vec::new();
        if lost {
            let text =
                Bytes::from_static(b"[some lines are missing here: the cloud returns only the newest]");
            new.push(Line { time: lines.first().and_then(|line| line.time), text });
        }
        for line in lines {
            if is_old(&line) {
                continue;
            }
            if at_last(&line) && known > 0 {
                known -= 1;
                continue;
            }
            if line.time.is_some() {
                if line.time != self.last {
                    self.before.clear();
                }
                self.last = line.time;
                self.before.push(line.clone());
            }
            new.push(line);
        }
        new
    }

    /// How many of the lines of the last time were read before. The first of them may have been left out then, by the number of lines that
    /// was asked for.
    fn repeated(&self, lines: &[Line]) -> usize {
        let count = self.before.len();
        let found = lines.windows(count.max(1)).position(|some| some == self.before);
        found.map_or(count, |at| at + count)
    }

    /// Without times, the end of what was read before is looked for.
    fn by_overlap(&mut self, lines: Vec<Line>) -> Vec<Line> {
        let overlap = self.overlap(&lines);
        if !lines.is_empty() {
            self.before.clone_from(&lines);
        }
        lines.into_iter().skip(overlap).collect()
    }

    /// How many of the first lines are the last ones of the answer before.
    fn overlap(&self, lines: &[Line]) -> usize {
        let before = &self.before;
        let longest = before.len().min(lines.len());
        let overlap = (0..=longest).rev().find(|count| before[before.len() - count..] == lines[..*count]);
        overlap.unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    const STAMPED: LogLimits = LogLimits { lines: 4, bytes: 1000, stamped: true, previous: true };

    fn texts(lines: &[Line]) -> Vec<&str> {
        lines.iter().map(|line| std::str::from_utf8(&line.text).unwrap()).collect()
    }

    /// The newest lines from a time on, as the cloud returns them.
    fn cloud(all: &[(i64, &str)], since: Option<Timestamp>, limit: usize) -> (Bytes, bool) {
        let time = |second: i64| Timestamp::from_second(second).unwrap();
        let range = all.iter().filter(|(second, _)| since.is_none_or(|since| time(*second) >= since));
        let range: Vec<_> = range.collect();
        let newest = &range[range.len().saturating_sub(limit)..];
        let text = newest.iter().fold(String::new(), |mut text, (second, line)| {
            writeln!(text, "{} {line}", time(*second)).unwrap();
            text
        });
        (Bytes::from(text), newest.len() >= limit)
    }

    #[test]
    fn each_line_is_read_once_and_in_order_also_at_the_same_time() {
        let all = [(1, "a"), (1, "b"), (2, "c"), (2, "c"), (2, "d"), (3, "e")];
        let mut tail = LogTail::new(LogLimits { lines: 100, ..STAMPED });
        let mut read = Vec::new();
        for end in 0..=all.len() {
            let (text, full) = cloud(&all[..end], tail.last_time(), 100);
            read.extend(tail.new_lines(parse(&text, true), full));
        }
        assert_eq!(texts(&read), ["a", "b", "c", "c", "d", "e"]);
    }

    #[test]
    fn lines_that_were_left_out_at_first_do_not_come_later() {
        let all = [(1, "a"), (1, "b"), (1, "c"), (1, "d")];
        let mut tail = LogTail::new(LogLimits { lines: 100, ..STAMPED });
        let (text, _) = cloud(&all[..3], None, 2);
        assert_eq!(texts(&tail.new_lines(parse(&text, true), false)), ["b", "c"]);
        let (text, full) = cloud(&all, tail.last_time(), 100);
        assert_eq!(texts(&tail.new_lines(parse(&text, true), full)), ["d"]);
    }

    #[test]
    fn a_line_says_that_others_are_missing_when_more_came_than_the_cloud_returns() {
        let all = [(1, "a"), (2, "b"), (3, "c"), (4, "d"), (5, "e"), (6, "f")];
        let mut tail = LogTail::new(STAMPED);
        let mut read = |all: &[(i64, &str)]| {
            let (text, full) = cloud(all, tail.last_time(), 4);
            let lines = tail.new_lines(parse(&text, true), full);
            texts(&lines).into_iter().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(read(&all[..1]), ["a"]);
        assert_eq!(read(&all[..4]), ["b", "c", "d"], "exactly as many as fit");
        let more = [all.as_slice(), &[(7, "g"), (8, "h")]].concat();
        let last = read(&more);
        assert!(last[0].contains("missing"), "{last:?}");
        assert_eq!(last[1..], ["e", "f", "g", "h"]);
    }

    #[test]
    fn a_log_without_times_is_continued_where_it_overlaps() {
        let mut tail = LogTail::new(LogLimits { stamped: false, ..STAMPED });
        let mut read = |text: &str| {
            let lines = tail.new_lines(parse(&Bytes::copy_from_slice(text.as_bytes()), false), false);
            texts(&lines).into_iter().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(read("a\nb\nb"), ["a", "b", "b"]);
        assert_eq!(read("a\nb\nb\nc\n"), ["c"]);
        assert_eq!(read("b\nc\nd\ne\n"), ["d", "e"]);
        assert_eq!(read("b\nc\nd\ne\n"), [""; 0]);
    }

    #[test]
    fn text_is_kept_byte_for_byte() {
        let text =
            Bytes::from_static(b"2026-01-01T00:00:00Z  two blanks\xff\n2026-01-01T00:00:01Z\nno time\n");
        let lines = parse(&text, true);
        assert_eq!(lines[0].text, Bytes::from_static(b" two blanks\xff"));
        assert_eq!((lines[1].text.len(), lines[1].time.is_some()), (0, true));
        assert_eq!((&lines[2].text[..], lines[2].time), (&b"no time"[..], lines[1].time));
    }
}
