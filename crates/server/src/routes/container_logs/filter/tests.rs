use std::fmt::Write as _;

use futures::TryStreamExt as _;
use proptest::prelude::*;
use vk_provider::ability::Since;

use super::*;

const LOG: &str = "2026-01-01T00:00:01Z one\n2026-01-01T00:00:02.5Z two\n2026-01-01T00:00:03Z three\n";

fn now() -> Timestamp {
    "2026-01-01T00:00:10Z".parse().unwrap()
}

fn filter_in_pieces(options: &LogOptions, log: &str, stamped: bool, piece: usize) -> String {
    let mut filter = LogFilter::new(options, stamped, now());
    let mut shown = BytesMut::new();
    for piece in log.as_bytes().chunks(piece.max(1)) {
        filter.push(piece);
        shown.extend_from_slice(&filter.take());
    }
    shown.extend_from_slice(&filter.finish());
    String::from_utf8(shown.to_vec()).unwrap()
}

fn filter(options: &LogOptions) -> String {
    let whole = filter_in_pieces(options, LOG, true, usize::MAX);
    for piece in 1..LOG.len() {
        assert_eq!(filter_in_pieces(options, LOG, true, piece), whole, "in pieces of {piece}");
    }
    whole
}

#[test]
fn times_are_removed_unless_requested() {
    assert_eq!(filter(&LogOptions::default()), "one\ntwo\nthree\n");
    let stamped = filter(&LogOptions { timestamps: true, ..LogOptions::default() });
    assert!(stamped.starts_with("2026-01-01T00:00:01.000000000Z one\n2026-01-01T00:00:02.500000000Z two\n"));
}

#[test]
fn the_tail_is_the_last_lines() {
    let tail = |lines| filter(&LogOptions { tail: Some(lines), ..LogOptions::default() });
    assert_eq!(tail(0), "");
    assert_eq!(tail(1), "three\n");
    assert_eq!(tail(2), "two\nthree\n");
    assert_eq!(tail(9), "one\ntwo\nthree\n");
}

#[test]
fn older_lines_are_left_out() {
    let since = |since| filter(&LogOptions { since: Some(since), ..LogOptions::default() });
    assert_eq!(since(Since::Time("2026-01-01T00:00:02.5Z".parse().unwrap())), "two\nthree\n");
    assert_eq!(since(Since::Ago(Duration::from_secs(7))), "three\n");
    assert_eq!(since(Since::Ago(Duration::MAX)), "one\ntwo\nthree\n");
}

#[test]
fn the_limit_counts_returned_bytes() {
    let limit = |bytes| filter(&LogOptions { limit_bytes: Some(bytes), ..LogOptions::default() });
    assert_eq!(limit(1), "o");
    assert_eq!(limit(6), "one\ntw");
    assert_eq!(limit(1000), "one\ntwo\nthree\n");
    let of_last = LogOptions { limit_bytes: Some(3), tail: Some(1), ..LogOptions::default() };
    assert_eq!(filter(&of_last), "thr");
}

#[test]
fn a_log_without_times_is_limited_by_lines_and_bytes() {
    let options = LogOptions { tail: Some(2), limit_bytes: Some(5), ..LogOptions::default() };
    assert_eq!(filter_in_pieces(&options, "a b\nc d\ne", false, 2), "c d\ne");
}

#[test]
fn a_very_long_line_counts_as_one_line_and_is_complete() {
    let long = "x".repeat(3 * MAX_LINE + 5);
    let log = format!("2026-01-01T00:00:01Z a\n2026-01-01T00:00:02Z {long}\n");
    let options = LogOptions { tail: Some(1), ..LogOptions::default() };
    assert_eq!(filter_in_pieces(&options, &log, true, 64 * 1024), format!("{long}\n"));
    let late = LogOptions { since: Some(Since::Ago(Duration::from_secs(1))), ..LogOptions::default() };
    assert_eq!(filter_in_pieces(&late, &log, true, 64 * 1024), "");
}

#[test]
fn the_tail_buffer_is_bounded() {
    let mut log = String::new();
    let line = "y".repeat(1 << 20);
    for _ in 0..64 {
        writeln!(log, "2026-01-01T00:00:01Z {line}").unwrap();
    }
    let options = LogOptions { tail: Some(u64::MAX), ..LogOptions::default() };
    let mut filter = LogFilter::new(&options, true, now());
    filter.push(log.as_bytes());
    assert!(filter.tail.as_ref().unwrap().bytes <= MAX_TAIL_BYTES);
}

#[tokio::test(start_paused = true)]
async fn a_followed_log_returns_its_last_lines_and_then_new_ones() {
    let begun: Vec<io::Result<Bytes>> = LOG.split_inclusive('\n').map(|line| Ok(Bytes::from(line))).collect();
    let later = stream::once(async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        Ok(Bytes::from_static(b"2026-01-01T00:00:15Z four\n"))
    });
    let source = stream::iter(begun).chain(later).chain(stream::pending()).boxed();
    let options = LogOptions { tail: Some(1), follow: true, ..LogOptions::default() };
    let mut shown = std::pin::pin!(stream(source, LogFilter::new(&options, true, now())));
    assert_eq!(shown.try_next().await.unwrap().unwrap(), "three\n");
    assert_eq!(shown.try_next().await.unwrap().unwrap(), "four\n");
}

#[tokio::test(start_paused = true)]
async fn a_followed_log_with_a_tail_of_zero_starts_with_new_lines() {
    let source = stream::iter([Ok(Bytes::from(format!("{LOG}2026-01-01T00:00:11Z new\n")))]);
    let options = LogOptions { tail: Some(0), follow: true, ..LogOptions::default() };
    let shown: Vec<Bytes> =
        stream(source.chain(stream::pending()).boxed(), LogFilter::new(&options, true, now()))
            .take(1)
            .try_collect()
            .await
            .unwrap();
    assert_eq!(shown, [Bytes::from_static(b"new\n")]);
}

proptest! {
    #[test]
    fn the_result_does_not_depend_on_the_pieces(
        lines in prop::collection::vec((0..20_u8, "[a-z ]{0,12}"), 0..12),
        end in any::<bool>(),
        piece in 1..40_usize,
        tail in prop::option::of(0..6_u64),
        limit_bytes in prop::option::of(1..60_u64),
        timestamps in any::<bool>(),
        ago in prop::option::of(1..20_u64),
    ) {
        let mut log = String::new();
        for (second, text) in &lines {
            writeln!(log, "2026-01-01T00:00:{second:02}Z {text}").unwrap();
        }
        if !end {
            log.pop();
        }
        let since = ago.map(|ago| Since::Ago(Duration::from_secs(ago)));
        let options = LogOptions { tail, limit_bytes, timestamps, since, ..LogOptions::default() };
        let whole = filter_in_pieces(&options, &log, true, usize::MAX);
        prop_assert_eq!(filter_in_pieces(&options, &log, true, piece), whole.clone());
        if let Some(tail) = tail {
            prop_assert!(whole.lines().count() as u64 <= tail);
        }
        if let Some(limit) = limit_bytes {
            prop_assert!(whole.len() as u64 <= limit);
        }
    }
}
