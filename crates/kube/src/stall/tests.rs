use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufWriter, DuplexStream};

use super::*;

/// A detector with fake clocks: milliseconds of the monotonic clock and of the wall clock.
#[derive(Clone)]
struct FakeClocks {
    detector: Arc<StallDetector>,
    steady: Arc<AtomicU64>,
    wall: Arc<AtomicU64>,
}

impl FakeClocks {
    fn new() -> Self {
        let (steady, wall) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(100_000)));
        let begin = ClockReading::now(&Clock::system());
        let (first, second) = (Arc::clone(&steady), Arc::clone(&wall));
        let detector = Arc::new(StallDetector::new(move || ClockReading {
            steady: begin.steady + Duration::from_millis(first.load(Ordering::Relaxed)),
            wall: begin.wall + Duration::from_millis(second.load(Ordering::Relaxed)),
        }));
        Self { detector, steady, wall }
    }

    /// Time passes without a check.
    fn advance(&self, millis: u64) {
        self.steady.fetch_add(millis, Ordering::Relaxed);
        self.wall.fetch_add(millis, Ordering::Relaxed);
    }

    /// A buffered connection and its far end.
    fn connect(&self) -> (BufWriter<StallGuard<DuplexStream>>, DuplexStream) {
        let (near, far) = tokio::io::duplex(1024);
        (BufWriter::new(StallGuard::new(near, Arc::clone(&self.detector))), far)
    }
}

/// Drops the connection and returns what arrived.
async fn arrived(connection: BufWriter<StallGuard<DuplexStream>>, mut far: DuplexStream) -> String {
    drop(connection);
    let mut text = String::new();
    far.read_to_string(&mut text).await.unwrap();
    text
}

#[tokio::test]
async fn buffered_data_is_not_sent_after_a_pause_and_a_new_connection_works() {
    let time = FakeClocks::new();
    let (mut connection, mut far) = time.connect();
    connection.write_all(b"before").await.unwrap();
    connection.flush().await.unwrap();
    connection.write_all(b"waiting").await.unwrap();
    time.advance(1001);
    for _ in 0..2 {
        let error = connection.flush().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
        assert!(error.to_string().contains("paused"), "{error}");
        // Normal time afterwards does not repair the connection.
        time.advance(200);
        time.detector.check_clocks();
    }
    far.write_all(b"answer").await.unwrap();
    let mut answer = [0; 6];
    connection.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"answer", "reads still work");
    assert_eq!(arrived(connection, far).await, "before");

    let (mut connection, far) = time.connect();
    connection.write_all(b"after").await.unwrap();
    connection.flush().await.unwrap();
    assert_eq!(arrived(connection, far).await, "after");
}

#[tokio::test]
async fn a_pause_detected_by_the_thread_counts_too() {
    let time = FakeClocks::new();
    let (mut connection, far) = time.connect();
    time.advance(5000);
    assert_eq!(time.detector.check_clocks(), 1);
    let inner = connection.get_mut();
    assert!(inner.write(b"plain").await.is_err());
    assert!(inner.write_vectored(&[IoSlice::new(b"in"), IoSlice::new(b"parts")]).await.is_err());
    assert!(inner.flush().await.is_err());
    inner.shutdown().await.unwrap();
    assert_eq!(arrived(connection, far).await, "");
}

#[tokio::test]
async fn a_slightly_late_check_is_not_a_stall() {
    let time = FakeClocks::new();
    let (mut connection, far) = time.connect();
    for _ in 0..5 {
        time.advance(1000);
        connection.write_all(b".").await.unwrap();
        connection.flush().await.unwrap();
    }
    assert_eq!(time.detector.check_clocks(), 0);
    assert_eq!(arrived(connection, far).await, ".....");
}

#[tokio::test]
async fn a_suspended_host_is_detected_by_the_wall_clock_and_a_clock_set_back_is_no_stall() {
    let time = FakeClocks::new();
    time.wall.fetch_sub(50_000, Ordering::Relaxed);
    assert_eq!(time.detector.check_clocks(), 0);
    let (mut connection, far) = time.connect();
    connection.write_all(b"waiting").await.unwrap();
    time.wall.fetch_add(1001, Ordering::Relaxed);
    assert!(connection.flush().await.is_err());
    assert_eq!(arrived(connection, far).await, "");
}

#[test]
fn the_global_detector_checks_periodically() {
    let detector = StallDetector::global();
    let first = detector.state.lock().last.steady;
    let begin = ClockReading::now(&Clock::system());
    while detector.state.lock().last.steady == first {
        assert!(
            ClockReading::now(&Clock::system()).since(begin) < Duration::from_mins(1),
            "no check happened"
        );
        thread::sleep(CHECK_PERIOD / 10);
    }
}
