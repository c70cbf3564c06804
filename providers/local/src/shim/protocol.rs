//! The protocol of the shim's processes: lines of JSON, some with file descriptors.

use std::{
    fs::File,
    io::{self, IoSlice, IoSliceMut, Read as _, Seek as _, Write as _},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd},
};

use rustix::{
    fs::MemfdFlags,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
        SendFlags, recvmsg, sendmsg,
    },
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::ContainerProcess;

/// A request of a client to a supervisor: one line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum ShimRequest {
    /// Send a signal to the container's first process.
    Signal(i32),
    /// Keep the connection open until the container has exited.
    Wait,
    /// Reopen the log file by name.
    ReopenLog,
    /// Start a command.
    Exec {
        command: Vec<String>,
        #[serde(flatten)]
        streams: Streams,
    },
    /// Copy the container's output.
    Attach(Streams),
    /// Sent later on an attach connection: its input has ended.
    InputEnded,
}

/// The requested streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Streams {
    pub(super) stdin: bool,
    pub(super) stdout: bool,
    pub(super) stderr: bool,
    pub(super) tty: bool,
}

/// An answer of a supervisor: one line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum ShimReply {
    /// The request was carried out.
    Done,
    /// The request failed.
    Failed(String),
    /// The command or attach session has started. The descriptors come with this line, in the order of [`PassedFds`].
    Begun(PassedFds),
    /// The command, or the attached container, has exited.
    Ended(i32),
}

/// The descriptors that come with a line, in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct PassedFds {
    /// Stdin, to write to.
    pub(super) stdin: bool,
    /// Stdout, to read from.
    pub(super) stdout: bool,
    /// Stderr, to read from.
    pub(super) stderr: bool,
    /// The terminal: for its size, and for input and output if those are not passed.
    pub(super) terminal: bool,
}

/// What a supervisor reports to the process that started it: one line on stdout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum StartOutcome {
    /// The container runs.
    Started,
    /// It could not be started.
    Failed(super::StartError),
    /// Another supervisor is active.
    Busy,
}

/// A request of a supervisor to a helper, as a file on its stdin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct HelperRequest {
    /// The container's own command line and environment.
    pub(super) process: ContainerProcess,
    /// The command; `None` for the container's own program.
    pub(super) command: Option<Vec<String>>,
    /// PID of the container's first process; 0 if there is none yet.
    pub(super) init: i32,
    /// Whether it gets a terminal, which is sent through `console`.
    pub(super) tty: bool,
    /// Numbers of inherited descriptors. All three are set unless there is a terminal.
    pub(super) stdin: Option<RawFd>,
    pub(super) stdout: Option<RawFd>,
    pub(super) stderr: Option<RawFd>,
    /// The pipe for [`HelperReport`]s, closed when the program is executed.
    pub(super) report: RawFd,
    /// The socket to send the terminal to.
    pub(super) console: Option<RawFd>,
}

/// A report of a helper to its supervisor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum HelperReport {
    /// PID of the process, on the host.
    Pid(i32),
    /// The start failed; the text is that of runc.
    Error(String),
    /// A log message of libcontainer, which explains an error.
    Detail(String),
}

/// Encodes a line.
pub(super) fn line<T: Serialize>(message: &T) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).unwrap_or_default();
    line.push(b'\n');
    line
}

/// Removes and decodes the first complete line.
pub(super) fn take_line<T: DeserializeOwned>(read: &mut Vec<u8>) -> Option<io::Result<T>> {
    let end = read.iter().position(|byte| *byte == b'\n')?;
    let line: Vec<u8> = read.drain(..=end).collect();
    Some(serde_json::from_slice(&line).map_err(|error| io::Error::other(format!("read a message: {error}"))))
}

/// Writes a complete line. It must fit into the pipe if nothing reads it.
pub(super) fn report_to<T: Serialize>(to: impl AsFd, message: &T) -> io::Result<()> {
    let line = line(message);
    let mut rest = line.as_slice();
    while !rest.is_empty() {
        let written = rustix::io::retry_on_intr(|| rustix::io::write(&to, rest))?;
        rest = &rest[written..];
    }
    Ok(())
}

/// Sends bytes with descriptors.
pub(super) fn send(to: impl AsFd, text: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !beside.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::other("too many file descriptors for one message"));
    }
    let sent = sendmsg(&to, &[IoSlice::new(text)], &mut beside, SendFlags::NOSIGNAL)?;
    if sent < text.len() {
        return Err(io::Error::other("the message does not fit into the socket buffer"));
    }
    Ok(())
}

/// Reads what is available, with its descriptors. Returns 0 at the end of the stream.
pub(super) fn receive(from: impl AsFd, into: &mut Vec<u8>, fds: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [0; 4096];
    let message = recvmsg(&from, &mut [IoSliceMut::new(&mut bytes)], &mut beside, RecvFlags::CMSG_CLOEXEC)?;
    for message in beside.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    into.extend_from_slice(&bytes[..message.bytes]);
    Ok(message.bytes)
}

/// A memfd that holds a message, to be used as stdin.
pub(super) fn memfd_with<T: Serialize>(message: &T) -> io::Result<OwnedFd> {
    let mut file = File::from(rustix::fs::memfd_create("order", MemfdFlags::CLOEXEC)?);
    file.write_all(&serde_json::to_vec(message)?)?;
    file.rewind()?;
    Ok(file.into())
}

/// Reads a message from stdin.
pub(super) fn from_input<T: DeserializeOwned>() -> io::Result<T> {
    let mut text = Vec::new();
    io::stdin().lock().read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn descriptors_arrive_with_their_line() {
        let (here, there) = UnixStream::pair().unwrap();
        let (read, write) = rustix::pipe::pipe().unwrap();
        let given = PassedFds { stdin: true, ..PassedFds::default() };
        send(&here, &line(&ShimReply::Begun(given)), &[write.as_fd()]).unwrap();
        drop(write);
        let (mut text, mut fds) = (Vec::new(), Vec::new());
        receive(&there, &mut text, &mut fds).unwrap();
        assert_eq!(take_line::<ShimReply>(&mut text).unwrap().unwrap(), ShimReply::Begun(given));
        rustix::io::write(&fds[0], b"through").unwrap();
        let mut bytes = [0; 16];
        assert_eq!(rustix::io::read(&read, &mut bytes).unwrap(), 7);
    }

    #[test]
    fn an_incomplete_line_is_kept_until_it_is_complete() {
        let mut read = b"\"done".to_vec();
        assert!(take_line::<ShimReply>(&mut read).is_none());
        read.extend_from_slice(b"\"\n{\"ended\":3}\n");
        assert_eq!(take_line::<ShimReply>(&mut read).unwrap().unwrap(), ShimReply::Done);
        assert_eq!(take_line::<ShimReply>(&mut read).unwrap().unwrap(), ShimReply::Ended(3));
        assert!(take_line::<ShimReply>(&mut read).is_none());
    }
}
