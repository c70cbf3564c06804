use std::fmt::Write as _;

use futures::TryStreamExt as _;
use proptest::prelude::*;
use vk_provider::ability::Since;

use super::*;

const LOG: &str = "2026-01-01T00:00:01Z one\n2026-01-01T00:00:02.5Z two\n2026-01-01T00:00:03Z three\n";

fn now() -> Timestamp {
    "2026-01-01T00:00:10Z".parse().unwrap()
}

fn cut_in_pieces(options: &LogOptions, log: &str, stamped: bool, piece: usize) -> String {
    let mut cut = Cut::new(options, stamped, now());
    let mut shown = BytesMut::new();
    for piece in log.as_bytes().chunks(piece.max(1)) {
        cut.push(piece);
        shown.extend_from_slice(&cut.take());
    }
    shown.extend_from_slice(&cut.finish());
    String::from_utf8(shown.to_vec()).unwrap()
}

fn cut(options: &LogOptions) -> String {
    let whole = cut_in_pieces(options, LOG, true, usize::MAX);
    for piece in 1..LOG.len() {
        assert_eq!(cut_in_pieces(options, LOG, true, piece), whole, "in pieces of {piece}");
    }
    whole
}

#[test]
fn times_are_taken_off_unless_they_are_wanted() {
    assert_eq!(cut(&LogOptions::default()), "one\ntwo\nthree\n");
    let stamped = cut(&LogOptions { timestamps: true, ..LogOptions::default() });
    assert!(stamped.starts_with("2026-01-01T00:00:01.000000000Z one\n2026-01-01T00:00:02.500000000Z two\n"));
}

#[test]
fn the_last_lines_are_those_at_the_end() {
    let tail = |lines| cut(&LogOptions { tail: Some(lines), ..LogOptions::default() });
    assert_eq!(tail(0), "");
    assert_eq!(tail(1), "three\n");
    assert_eq!(tail(2), "two\nthree\n");
    assert_eq!(tail(9), "one\ntwo\nthree\n");
}

#[test]
fn older_lines_than_wanted_are_left_out() {
    let since = |since| cut(&LogOptions { since: Some(since), ..LogOptions::default() });
    assert_eq!(since(Since::Time("2026-01-01T00:00:02.5Z".parse().unwrap())), "two\nthree\n");
    assert_eq!(since(Since::Ago(Duration::from_secs(7))), "three\n");
    assert_eq!(since(Since::Ago(Duration::MAX)), "one\ntwo\nthree\n");
}

#[test]
fn the_limit_counts_what_is_shown() {
    let limit = |bytes| cut(&LogOptions { limit_bytes: Some(bytes), ..LogOptions::default() });
    assert_eq!(limit(1), "o");
    assert_eq!(limit(6), "one\ntw");
    assert_eq!(limit(1000), "one\ntwo\nthree\n");
    let of_last = LogOptions { limit_bytes: Some(3), tail: Some(1), ..LogOptions::default() };
    assert_eq!(cut(&of_last), "thr");
}

#[test]
fn a_log_without_times_is_cut_by_lines_and_bytes() {
    let options = LogOptions { tail: Some(2), limit_bytes: Some(5), ..LogOptions::default() };
    assert_eq!(cut_in_pieces(&options, "a b\nc d\ne", false, 2), "c d\ne");
}

#[test]
fn a_very_long_line_is_one_line_to_the_tail_and_keeps_its_bytes() {
    let long = "x".repeat(3 * LONGEST + 5);
    let log = format!("2026-01-01T00:00:01Z a\n2026-01-01T00:00:02Z {long}\n");
    let options = LogOptions { tail: Some(1), ..LogOptions::default() };
    assert_eq!(cut_in_pieces(&options, &log, true, 64 * 1024), format!("{long}\n"));
    let late = LogOptions { since: Some(Since::Ago(Duration::from_secs(1))), ..LogOptions::default() };
    assert_eq!(cut_in_pieces(&late, &log, true, 64 * 1024), "");
}

#[test]
fn what_is_held_back_for_the_tail_has_an_end() {
    let mut log = String::new();
    let line = "y".repeat(1 << 20);
    for _ in 0..64 {
        writeln!(log, "2026-01-01T00:00:01Z {line}").unwrap();
    }
    let options = LogOptions { tail: Some(u64::MAX), ..LogOptions::default() };
    let mut cut = Cut::new(&options, true, now());
    cut.push(log.as_bytes());
    assert!(cut.held.as_ref().unwrap().weight <= HELD);
}

#[tokio::test(start_paused = true)]
async fn a_followed_log_shows_its_last_lines_and_then_what_comes() {
    let begun: Vec<io::Result<Bytes>> = LOG.split_inclusive('\n').map(|line| Ok(Bytes::from(line))).collect();
    let later = stream::once(async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        Ok(Bytes::from_static(b"2026-01-01T00:00:15Z four\n"))
    });
    let source = stream::iter(begun).chain(later).chain(stream::pending()).boxed();
    let options = LogOptions { tail: Some(1), follow: true, ..LogOptions::default() };
    let mut shown = std::pin::pin!(stream(source, Cut::new(&options, true, now())));
    assert_eq!(shown.try_next().await.unwrap().unwrap(), "three\n");
    assert_eq!(shown.try_next().await.unwrap().unwrap(), "four\n");
}

#[tokio::test(start_paused = true)]
async fn a_followed_log_without_a_tail_begins_with_what_is_new() {
    let source = stream::iter([Ok(Bytes::from(format!("{LOG}2026-01-01T00:00:11Z new\n")))]);
    let options = LogOptions { tail: Some(0), follow: true, ..LogOptions::default() };
    let shown: Vec<Bytes> = stream(source.chain(stream::pending()).boxed(), Cut::new(&options, true, now()))
        .take(1)
        .try_collect()
        .await
        .unwrap();
    assert_eq!(shown, [Bytes::from_static(b"new\n")]);
}

proptest! {
    #[test]
    fn however_a_log_is_cut_into_pieces_the_same_is_shown(
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
        let whole = cut_in_pieces(&options, &log, true, usize::MAX);
        prop_assert_eq!(cut_in_pieces(&options, &log, true, piece), whole.clone());
        if let Some(tail) = tail {
            prop_assert!(whole.lines().count() as u64 <= tail);
        }
        if let Some(limit) = limit_bytes {
            prop_assert!(whole.len() as u64 <= limit);
        }
    }
}
