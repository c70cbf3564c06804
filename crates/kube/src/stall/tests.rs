use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufWriter, DuplexStream};

use super::*;

/// A pulse whose time is played: steady milliseconds and those of the wall clock.
#[derive(Clone)]
struct Played {
    pulse: Arc<StallDetector>,
    steady: Arc<AtomicU64>,
    wall: Arc<AtomicU64>,
}

impl Played {
    fn new() -> Self {
        let (steady, wall) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(100_000)));
        let begin = Moment::now(&Clock::system());
        let (first, second) = (Arc::clone(&steady), Arc::clone(&wall));
        let pulse = Arc::new(StallDetector::new(move || Moment {
            steady: begin.steady + Duration::from_millis(first.load(Ordering::Relaxed)),
            wall: begin.wall + Duration::from_millis(second.load(Ordering::Relaxed)),
        }));
        Self { pulse, steady, wall }
    }

    /// Time goes by without a beat.
    fn pause(&self, millis: u64) {
        self.steady.fetch_add(millis, Ordering::Relaxed);
        self.wall.fetch_add(millis, Ordering::Relaxed);
    }

    /// A connection with a buffer above it, and its far end.
    fn connect(&self) -> (BufWriter<StallGuard<DuplexStream>>, DuplexStream) {
        let (near, far) = tokio::io::duplex(1024);
        (BufWriter::new(StallGuard::new(near, Arc::clone(&self.pulse))), far)
    }
}

/// What has arrived when the connection is gone.
async fn arrived(connection: BufWriter<StallGuard<DuplexStream>>, mut far: DuplexStream) -> String {
    drop(connection);
    let mut text = String::new();
    far.read_to_string(&mut text).await.unwrap();
    text
}

#[tokio::test]
async fn what_waits_during_a_pause_is_never_sent_and_a_connection_made_after_it_works() {
    let time = Played::new();
    let (mut connection, mut far) = time.connect();
    connection.write_all(b"before").await.unwrap();
    connection.flush().await.unwrap();
    connection.write_all(b"waiting").await.unwrap();
    time.pause(1001);
    for _ in 0..2 {
        let error = connection.flush().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
        assert!(error.to_string().contains("paused"), "{error}");
        // Time that goes by as it should mends nothing.
        time.pause(200);
        time.pulse.beat();
    }
    far.write_all(b"answer").await.unwrap();
    let mut answer = [0; 6];
    connection.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"answer", "what comes in can be read");
    assert_eq!(arrived(connection, far).await, "before");

    let (mut connection, far) = time.connect();
    connection.write_all(b"after").await.unwrap();
    connection.flush().await.unwrap();
    assert_eq!(arrived(connection, far).await, "after");
}

#[tokio::test]
async fn a_pause_that_the_thread_notices_first_counts_as_well() {
    let time = Played::new();
    let (mut connection, far) = time.connect();
    time.pause(5000);
    assert_eq!(time.pulse.beat(), 1);
    let inner = connection.get_mut();
    assert!(inner.write(b"plain").await.is_err());
    assert!(inner.write_vectored(&[IoSlice::new(b"in"), IoSlice::new(b"parts")]).await.is_err());
    assert!(inner.flush().await.is_err());
    inner.shutdown().await.unwrap();
    assert_eq!(arrived(connection, far).await, "");
}

#[tokio::test]
async fn a_beat_that_is_a_little_late_does_nothing() {
    let time = Played::new();
    let (mut connection, far) = time.connect();
    for _ in 0..5 {
        time.pause(1000);
        connection.write_all(b".").await.unwrap();
        connection.flush().await.unwrap();
    }
    assert_eq!(time.pulse.beat(), 0);
    assert_eq!(arrived(connection, far).await, ".....");
}

#[tokio::test]
async fn a_machine_that_slept_is_noticed_by_the_wall_clock_and_one_set_back_is_none() {
    let time = Played::new();
    time.wall.fetch_sub(50_000, Ordering::Relaxed);
    assert_eq!(time.pulse.beat(), 0);
    let (mut connection, far) = time.connect();
    connection.write_all(b"waiting").await.unwrap();
    time.wall.fetch_add(1001, Ordering::Relaxed);
    assert!(connection.flush().await.is_err());
    assert_eq!(arrived(connection, far).await, "");
}

#[test]
fn the_pulse_of_this_process_beats_by_itself() {
    let pulse = StallDetector::of_this_process();
    let first = pulse.state.lock().last.steady;
    let begin = Moment::now(&Clock::system());
    while pulse.state.lock().last.steady == first {
        assert!(Moment::now(&Clock::system()).since(begin) < Duration::from_mins(1), "it stands still");
        thread::sleep(BEAT / 10);
    }
}
