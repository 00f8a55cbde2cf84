//! Malicious pickles, and valid but unusual ones.

use super::*;

/// A pickle that a test assembles from instructions.
#[derive(Clone)]
pub(super) struct PickleBuilder(Vec<u8>);

impl PickleBuilder {
    pub(super) fn new() -> Self {
        Self(b"\x80\x04".to_vec())
    }

    pub(super) fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn text(self, text: &str) -> Self {
        let length = u8::try_from(text.len()).unwrap();
        self.raw(&[0x8c, length]).raw(text.as_bytes())
    }

    fn global(self, module: &str, name: &str) -> Self {
        self.text(module).text(name).raw(b"\x93")
    }

    fn node(self, fields: &[(&str, &[u8])]) -> Self {
        fields
            .iter()
            .fold(self.global(MODULE, "_NodeDesc").raw(b")\x81}("), |pickle, (name, value)| {
                pickle.text(name).raw(value)
            })
            .raw(b"ub")
    }

    /// A state with empty fields, except for the given ones.
    fn state(self, given: &[(&str, &[u8])]) -> Self {
        let empty: [&[u8]; 8] = [b"K\0", b"\x89", b"N", b"\x89", b"}", b"\x8f", b"\x8f", b"}"];
        let empty = STATE_FIELDS.into_iter().zip(empty);
        let pickle = self.global(MODULE, "_RendezvousState").raw(b")\x81}(");
        let all = empty.filter(|(name, _)| given.iter().all(|(other, _)| other != name));
        all.chain(given.iter().copied())
            .fold(pickle, |pickle, (name, value)| pickle.text(name).raw(value))
            .raw(b"ub")
    }

    pub(super) fn read(self) -> Result<RendezvousState, StateParseError> {
        decode(STANDARD.encode(self.0).as_bytes())
    }
}

/// The raw bytes of a value.
fn bytes(pickle: PickleBuilder) -> Vec<u8> {
    pickle.0[2..].to_vec()
}

/// The three fields of a valid node.
const GOOD: [(&str, &[u8]); 3] = [("addr", b"\x8c\x01a"), ("pid", b"K\x01"), ("local_id", b"K\0")];

#[test]
fn fields_in_any_order_are_decoded() {
    let node = bytes(PickleBuilder::new().node(&[GOOD[2], GOOD[0], GOOD[1]]));
    let participants = [b"}", &node[..], b"K\x05s"].concat();
    let read =
        PickleBuilder::new().state(&[("participants", &participants), ("round", b"K\x07")]).raw(b".").read();
    let participants = [(self::node("a", 1, 0), 5)].into_iter().collect();
    assert_eq!(read, Ok(RendezvousState { round: 7, participants, ..RendezvousState::default() }));
}

#[test]
fn foreign_global_is_named_and_never_called() {
    // `pickle.dumps` of an object with the `__reduce__` value `(os.system, ("touch /tmp/x",))`, in three protocols.
    let reduce = |pickle: PickleBuilder| pickle.text("touch /tmp/x").raw(b"\x85R.").read();
    for (module, name) in [("posix", "system"), ("builtins", "eval"), ("torch", "load"), (MODULE, "pickle")] {
        let refused = StateParseError::Global {
            name: format!("{module}.{name}"),
            offset: 2 + 4 + module.len() + name.len(),
        };
        assert_eq!(reduce(PickleBuilder::new().global(module, name)), Err(refused));
    }
    let old = reduce(PickleBuilder::new().raw(b"cposix\nsystem\n"));
    assert_eq!(old, Err(StateParseError::Opcode { opcode: b'c', offset: 2 }));
    // Opcodes that call, build or fetch in other ways: INST, OBJ, NEWOBJ_EX, EXT1, PERSID, BINPERSID, DUP, POP.
    for opcode in *b"io\x92\x82PQ20" {
        let read = PickleBuilder::new().raw(&[opcode, b'.']).read();
        assert_eq!(read, Err(StateParseError::Opcode { opcode, offset: 2 }), "{opcode:#x}");
    }
}

