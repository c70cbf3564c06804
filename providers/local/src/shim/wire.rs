//! What the processes of the shim say to each other: lines of JSON, with file descriptors beside some of them.

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

/// What a client asks of a supervisor: one line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Request {
    /// Send this signal to the container's first process.
    Signal(i32),
    /// Keep the connection until the container has ended.
    Wait,
    /// Write the log into a new file of the same name.
    ReopenLog,
    /// Start a command.
    Exec {
        command: Vec<String>,
        #[serde(flatten)]
        streams: Streams,
    },
    /// Copy the container's output.
    Attach(Streams),
    /// Said later on the connection of an attachment: its input has ended.
    InputEnded,
}

/// Which streams are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Streams {
    pub(super) stdin: bool,
    pub(super) stdout: bool,
    pub(super) stderr: bool,
    pub(super) tty: bool,
}

/// What a supervisor answers: one line each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Reply {
    /// It is done.
    Done,
    /// It cannot be done.
    Failed(String),
    /// The command or attachment has begun. The descriptors come with this line, in the order of [`Given`].
    Begun(Given),
    /// The command, or the container that was attached to, has ended.
    Ended(i32),
}

/// Which descriptors come with a line, in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Given {
    /// To write input to.
    pub(super) stdin: bool,
    /// To read output from.
    pub(super) stdout: bool,
    /// To read error output from.
    pub(super) stderr: bool,
    /// The terminal: takes its size, and also input and output where those are not given.
    pub(super) terminal: bool,
}

/// What a supervisor tells whoever started it: one line on its output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Outcome {
    /// The container runs.
    Started,
    /// It could not be started.
    Failed(super::StartError),
    /// Another supervisor is at it.
    Busy,
}

/// What a supervisor orders of a helper, as a file on its input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Order {
    /// What to run; `None` is the container's own program.
    pub(super) command: Option<Vec<String>>,
    /// The container's first process; 0 where there is none yet.
    pub(super) init: i32,
    /// Whether it gets a terminal, which is sent through `console`.
    pub(super) tty: bool,
    /// Inherited descriptors, by number. Without a terminal there are all three.
    pub(super) stdin: Option<RawFd>,
    pub(super) stdout: Option<RawFd>,
    pub(super) stderr: Option<RawFd>,
    /// Takes [`Report`]s, and is closed when the program runs.
    pub(super) report: RawFd,
    /// A socket that takes the terminal.
    pub(super) console: Option<RawFd>,
}

/// What a helper tells its supervisor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Report {
    /// The process, as the machine counts.
    Pid(i32),
    /// It failed, in the words that runc has.
    Error(String),
    /// What a library said meanwhile: an error without its cause is worth little.
    Detail(String),
}

/// One line.
pub(super) fn line<T: Serialize>(message: &T) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).unwrap_or_default();
    line.push(b'\n');
    line
}

/// Takes the first whole line out of what was read.
pub(super) fn take_line<T: DeserializeOwned>(read: &mut Vec<u8>) -> Option<io::Result<T>> {
    let end = read.iter().position(|byte| *byte == b'\n')?;
    let line: Vec<u8> = read.drain(..=end).collect();
    Some(serde_json::from_slice(&line).map_err(|error| io::Error::other(format!("read a message: {error}"))))
}

/// Writes a line whole. Its size must be below what the kernel keeps for a reader who is not there yet.
pub(super) fn tell<T: Serialize>(to: impl AsFd, message: &T) -> io::Result<()> {
    let line = line(message);
    let mut rest = line.as_slice();
    while !rest.is_empty() {
        let written = rustix::io::retry_on_intr(|| rustix::io::write(&to, rest))?;
        rest = &rest[written..];
    }
    Ok(())
}

/// Sends a line with descriptors.
pub(super) fn send(to: impl AsFd, text: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !beside.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::other("too many descriptors for one message"));
    }
    let sent = sendmsg(&to, &[IoSlice::new(text)], &mut beside, SendFlags::NOSIGNAL)?;
    if sent < text.len() {
        return Err(io::Error::other("a message did not fit into a socket"));
    }
    Ok(())
}

/// Reads what there is, and the descriptors that came with it. Nothing at the end of the stream.
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

/// A file without a name that holds a message, to be somebody's input.
pub(super) fn sealed<T: Serialize>(message: &T) -> io::Result<OwnedFd> {
    let mut file = File::from(rustix::fs::memfd_create("order", MemfdFlags::CLOEXEC)?);
    file.write_all(&serde_json::to_vec(message)?)?;
    file.rewind()?;
    Ok(file.into())
}

/// Reads the message that is our input.
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
    fn descriptors_come_with_the_line_that_they_were_sent_with() {
        let (here, there) = UnixStream::pair().unwrap();
        let (read, write) = rustix::pipe::pipe().unwrap();
        let given = Given { stdin: true, ..Given::default() };
        send(&here, &line(&Reply::Begun(given)), &[write.as_fd()]).unwrap();
        drop(write);
        let (mut text, mut fds) = (Vec::new(), Vec::new());
        receive(&there, &mut text, &mut fds).unwrap();
        assert_eq!(take_line::<Reply>(&mut text).unwrap().unwrap(), Reply::Begun(given));
        rustix::io::write(&fds[0], b"through").unwrap();
        let mut bytes = [0; 16];
        assert_eq!(rustix::io::read(&read, &mut bytes).unwrap(), 7);
    }

    #[test]
    fn half_a_line_is_kept_until_the_rest_is_there() {
        let mut read = b"\"done".to_vec();
        assert!(take_line::<Reply>(&mut read).is_none());
        read.extend_from_slice(b"\"\n{\"ended\":3}\n");
        assert_eq!(take_line::<Reply>(&mut read).unwrap().unwrap(), Reply::Done);
        assert_eq!(take_line::<Reply>(&mut read).unwrap().unwrap(), Reply::Ended(3));
        assert!(take_line::<Reply>(&mut read).is_none());
    }
}
