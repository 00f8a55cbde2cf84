use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..40)
}

fn requests() -> impl Strategy<Value = Request> {
    prop_oneof![
        (bytes(), bytes()).prop_map(|(key, value)| Request::Set { key, value }),
        (bytes(), bytes(), bytes()).prop_map(|(key, expected, desired)| Request::CompareSet {
            key,
            expected,
            desired
        }),
        bytes().prop_map(|key| Request::Get { key }),
        (bytes(), any::<i64>()).prop_map(|(key, delta)| Request::Add { key, delta }),
        vec(bytes(), 0..5).prop_map(|keys| Request::Check { keys }),
        vec(bytes(), 0..5).prop_map(|keys| Request::Wait { keys }),
        Just(Request::GetNumKeys),
        bytes().prop_map(|key| Request::DeleteKey { key }),
        (bytes(), bytes()).prop_map(|(key, value)| Request::Append { key, value }),
        vec(bytes(), 0..5).prop_map(|keys| Request::MultiGet { keys }),
        vec((bytes(), bytes()), 0..5).prop_map(|pairs| Request::MultiSet { pairs }),
        Just(Request::CancelWait),
        any::<u32>().prop_map(|nonce| Request::Ping { nonce }),
        (bytes(), bytes()).prop_map(|(key, value)| Request::QueuePush { key, value }),
        bytes().prop_map(|key| Request::QueuePop { key }),
        bytes().prop_map(|key| Request::QueueLen { key }),
        Just(Request::ListKeys),
        (bytes(), any::<i64>()).prop_map(|(key, world_size)| Request::Barrier { key, world_size }),
    ]
}

fn value() -> impl Strategy<Value = Value> {
    bytes().prop_map(Value::new)
}

fn replies() -> impl Strategy<Value = (ReplyKind, Reply)> {
    prop_oneof![
        value().prop_map(|value| (ReplyKind::Value, Reply::Value(value))),
        vec(value(), 0..5).prop_map(|values| (ReplyKind::Values(values.len()), Reply::Values(values))),
        vec(bytes().prop_map(Key::from), 0..5).prop_map(|keys| (ReplyKind::Keys, Reply::Keys(keys))),
        any::<i64>().prop_map(|number| (ReplyKind::Number, Reply::Number(number))),
        Just((ReplyKind::Popped, Reply::Popped(None))),
        (1..i64::MAX, value()).prop_map(|popped| (ReplyKind::Popped, Reply::Popped(Some(popped)))),
        any::<bool>().prop_map(|present| (ReplyKind::Presence, Reply::AllPresent(present))),
        Just((ReplyKind::Wait, Reply::Arrived)),
        Just((ReplyKind::Wait, Reply::Cancelled)),
        any::<u32>().prop_map(|nonce| (ReplyKind::Pong, Reply::Pong(nonce))),
    ]
}

/// Everything that a connection's bytes say when they arrive in pieces of the given sizes, over and over.
fn decode_in_pieces(bytes: &[u8], sizes: &[usize]) -> (Vec<Request>, Option<ProtocolError>) {
    let (mut decoder, mut requests, mut pending) = (RequestDecoder::new(), Vec::new(), Vec::new());
    let (mut rest, mut turn) = (bytes, 0);
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(sizes[turn % sizes.len()].min(rest.len()));
        (rest, turn) = (after, turn + 1);
        pending.extend_from_slice(piece);
        loop {
            match decoder.decode(&pending) {
                Err(error) => return (requests, Some(error)),
                Ok((consumed, request)) => {
                    pending.drain(..consumed);
                    match request {
                        Some(request) => requests.push(request),
                        None => break,
                    }
                }
            }
        }
    }
    (requests, None)
}

/// The first request of bytes that follow a handshake, and its length.
fn first(bytes: &[u8]) -> Result<Option<(Request, usize)>, ProtocolError> {
    let mut decoder = RequestDecoder::new();
    assert_eq!(decoder.decode(&HANDSHAKE), Ok((HANDSHAKE.len(), None)));
    let (consumed, request) = decoder.decode(bytes)?;
    Ok(request.map(|request| (request, consumed)))
}

