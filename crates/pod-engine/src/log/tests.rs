use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    io::Write as _,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::StreamExt as _;
use proptest::prelude::*;
use serde::Deserialize;
use vk_provider::ability::{LogStream, Output};

use super::{reader::BufferSizes, *};

/// Output of the log reader of kubelet 1.36.4 for files and options. Bytes are encoded as characters.
#[derive(Deserialize)]
struct Recording {
    files: BTreeMap<String, String>,
    cases: Vec<Case>,
}

#[derive(Clone, Debug, Deserialize)]
struct Case {
    file: String,
    tail: Option<u64>,
    limit: Option<u64>,
    since: Option<Timestamp>,
    #[serde(default)]
    timestamps: bool,
    output: Option<String>,
    shown: String,
    error: Option<String>,
}

fn bytes(text: &str) -> Vec<u8> {
    text.chars().map(|letter| u8::try_from(u32::from(letter)).expect("a byte")).collect()
}

impl Case {
    fn options(&self) -> LogOptions {
        LogOptions {
            tail: self.tail,
            since: self.since.map(Since::Time),
            limit_bytes: self.limit,
            timestamps: self.timestamps,
            output: match self.output.as_deref() {
                Some("stdout") => Output::Stdout,
                Some("stderr") => Output::Stderr,
                _ => Output::All,
            },
            ..LogOptions::default()
        }
    }
}

/// The whole output, and the error that ended it.
fn read_all(path: &Path, options: &LogOptions, sizes: BufferSizes) -> (Vec<u8>, Option<String>) {
    let since = options.since.and_then(|since| start_time(since, &Clock::system()));
    let mut reader = LogReader::open_with(path, options, since, sizes).expect("a file");
    let mut shown = Vec::new();
    loop {
        match reader.read(&mut shown) {
            Ok(Progress::More) => {}
            Ok(_) => return (shown, None),
            Err(error) => return (shown, Some(error.to_string())),
        }
    }
}

#[test]
fn every_byte_is_as_the_kubelet_shows_it() {
    let recording: Recording =
        serde_json::from_str(include_str!("tests/recorded.json")).expect("a recording");
    let place = tempfile::tempdir().expect("a directory");
    for (name, content) in &recording.files {
        std::fs::write(place.path().join(name), bytes(content)).expect("a file");
    }
    assert!(recording.cases.len() > 600, "only {} cases", recording.cases.len());
    for case in &recording.cases {
        let wanted = (bytes(&case.shown), case.error.clone());
        for block in [1, 7, 64 * 1024] {
            let sizes = BufferSizes { block, ..BufferSizes::default() };
            let found = read_all(&place.path().join(&case.file), &case.options(), sizes);
            assert_eq!(found.1, wanted.1, "{case:?}");
            assert_eq!(
                String::from_utf8_lossy(&found.0),
                String::from_utf8_lossy(&wanted.0),
                "with blocks of {block}: {case:?}"
            );
            assert_eq!(found.0, wanted.0, "{case:?}");
        }
    }
}

fn entry() -> impl Strategy<Value = String> {
    let content = "[a-z ]{0,90}";
    (0..60_u8, prop::bool::ANY, prop::bool::weighted(0.3), content).prop_map(
        |(second, out, partial, content)| {
            let (stream, tag) = (if out { "stdout" } else { "stderr" }, if partial { "P" } else { "F" });
            format!("2026-11-15T16:30:{second:02}.5Z {stream} {tag} {content}\n")
        },
    )
}

