use super::*;

fn script() -> Script {
    Script {
        comment: vec!["one".to_owned(), "two\nlines".to_owned()],
        folder: "/a b".into(),
        environment: vec![
            ("A".into(), ScriptValue::Exactly("it's\n$HOME".into())),
            ("BASH_FUNC_f%%".into(), ScriptValue::Exactly("() { :; }".into())),
            ("A".into(), ScriptValue::Exactly("later".into())),
            ("TERM".into(), ScriptValue::Exactly("launcher".into())),
            ("PORT".into(), ScriptValue::Demanded("a port")),
            ("MARK".into(), ScriptValue::Asked("none")),
        ],
        wrapper: vec!["/bin/rankrun".into(), "--x=1".into()],
        command: vec!["python".into(), "-u".into(), OsString::from_vec(b"\xff".to_vec())],
    }
}

#[test]
fn worker_script_matches_expected_text() {
    let expected = b"#!/bin/sh
# one
# two lines

if [ -z \"${PORT-}\" ]; then
    echo 'error: `PORT` is not set: a port' >&2
    exit 2
fi
cd '/a b' || exit 1
exec env -i \\
    'A=it'\\''s
$HOME' \\
    'BASH_FUNC_f%%=() { :; }' \\
    \"PORT=$PORT\" \\
    \"MARK=${MARK-none}\" \\
    ${TERM+\"TERM=$TERM\"} \\
    ${COLORTERM+\"COLORTERM=$COLORTERM\"} \\
    /bin/rankrun --x=1 \\
    \"$@\" \\
    python -u '\xff'
";
    let rendered = script().render();
    assert_eq!(String::from_utf8_lossy(&rendered), String::from_utf8_lossy(expected));
    assert_eq!(rendered, expected);
}

#[test]
fn program_path_with_equals_sign_is_not_a_variable() {
    let script = Script {
        comment: Vec::new(),
        folder: OsString::new(),
        environment: Vec::new(),
        wrapper: Vec::new(),
        command: vec!["/a=b/python".into(), "-u".into()],
    };
    let rendered = String::from_utf8(script.render()).unwrap();
    assert!(rendered.ends_with("\"$@\" \\\n    /bin/sh -c 'exec \"$@\"' sh /a=b/python -u\n"), "{rendered}");
    assert!(!rendered.contains("cd "), "{rendered}");
}
