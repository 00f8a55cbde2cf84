use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Value as Json, json};

use super::*;

fn read(bytes: &[u8]) -> Result<Json, PickleError> {
    from_pickle(bytes)
}

/// As `pickle.dumps(value, 2)` of Python 3.11 writes it, where containers get their memo entry before they are filled.
#[test]
fn values_of_python_are_read() {
    let bytes = b"\x80\x02}q\x00(X\x01\x00\x00\x00aq\x01]q\x02(K\x01M\x2c\x01J\xfe\xff\xff\xff\x8a\x05\x00\x00\x00\x00\x01\
                  G?\xf8\x00\x00\x00\x00\x00\x00\x88\x89NeX\x01\x00\x00\x00bq\x03h\x02X\x01\x00\x00\x00cq\x04h\x01K\x07\x86q\x05u.";
    let list = json!([1, 300, -2, 4_294_967_296_i64, 1.5, true, false, null]);
    assert_eq!(read(bytes).unwrap(), json!({"a": list, "b": list, "c": ["a", 7]}));
}

#[test]
fn numbers_of_all_lengths_are_read() {
    for (bytes, number) in [
        (b"\x8a\x00.".as_slice(), 0),
        (b"\x8a\x01\xff.", -1),
        (b"\x8a\x02\xff\x00.", 255),
        (b"\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80.", i64::MIN),
        (b"J\xff\xff\xff\x7f.", i64::from(i32::MAX)),
    ] {
        assert_eq!(read(bytes).unwrap(), json!(number), "{bytes:?}");
    }
    assert_eq!(read(b"\x8a\x09123456789."), Err(PickleError::Malformed(0)));
}

#[test]
fn opcode_that_runs_something_is_named() {
    for (bytes, name) in [
        (b"\x80\x02cos\nsystem\nq\x00X\x02\x00\x00\x00lsq\x01\x85q\x02Rq\x03.".as_slice(), "GLOBAL"),
        (b"\x80\x02N)R.", "REDUCE"),
        (b"\x80\x04\x93.", "STACK_GLOBAL"),
        (b"\x80\x02]b.", "BUILD"),
        (b"\x80\x02\x81.", "NEWOBJ"),
        (b"\x80\x02(ios\nsystem\n.", "INST"),
        (b"I1\n.", "0x49"),
    ] {
        let error = read(bytes).unwrap_err();
        assert!(matches!(&error, PickleError::Opcode { name: found, .. } if found == name), "{error}");
    }
    let text = read(b"\x80\x02cos\nsystem\n.").unwrap_err().to_string();
    assert_eq!(text, "the pickle has the opcode GLOBAL at byte 2, which data does not need");
}

#[test]
fn opcodes_without_fitting_values_are_errors() {
    for bytes in [
        b".".as_slice(),
        b"a.",
        b"]s.",
        b"N]a]e.",
        b"}(K\x01u.",
        b"NN\x87.",
        b"h\x00.",
        b"q\x00.",
        b"u.",
        b"](Na.",
        b"(t\x85\x85e.",
    ] {
        assert!(matches!(read(bytes), Err(PickleError::Malformed(_))), "{bytes:?}");
    }
    for bytes in [b"".as_slice(), b"]", b"M\x01", b"X\xff\xff\xff\xffa.", b"\x80"] {
        assert!(matches!(read(bytes), Err(PickleError::Truncated(_))), "{bytes:?}");
    }
    assert!(matches!(read(b"r\xff\xff\xff\xff."), Err(PickleError::TooManyValues)));
}

#[test]
fn size_and_number_of_values_are_limited() {
    assert_eq!(read(&vec![b'N'; MAX_PICKLE + 1]), Err(PickleError::TooLong(MAX_PICKLE + 1)));
    for filler in [b'N', b'(', b']'] {
        assert_eq!(read(&vec![filler; MAX_VALUES + 1]), Err(PickleError::TooManyValues), "{filler}");
    }
}

