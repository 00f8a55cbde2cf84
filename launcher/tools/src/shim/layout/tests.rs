use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::*;

fn environment(prefix: &OsStr) -> PythonEnvironment {
    let prefix = Path::new(prefix);
    PythonEnvironment {
        python: prefix.join("bin/python"),
        prefix: prefix.to_owned(),
        scripts: prefix.join("bin"),
        packages: prefix.join("lib"),
        torch: None,
    }
}

fn texts(prefix: &OsStr) -> Result<ShimTexts, ShimError> {
    let environment = environment(prefix);
    ShimTexts::of(&environment, &Layout::of(&environment))
}

#[test]
fn templates_have_no_unfilled_placeholder() {
    let texts = texts(OsStr::new("/env")).unwrap();
    for text in [&texts.torchrun, &texts.hook, &texts.guard] {
        let text = String::from_utf8_lossy(text);
        let placeholder =
            text.split('@').skip(1).find(|part| part.starts_with(|c: char| c.is_ascii_uppercase()));
        assert_eq!(placeholder, None, "{text}");
    }
    assert!(
        String::from_utf8_lossy(&texts.torchrun).contains("exec '/env/lib/_rankrun_shim/torchrun' \"$@\"")
    );
    assert!(String::from_utf8_lossy(&texts.hook).contains("TORCHRUN = b'/env/bin/torchrun'\n"));
}

#[test]
fn guard_is_single_import_line() {
    assert!(GUARD.starts_with("import ") && GUARD.ends_with('\n') && GUARD.is_ascii());
    assert_eq!(GUARD.lines().count(), 1);
}

#[test]
fn hook_and_guard_are_ascii_for_any_path() {
    let texts = texts(OsStr::from_bytes(b"/\xc3\xa9 @PYTHON@ \xff")).unwrap();
    assert!(texts.hook.is_ascii() && texts.guard.is_ascii());
    let hook = String::from_utf8(texts.hook).unwrap();
    assert!(hook.contains(r"PREFIX = b'/\xc3\xa9 @PYTHON@ \xff'"), "{hook}");
}

#[test]
fn path_with_quote_or_backslash_is_refused() {
    for prefix in ["/it's", "/back\\slash", "/new\nline"] {
        let error = texts(OsStr::new(prefix)).unwrap_err();
        assert!(matches!(error, ShimError::Unquotable { .. }), "{error}");
    }
}

#[test]
fn shim_original_and_foreign_scripts_are_distinguished() {
    let of_shim = texts(OsStr::new("/env")).unwrap().torchrun;
    assert!(is_shim(&of_shim) && !is_original(&of_shim));
    for (script, original) in [
        (&b"#!/env/bin/python\nfrom torch.distributed.run import main\n"[..], true),
        (b"#!/bin/sh\n'''exec' /env/bin/python \"$0\" \"$@\"\n' '''\nfrom torch.distributed.run import main\n", true),
        (b"#!/env/bin/python\nload_entry_point('torch', 'console_scripts', 'torchrun')()\n", true),
        (b"#!/bin/sh\nexec srun torchrun\n", false),
        (b"\x7fELF torch.distributed.run", false),
        (b"", false),
    ] {
        assert_eq!(is_original(script), original, "{}", String::from_utf8_lossy(script));
        assert!(!is_shim(script));
    }
}

#[test]
fn record_round_trips_every_byte() {
    let file = File { bytes: (0..=255).collect(), mode: 0o750 };
    let record = OriginalFiles { rankrun: "1".to_owned(), original: Some(OriginalScript::from(&file)) };
    let text = serde_json::to_string(&record).unwrap();
    let read: OriginalFiles = serde_json::from_str(&text).unwrap();
    assert_eq!(read.original.unwrap().file(), Some(file));
    let forged: OriginalScript = serde_json::from_str(r#"{"mode": 493, "script": "€"}"#).unwrap();
    assert_eq!(forged.file(), None);
}

#[test]
fn hook_of_other_environment_is_rejected() {
    let (here, there) = (texts(OsStr::new("/env")).unwrap(), texts(OsStr::new("/other")).unwrap());
    assert!(here.match_environment_of(&here.hook));
    assert!(!here.match_environment_of(&there.hook));
    assert!(!here.match_environment_of(b""));
}