fn encoded(reply: &Reply) -> Vec<u8> {
    let mut bytes = Vec::new();
    reply.encode(&mut bytes);
    bytes
}

fn connection(requests: &[Request]) -> Vec<u8> {
    let mut bytes = HANDSHAKE.to_vec();
    for request in requests {
        request.encode(&mut bytes).unwrap();
    }
    bytes
}

proptest! {
    #[test]
    fn encoded_request_decodes_unchanged(request in requests(), after in bytes()) {
        let mut wire = Vec::new();
        request.encode(&mut wire).unwrap();
        let length = wire.len();
        wire.extend_from_slice(&after);
        prop_assert_eq!(first(&wire), Ok(Some((request, length))));
        for end in 0..length {
            prop_assert_eq!(first(&wire[..end]), Ok(None));
        }
    }

    #[test]
    fn split_bytes_decode_to_same_requests(
        requests in vec(requests(), 0..6),
        sizes in vec(1usize..50, 1..6),
    ) {
        let wire = connection(&requests);
        prop_assert_eq!(decode_in_pieces(&wire, &sizes), (requests, None));
    }

    #[test]
    fn split_garbage_gives_same_error(
        garbage in vec(prop_oneof![4 => 0u8..20, 1 => any::<u8>()], 0..200),
        sizes in vec(1usize..50, 1..6),
    ) {
        let wire = [&HANDSHAKE[..], &garbage].concat();
        prop_assert_eq!(decode_in_pieces(&wire, &sizes), decode_in_pieces(&wire, &[wire.len()]));
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in vec(any::<u8>(), 0..300), count in 0usize..4) {
        let _ = RequestDecoder::new().decode(&bytes);
        let _ = first(&bytes);
        let kinds = [
            ReplyKind::Value, ReplyKind::Values(count), ReplyKind::Keys, ReplyKind::Number,
            ReplyKind::Popped, ReplyKind::Presence, ReplyKind::Wait, ReplyKind::Pong,
        ];
        for kind in kinds {
            let _ = ReplyDecoder::new(kind).decode(&bytes);
        }
    }

    #[test]
    fn encoded_reply_decodes_unchanged((kind, reply) in replies(), size in 1usize..60) {
        let wire = encoded(&reply);
        let length = wire.len();
        let (mut decoder, mut pending, mut total) = (ReplyDecoder::new(kind), Vec::new(), 0);
        let mut found = None;
        for piece in wire.chunks(size) {
            prop_assert!(found.is_none(), "complete before the last piece");
            pending.extend_from_slice(piece);
            let (consumed, reply) = decoder.decode(&pending).unwrap();
            pending.drain(..consumed);
            (total, found) = (total + consumed, reply);
        }
        if wire.is_empty() {
            found = decoder.decode(&wire).unwrap().1;
        }
        prop_assert_eq!((total, found), (length, Some(reply)));
    }

    #[test]
    fn partial_reply_decodes_when_complete((_, reply) in replies(), limit in 0usize..40) {
        let whole = encoded(&reply);
        let (mut writer, mut pieces) = (ReplyWriter::new(reply), Vec::new());
        loop {
            let mut piece = Vec::new();
            let done = writer.fill(&mut piece, limit.max(1));
            prop_assert!(piece.len() <= limit.max(1) + 8);
            pieces.extend_from_slice(&piece);
            if done { break }
        }
        prop_assert_eq!(pieces, whole);
    }
}

#[test]
fn wire_bytes_match_torch() {
    let mut wire = Vec::new();
    Request::Set { key: b"/k".to_vec(), value: b"v".to_vec() }.encode(&mut wire).unwrap();
    Request::Add { key: b"init/".to_vec(), delta: -2 }.encode(&mut wire).unwrap();
    Request::Wait { keys: vec![b"a".to_vec()] }.encode(&mut wire).unwrap();
    Request::Ping { nonce: 0x0102_0304 }.encode(&mut wire).unwrap();
    let expected = [
        &b"\x01\x02\0\0\0\0\0\0\0/k\x01\0\0\0\0\0\0\0v"[..],
        b"\x04\x05\0\0\0\0\0\0\0init/\xfe\xff\xff\xff\xff\xff\xff\xff",
        b"\x06\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0a",
        b"\x0d\x04\x03\x02\x01",
    ];
    assert_eq!(wire, expected.concat());
}