#[test]
fn depth_is_limited() {
    let nested = |depth: usize| [vec![b']'; depth], vec![b'a'; depth - 1], vec![b'.']].concat();
    assert!(read(&nested(MAX_DEPTH)).is_ok());
    assert!(matches!(read(&nested(MAX_DEPTH + 1)), Err(PickleError::Shape(_))));
    // A list in itself.
    assert!(matches!(read(b"]q\x00h\x00a."), Err(PickleError::Shape(_))));
}

/// Lists of ten times the list before, which are 10^12 values in less than a kilobyte.
#[test]
fn values_that_grow_by_references_are_an_error() {
    let mut bytes = b"]q\x00".to_vec();
    for level in 1..13_u8 {
        bytes.extend(b"](");
        bytes.extend([b'h', level - 1].repeat(10));
        bytes.extend([b'e', b'q', level]);
    }
    bytes.push(b'.');
    assert!(matches!(read(&bytes), Err(PickleError::Shape(_))));
    // What the reader does not ask for is not visited.
    let with_key = [&bytes[..bytes.len() - 1], b"}X\x01\x00\x00\x00zh\x0cs."].concat();
    #[derive(serde::Deserialize)]
    struct Other {
        #[serde(default)]
        a: Option<u64>,
    }
    assert_eq!(from_pickle::<Other>(&with_key).unwrap().a, None);
}

#[test]
fn text_that_is_not_utf_8_has_replacements() {
    assert_eq!(read(b"X\x02\x00\x00\x00a\xff.").unwrap(), json!("a\u{fffd}"));
}

/// As PyTorch writes: containers are filled first.
fn write_pickle(value: &Json, bytes: &mut Vec<u8>) {
    match value {
        Json::Null => bytes.push(b'N'),
        Json::Bool(value) => bytes.push(if *value { 0x88 } else { 0x89 }),
        Json::Number(number) => {
            bytes.extend([0x8a, 8]);
            bytes.extend(number.as_i64().unwrap().to_le_bytes());
        }
        Json::String(text) => write_text(text, bytes),
        Json::Array(items) => {
            bytes.extend(b"](");
            items.iter().for_each(|item| write_pickle(item, bytes));
            bytes.push(b'e');
        }
        Json::Object(pairs) => {
            bytes.extend(b"}(");
            for (key, value) in pairs {
                write_text(key, bytes);
                write_pickle(value, bytes);
            }
            bytes.push(b'u');
        }
    }
}

fn write_text(text: &str, bytes: &mut Vec<u8>) {
    bytes.push(b'X');
    bytes.extend(u32::try_from(text.len()).unwrap().to_le_bytes());
    bytes.extend(text.as_bytes());
}

fn data() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::Bool),
        any::<i64>().prop_map(|number| json!(number)),
        "[a-zü]{0,5}".prop_map(Json::String),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Json::Array),
            prop::collection::btree_map("[a-z]{0,4}", inner, 0..6)
                .prop_map(|pairs: BTreeMap<String, Json>| Json::Object(pairs.into_iter().collect())),
        ]
    })
}

/// Bytes that are mostly opcodes of data.
fn opcodes() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![
        4 => prop::sample::select(b"(N\x88\x89KMJGX}])tasequrhj.\x85\x86\x87\x8a\x00\x01\x02".to_vec()),
        1 => any::<u8>(),
    ];
    prop::collection::vec(byte, 0..200)
}

proptest! {
    #[test]
    fn written_data_is_read_back(value in data()) {
        let mut bytes = vec![0x80, 2];
        write_pickle(&value, &mut bytes);
        bytes.push(b'.');
        prop_assert_eq!(read(&bytes), Ok(value));
    }

    #[test]
    fn arbitrary_bytes_are_read_or_refused(bytes in prop_oneof![opcodes(), prop::collection::vec(any::<u8>(), 0..300)]) {
        let _ = read(&bytes);
    }
}
