//! A process that a test started, and that ends with it.

use std::{
    io,
    process::{Child, Command, ExitStatus},
};

/// A child process that is killed when this is dropped, also when the test panics.
#[derive(Debug)]
pub struct Process(Child);

impl Process {
    /// Starts it.
    pub fn spawn(command: &mut Command) -> io::Result<Self> {
        command.spawn().map(Self)
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.0.try_wait()
    }

    /// The child itself.
    pub fn child(&mut self) -> &mut Child {
        &mut self.0
    }

    /// Kills it at once, as by `kill -9`, and waits for its end.
    pub fn kill(&mut self) -> io::Result<ExitStatus> {
        self.0.kill()?;
        self.0.wait()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself, and then there is nothing to kill.
        let _ = self.kill();
    }
}