#[test]
fn known_classes_with_unexpected_arguments_are_refused() {
    let misplaced = |result| matches!(result, Err(StateParseError::Misplaced { .. }));
    for (name, arguments) in [
        ("timedelta", &b"K\0K\0K\x01\x87R."[..]),
        ("timedelta", b"K\0K\0\x86R."),
        ("timezone", b"K\0\x85R."),
        ("timezone", b")R."),
        ("datetime", b"C\x0a\x07\xea\x01\x02\x03\x04\x05\0\0\x06\x85R."),
        ("datetime", b"K\x01K\x01K\x01\x87R."),
        ("datetime", b")\x81."),
        ("datetime", b"K\x01R."),
    ] {
        assert!(
            misplaced(PickleBuilder::new().global("datetime", name).raw(arguments).read()),
            "{name} {arguments:?}"
        );
    }
    for name in ["_RendezvousState", "_NodeDesc"] {
        for arguments in [&b")R."[..], b"K\x01\x85\x81.", b")\x81K\x01b.", b")\x81}}\x86b.", b")\x81}s."] {
            assert!(
                misplaced(PickleBuilder::new().global(MODULE, name).raw(arguments).read()),
                "{name} {arguments:?}"
            );
        }
    }
    assert!(misplaced(PickleBuilder::new().state(&[]).raw(b"}b.").read()), "built twice");
    assert!(misplaced(PickleBuilder::new().raw(b"K\x01.").read()), "a number");
    assert!(misplaced(PickleBuilder::new().node(&GOOD).raw(b".").read()), "a node");
    assert!(misplaced(PickleBuilder::new().state(&[]).state(&[]).raw(b".").read()), "two");
    assert!(
        misplaced(PickleBuilder::new().global(MODULE, "_RendezvousState").raw(b")\x81.").read()),
        "no fields"
    );
}

#[test]
fn unknown_missing_or_wrong_field_is_named() {
    let unknown = StateParseError::UnknownField { name: "secret".to_owned() };
    assert_eq!(PickleBuilder::new().state(&[("secret", b"N")]).raw(b".").read(), Err(unknown.clone()));
    let node = PickleBuilder::new().node(&[GOOD[0], GOOD[1], GOOD[2], ("secret", b"N")]);
    assert_eq!(node.raw(b".").read(), Err(unknown));
    assert_eq!(
        PickleBuilder::new().node(&GOOD[..2]).raw(b".").read(),
        Err(StateParseError::MissingField { name: "local_id" })
    );
    let empty = PickleBuilder::new().global(MODULE, "_RendezvousState").raw(b")\x81}b.").read();
    assert_eq!(empty, Err(StateParseError::MissingField { name: "round" }));
    for (name, values) in [
        ("round", [&b"N"[..], b"\x88", b"\x8c\x010"]),
        ("round", [b"J\xff\xff\xff\xff", b"\x8a\x01\xff", b"}"]),
        ("complete", [b"K\0", b"K\x01", b"N"]),
        ("closed", [b"K\0", b"K\x01", b"N"]),
        ("deadline", [b"K\0", b"\x89", b"\x8c\x010"]),
        ("participants", [b"N", b"\x8f", b")"]),
        ("wait_list", [b"}", b"N", b")"]),
        ("redundancy_list", [b"}", b"N", b")"]),
        ("last_heartbeats", [b"N", b"\x8f", b"}\x8c\x010Ns"]),
    ] {
        for value in values {
            let read = PickleBuilder::new().state(&[(name, value)]).raw(b".").read();
            assert_eq!(read, Err(StateParseError::WrongField { name }), "{value:?}");
        }
    }
    for (name, value) in [("addr", &b"N"[..]), ("addr", b"K\x01"), ("pid", b"N"), ("local_id", b"\x88")] {
        let fields = GOOD.map(|good| if good.0 == name { (name, value) } else { good });
        assert_eq!(
            PickleBuilder::new().node(&fields).raw(b".").read(),
            Err(StateParseError::WrongField { name })
        );
    }
}

#[test]
fn unhashable_keys_are_refused() {
    let unbuilt = bytes(PickleBuilder::new().global(MODULE, "_NodeDesc").raw(b")\x81"));
    for key in [&b"}"[..], b"\x8f", b"N", b"K\x01", &unbuilt] {
        let refused = |read| matches!(read, Err(StateParseError::Misplaced { .. }));
        let dict = [b"}", key, b"K\x05s"].concat();
        assert!(refused(PickleBuilder::new().state(&[("participants", &dict)]).raw(b".").read()), "{key:?}");
        let set = [b"\x8f(", key, b"\x90"].concat();
        assert!(refused(PickleBuilder::new().state(&[("wait_list", &set)]).raw(b".").read()), "{key:?}");
    }
}