#[test]
fn wrong_handshake_is_refused_at_first_wrong_byte() {
    let refused = |bytes: &[u8]| RequestDecoder::new().decode(bytes).unwrap_err();
    assert_eq!(refused(b"\x0d"), ProtocolError::Handshake { position: 0, byte: 0x0d });
    assert_eq!(refused(b"GET / HTTP/1.1"), ProtocolError::Handshake { position: 0, byte: b'G' });
    assert_eq!(refused(b"\0\xce\xf7\x00"), ProtocolError::Handshake { position: 3, byte: 0 });
}

#[test]
fn unknown_code_and_second_handshake_are_refused() {
    for code in [0, 19, 255] {
        assert_eq!(first(&[code]), Err(ProtocolError::UnknownCode { code }));
    }
    let twice = [HANDSHAKE, HANDSHAKE].concat();
    assert_eq!(decode_in_pieces(&twice, &[10]).1, Some(ProtocolError::UnknownCode { code: 0 }));
}

#[test]
fn oversized_length_is_refused_before_payload() {
    let with_length = |code: u8, length: u64| first(&[&[code][..], &length.to_le_bytes()].concat());
    assert_eq!(with_length(3, MAX_KEY), Ok(None));
    assert_eq!(with_length(3, MAX_KEY + 1), Err(ProtocolError::KeyTooLong { length: MAX_KEY + 1 }));
    assert_eq!(with_length(3, 1 << 32), Err(ProtocolError::KeyTooLong { length: 1 << 32 }));
    assert_eq!(with_length(6, MAX_KEYS), Ok(None));
    for code in [5, 6, 10, 11] {
        assert_eq!(with_length(code, MAX_KEYS + 1), Err(ProtocolError::TooManyKeys { count: MAX_KEYS + 1 }));
        assert_eq!(with_length(code, u64::MAX), Err(ProtocolError::TooManyKeys { count: u64::MAX }));
    }
    let value = |length: u64| first(&[&b"\x01\0\0\0\0\0\0\0\0"[..], &length.to_le_bytes()].concat());
    assert_eq!(value(MAX_VALUE), Ok(None));
    for length in [MAX_VALUE + 1, 1 << 32, u64::MAX] {
        assert_eq!(value(length), Err(ProtocolError::ValueTooLong { length, limit: MAX_VALUE }));
    }
}

#[test]
fn request_total_above_limit_is_refused() {
    let value = vec![0; usize::try_from(MAX_VALUE).unwrap()];
    let count = MAX_REQUEST / MAX_VALUE;
    let mut decoder = RequestDecoder::new();
    decoder.decode(&HANDSHAKE).unwrap();
    decoder.decode(&[&[11][..], &(count + 1).to_le_bytes()].concat()).unwrap();
    let pair = [&[0; 8][..], &MAX_VALUE.to_le_bytes(), &value].concat();
    for _ in 0..count {
        assert_eq!(decoder.decode(&pair), Ok((pair.len(), None)));
    }
    let next = [&[0; 8][..], &1u64.to_le_bytes()].concat();
    let expected = ProtocolError::MessageTooLarge { length: MAX_REQUEST + 1, limit: MAX_REQUEST };
    assert_eq!(decoder.decode(&next), Err(expected));
}

#[test]
fn oversized_request_is_not_encoded() {
    let mut out = b"before".to_vec();
    let key = vec![0; 8193];
    let refused = Request::MultiGet { keys: vec![b"a".to_vec(), key] }.encode(&mut out);
    assert_eq!(refused, Err(ProtocolError::KeyTooLong { length: 8193 }));
    assert_eq!(out, b"before");
}

#[test]
fn negative_reply_length_is_error() {
    for kind in [ReplyKind::Keys, ReplyKind::Popped] {
        let refused = ReplyDecoder::new(kind).decode(&(-1i64).to_le_bytes());
        assert_eq!(refused, Err(ProtocolError::ImpossibleReply { number: -1 }));
    }
    assert_eq!(
        ReplyDecoder::new(ReplyKind::Wait).decode(&[2]),
        Err(ProtocolError::ImpossibleReply { number: 2 })
    );
}
