use super::*;
use proptest::prelude::*;

fn message_of(text: &str) -> String {
    parse(text.as_bytes()).expect("a report").message
}

#[test]
fn rendered_report_matches_torch() {
    let report = ErrorReport {
        message: "ValueError: é\u{1f600}\"".to_owned(),
        callstack: Some("line 1\nline 2\t".to_owned()),
        unix_seconds: Some(17),
        lost_rank: None,
    };
    let start = r#"{"message": {"message": "ValueError: \u00e9\ud83d\ude00\"", "#;
    let extra = r#""extraInfo": {"py_callstack": "line 1\nline 2\t", "timestamp": "17""#;
    assert_eq!(render(&report), format!("{start}{extra}}}}}}}"));
    let report = ErrorReport { lost_rank: Some(Rank(3)), ..report };
    assert_eq!(render(&report), format!(r#"{start}{extra}, "lost_rank": "3"}}}}}}"#));
}

#[test]
fn torch_record_report_is_parsed() {
    let text = r#"{"message": {"message": "ZeroDivisionError: division by zero", "extraInfo":
        {"py_callstack": "Traceback (most recent call last):\n", "timestamp": "1700000000"}}}"#;
    assert_eq!(
        parse(text.as_bytes()).unwrap(),
        ErrorReport {
            message: "ZeroDivisionError: division by zero".to_owned(),
            callstack: Some("Traceback (most recent call last):\n".to_owned()),
            unix_seconds: Some(1_700_000_000),
            lost_rank: None,
        }
    );
}

#[test]
fn plain_message_is_parsed() {
    let report = parse(br#"{"message": "lost", "timestamp": 5, "more": [1]}"#).unwrap();
    assert_eq!(
        report,
        ErrorReport { message: "lost".to_owned(), callstack: None, unix_seconds: Some(5), lost_rank: None }
    );
    assert_eq!(parse(br#"{"message": "lost"}"#).unwrap().unix_seconds, None);
}

#[test]
fn unknown_fields_are_passed_through() {
    let text = br#"{"message": {"message": "m", "extraInfo": {"timestamp": "5", "host": "a"}}, "role": "x"}"#;
    let file = ErrorFile::parse(text).unwrap();
    assert_eq!(file.form, MessageForm::Object);
    let handed_on: Value = serde_json::from_str(&file.with_exit_code(-9)).unwrap();
    let expected = serde_json::json!({
        "message": {"message": "m", "extraInfo": {"timestamp": "5", "host": "a"}, "errorCode": -9},
        "role": "x",
    });
    assert_eq!(handed_on, expected);
    assert!(!file.to_short_json(10).contains("errorCode"));
    let short: Value = serde_json::from_str(&file.to_short_json(1)).unwrap();
    assert_eq!(short, serde_json::from_slice::<Value>(text).unwrap());

    let file = ErrorFile::parse(br#"{"message": "m", "timestamp": 5}"#).unwrap();
    assert_eq!(file.form, MessageForm::Text);
    assert_eq!(file.with_exit_code(3), r#"{"message": "m", "timestamp": 5}"#, "a text has no place for it");
}

#[test]
fn call_stack_without_message_is_a_report() {
    let report =
        parse(br#"{"message": {"extraInfo": {"py_callstack": "stack", "timestamp": "5"}}}"#).unwrap();
    assert_eq!((report.message.as_str(), report.callstack.as_deref()), ("<N/A>", Some("stack")));
}

#[test]
fn invalid_timestamp_keeps_message() {
    for time in ["\"soon\"", "-1", "1.5", "null", "[]", "\"\""] {
        let text = format!(r#"{{"message": {{"message": "m", "extraInfo": {{"timestamp": {time}}}}}}}"#);
        assert_eq!(parse(text.as_bytes()).unwrap().unix_seconds, None, "{text}");
    }
}

#[test]
fn lost_rank_is_parsed_from_text_and_number() {
    for (rank, expected) in
        [("2", Some(Rank(2))), ("\"2\"", Some(Rank(2))), ("-1", None), ("4294967296", None), ("[]", None)]
    {
        let text = format!(r#"{{"message": {{"message": "m", "extraInfo": {{"lost_rank": {rank}}}}}}}"#);
        assert_eq!(parse(text.as_bytes()).unwrap().lost_rank, expected, "{text}");
    }
}

#[test]
fn lone_surrogate_is_replaced() {
    assert_eq!(message_of(r#"{"message": "a\udce9b"}"#), "a\u{fffd}b");
    assert_eq!(message_of(r#"{"message": "\ud83d"}"#), "\u{fffd}");
    assert_eq!(message_of(r#"{"message": "\ud83d\ud83d\ude00"}"#), "\u{fffd}\u{1f600}");
    assert_eq!(message_of(r#"{"message": "\\udce9 \u00e9\\"}"#), "\\udce9 é\\");
}

#[test]
fn invalid_file_is_error() {
    let deep = "[".repeat(100_000);
    for text in ["", "{", "\\", "\\u", &deep] {
        assert!(matches!(parse(text.as_bytes()), Err(ReportError::NotJson(_))), "`{text:.20}` was read");
    }
    let invalid = ["[1,2]", "1", "null", "{}", r#"{"a": 1}"#, r#"{"message": 1}"#, r#"{"message": {}}"#];
    for text in invalid {
        assert!(matches!(parse(text.as_bytes()), Err(ReportError::Malformed(_))), "`{text}` was read");
    }
    assert!(matches!(parse(b"\xff"), Err(ReportError::NotUnicode(_))));
    assert!(matches!(parse(&vec![b' '; MAX_REPORT_BYTES + 1]), Err(ReportError::TooLong { .. })));
}

proptest! {
    #[test]
    fn rendered_report_parses_unchanged(message in ".*", callstack: Option<String>, now: u64, lost: Option<u32>) {
        let lost_rank = lost.map(Rank);
        let report = ErrorReport { message, callstack, unix_seconds: Some(now), lost_rank };
        let text = render(&report);
        prop_assert!(text.is_ascii());
        prop_assert_eq!(parse(text.as_bytes()).unwrap(), report);
    }

    #[test]
    fn arbitrary_report_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        drop(parse(&bytes));
    }

    #[test]
    fn arbitrary_escapes_do_not_panic(text in r#"\{"message": "([\\ud8cé"0]){0,20}"\}"#) {
        drop(parse(text.as_bytes()));
    }
}
