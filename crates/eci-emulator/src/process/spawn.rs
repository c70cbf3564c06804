//! Starts processes on a thread that lives as long as the emulator: the kernel kills them when this thread ends, whatever
//! ends the emulator.

use std::{io, sync::mpsc, thread};

use tokio::{
    process::{Child, Command},
    runtime::Handle,
    sync::oneshot,
};

type Request = (Command, Handle, oneshot::Sender<io::Result<Child>>);

/// Starts processes.
pub(super) struct Spawner(mpsc::Sender<Request>);

// === impl Spawner ===

impl Spawner {
    pub(super) fn new() -> Self {
        let (sender, receiver) = mpsc::channel::<Request>();
        // It ends with the sender.
        thread::spawn(move || {
            while let Ok((mut command, runtime, answer)) = receiver.recv() {
                let _inside = runtime.enter();
                let _ = answer.send(command.spawn());
            }
        });
        Self(sender)
    }

    /// Starts a process. It must begin with `setpriv --pdeathsig`.
    pub(super) async fn spawn(&self, command: Command) -> io::Result<Child> {
        let (sender, receiver) = oneshot::channel();
        let lost = || io::Error::other("the thread that starts processes has ended");
        self.0.send((command, Handle::current(), sender)).map_err(|_| lost())?;
        receiver.await.map_err(|_| lost())?
    }
}
