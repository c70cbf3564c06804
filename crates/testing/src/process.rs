//! A child process that ends with the test.

use std::{
    io,
    process::{Child, Command, ExitStatus},
};

/// A child process that is killed when this is dropped, also when the test panics.
#[derive(Debug)]
pub struct Process(Child);

impl Process {
    /// Starts the command.
    pub fn spawn(command: &mut Command) -> io::Result<Self> {
        command.spawn().map(Self)
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Its exit status, if it has ended.
    pub fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.0.try_wait()
    }

    /// The child itself.
    pub fn child(&mut self) -> &mut Child {
        &mut self.0
    }

    /// Kills it with SIGKILL and waits for its end.
    pub fn kill(&mut self) -> io::Result<ExitStatus> {
        self.0.kill()?;
        self.0.wait()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.kill();
    }
}
