//! Recordings of moby/spdystream v0.5.1 in both roles, made by `dev/spdy-peer`.

use bytes::BytesMut;
use vk_spdy::codec::{Decoder, Frame, FrameLimits, GoAwayStatus, ResetStatus};

const CLIENT: &[u8] = include_bytes!("../recorded/client.bin");
const SERVER: &[u8] = include_bytes!("../recorded/server.bin");

/// All frames of a recording, read in pieces of this size.
fn frames(recording: &[u8], size: usize) -> Vec<Frame> {
    let mut decoder = Decoder::new(FrameLimits::default());
    let mut input = BytesMut::new();
    let mut frames = Vec::new();
    for piece in recording.chunks(size) {
        input.extend_from_slice(piece);
        while let Some(frame) = decoder.decode(&mut input).expect("Go's frames") {
            frames.push(frame);
        }
    }
    assert!(input.is_empty() && decoder.at_boundary());
    frames
}

/// Summarizes frames; data pieces of one stream are joined.
fn lines(recording: &[u8], size: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut pending = std::collections::BTreeMap::<u32, usize>::new();
    for frame in frames(recording, size) {
        lines.push(match frame {
            Frame::SynStream { id, headers, .. } => {
                format!("open {id} {}", headers.get("mode").expect("a mode"))
            }
            Frame::SynReply { id, headers, .. } => {
                assert_eq!(headers.get_all("several").collect::<Vec<_>>(), ["a", "b"]);
                format!("accept {id} {}", headers.get("mode").expect("a mode"))
            }
            Frame::RstStream { id, status } => format!("reset {id} {status}"),
            Frame::Ping(id) => format!("ping {id}"),
            Frame::GoAway { status: GoAwayStatus::Ok, .. } => "go away".to_owned(),
            Frame::Data { id, payload, fin } => {
                let length = pending.entry(id).or_default();
                *length += payload.len();
                if !fin {
                    continue;
                }
                format!("finish {id} after {}", pending.remove(&id).unwrap_or_default())
            }
            other => panic!("{other:?}"),
        });
    }
    lines.sort();
    lines
}

#[test]
fn frames_of_the_go_client_decode_at_any_split() {
    for size in [1, 2, 3, 7, 8, 9, 100, 10_000] {
        let lines = lines(CLIENT, size);
        for expected in [
            "ping 1",
            "ping 3",
            "open 1 refuse",
            "open 3 reset",
            "open 5 echo",
            "finish 5 after 1000",
            "go away",
        ] {
            assert!(lines.iter().any(|line| line == expected), "{expected} is not in {lines:#?}");
        }
        assert_eq!(lines.iter().filter(|line| line.starts_with("open")).count(), 8, "{lines:#?}");
    }
}

#[test]
fn frames_of_the_go_server_decode_at_any_split() {
    for size in [1, 2, 3, 7, 8, 9, 100, 10_000] {
        let lines = lines(SERVER, size);
        let refused = format!("reset 1 {}", ResetStatus::RefusedStream);
        for expected in [
            &refused,
            "reset 3 CANCEL",
            "accept 5 echo",
            "finish 5 after 1000",
            "finish 7 after 16",
            "ping 3",
        ] {
            assert!(lines.iter().any(|line| line == expected), "{expected} is not in {lines:#?}");
        }
    }
}
