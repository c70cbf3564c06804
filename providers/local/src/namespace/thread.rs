//! Short-lived threads that may enter other namespaces, because they end with their work.

use std::{fmt::Display, io, sync::mpsc, thread, time::Duration};

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// How often starting a thread is tried: processes that take all the room may be exiting.
const ATTEMPTS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(50);
/// The remedy for EAGAIN, which the C library also returns if memory is short.
const REMEDY: &str = "the host or the cgroup of this process has no room for more threads (see kernel.pid_max, kernel.threads-max \
     and pids.max), or memory is short; stop other processes, or raise the limit";

/// Runs a closure on a thread of its own. `place` is named in the error if the thread cannot be started.
pub(super) async fn run<T: Send + 'static>(
    place: impl Display,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let thread = retry_start(place, start_thread).await?;
    let (sender, answer) = oneshot::channel();
    let work = Box::new(move || {
        // The work is done even if the caller is gone.
        let _ = sender.send(work());
    });
    // The thread is waiting for exactly this.
    let _ = thread.send(work);
    answer.await.unwrap_or_else(|_| Err(panicked()))
}

/// Blocking version of [`run`].
pub(super) fn run_blocking<T: Send>(
    place: impl Display,
    work: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    // A thread that could not be started does not consume the work.
    let work = Mutex::new(Some(work));
    thread::scope(|scope| {
        let mut attempts_left = ATTEMPTS;
        let worker = loop {
            let started = builder().spawn_scoped(scope, || work.lock().take().map(|work| work()));
            match started {
                Ok(worker) => break worker,
                Err(error) => check_retry(&place, &error, &mut attempts_left)?,
            }
            thread::sleep(PAUSE);
        };
        worker.join().ok().flatten().unwrap_or_else(|| Err(panicked()))
    })
}

type Work = Box<dyn FnOnce() + Send>;

/// Starts a thread that waits for its work, so that a failed start does not consume it.
fn start_thread() -> io::Result<mpsc::Sender<Work>> {
    let (give, given) = mpsc::channel::<Work>();
    builder().spawn(move || {
        // Nothing is sent if the caller gave up.
        if let Ok(work) = given.recv() {
            work();
        }
    })?;
    Ok(give)
}

fn builder() -> thread::Builder {
    thread::Builder::new().name("vk-namespace".to_owned())
}

async fn retry_start<T>(place: impl Display, mut start: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let mut attempts_left = ATTEMPTS;
    loop {
        match start() {
            Ok(started) => return Ok(started),
            Err(error) => check_retry(&place, &error, &mut attempts_left)?,
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// `Ok` if another attempt should be made, otherwise the error to return.
fn check_retry(place: &impl Display, error: &io::Error, attempts_left: &mut u32) -> io::Result<()> {
    let for_now = error.kind() == io::ErrorKind::WouldBlock;
    *attempts_left = attempts_left.saturating_sub(1);
    if for_now && *attempts_left > 0 {
        return Ok(());
    }
    let remedy = if for_now { format!(": {REMEDY}") } else { String::new() };
    Err(io::Error::new(error.kind(), format!("start a thread for {place}: {error}{remedy}")))
}

pub(super) fn panicked() -> io::Error {
    io::Error::other("the thread in the namespace panicked")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn no_room() -> io::Error {
        io::Error::from_raw_os_error(11)
    }

    #[tokio::test(start_paused = true)]
    async fn starting_a_thread_is_retried_while_there_is_no_room() {
        let mut asked = 0;
        let started = retry_start("/sandbox", || {
            asked += 1;
            if asked < ATTEMPTS { Err(no_room()) } else { Ok(asked) }
        });
        assert_eq!(started.await.unwrap(), ATTEMPTS);
    }

    #[tokio::test(start_paused = true)]
    async fn a_thread_that_cannot_be_started_is_reported_with_a_remedy() {
        let error = retry_start("/sandbox", || Err::<(), _>(no_room())).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        let text = error.to_string();
        assert!(text.contains("start a thread for /sandbox: Resource temporarily unavailable"), "{text}");
        assert!(text.contains("pids.max"), "{text}");
    }

    #[tokio::test(start_paused = true)]
    async fn permanent_errors_are_returned_at_once() {
        let mut asked = 0;
        let error = retry_start("/sandbox", || {
            asked += 1;
            Err::<(), _>(io::Error::other("no"))
        });
        assert_eq!(error.await.unwrap_err().to_string(), "start a thread for /sandbox: no");
        assert_eq!(asked, 1);
    }

    #[tokio::test]
    async fn a_panic_is_returned_as_an_error() {
        let error = run::<()>("/sandbox", || panic!("as it must")).await.unwrap_err();
        assert_eq!(error.to_string(), panicked().to_string());
        let error = run_blocking::<()>("/sandbox", || panic!("as it must")).unwrap_err();
        assert_eq!(error.to_string(), panicked().to_string());
        assert_eq!(run("/sandbox", || Ok(1)).await.unwrap() + run_blocking("/sandbox", || Ok(2)).unwrap(), 3);
    }
}