#[test]
fn invalid_calendar_times_are_refused() {
    let time = |bytes: &[u8]| {
        let utc = PickleBuilder::new()
            .global("datetime", "datetime")
            .raw(b"C")
            .raw(&[bytes.len().to_le_bytes()[0]]);
        let utc = utc.raw(bytes).global("datetime", "timezone").global("datetime", "timedelta");
        let time = self::bytes(utc.raw(b"K\0K\0K\0\x87R\x85R\x86R"));
        PickleBuilder::new().state(&[("deadline", &time)]).raw(b".").read()
    };
    assert!(time(&[7, 234, 2, 28, 23, 59, 59, 15, 66, 63]).is_ok(), "the last microsecond of a February");
    for bytes in [
        &[7, 234, 2, 29, 0, 0, 0, 0, 0, 0][..],
        &[7, 234, 0, 1, 0, 0, 0, 0, 0, 0],
        &[7, 234, 13, 1, 0, 0, 0, 0, 0, 0],
        &[7, 234, 0x80 | 1, 1, 0, 0, 0, 0, 0, 0],
        &[7, 234, 1, 0, 0, 0, 0, 0, 0, 0],
        &[7, 234, 4, 31, 0, 0, 0, 0, 0, 0],
        &[7, 234, 1, 1, 24, 0, 0, 0, 0, 0],
        &[7, 234, 1, 1, 0, 60, 0, 0, 0, 0],
        &[7, 234, 1, 1, 0, 0, 60, 0, 0, 0],
        &[7, 234, 1, 1, 0, 0, 0, 15, 66, 64],
        &[0, 0, 1, 1, 0, 0, 0, 0, 0, 0],
        &[39, 16, 1, 1, 0, 0, 0, 0, 0, 0],
        &[7, 234, 1, 1, 0, 0, 0, 0, 0],
        &[7, 234, 1, 1, 0, 0, 0, 0, 0, 0, 0],
    ] {
        assert!(matches!(time(bytes), Err(StateParseError::Time { .. })), "{bytes:?}");
    }
}

#[test]
fn invalid_truncated_or_trailing_pickle_is_refused() {
    assert_eq!(decode(b"Y2FuaW1hZGFt"), Err(StateParseError::NotAPickle), "torch's word for no state");
    assert_eq!(decode(b""), Err(StateParseError::NotAPickle));
    assert_eq!(decode(b"no base64"), Err(StateParseError::NotBase64));
    assert_eq!(decode(b"gAQ\n"), Err(StateParseError::NotBase64));
    for version in [0, 1, 6, 255] {
        assert_eq!(PickleBuilder(vec![0x80, version, b'.']).read(), Err(StateParseError::NotAPickle));
    }
    let length = MAX_TEXT + 1;
    assert_eq!(decode(&vec![b'A'; length]), Err(StateParseError::TooLarge { length }));
    let whole = STANDARD.decode(fixture("waiting_and_spare")).unwrap();
    for length in 0..whole.len() {
        let cut = decode(STANDARD.encode(&whole[..length]).as_bytes());
        assert!(
            matches!(
                cut,
                Err(StateParseError::Truncated { .. }
                    | StateParseError::NotAPickle
                    | StateParseError::Misplaced { .. })
            ),
            "{length}: {cut:?}"
        );
    }
    let trailing = PickleBuilder::new().state(&[]).raw(b".N");
    let offset = trailing.0.len() - 1;
    assert_eq!(trailing.read(), Err(StateParseError::Trailing { offset }));
    // A valid state, but its frame ends after the last byte.
    let framed = PickleBuilder::new().raw(b"\x95\0\0\0\x10\0\0\0\0").state(&[]).raw(b".");
    assert!(matches!(framed.read(), Err(StateParseError::Truncated { .. })));
}

#[test]
fn pickle_bombs_are_refused_within_limits() {
    let too_many = |pickle: PickleBuilder| matches!(pickle.read(), Err(StateParseError::TooMany { .. }));
    let million = |bytes: &[u8]| PickleBuilder::new().raw(&bytes.repeat(1_000_000));
    assert!(too_many(million(b"(")), "marks");
    assert!(too_many(million(b"N")), "values");
    assert!(too_many(million(b"}N\x85")), "objects");
    assert!(too_many(PickleBuilder::new().raw(b"N").raw(&b"\x94".repeat(2_000_000))), "remembered values");
    // A set with one node, added very many times.
    let node = bytes(PickleBuilder::new().node(&GOOD).raw(b"\x94"));
    let set = [&node[..], b"\x8f(", &b"h\0".repeat(5000), b"\x90."].concat();
    assert!(too_many(PickleBuilder::new().raw(&set)), "elements");
    // A long address, which a naive decoder copies for each of very many nodes.
    let long = [b"X\0\0\x01\0", &b"a".repeat(65_536)[..]].concat();
    let fields = [("addr", &long[..]), GOOD[1], GOOD[2]];
    assert_eq!(
        PickleBuilder::new().node(&fields).raw(b".").read(),
        Err(StateParseError::WrongField { name: "addr" })
    );
    // A dict that contains itself, and a length of 4 GiB.
    let own = PickleBuilder::new().state(&[("participants", b"}\x94\x8c\x01ah\0s")]).raw(b".").read();
    assert_eq!(own, Err(StateParseError::WrongField { name: "participants" }));
    assert!(matches!(
        PickleBuilder::new().raw(b"X\xff\xff\xff\xffa").read(),
        Err(StateParseError::Truncated { .. })
    ));
}

#[test]
fn foreign_name_is_shown_short_and_escaped() {
    let name = format!("\x1b[2J{}", "x".repeat(200));
    let error = PickleBuilder::new().global("os", &name).raw(b".").read().unwrap_err();
    let text = error.to_string();
    assert!(text.contains(r"os.\u{1b}[2Jxxx") && text.len() < 200, "{text}");
}