fn options() -> impl Strategy<Value = LogOptions> {
    let output = prop_oneof![Just(Output::All), Just(Output::Stdout), Just(Output::Stderr)];
    let since = prop::option::of(0..60_i64);
    (prop::option::of(0..12_u64), since, prop::option::of(0..400_u64), prop::bool::ANY, output).prop_map(
        |(tail, since, limit_bytes, timestamps, output)| {
            let start: Timestamp = "2026-11-15T16:30:00Z".parse().expect("a time");
            let since = since.map(|second| Since::Time(start + SignedDuration::from_secs(second)));
            LogOptions { tail, since, limit_bytes, timestamps, output, ..LogOptions::default() }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// The sizes of blocks and of buffered lines do not affect the output.
    #[test]
    fn neither_blocks_nor_long_lines_can_be_seen(
        entries in prop::collection::vec(entry(), 0..12),
        incomplete in prop::option::of("2026-11-15T16:31:00Z stdout F [a-z]{0,20}"),
        options in options(),
        block in 1..200_usize,
        max_line in 45..150_usize,
    ) {
        let place = tempfile::tempdir().expect("a directory");
        let path = place.path().join("0.log");
        std::fs::write(&path, entries.concat() + &incomplete.unwrap_or_default()).expect("a file");
        let whole = read_all(&path, &options, BufferSizes::default());
        prop_assert_eq!(&read_all(&path, &options, BufferSizes { block, max_line: usize::MAX }), &whole);
        prop_assert_eq!(&read_all(&path, &options, BufferSizes { block, max_line }), &whole);
    }

    /// A tail equals the output of a file with only these lines.
    #[test]
    fn a_tail_is_the_last_lines_of_the_whole(
        entries in prop::collection::vec(entry(), 0..30),
        tail in 0..40_usize,
        block in 1..200_usize,
        timestamps in prop::bool::ANY,
    ) {
        let place = tempfile::tempdir().expect("a directory");
        let (path, end) = (place.path().join("0.log"), place.path().join("end.log"));
        std::fs::write(&path, entries.concat()).expect("a file");
        std::fs::write(&end, entries[entries.len().saturating_sub(tail)..].concat()).expect("a file");
        let all = LogOptions { timestamps, ..LogOptions::default() };
        let tailed = LogOptions { tail: Some(tail as u64), ..all.clone() };
        let sizes = BufferSizes { block, ..BufferSizes::default() };
        prop_assert_eq!(read_all(&path, &tailed, sizes), read_all(&end, &all, BufferSizes::default()));
    }

    #[test]
    fn no_bytes_break_it(content in prop::collection::vec(prop::num::u8::ANY, 0..300), options in options()) {
        let place = tempfile::tempdir().expect("a directory");
        let path = place.path().join("0.log");
        let mut file = b"2026-11-15T16:30:00Z stdout F one\n".to_vec();
        file.extend(content);
        std::fs::write(&path, file).expect("a file");
        read_all(&path, &options, BufferSizes { block: 16, max_line: 64 });
    }
}

#[test]
fn the_end_of_a_log_stands_in_for_a_message() {
    let place = tempfile::tempdir().expect("a directory");
    let path = place.path().join("0.log");
    let lines: Vec<String> = (0..100).map(|n| format!("2026-11-15T16:30:00Z stdout F line {n}\n")).collect();
    std::fs::write(&path, lines.concat()).expect("a file");
    let text = |lines, bytes| String::from_utf8(tail(&path, lines, bytes).expect("a tail")).expect("text");
    assert_eq!(text(2, 2048), "line 98\nline 99\n");
    assert_eq!(text(80, 10), "8\nline 99\n");
    assert!(text(80, 2048).starts_with("line 20\n"));
    let error = tail(&place.path().join("none/1.log"), 80, 2048).expect_err("no file").to_string();
    let place = place.path().display();
    assert_eq!(
        error,
        format!(
            "failed to try resolving symlinks in path \"{place}/none/1.log\": lstat {place}/none: no such file or directory"
        )
    );
}

// === Following ===

struct Followed {
    place: tempfile::TempDir,
    file: File,
    running: Arc<AtomicBool>,
    asked: Arc<AtomicUsize>,
}

impl Followed {
    fn new() -> Self {
        let place = tempfile::tempdir().expect("a directory");
        let file = File::create(place.path().join("0.log")).expect("a file");
        Self { place, file, running: Arc::new(AtomicBool::new(true)), asked: Arc::default() }
    }

    fn path(&self) -> PathBuf {
        self.place.path().join("0.log")
    }

    fn write(&mut self, text: &str) {
        self.file.write_all(text.as_bytes()).expect("written");
    }

    fn line(&mut self, text: &str) {
        self.write(&format!("2026-11-15T16:30:00Z stdout F {text}\n"));
    }

    async fn open(&self, options: LogOptions) -> LogStream {
        let (running, asked) = (Arc::clone(&self.running), Arc::clone(&self.asked));
        let is_running = move || {
            asked.fetch_add(1, Ordering::Relaxed);
            let running = running.load(Ordering::Relaxed);
            async move { Ok(running) }
        };
        let options = LogOptions { follow: true, ..options };
        match open(self.path(), &options, &Clock::system(), is_running).await.expect("a log") {
            LogBody::Final(stream) => stream,
            other => panic!("{other:?}"),
        }
    }
}

/// Reads until all of `wanted` has arrived.
async fn comes(stream: &mut LogStream, wanted: &str) {
    let mut found = Vec::new();
    while found.len() < wanted.len() {
        let piece = tokio::time::timeout(Duration::from_secs(20), stream.next()).await;
        let piece = piece.unwrap_or_else(|_| panic!("only {:?}", String::from_utf8_lossy(&found)));
        found.extend(piece.expect("more").expect("no error"));
    }
    assert_eq!(String::from_utf8_lossy(&found), wanted);
}

async fn ends(stream: &mut LogStream) {
    let end = tokio::time::timeout(Duration::from_secs(20), stream.next()).await.expect("an end");
    assert!(end.is_none(), "{end:?}");
}

#[tokio::test]
async fn a_followed_log_goes_on_until_the_container_has_ended_and_all_is_read() {
    let mut log = Followed::new();
    log.line("one");
    let mut stream = log.open(LogOptions::default()).await;
    comes(&mut stream, "one\n").await;
    log.line("two");
    comes(&mut stream, "two\n").await;
    // An incomplete line is held back.
    log.write("2026-11-15T16:30:00Z stdout F thr");
    log.write("ee\n");
    comes(&mut stream, "three\n").await;
    log.line("last");
    log.write("2026-11-15T16:30:00Z stdout F never ended");
    log.running.store(false, Ordering::Relaxed);
    comes(&mut stream, "last\n").await;
    ends(&mut stream).await;
}

#[tokio::test]
async fn a_followed_tail_begins_near_the_end_and_goes_on() {
    let mut log = Followed::new();
    for number in 0..1000 {
        log.line(&number.to_string());
    }
    let mut stream = log.open(LogOptions { tail: Some(2), ..LogOptions::default() }).await;
    comes(&mut stream, "998\n999\n").await;
    log.line("1000");
    comes(&mut stream, "1000\n").await;
    // A limit ends it while the container runs.
    let mut stream =
        log.open(LogOptions { tail: Some(1), limit_bytes: Some(8), ..LogOptions::default() }).await;
    comes(&mut stream, "1000\n").await;
    log.line("1001");
    comes(&mut stream, "100").await;
    ends(&mut stream).await;
}

#[tokio::test]
async fn a_followed_log_is_followed_into_the_file_that_takes_its_place() {
    let mut log = Followed::new();
    log.line("one");
    let mut stream = log.open(LogOptions::default()).await;
    comes(&mut stream, "one\n").await;
    for round in 0..3 {
        std::fs::rename(log.path(), log.place.path().join(format!("0.log.{round}"))).expect("renamed");
        // The runtime writes to the old file until it has opened the new one.
        log.line("old");
        log.file = File::create(log.path()).expect("a file");
        log.line("new");
        comes(&mut stream, "old\nnew\n").await;
    }
    // Some tools truncate the file instead.
    log.file.set_len(0).expect("emptied");
    log.file = OpenOptions::new().append(true).open(log.path()).expect("a file");
    log.line("x");
    comes(&mut stream, "x\n").await;
    log.running.store(false, Ordering::Relaxed);
    ends(&mut stream).await;
}

#[tokio::test]
async fn a_runtime_that_is_away_does_not_end_a_log_and_a_container_that_is_gone_does() {
    let mut log = Followed::new();
    log.line("one");
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let is_running = move || {
        let gone = count.fetch_add(1, Ordering::Relaxed) > 0;
        async move { Err(if gone { Error::not_found("gone") } else { Error::unavailable("away") }) }
    };
    let options = LogOptions { follow: true, ..LogOptions::default() };
    let body = open(log.path(), &options, &Clock::system(), is_running).await.expect("a log");
    let LogBody::Final(mut stream) = body else { panic!("{body:?}") };
    comes(&mut stream, "one\n").await;
    ends(&mut stream).await;
    assert_eq!(asked.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn pieces_stay_small_whatever_the_file_holds_and_the_runtime_is_asked_seldom() {
    let mut log = Followed::new();
    let huge = "x".repeat(8 * 1024 * 1024);
    log.line(&huge);
    for number in 0..50_000 {
        log.line(&number.to_string());
    }
    let mut stream = log.open(LogOptions { timestamps: true, ..LogOptions::default() }).await;
    log.running.store(false, Ordering::Relaxed);
    let (mut all, mut largest) = (0, 0);
    while let Some(piece) = stream.next().await {
        let piece = piece.expect("no error");
        (all, largest) = (all + piece.len(), largest.max(piece.len()));
    }
    let digits: usize = (0..50_000).map(|number: u32| number.to_string().len()).sum();
    assert_eq!(all, 31 * 50_001 + huge.len() + digits + 50_001);
    // The maximum size of a buffered line plus a block.
    assert!(largest <= 1024 * 1024 + 4 * 64 * 1024, "a piece of {largest} bytes");
    assert!(log.asked.load(Ordering::Relaxed) <= 2);
}

#[tokio::test]
async fn what_is_no_log_is_an_error_after_nothing() {
    let mut log = Followed::new();
    log.write("rubbish\n");
    let options = LogOptions::default();
    let body = open(log.path(), &options, &Clock::system(), || async { Ok(false) }).await.expect("a file");
    let LogBody::Final(mut stream) = body else { panic!("{body:?}") };
    let error = stream.next().await.expect("an item").expect_err("no log");
    assert_eq!(error.to_string(), r#"failed to get parse function: unsupported log format: "rubbish\n""#);
    ends(&mut stream).await;
    let none = open(log.place.path().join("1.log"), &options, &Clock::system(), || async { Ok(false) }).await;
    assert_eq!(none.expect_err("no file").kind(), &vk_provider::error::Kind::NotFound);
}

#[tokio::test]
async fn since_counts_back_from_now() {
    let mut log = Followed::new();
    log.line("at half past four");
    let clock = Clock::new(|| "2026-11-15T16:31:00Z".parse().expect("a time"));
    for (ago, wanted) in [(59, ""), (60, "at half past four\n"), (u64::MAX, "at half past four\n")] {
        let options =
            LogOptions { since: Some(Since::Ago(Duration::from_secs(ago))), ..LogOptions::default() };
        let body = open(log.path(), &options, &clock, || async { Ok(false) }).await.expect("a log");
        let LogBody::Final(mut stream) = body else { panic!("{body:?}") };
        comes(&mut stream, wanted).await;
        ends(&mut stream).await;
    }
}

// === Directories ===

fn pod(name: &str) -> vk_provider::PodRef {
    vk_provider::PodRef { namespace: "shop".into(), name: name.into(), uid: "1-2-3".into() }
}

#[tokio::test]
async fn the_logs_of_pods_are_counted_and_removed() {
    let place = tempfile::tempdir().expect("a directory");
    let root = place.path().join("pods");
    assert_eq!(directory::next_attempt(&root, &pod("web"), "app"), 0);
    let app = directory::create(&root, &pod("web"), "app").expect("a directory");
    assert_eq!(app, root.join("shop_web_1-2-3/app"));
    directory::create(&root, &pod("db"), "db").expect("a directory");
    for (file, wanted) in [
        ("other.log", 0),
        ("0.log", 1),
        ("7.log.20261115-163000.gz", 8),
        ("3.log", 8),
        ("x9.log", 8),
        ("+9.log", 8),
        ("99999999999.log", 8),
        ("12.txt", 8),
    ] {
        std::fs::write(app.join(file), "").expect("a file");
        assert_eq!(directory::next_attempt(&root, &pod("web"), "app"), wanted, "{file}");
    }
    std::fs::create_dir(app.join("20.log")).expect("a directory");
    assert_eq!(directory::next_attempt(&root, &pod("web"), "app"), 8);
    directory::remove(&root, &pod("web")).await.expect("removed");
    directory::remove(&root, &pod("web")).await.expect("gone already");
    assert!(root.join("shop_db_1-2-3/db").is_dir() && !app.exists());
}

#[test]
fn only_directories_that_were_noted_are_ever_removed() {
    let place = tempfile::tempdir().expect("a directory");
    let (root, logs) = (place.path().join("state"), place.path().join("pods"));
    let registry = registry::LogDirectoryRegistry::new(&root);
    assert_eq!(registry.entries().expect("nothing"), []);
    for (name, is_noted) in [("web", true), ("db", false)] {
        if is_noted {
            registry.register(&logs, &pod(name)).expect("noted");
        }
        directory::create(&logs, &pod(name), "app").expect("a directory");
    }
    registry.register(&logs, &pod("web")).expect("noted already");
    // Files that were tampered with are ignored.
    let notes = root.join("log-directories");
    std::fs::write(notes.join("shop_evil_1"), place.path().as_os_str().as_encoded_bytes()).expect("a file");
    std::fs::write(notes.join("shop_db_1-2-3"), "shop_db_1-2-3").expect("a file");
    let entries = registry.entries().expect("notes");
    let found: Vec<_> = entries.iter().map(|entry| (entry.uid.as_str(), entry.path.clone())).collect();
    assert_eq!(found, [("1-2-3", directory::of_pod(&logs, &pod("web")))]);
    registry.remove(&entries[0]).expect("removed");
    registry.remove(&entries[0]).expect("gone already");
    assert_eq!(registry.entries().expect("notes"), []);
    assert!(!logs.join("shop_web_1-2-3").exists() && logs.join("shop_db_1-2-3/app").is_dir());
    let odd = vk_provider::PodRef::new("shop", "../web", "1");
    assert!(registry.register(&logs, &odd).is_err());
}
