//! Sessions in every protocol.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use vk_provider::{
    Error,
    ability::{ExecOptions, Exit, Session, TermSize},
};
use vk_streaming::{
    SessionEnd, SessionLimits,
    exec::{Protocol, ProtocolVersion},
};

use crate::{
    fake_process,
    test_server::{self, ALL, Joined, TTY, join},
};

pub(crate) const PROTOCOLS: [Protocol; 9] = [
    Protocol::Spdy(ProtocolVersion::V1),
    Protocol::Spdy(ProtocolVersion::V2),
    Protocol::Spdy(ProtocolVersion::V3),
    Protocol::Spdy(ProtocolVersion::V4),
    Protocol::WebSocket(ProtocolVersion::V1),
    Protocol::WebSocket(ProtocolVersion::V4),
    Protocol::WebSocket(ProtocolVersion::V5),
    Protocol::WebSocketBase64(ProtocolVersion::V1),
    Protocol::WebSocketBase64(ProtocolVersion::V4),
];

/// Whether the client can signal the end of its input.
pub(crate) fn half_closes(protocol: Protocol) -> bool {
    test_server::is_spdy(protocol) || protocol.version() == ProtocolVersion::V5
}

async fn output(session: &mut Session) -> (String, String) {
    let (mut stdout, mut stderr) = (session.stdout.take().unwrap(), session.stderr.take().unwrap());
    let (mut out, mut err) = (String::new(), String::new());
    let read = futures::future::join(stdout.read_to_string(&mut out), stderr.read_to_string(&mut err)).await;
    read.0.and(read.1).unwrap();
    (out, err)
}

#[tokio::test]
async fn stdout_and_stderr_arrive_completely_before_the_exit() {
    for protocol in PROTOCOLS {
        let Joined { mut session, mut process, mut host } = join(protocol, ALL).await;
        let running = async {
            process.print(b"hello ").await;
            process.complain(b"oh").await;
            process.print(b"world").await;
            process.exit(0);
        };
        let ((), said) = futures::future::join(running, output(&mut session)).await;
        assert_eq!(said, ("hello world".into(), "oh".into()), "{protocol:?}");
        assert_eq!(session.exit.await.unwrap(), Exit { code: 0 }, "{protocol:?}");
        let outcome = host.outcome().await.unwrap();
        assert_eq!((outcome.end, outcome.sent), (SessionEnd::Exited(0), 13), "{protocol:?}");
        assert_eq!(process.sessions.now(), 0, "{protocol:?}");
    }
}

#[tokio::test]
async fn exit_codes_arrive_as_codes_from_version_4_on_and_as_text_before() {
    for protocol in PROTOCOLS {
        for code in [1, 137, 255] {
            let Joined { session, mut process, mut host } = join(protocol, ALL).await;
            process.exit(code);
            let exit = session.exit.await;
            if protocol.version() >= ProtocolVersion::V4 {
                assert_eq!(exit.unwrap(), Exit { code }, "{protocol:?}");
            } else {
                let report = exit.unwrap_err().report();
                let text = format!("run the command: command terminated with non-zero exit code: {code}");
                assert_eq!(report, text, "{protocol:?}");
            }
            assert_eq!(host.outcome().await.unwrap().end, SessionEnd::Exited(code), "{protocol:?}");
        }
    }
}

#[tokio::test]
async fn input_arrives_and_its_end_if_the_protocol_can_signal_it() {
    for protocol in PROTOCOLS {
        let Joined { mut session, mut process, mut host } = join(protocol, ALL).await;
        let mut stdin = session.stdin.take().unwrap();
        stdin.write_all(b"some input").await.unwrap();
        assert_eq!(process.read(10).await, b"some input", "{protocol:?}");
        if half_closes(protocol) {
            stdin.shutdown().await.unwrap();
            assert_eq!(process.stdin.read(&mut [0]).await.unwrap(), 0, "{protocol:?}");
            // The other direction continues.
            process.print(b"still here").await;
            let mut said = [0; 10];
            session.stdout.as_mut().unwrap().read_exact(&mut said).await.unwrap();
            assert_eq!(&said, b"still here", "{protocol:?}");
        }
        process.exit(0);
        assert_eq!(session.exit.await.unwrap(), Exit { code: 0 }, "{protocol:?}");
        let outcome = host.outcome().await.unwrap();
        assert_eq!((outcome.end, outcome.received), (SessionEnd::Exited(0), 10), "{protocol:?}");
    }
}

