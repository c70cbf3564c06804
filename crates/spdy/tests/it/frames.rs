//! Frames through the codec: any frames, with the bytes split anywhere.

use bytes::{Bytes, BytesMut};
use proptest::{collection::vec, prelude::*};
use vk_spdy::codec::{Decoder, EncodeError, Encoder, Frame, FrameLimits, Headers, MAX_FRAME, Setting};

fn id() -> impl Strategy<Value = u32> {
    prop_oneof![1..100u32, 1..=0x7fff_ffffu32]
}

fn headers() -> impl Strategy<Value = Headers> {
    let word = prop_oneof!["[a-z:-]{1,12}", "[a-zé]{1,3}"];
    let value = prop_oneof!["[ -~]{0,30}", any::<String>(), "(content-type){0,200}"];
    vec((word, value), 0..8).prop_map(|pairs| pairs.into_iter().collect())
}

fn frame() -> impl Strategy<Value = Frame> {
    let setting = (any::<u8>(), 0..0x0100_0000u32, any::<u32>()).prop_map(|(flags, id, value)| Setting {
        flags,
        id,
        value,
    });
    prop_oneof![
        (id(), 0..0x8000_0000u32, 0..8u8, headers(), any::<bool>(), any::<bool>()).prop_map(
            |(id, associated, priority, headers, fin, unidirectional)| Frame::SynStream {
                id,
                associated,
                priority,
                headers,
                fin,
                unidirectional
            }
        ),
        (id(), headers(), any::<bool>()).prop_map(|(id, headers, fin)| Frame::SynReply { id, headers, fin }),
        (id(), headers(), any::<bool>()).prop_map(|(id, headers, fin)| Frame::Headers { id, headers, fin }),
        (id(), any::<u32>()).prop_map(|(id, status)| Frame::RstStream { id, status: status.into() }),
        (any::<bool>(), vec(setting, 0..5)).prop_map(|(clear, settings)| Frame::Settings { clear, settings }),
        any::<u32>().prop_map(Frame::Ping),
        (0..0x8000_0000u32, any::<u32>())
            .prop_map(|(last_good, status)| Frame::GoAway { last_good, status: status.into() }),
        (0..0x8000_0000u32, any::<u32>()).prop_map(|(id, delta)| Frame::WindowUpdate { id, delta }),
        (id(), vec(any::<u8>(), 0..3000), any::<bool>()).prop_map(|(id, payload, fin)| Frame::Data {
            id,
            payload: Bytes::from(payload),
            fin
        }),
    ]
}

/// Decodes all frames and joins the pieces of DATA frames.
fn decode(wire: &[u8], mut cuts: impl Iterator<Item = usize>) -> Vec<Frame> {
    let mut decoder = Decoder::new(FrameLimits::default());
    let (mut input, mut rest) = (BytesMut::new(), wire);
    let mut frames = Vec::new();
    let mut data = BytesMut::new();
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(cuts.next().unwrap_or(usize::MAX).min(rest.len()));
        rest = after;
        input.extend_from_slice(piece);
        while let Some(frame) = decoder.decode(&mut input).expect("frames of our own") {
            match frame {
                Frame::Data { id, payload, fin } => {
                    data.extend_from_slice(&payload);
                    if decoder.at_boundary() {
                        frames.push(Frame::Data { id, payload: data.split().freeze(), fin });
                    }
                }
                other => frames.push(other),
            }
        }
    }
    assert!(decoder.at_boundary() && input.is_empty());
    frames
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn frames_round_trip_at_any_split(
        frames in vec(frame(), 0..20),
        cuts in vec(prop_oneof![1..20usize, 1..2000usize], 1..50),
    ) {
        let (mut encoder, mut wire) = (Encoder::new(), BytesMut::new());
        for frame in &frames {
            encoder.encode(frame, &mut wire).expect("a small frame");
        }
        prop_assert_eq!(&decode(&wire, cuts.into_iter().cycle()), &frames);
        prop_assert_eq!(&decode(&wire, std::iter::repeat(1)), &frames);
    }

    #[test]
    fn garbage_never_panics(data in vec(any::<u8>(), 0..500)) {
        let mut decoder = Decoder::new(FrameLimits::default());
        let mut input = BytesMut::from(&b"\x80\x03\0"[..]);
        input.extend_from_slice(&data);
        while let Ok(Some(_)) = decoder.decode(&mut input) {}
    }
}

#[test]
fn a_frame_that_is_too_large_is_not_encoded_and_does_no_harm() {
    let (mut encoder, mut wire) = (Encoder::new(), BytesMut::new());
    let huge = Headers::new().with("x", &"y".repeat(MAX_FRAME));
    let syn = |headers: &Headers| Frame::SynReply { id: 1, headers: headers.clone(), fin: false };
    assert!(matches!(encoder.encode(&syn(&huge), &mut wire), Err(EncodeError::TooLarge(_))));
    let data = Frame::Data { id: 1, payload: vec![0; MAX_FRAME + 1].into(), fin: false };
    assert_eq!(encoder.encode(&data, &mut wire), Err(EncodeError::TooLarge(MAX_FRAME + 1)));
    assert_eq!(
        encoder.encode(&Frame::Data { id: 0, payload: Bytes::new(), fin: true }, &mut wire),
        Err(EncodeError::StreamId(0))
    );
    assert!(wire.is_empty());
    let small = syn(&Headers::new().with("a", "b"));
    encoder.encode(&small, &mut wire).unwrap();
    assert_eq!(decode(&wire, std::iter::repeat(7)), [small]);
}

#[test]
fn the_largest_data_frame_is_returned_in_pieces_without_buffering() {
    let mut decoder = Decoder::new(FrameLimits::default());
    let mut input = BytesMut::from(&[0, 0, 0, 1, 1, 0xff, 0xff, 0xff][..]);
    let mut left = MAX_FRAME;
    while left > 0 {
        assert_eq!(decoder.decode(&mut input), Ok(None));
        let piece = left.min(60_000);
        input.extend_from_slice(&vec![b'x'; piece]);
        left -= piece;
        match decoder.decode(&mut input).unwrap() {
            Some(Frame::Data { id: 1, payload, fin }) => assert_eq!((payload.len(), fin), (piece, left == 0)),
            other => panic!("{other:?}"),
        }
    }
    assert!(decoder.at_boundary());
}

#[test]
fn a_control_frame_over_the_limit_is_rejected_before_it_arrives() {
    let mut limits = FrameLimits::default();
    limits.control_frame = 1000;
    let mut decoder = Decoder::new(limits);
    let mut input = BytesMut::from(&b"\x80\x03\0\x01\0\0\x03\xe9"[..]);
    assert_eq!(decoder.decode(&mut input).unwrap_err().to_string(), "a control frame over the limit of 1000");
}
