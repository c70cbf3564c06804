//! Test code: a provider's session whose other side the test holds.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use futures::FutureExt as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex},
    sync::{mpsc, oneshot},
};
use vk_provider::{
    Result,
    ability::{ExecOptions, Exit, Session, TermSize},
};

/// Counts sessions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Count(Arc<AtomicUsize>);

impl Count {
    pub(crate) fn now(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    fn one(&self) -> One {
        self.0.fetch_add(1, Ordering::SeqCst);
        One(self.clone())
    }
}

struct One(Count);

impl Drop for One {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The process's side of a session.
pub(crate) struct Process {
    pub(crate) stdin: DuplexStream,
    pub(crate) stdout: Option<DuplexStream>,
    pub(crate) stderr: Option<DuplexStream>,
    pub(crate) sizes: mpsc::Receiver<TermSize>,
    pub(crate) exit: Option<oneshot::Sender<Result<Exit>>>,
    pub(crate) sessions: Count,
}

/// A session with these streams. The pipes are small, so that every test exercises back-pressure too.
pub(crate) fn session(options: ExecOptions) -> (Session, Process) {
    session_with(options, 1000)
}

/// A session with pipes of this size.
pub(crate) fn session_with(options: ExecOptions, size: usize) -> (Session, Process) {
    let sessions = Count::default();
    let one = sessions.one();
    let (stdin, process_in) = duplex(size);
    let (stdout, process_out) = duplex(size);
    let (stderr, process_err) = duplex(size);
    let (resize, sizes) = mpsc::channel(1);
    let (exit, exited) = oneshot::channel();
    let session = Session {
        stdin: options.stdin.then(|| Box::new(stdin) as _),
        stdout: options.stdout.then(|| Box::new(stdout) as _),
        stderr: options.stderr.then(|| Box::new(stderr) as _),
        resize: options.tty.then_some(resize),
        exit: async move {
            let _one = one;
            match exited.await {
                Ok(exit) => exit,
                Err(_) => futures::future::pending().await,
            }
        }
        .boxed(),
    };
    let process = Process {
        stdin: process_in,
        stdout: Some(process_out),
        stderr: Some(process_err),
        sizes,
        exit: Some(exit),
        sessions,
    };
    (session, process)
}

impl Process {
    pub(crate) async fn print(&mut self, bytes: &[u8]) {
        self.stdout.as_mut().unwrap().write_all(bytes).await.unwrap();
    }

    pub(crate) async fn complain(&mut self, bytes: &[u8]) {
        self.stderr.as_mut().unwrap().write_all(bytes).await.unwrap();
    }

    pub(crate) async fn read(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.stdin.read_exact(&mut bytes).await.unwrap();
        bytes
    }

    /// Exits like a process: the outputs close and the exit code is sent.
    pub(crate) fn exit(&mut self, code: i32) {
        self.stdout = None;
        self.stderr = None;
        self.exit.take().unwrap().send(Ok(Exit { code })).ok();
    }
}