#[tokio::test]
async fn a_terminal_has_one_output_and_its_size_reaches_the_provider() {
    for protocol in PROTOCOLS {
        let asked = ExecOptions { stderr: true, ..TTY };
        let Joined { session, mut process, host: _host } = join(protocol, asked).await;
        assert!(session.stderr.is_none(), "{protocol:?}");
        let resizes = !test_server::is_spdy(protocol) || protocol.version() >= ProtocolVersion::V3;
        assert!(session.resize.is_some() == resizes, "{protocol:?}");
        if let Some(resize) = &session.resize {
            for size in [TermSize { width: 80, height: 24 }, TermSize { width: 132, height: 50 }] {
                resize.send(size).await.unwrap();
                assert_eq!(process.sizes.recv().await, Some(size), "{protocol:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_session_without_input_or_without_output_works_too() {
    let none = ExecOptions::default();
    for protocol in PROTOCOLS {
        for options in [
            ExecOptions { stdin: true, ..none },
            ExecOptions { stdout: true, ..none },
            ExecOptions { stderr: true, ..none },
        ] {
            let Joined { session, mut process, mut host } = join(protocol, options).await;
            process.exit(0);
            assert_eq!(session.exit.await.unwrap(), Exit { code: 0 }, "{protocol:?} {options:?}");
            assert_eq!(host.outcome().await.unwrap().end, SessionEnd::Exited(0), "{protocol:?} {options:?}");
        }
    }
}

#[tokio::test]
async fn a_provider_error_after_the_upgrade_is_reported_on_the_error_stream() {
    for protocol in PROTOCOLS {
        let (ours, theirs) = tokio::io::duplex(8 << 10);
        let broken = Error::invalid("start \"shh\"").caused_by(Error::invalid("no such file"));
        let mut host = test_server::exec_host(theirs, Err(broken), SessionLimits::default());
        let session = test_server::call(ours, protocol, ALL).await.unwrap();
        let text = "error executing command in container: start \"shh\": no such file";
        let report = session.exit.await.unwrap_err().report();
        assert_eq!(report, format!("run the command: Internal error occurred: {text}"), "{protocol:?}");
        let end = SessionEnd::Failed("start \"shh\": no such file".into());
        assert_eq!(host.outcome().await.unwrap().end, end, "{protocol:?}");
    }
}

#[tokio::test]
async fn a_process_with_an_unknown_exit_is_reported_as_a_failure() {
    for protocol in PROTOCOLS {
        let Joined { session, mut process, mut host } = join(protocol, ALL).await;
        (process.stdout, process.stderr) = (None, None);
        process.exit.take().unwrap().send(Err(Error::unavailable("the backend went away"))).unwrap();
        let report = session.exit.await.unwrap_err().report();
        assert!(report.contains("error executing command in container: the backend went away"), "{report}");
        assert!(matches!(host.outcome().await.unwrap().end, SessionEnd::Failed(_)), "{protocol:?}");
    }
}

#[tokio::test]
async fn a_process_that_closes_its_input_early_can_still_send_output() {
    for protocol in PROTOCOLS {
        let Joined { mut session, mut process, host: _host } = join(protocol, ALL).await;
        drop(std::mem::replace(&mut process.stdin, tokio::io::duplex(1).0));
        // More than the buffers hold: it must be dropped.
        let much = vec![7; 1 << 20];
        let writing = session.stdin.as_mut().unwrap().write_all(&much);
        let (written, ()) = futures::future::join(writing, process.print(b"ok")).await;
        written.unwrap();
        process.exit(3);
        let mut said = String::new();
        session.stdout.as_mut().unwrap().read_to_string(&mut said).await.unwrap();
        assert_eq!(said, "ok", "{protocol:?}");
        let exit = session.exit.await;
        assert_eq!(exit.is_ok(), protocol.version() >= ProtocolVersion::V4, "{protocol:?} {exit:?}");
    }
}

#[tokio::test]
async fn unrequested_output_does_not_block_the_process() {
    let only_input = ExecOptions { stdin: true, ..ExecOptions::default() };
    for protocol in PROTOCOLS {
        let (ours, theirs) = tokio::io::duplex(8 << 10);
        // The provider returns more streams than requested.
        let (provided, mut process) = fake_process::session(ALL);
        let mut host = test_server::exec_host(theirs, Ok(provided), SessionLimits::default());
        let session = test_server::call(ours, protocol, only_input).await.unwrap();
        let stdout = process.stdout.as_mut().unwrap();
        // The pipe is closed, which the process sees.
        while stdout.write_all(&[0; 100]).await.is_ok() {}
        process.exit(0);
        assert_eq!(session.exit.await.unwrap(), Exit { code: 0 }, "{protocol:?}");
        host.outcome().await.unwrap();
    }
}
